"""`python -m parity`, and the command."""

import os
import sys

try:
    from parity.core import processes

    processes.leave_the_current_folder()  # before anything else is imported

    from parity.faces.commandline import INTERRUPTED, main
except KeyboardInterrupt:
    print("parity: interrupted", file=sys.stderr, flush=True)
    os._exit(130)


def run() -> None:
    """End the process with the command's exit code."""
    code = main()
    if code == INTERRUPTED:
        # `python -m` ends itself by SIGINT, whatever the exit code, where a KeyboardInterrupt has passed through source text
        # that was being executed (that of a dataclass, of a named tuple), even if somebody has caught it since.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
