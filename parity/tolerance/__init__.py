"""Tolerances: `reading` loads `tolerances/*.toml`, `rows` chooses the row that applies."""

from parity.tolerance.reading import add, load
from parity.tolerance.rows import Tables

__all__ = ["Tables", "add", "load"]
