"""Commands of parity in the process of the tests, which has imported torch: a process of its own takes half a second for a
command that only reads, and two for one that computes."""

from __future__ import annotations

import pytest

from parity.faces import commandline


def said(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code of a command, and what it and its processes wrote to the standard output and the standard error."""
    capfd.readouterr()
    try:
        code = commandline.main(argv)
    except SystemExit as e:  # argparse's
        code = int(e.code or 0)
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def told(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Exit code of a command, and everything that it and its processes said."""
    code, *texts = said(capfd, *argv)
    return code, "".join(texts)
