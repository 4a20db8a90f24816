"""One case, checked in all its aspects."""
