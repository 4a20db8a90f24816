"""Runs: the items of a run, how one is examined, what is stored, and how two runs compare. Nothing here prints."""
