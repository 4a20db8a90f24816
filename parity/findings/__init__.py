"""What differences mean: their kinds and causes, and which of them are known."""
