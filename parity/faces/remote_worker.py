"""Sent to every worker of a run over several machines in the place of xdist's own module, which it runs.

xdist gives workers of `popen` gateways the controller's `sys.path`, even where `python=` names another environment: such a
worker would compute with the controller's torch under the other one's name. Here they keep their own. This module runs where
nothing of parity is imported yet.
"""

from __future__ import annotations

from typing import Any


def _begin(channel: Any) -> None:
    import inspect
    import sys

    import xdist.remote  # type: ignore[import-untyped]  # xdist ships no types

    class Own:
        """The channel, but for the path in the first message."""

        def __init__(self) -> None:
            self._first = True

        def receive(self, *args: Any, **keywords: Any) -> Any:
            got = channel.receive(*args, **keywords)
            if not self._first:
                return got
            self._first = False
            workerinput, arguments, options, _ = got
            return workerinput, arguments, options, list(sys.path)

        def __getattr__(self, name: str) -> Any:
            return getattr(channel, name)

    source = inspect.getsource(xdist.remote)
    exec(compile(source, xdist.remote.__file__, "exec"), {"__name__": "__channelexec__", "channel": Own()})


if __name__ == "__channelexec__":
    _begin(channel)  # type: ignore[name-defined]  # noqa: F821 -- execnet puts it there
