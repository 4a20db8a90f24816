"""What is written down of a run: rows, run files, and what they refuse."""
