"""What is sent to somebody else names nobody, and what somebody else sends is read as data."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from parity.core import untrusted
from parity.core.results import Fingerprint, Record
from parity.devices.costs import Costs, Spread
from parity.faces import commandline
from parity.report import archive
from parity.store import run_file
from parity.store.rows import End, Header, ItemRow

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
    return archive.of_this_machine(vocabulary, variables or PLANTED).text(text)


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
    """A user called max cannot be distinguished from the operator; his home folder is."""
    variables = {"HOME": "/Users/max", "USER": "max", "HOSTNAME": "add"}
    text = "max(float32[3]) and add(float32[2]) in /Users/max/x"
    assert hidden(text, variables, ("max", "add")) == "max(float32[3]) and add(float32[2]) in ~/x"
    assert hidden("argmax by max", variables) == "argmax by USER"


def test_this_process_has_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without being given the variables: those of the process, its folder and its home."""
    monkeypatch.setenv("HOME", str(tmp_path / "janes-home"))
    monkeypatch.chdir(tmp_path)
    assert archive.of_this_machine(()).text(f"{tmp_path / 'janes-home'}/x, {tmp_path}/y") == "~/x, HERE/y"


# ------------------------------------------------------------------------------------------------------ what one holds

FINGERPRINT = Fingerprint("0.1", "2.13.0", "abc", "3.11", "macOS 15.1", "arm64", "mps", "Apple M4")
WRONG = Record("exp(float32[2])", "exp", "float32", "forward", "wrong", pinned=True, reason="far off", shrunk="exp(float32[1])")
EXAMINED = {
    "device": "mps", "verdict": "suspect", "reasons": ["exp of 1 is 3"], "dtypes": ["float32"], "facts": [], "machine": [],
    "fingerprint": asdict(FINGERPRINT),
}  # fmt: skip
STEP = {"name": "run", "code": 1, "seconds": 2.0, "said": "1 cause", "late": False}
ABOUT = {"parity": "0.1", "python": "3.11", "device": "mps", "minutes": 10, "interrupted": False, "steps": [STEP]}


def run_text(folder: Path) -> str:
    """A run with one finding, as its file."""
    item = ItemRow("exp", "float32", 3, {"forward": {"agree": 2, "wrong": 1}})
    with run_file.Writer(folder / "made.jsonl") as writer:
        for row in (Header(FINGERPRINT, "0", "quick"), WRONG, item, End(totals={"agree": 2, "wrong": 1})):
            writer.write(row)
    return (folder / "made.jsonl").read_text()


def zipped(folder: Path, **files: str | bytes) -> Path:
    """An archive with these files: the name of each has its last underscore for the point."""
    path = folder / "some.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in files.items():
            made.writestr(".".join(name.rsplit("_", 1)), text)
    return path


def test_an_archive_tells_device_verdict_counts_and_causes(tmp_path: Path) -> None:
    reported = '{"begins":"pt-1"}\n{"id":"pt-1","state":"differs","how":"result 0: 2"}\n{"id":"pt-2","state":"same"}\n{"id":"pt'
    files = {"doctor_json": json.dumps(EXAMINED), "reported_jsonl": reported, "run_jsonl": run_text(tmp_path)}
    costs = Costs("mps", "Apple M4", "macOS 15", "2.13.0", False, 10, 1 << 34, *[Spread(0.001, 0.0242, 0.1, 120)] * 6)
    files["costs_json"] = json.dumps(asdict(costs))
    audit = json.dumps({"reached": 1, "operators": {"exp": {}, "log": {}}, "torch": "2.13.0"})
    text = archive.render(zipped(tmp_path, first_json=json.dumps(ABOUT), audit_json=audit, **files))
    for line in (
        "parity 0.1, Python 3.11: 10 minutes on mps, None",
        "  run: exit code 1; 1 cause",
        "device   mps (Apple M4)",
        "         exp of 1 is 3",
        "costs on mps (Apple M4), macOS 15, torch 2.13.0: low, middle, high in seconds and bytes",
        "  graph               0.001      0.0242         0.1, of 120",
        "reported cases: 1 differs, 1 same",
        "  pt-1 differs: result 0: 2",
        "run: 1 op x dtype pair; checks: agree 2, wrong 1",
        "FAIL  1 operator not looked into",
        "reached 1 of 2 operators with an MPS kernel in torch 2.13.0",
    ):
        assert line in text.splitlines()


def test_an_archive_of_a_device_that_is_absent_tells_so(tmp_path: Path) -> None:
    """Nothing was run, so that it holds no more than why."""
    doctor = '{"error": "device mps is not available", "exit_code": 4}'
    lines = archive.render(zipped(tmp_path, first_json=json.dumps(ABOUT), doctor_json=doctor)).splitlines()
    assert "the device was not examined: device mps is not available" in lines
    assert "it holds no run.jsonl" in lines


def damaged(folder: Path) -> Path:
    path = zipped(folder, first_json=json.dumps(ABOUT))
    path.write_bytes(path.read_bytes()[:40])
    return path


def twice(folder: Path) -> Path:
    path = zipped(folder, first_json=json.dumps(ABOUT))
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as more:
        warnings.simplefilter("ignore")
        more.writestr("first.json", "{}")
    return path


def named(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = zipped(folder, first_json=json.dumps(ABOUT))
        with zipfile.ZipFile(path, "a") as more:
            more.writestr(name, "x")
        return path

    return make


def many(folder: Path) -> Path:
    """A directory that is larger than those of thousands of files, of which the record at the end says so."""
    path = folder / "many.zip"
    with zipfile.ZipFile(path, "w") as made:
        for k in range(archive.MEMBERS + 1):
            made.writestr(f"{k:05}", "")
    return path


def of(**files: str | bytes) -> Callable[[Path], Path]:
    return lambda folder: zipped(folder, **{"first_json": json.dumps(ABOUT), **files})


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (damaged, "it is not a sound zip archive"),
        (lambda folder: folder, "it is not an ordinary file"),
        (lambda folder: zipped(folder, readme_txt="hello"), "it holds no first.json"),
        (of(first_json="[1]"), "its first.json is damaged"),
        (of(first_json="{}"), "its first.json does not say what was done"),
        (of(doctor_json='{"device": "mps"}'), "its doctor.json is damaged"),
        (of(doctor_json=b"\xff"), "can't decode byte 0xff"),
        (of(costs_json='{"device": "mps"}'), "its costs.json is damaged"),
        (of(reported_jsonl="x\n"), "its reported.jsonl is damaged"),
        (of(run_jsonl="{}\n"), "its run.jsonl is damaged"),
        (of(run_jsonl=bytes(archive.LARGEST + 1)), "its run.jsonl is larger than 64 MiB"),
        (twice, "it holds two files of one name"),
        (many, "it holds more than 5,000 files"),
        *((named(name), "which parity does not write") for name in ("../x", "/etc/x", "a/b", "\x1b[31m", ".x", "findings/")),
    ],
)
def test_what_is_no_archive_of_parity_is_refused_in_one_line(
    make: Callable[[Path], Path], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damaged, foreign, too large or with names that parity does not give; nothing of it reaches the terminal as it is."""
    assert commandline.main(["report", str(make(tmp_path))]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert said.strip().isprintable()


def test_a_directory_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """zipfile would read all of it at once."""
    path = many(tmp_path)

    def read(*_: object) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(zipfile, "ZipFile", read)
    with pytest.raises(ValueError, match="more than 100 files"):
        untrusted.Archive(path, members=100)
