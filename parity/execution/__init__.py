"""Builds the tensors of a case and runs its call on one device. Nothing here compares results."""
