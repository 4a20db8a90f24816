"""Workers that end while they start, in the controller of an xdist run. xdist takes that for an error of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

STARTS = 3  # times that a worker of this machine is started, before the run ends with its error


class Starting:
    """A plugin that starts a worker again that was gone before xdist knew it, as one that somebody kills in its first
    second."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        """Take the place of the function that starts a worker, before it starts the first one."""
        manager: Any = self.config.pluginmanager.getplugin("dsession").nodemanager
        manager.setup_node = persistent(manager.setup_node, manager.group)


def persistent(start: Callable[..., Any], group: Any) -> Callable[..., Any]:
    """The function that starts a worker, made to try again. start: takes execnet's spec first; group: the gateways that there
    are. A worker elsewhere is started once: what ended it may be the way there."""

    def started(spec: Any, *more: Any) -> Any:
        for left in reversed(range(STARTS if spec.popen else 1)):
            try:
                return start(spec, *more)
            except (EOFError, OSError):
                if not left:
                    raise
                for gateway in [g for g in group if g.id == spec.id]:
                    gateway.exit()  # it is half there, and holds the id
        return None

    return started
