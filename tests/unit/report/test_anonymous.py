"""What is sent to somebody else names nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity.report import anonymous

PLANTED = {
    "HOME": "/Users/jane.doe",
    "USER": "jane.doe",
    "LOGNAME": "Jane.Doe",
    "HOSTNAME": "janes-macbook.local",
    "API_TOKEN": "tok-83nf93kd02",
    "PROJECT": "/Volumes/Secret Work/klondike",
    "PYTORCH_MPS_FAST_MATH": "1",
    "SHELL": "/bin/zsh",
}


def hidden(text: str, variables: dict[str, str] | None = None, vocabulary: tuple[str, ...] = ()) -> str:
    return anonymous.of_this_machine(vocabulary, variables or PLANTED).text(text)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("File '/Users/jane.doe/parity/x.py', line 3", "File '~/parity/x.py', line 3"),
        ("by jane.doe on janes-macbook.local", "by USER on HOST"),
        ("on Janes-MacBook, as JANE.DOE:", "on HOST, as USER:"),
        ("token tok-83nf93kd02!", "token $API_TOKEN!"),
        ("in /Volumes/Secret Work/klondike/run", "in $PROJECT/run"),
        ("another's /Users/bob/x and /home/carol/y", "another's ~/x and ~/y"),
        ("/Users/Shared/x stays, and /bin/zsh, and 1", "/Users/Shared/x stays, and /bin/zsh, and 1"),
        ("softmax(float16[1, 3], dim=-1)", "softmax(float16[1, 3], dim=-1)"),
    ],
)
def test_names_and_places_are_replaced(text: str, safe: str) -> None:
    assert hidden(text) == safe


def test_in_json_too() -> None:
    """A name with an umlaut, and a path with a quote, in the form in which JSON writes them."""
    variables = {"HOME": '/Users/jürgen "j"', "USER": "jürgen"}
    raw = json.dumps({"path": '/Users/jürgen "j"/x', "by": "jürgen"})
    assert json.loads(hidden(raw, variables)) == {"path": "~/x", "by": "USER"}


def test_a_word_of_the_suite_stays() -> None:
    """A user called max is not to be told from the operator; his home folder is."""
    variables = {"HOME": "/Users/max", "USER": "max", "HOSTNAME": "add"}
    text = "max(float32[3]) and add(float32[2]) in /Users/max/x"
    assert hidden(text, variables, ("max", "add")) == "max(float32[3]) and add(float32[2]) in ~/x"
    assert hidden("argmax by max", variables) == "argmax by USER"


def test_this_process_has_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without being told the variables: those of the process, its folder and its home."""
    monkeypatch.setenv("HOME", str(tmp_path / "janes-home"))
    monkeypatch.chdir(tmp_path)
    assert anonymous.of_this_machine(()).text(f"{tmp_path / 'janes-home'}/x, {tmp_path}/y") == "~/x, HERE/y"
