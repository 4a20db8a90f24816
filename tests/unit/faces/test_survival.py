"""What the controller of a run does for workers that come late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from xdist.scheduler import LoadScheduling, WorkStealingScheduling  # type: ignore[import-untyped]

from parity.faces.survival import Survival


@pytest.mark.parametrize("scheduling", [LoadScheduling, WorkStealingScheduling])
def test_a_worker_that_was_sent_home_as_it_came_may_still_report_its_tests(scheduling: Any, tmp_path: Any) -> None:
    options = SimpleNamespace(parity_rundir=str(tmp_path))
    config: Any = SimpleNamespace(option=options, getvalue=lambda name: ["popen"], getoption=lambda name: None, hook=None)
    sched = scheduling(config, None)
    config.pluginmanager = SimpleNamespace(getplugin=lambda name: SimpleNamespace(sched=sched))
    late: Any = Mock(shutting_down=True)

    for _ in range(2):  # once is how xdist calls it; a worker that it knows stays what it is
        Survival(config).pytest_xdist_node_collection_finished(late)
    sched.add_node_collection(late, ["test_a"])

    assert sched.nodes == [late]
