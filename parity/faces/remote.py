"""A run over several machines (`parity run -n ssh=...`), in the controller: how its workers start, and end without one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from parity.core import project
from parity.core.errors import UsageError
from parity.engine.options import MIXED, RunOptions
from parity.faces import remote_worker
from parity.faces.files import located

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]  # xdist ships no types


class SeveralMachines:
    """A plugin of the controller. A machine that is gone for good costs its workers and not the run."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_getremotemodule(self) -> ModuleType:
        """Workers keep the `sys.path` of their own Python."""
        return remote_worker

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Let a worker know whether its disk is another one, and if so, what the file of known findings holds, and which file
        names rows or tables, which must be there too."""
        node.workerinput["parity_remote"] = is_remote(node)
        asked = project.found()
        if is_remote(node) and (asked.rows or asked.tolerances):
            node.workerinput["parity_project"] = str(asked.path)
        if is_remote(node) and node.config.option.parity_known:
            node.workerinput["parity_known"] = Path(node.config.option.parity_known).read_text(encoding="utf-8")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Guard the replacement of workers, for which xdist has no hook."""
        runner: Any = session.config.pluginmanager.getplugin("dsession")
        clone = runner._clone_node

        def cloned(node: Any) -> Any:
            try:
                return clone(node)
            except Exception as e:  # whatever a gateway raises; the other workers go on
                why = str(e).strip().splitlines()[-1:] or [type(e).__name__]
                print(f"machine {node.gateway.spec} is gone ({why[0]}); the run goes on without its worker", file=sys.stderr)
                return None

        runner._clone_node = cloned


def is_remote(node: Any) -> bool:
    """Whether a worker is on another machine than the controller, as far as its gateway shows."""
    return not node.gateway.spec.popen


def computers_of(o: RunOptions) -> list[Any]:
    """The machines of -n, examined; none without it."""
    if not o.tx:
        if o.mixed:
            raise UsageError(f"--accept {MIXED} is for runs over several machines: name them with -n")
        return []
    if o.workers:
        raise UsageError(
            f"-n {o.workers} starts workers here, -n {o.tx[0]} where it says; give each a place ('{o.workers}*popen' is here)"
        )
    from parity.engine import machines

    faults = located(o.faults) if o.faults else None
    setup = str(Path(o.setup).absolute()) if o.setup else None
    return machines.examine(machines.read_specs(o.tx), o.device, faults, setup)
