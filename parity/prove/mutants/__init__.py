"""Generic mutants of the kernels of a simulated device: what share of them do the suite's ordinary cases report?

They know no reported bug. A class of mutants is one function in `reading`, `contents`, `calls` or `functions`.
"""
