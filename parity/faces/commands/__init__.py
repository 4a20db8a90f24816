"""The commands of `parity`: a module for each command, with its texts, its options and what it does."""
