"""Formats of the run file: `FORMAT` counts incompatible changes, and `UPGRADES` converts the rows of older files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from parity.core.errors import RunFileError
from parity.core.results import Json

# 2: rows of coverage, operators and case ids of items; 3: the setup of a run; 4: a digest of its faults, and what is lost;
# 5: rows of coverage hold only counts, not what was expected; 6: figures of each case, times, findings tried again,
# shards, options, machines, parts of items, rounds.
FORMAT = 6
MAGIC = "parity_run"  # the key of the header by which a run file is recognized


def _same(tree: Json) -> Json:
    """A format that only added rows and fields."""
    return tree


def _as_code(tree: Json) -> Json:
    """Format 4: faults and setup of a header have a name and a digest each."""
    if MAGIC in tree:
        name, _, digest = str(tree.get("setup", "")).rpartition(" ")
        setup = {"name": name or digest, "digest": digest if name else ""}
        codes = {"setup": setup, "faults": {"name": tree.get("faults", "")}}
        tree |= {key: code for key, code in codes.items() if key in tree}
    return tree


def _counted(tree: Json) -> Json:
    """Format 5: missing pairs of features are no longer stored."""
    if tree.get("kind") == "coverage":
        tree.pop("missing", None)
    return tree


# From format n to n + 1, applied to every row (the header too) of an older file.
UPGRADES: dict[int, Callable[[Json], Json]] = {1: _same, 2: _same, 3: _as_code, 4: _counted, 5: _same}


def upgraded(path: Path, tree: Json, form: int) -> Json:
    """A row of an older format, converted to the current one. Raises RunFileError if the format is too old. path: the file, for
    the message."""
    for step in range(form, FORMAT):
        if step not in UPGRADES:
            raise RunFileError(
                f"the run file {path} has format {form}, too old for this parity (it reads {FORMAT}); run it again"
            )
        tree = UPGRADES[step](tree)
    return tree
