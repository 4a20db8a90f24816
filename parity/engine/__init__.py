"""The engine of a run: its items and their cases, and what happens when a process dies. Nothing here prints."""
