"""Bugs that were reported in public, one file per family: the fault, the case that shows it, and a neighbour that does not."""
