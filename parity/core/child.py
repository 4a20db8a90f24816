"""Run a module of parity in a process that ends when its parent does: `python -m parity.core.child PARENT MODULE ARGUMENTS`.

PARENT is the number of the process that starts it. Nothing heavy is imported before the watch begins, because the parent may
be gone before this process has started.
"""

from __future__ import annotations

import runpy
import sys

from parity.core import parent, processes


def main() -> None:
    """Watch the parent, then run the module as `python -m` would."""
    number, module, *arguments = sys.argv[1:]
    parent.end_with(int(number))
    processes.end_forks()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
