"""`parity prove`: what proves the suite itself, which is loaded for nobody else."""

from __future__ import annotations

import argparse
import importlib

HELP = "what proves the suite itself"
ABOUT = (
    "What proves the suite itself, rather than a device: which known bugs it finds, what a run draws, compares and "
    "dispatches, and how many errors the judge would see."
)
PROVING = "parity.prove.command"


def add(to: argparse.ArgumentParser) -> None:
    """Add the actions."""
    importlib.import_module(PROVING).add(to)


def run(o: argparse.Namespace) -> int:
    """Carry out one of them; the exit code."""
    code: int = importlib.import_module(PROVING).run(o)
    return code
