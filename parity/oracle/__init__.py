"""The truth: the call in float64, and how far rounding alone may move it. Nothing here sees the results of a device."""
