"""The changes between two runs: statuses, errors, times, and the environments that they ran in."""
