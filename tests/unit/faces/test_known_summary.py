"""What became of known findings is said wherever the suite's file lies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parity.engine.options import OPTIONS
from parity.faces.closing import KnownFindings


@pytest.mark.parametrize("of_suite", [True, False])
def test_a_copy_of_the_suite_has_its_summary(tmp_path: Path, of_suite: bool) -> None:
    """An item of the suite is enough; people's tests that never use the fixture have nothing to say of it."""
    given = {f"parity_{o.name}": o.default for o in OPTIONS} | {"parity_known": str(tmp_path / "known.toml")}
    plugin = KnownFindings(cast(Any, SimpleNamespace(option=SimpleNamespace(**given))), suite=False)
    properties = [("parity", '{"rows": []}')] if of_suite else []
    plugin.pytest_runtest_logreport(cast(Any, SimpleNamespace(when="call", user_properties=properties)))
    (tmp_path / "known.toml").write_text("format = 1\n")
    said: list[str] = []
    plugin.pytest_terminal_summary(SimpleNamespace(section=said.append, write_line=said.append))
    assert said[:1] == (["known findings"] if of_suite else [])
