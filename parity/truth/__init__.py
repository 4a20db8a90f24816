"""What the answer is: the call in float64, and how far rounding alone may move it."""
