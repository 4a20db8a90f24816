"""The first step of a training, or of a generation, that rounding does not explain."""
