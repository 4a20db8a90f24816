"""The meaning of differences: their kinds and causes, and which of them are known."""
