"""One case, checked in all its aspects: forward, derivatives, destinations, repeats, transfers, refusals.

Verdicts come from `parity.judging`.
"""
