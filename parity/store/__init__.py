"""The stored form of a run: rows, run files, and what they refuse."""
