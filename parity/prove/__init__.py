"""The proof of the suite itself: the score of planted bugs, and what a run draws, compares, dispatches and would see. Only
`parity prove` loads it."""
