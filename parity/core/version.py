"""The version of parity, in its one place."""

from __future__ import annotations

import subprocess
from pathlib import Path

__version__ = "0.1.0"
PACKAGE = Path(__file__).parents[1]


def described() -> str:
    """The version with its commit, as a package was built from it or as the checkout has it; without one where nobody knows."""
    kept = PACKAGE / "_data" / "commit"
    commit = kept.read_text(encoding="ascii") if kept.is_file() else ""
    if not commit and (PACKAGE.parent / ".git").exists():
        asked = ["git", "-C", str(PACKAGE.parent), "rev-parse", "HEAD"]
        try:
            commit = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
        except (OSError, subprocess.SubprocessError):  # no git here, or it trusts no folder of another person
            commit = ""
    return f"{__version__} (commit {commit[:10]})" if commit else __version__
