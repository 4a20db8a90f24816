"""The memory of workers in one line."""

from __future__ import annotations

from parity.faces.progress import Growth
from parity.store.rows import ItemRow

MB = 1 << 20


def test_the_most_the_item_and_the_replaced_workers_are_told() -> None:
    growth = Growth()
    growth.add({}, ())
    assert growth.in_words() == ""
    growth.add({"before": 300 * MB, "after": 310 * MB, "full": False}, [ItemRow("add", "float32")])
    assert growth.in_words() == "a worker occupied 0.3 GB at most"
    growth.add({"before": 310 * MB, "after": 1024 * MB, "full": True}, [ItemRow("conv3d", "float32")])
    assert growth.in_words() == (
        "a worker occupied 1.0 GB at most, conv3d float32 added 0.7 GB, 1 worker passed the share and gave way to another"
    )
