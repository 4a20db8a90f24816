"""The numbers that judge: `tolerances/*.toml`, read (`reading`), and the row that wins (`rows`)."""

from parity.tolerance.reading import load
from parity.tolerance.rows import Tables

__all__ = ["Tables", "load"]
