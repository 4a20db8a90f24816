"""Matches a death with the known findings of its run."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from parity.core import untrusted
from parity.core.results import Json
from parity.engine import suite
from parity.engine.journal import REPLAYING, SHRINKING
from parity.engine.options import RunOptions
from parity.findings import known
from parity.findings.recognition import known_death
from parity.store.rows import CPU, OUTSIDE, Death
from parity.store.run_file import encode


def about(row: Json, o: RunOptions) -> Json:
    """Whether a death is known: the entry's id, whether it fails all the same, and the row to store. row: as a worker or the
    controller reports a death."""
    nothing = {"known": "", "fails": False, "sighting": ""}
    if not o.known or row["blame"] in (CPU, OUTSIDE):
        return nothing
    op, _, dtype = row["item"].rpartition("-")
    death = Death(op, dtype, row["case"], "", row["how"], untrusted.printable(row["signal"]), row["stage"])
    ordinal = row["ordinal"]
    pinned = ordinal < suite.profile(o.profile).pinned or REPLAYING <= ordinal < SHRINKING
    seen = known_death(known.read(Path(o.known)).entries, death, pinned, date.today(), o.strict_known)
    return nothing if seen is None else {"known": seen.id, "fails": seen.fails, "sighting": encode(seen)}
