"""Writing the file of known findings: what a person wrote stays, and a change is a change of few lines."""

from __future__ import annotations

import difflib
import math
import random
import shutil
import string
import subprocess
from argparse import Namespace
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parity.core import untrusted
from parity.core.errors import KnownError, OutputError
from parity.core.results import Cause, Fingerprint, Measure, Record
from parity.faces.commands import known as known_command
from parity.findings import known_entries, known_file
from parity.findings.extents import Measured
from parity.findings.known import Entry, Environment
from parity.findings.known_file import parse, read
from parity.findings.known_place import content
from parity.store.rows import Death, Header, ItemRow, Run

PATH = Path("parity-known.toml")
PAIRS = 4  # 20 take seconds
HERE = Environment("mps", "2.13.0", "macOS 15.5")
PRINT = Fingerprint("0", "2.13.0", "", "3.11", "macOS 15.5 (24F74)", "arm64", "mps", "Apple M1")
ENTRY = Entry(
    "exp-b4c8f1", 'it is "wrong"', ("exp", "log_softmax"), "wrong", Cause("aten::exp", "values", ("NaN",)),
    (Cause("aten::exp", "values", ("NaN",)), Cause("aten::cos", "values", ("NaN",))), ("float32", "float16"), ("forward",),
    ("values in out",), ("forward: exp(float32[1])",), ('exp(float32[2]).into("stepped")',), "https://example.org",
    date(2027, 1, 31), HERE,
    extent=(
        Measured("float32", "exp", "out", (("NaN", 0.0), ("huge", 12.5))),
        Measured("float16", extent=(("class NaN", math.inf),)),
    ),
)  # fmt: skip


def written(*entries: Entry, text: str = "") -> str:
    return known_file.updated(text, [(e, "it gives wrong values") for e in entries], HERE)


def test_what_is_written_is_read_back() -> None:
    held = parse(PATH, written(ENTRY, replace(ENTRY, id="other", by_chance=True, cause=None, members=())))
    assert held.environment == HERE
    assert replace(held.entries[0], line=0) == ENTRY
    assert held.entries[1].by_chance
    for extent in ((), None):
        assert parse(PATH, written(replace(ENTRY, extent=extent))).entries[0].extent == extent


def test_comments_and_order_stay_and_a_new_case_is_one_line() -> None:
    text = written(ENTRY, replace(ENTRY, id="second"))
    text = text.replace("[[known]]", "# ours since the spring\n[[known]]", 1).replace(
        'ops = [\n    "exp",', 'ops = [\n    "exp",  # the worst'
    )
    more = replace(ENTRY, ops=(*ENTRY.ops, "sigmoid"))
    kept = replace(ENTRY, id="second")
    after = written(more, kept, text=text)
    changed = [x for x in difflib.ndiff(text.splitlines(), after.splitlines()) if x[0] in "+-"]
    assert '+     "sigmoid",' in changed
    assert "# ours since the spring" in after
    assert len(changed) <= 2  # the comment inside of the list that changed goes with it
    assert known_file.dropped(after, ["second"]).count("[[known]]") == 1
    assert "# ours since the spring" in known_file.dropped(after, ["second"])
    assert parse(PATH, known_file.dropped(text, ["second", ENTRY.id])).entries == ()


def test_nothing_that_cannot_be_read_is_written(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    known_file.write(path, written(ENTRY))
    with pytest.raises(KnownError):
        known_file.write(path, "format = 1\nfoo = 2\n")
    assert parse(path, path.read_text()).entries
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OutputError, match="name another with --file"):
        known_file.write(Path("/dev/null/known.toml"), written(ENTRY))


def record(op: str, dtype: str, status: str, cause: Cause | None = None, **more: object) -> Record:
    case = f"{op}({dtype}[2])"
    measures = (Measure("out", share=9.0, measured=True, problem="value"),)
    return Record(case, op, dtype, "forward", status, "", False, "9 times", "", measures, case, "", cause, **more)  # type: ignore[arg-type]


def test_entries_of_a_run_are_its_causes() -> None:
    """One for each kind of status; what is known already is left out; deaths have theirs."""
    exp, cos = Cause("aten::exp", "values"), Cause("aten::cos", "values")
    records = (
        record("exp", "float32", "drift", exp), record("log_softmax", "float16", "wrong", exp),
        record("cos", "float32", "wrong", cos, known="cos-x"), record("cos", "float16", "wrong", cos, by_chance=True),
    )  # fmt: skip
    deaths = (
        Death("sin", "float32", "sin(float32[2])", "", "crash", "SIGABRT"),
        Death("sin", "float32", "sin(float32[3])", "", "crash", "SIGABRT"),
    )
    run = Run(Header(PRINT), records, (), deaths)
    made = [e for c in known_entries.causes_of(run) for e in known_entries.of_cause(c, run, "r")]
    assert [c.cause.id for c in known_entries.causes_of(run)].count(cos.id) == 1
    by_id = {e.id: e for e in made}
    assert by_id[exp.id].ops == ("exp", "log_softmax")
    assert by_id[exp.id].status == "wrong"
    assert by_id[exp.id].since == HERE
    assert set(by_id[exp.id].cases) == {"forward: exp(float32[2])", "forward: log_softmax(float16[2])"}
    assert by_id["cos-comes-and-goes"].dtypes == ("float16",) or "float16" in by_id["cos-comes-and-goes"].dtypes
    (dies,) = (e for e in made if e.dies)
    assert dies.cases == ("sin(float32[2])",)
    assert dies.also == ("sin(float32[3])",)


def test_refused_ops_are_grouped_by_dtypes_and_aspects() -> None:
    items = [ItemRow(op, d, 3, {"forward": {"unsupported": 3}}) for op in ("exp", "cos") for d in ("float32", "float16")] + [
        ItemRow("sin", "int8", 3, {"forward": {"unsupported": 1, "agree": 2}})
    ]
    run = Run(Header(PRINT), (record("exp", "float32", "unsupported"),), tuple(items))
    made = known_entries.of_status("unsupported", run, "no kernel")
    assert {(e.ops, e.dtypes, e.aspects, e.status) for e in made} == {
        (("exp", "cos"), ("float16", "float32"), ("forward",), "unsupported"),
        (("sin",), ("int8",), ("forward",), "unsupported"),
    }  # fmt: skip
    assert made[0].cases == ("forward: exp(float32[2])",)
    assert known_entries.of_status("fallback", run, "r") == ()


def test_what_a_run_adds_leaves_reason_and_day_alone() -> None:
    grown = replace(
        ENTRY,
        reason="",
        link="",
        until=None,
        ops=("exp", "sigmoid"),
        status="drift",
        cases=("forward: exp(float32[3])", "forward: sigmoid(float32[1])"),
        also=(),
    )
    made = known_entries.merged(ENTRY, grown)
    assert (made.reason, made.link, made.until, made.status) == (ENTRY.reason, ENTRY.link, ENTRY.until, "wrong")
    assert made.ops == ("exp", "log_softmax", "sigmoid")
    assert made.cases == ("forward: exp(float32[1])", "forward: sigmoid(float32[1])")
    assert made.also == (*ENTRY.also, "exp(float32[3])")
    assert known_entries.merged(replace(ENTRY, dtypes=()), grown).dtypes == ()
    of_grad = Measured("float32", "exp", "grad[0]", (("NaN", 3.0),))
    assert ENTRY.extent is not None
    larger = replace(grown, extent=(ENTRY.extent[0]._replace(extent=(("NaN", 3.0),)), of_grad))
    assert known_entries.merged(ENTRY, larger).extent == (
        Measured("float32", "exp", "out", (("NaN", 3.0), ("huge", 12.5))), ENTRY.extent[1], of_grad,
    )  # fmt: skip
    assert known_entries.merged(replace(ENTRY, extent=None), larger).extent == larger.extent
    assert known_entries.merged(replace(ENTRY, by_chance=True, also=()), grown).also == ()


def drawn(draw: random.Random) -> Entry:
    op = "".join(draw.choices(string.ascii_lowercase, k=5))
    return Entry(Cause(f"aten::{op}", "values").id, "reported", (op,), "wrong", dtypes=("float32",), also=ENTRY.also)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_merges_what_two_branches_add(tmp_path: Path) -> None:
    """18 of 20 pairs of branches that add two entries each to a file of 80; what both change is a conflict."""
    draw = random.Random(0)
    base = written(*(drawn(draw) for _ in range(80)))

    def merged(*sides: str) -> tuple[bool, str]:
        for name, text in zip(("ours", "base", "theirs"), sides):
            (tmp_path / name).write_text(text)
        command = ["git", "merge-file", "-p", "ours", "base", "theirs"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode == 0, done.stdout

    clean, last = 0, ""
    for _ in range(20):
        ours, theirs = ([drawn(draw), drawn(draw)] for _ in range(2))
        went, text = merged(written(*ours, text=base), base, written(*theirs, text=base))
        clean += went
        if went:
            ids = [line for line in text.splitlines() if line.startswith("id = ")]
            assert len(ids) == 84
            assert ids == sorted(ids)
            assert {f'id = "{e.id}"' for e in (*ours, *theirs)} <= {*ids}
            last = text
    assert clean >= 18
    assert len(parse(PATH, last).entries) == 84
    (first, *_) = parse(PATH, base).entries
    worse = [written(replace(first, dtypes=(d,)), text=base) for d in ("int8", "int16")]
    assert not merged(worse[0], base, worse[1])[0]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("count", [0, 5, 20])
def test_git_merges_a_folder_whatever_two_branches_add(count: int, tmp_path: Path) -> None:
    """Each entry is a file of its own, so all of some drawn pairs of branches merge, however few entries there are."""
    draw, folder = random.Random(count), tmp_path / "known"

    def git(*argv: str) -> bool:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(["git", *who, *argv], cwd=tmp_path, capture_output=True, check=False).returncode == 0

    def branch(name: str, *entries: Entry) -> None:
        assert git("checkout", "-q", "-b", name, "base")
        known_file.write(folder, written(*entries, text=content(folder)))
        assert git("add", "-A")
        assert git("commit", "-q", "-m", name)

    assert git("init", "-q", "-b", "base")
    folder.mkdir()
    known_file.write(folder, written(*(drawn(draw) for _ in range(count))))
    assert git("add", "-A")
    assert git("commit", "-q", "-m", "base")
    for pair in range(PAIRS):
        ours, theirs = ((drawn(draw), drawn(draw)) for _ in range(2))
        branch(f"ours-{pair}", *ours)
        branch(f"theirs-{pair}", *theirs)
        assert git("merge", "-q", f"ours-{pair}")
        held = read(folder).by_id
        assert len(held) == count + 4
        assert {e.id for e in (*ours, *theirs)} <= {*held}


def test_a_folder_reads_and_writes_as_one_file(tmp_path: Path) -> None:
    """Its files are the blocks; what is dropped is gone, what stays is left alone, and a mistake is named with its file."""
    folder = tmp_path / "known"
    folder.mkdir()
    with pytest.raises(KnownError, match="holds no known findings; parity known add RUN"):
        read(folder)
    a, b = replace(ENTRY, id="a/b", cause=None, members=()), replace(ENTRY, id="parity-known", cause=None, members=())
    text = written(a, b, ENTRY)
    known_file.write(folder, text)
    assert sorted(f.name for f in folder.iterdir()) == ["a_b.toml", "exp-b4c8f1.toml", "parity-known.toml"]
    assert [e.id for e in read(folder).entries] == ["parity-known", "a/b", "exp-b4c8f1"]
    assert read(folder).environment == HERE
    own = folder / "by-hand.toml"
    own.write_text('# ours\n[[known]]\nid = "x"\nreason = "r"\nops = ["exp"]\nstatus = "wrong"')
    (folder / "README.md").write_text("why")
    before = (folder / "a_b.toml").stat().st_mtime_ns
    known_file.write(folder, known_file.dropped(content(folder), [ENTRY.id, "parity-known"], folder))
    assert sorted(f.name for f in folder.iterdir()) == ["README.md", "a_b.toml", "parity-known.toml", "x.toml"]
    assert (folder / "x.toml").read_text().startswith("# ours\n[[known]]")
    assert (folder / "a_b.toml").stat().st_mtime_ns == before
    (folder / "x.toml").write_text('[[known]]\nid = "x"\nreason = ""\n')
    with pytest.raises(KnownError, match=r"x\.toml:3: known 'x': 'reason' holds"):
        read(folder)


def test_files_of_two_branches_are_merged_by_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an entry that both have, the lists are joined, our words stay, and the earlier day; what one dropped stays dropped
    where their common base is given."""
    a, b, c, d = (replace(ENTRY, id=id, cause=None, members=(), link="") for id in "abcd")
    wider = replace(a, dtypes=("int8",), reason="theirs", until=date(2026, 1, 31))
    files = {"ours": written(a, b, c), "theirs": written(wider, b, d), "base": written(a, b, c)}
    files["base"] = written(replace(d, id="e"), text=files["base"])
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def ids(*names: str) -> list[str]:
        (tmp_path / "ours").write_text(files["ours"])
        paths = [tmp_path / name for name in names]
        known_command.run(
            Namespace(action="merge", file=tmp_path / "ours", other=paths[0], base=paths[1] if paths[1:] else None)
        )
        return [e.id for e in read(tmp_path / "ours").entries]

    assert ids("theirs") == ["a", "b", "c", "d"]
    first = read(tmp_path / "ours").entries[0]
    assert (first.dtypes, first.reason, first.until) == ((*a.dtypes, "int8"), a.reason, date(2026, 1, 31))
    assert "1 added, 0 dropped, 4 in " in capsys.readouterr().out
    assert ids("ours") == ["a", "b", "c"]
    assert (tmp_path / "ours").read_text() == files["ours"].replace("it gives wrong values", "wrong in exp, log_softmax")
    assert ids("theirs", "base") == ["a", "b", "d"]
    (tmp_path / "fewer").write_text(known_file.dropped(files["base"], ["a", "e"]))
    assert ids("fewer", "base") == ["b", "c"]


def test_a_key_that_stands_for_all_now_is_taken_out_and_sections_of_a_person_stay() -> None:
    text = written(replace(ENTRY, since=Environment())) + '\n[known.since]\ntorch = "2.13.0"\n'
    after = written(replace(ENTRY, dtypes=(), since=Environment(torch="2.13.0")), text=text)
    (e,) = parse(PATH, after).entries
    assert (e.dtypes, e.since.torch) == ((), "2.13.0")
    assert "dtypes = " not in after
    assert after.endswith('[known.since]\ntorch = "2.13.0"\n')


WIDE = Entry("wide", "ours", ("exp",), "wrong", Cause("aten::exp", "values"), until=date(2026, 12, 1))
NARROW = replace(
    WIDE, id="narrow", reason="theirs", cause=Cause("aten::exp", "values", ("transposed operand",)), until=date(2029, 12, 1)
)
NOTE = "# seen by Anna"


@pytest.mark.parametrize(
    ("base", "theirs", "after"),
    [
        (None, (NARROW,), (NARROW, WIDE)),
        ((), (NARROW,), (NARROW, WIDE)),  # git gives an empty base where both branches made the file
        ((WIDE,), (NARROW,), (NARROW,)),
        ((WIDE,), (), ()),
        ((WIDE, NARROW), (NARROW,), ()),
    ],
)
def test_a_merge_accepts_no_more_than_its_sides(
    base: tuple[Entry, ...] | None, theirs: tuple[Entry, ...], after: tuple[Entry, ...], tmp_path: Path
) -> None:
    """Entries of one cause with two ids stay two, each with its own reason and day; comments on new ones come with them."""
    paths = [tmp_path / name for name in ("ours", "theirs", "base")]
    paths[0].write_text(written(WIDE))
    text = written(*theirs).replace("[[known]]", f"{NOTE}\n[[known]]").replace('ops = ["exp"]', 'ops = ["exp"]  # and cos?')
    paths[1].write_text(text)
    paths[2].write_text(written(*base) if base else "")
    o = Namespace(action="merge", file=paths[0], other=paths[1], base=None if base is None else paths[2])
    assert known_command.run(o) == 0
    assert tuple(replace(e, line=0, since=Environment()) for e in read(paths[0]).entries) == after
    assert (NARROW in after) == (NOTE in paths[0].read_text()) == ("  # and cos?" in paths[0].read_text())


HAND = """\
format = 1

[[known]]
id = "a"
reason = "r"
ops = ["exp"]
status = "wrong"
since = { torch = "2.13.0" }
"""
OLD = replace(ENTRY, id="a", reason="r", cause=None, members=(), since=Environment(torch="2.13.0"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("since = {", "# where\n\nsince = {"),
        ('since = { torch = "2.13.0" }', 'since.torch = "2.13.0"\nsince.device = ""'),
        ('id = "a"', "'id' = \"a\""),
        ('id = "a"', 'id = """\na"""'),
        ('"r"', '"""r\n[[known]]\nid = 7"""'),
        ("[[known]]", "[[ 'known' ]]"),
        ("\n[[", 'environment = { device = "mps" }\n[['),
        ("\n[[", 'environment.device = "mps"\nenvironment.os = "old"\n[['),
        ('2.13.0" }\n', '2.13.0" }\n\n# here\n[environment]\ndevice = "mps"\n'),
        ("\n", "\r\n"),
    ],
)
def test_layouts_of_a_person_are_edited(old: str, new: str) -> None:
    text = HAND.replace(old, new)
    b = replace(OLD, id="b")
    held = parse(PATH, text).entries[0]
    after = written(replace(OLD, reason=held.reason), b, text=text)
    assert [replace(e, line=0) for e in parse(PATH, after).entries] == [replace(OLD, reason=held.reason), b]
    assert parse(PATH, after).environment == HERE
    assert written(replace(OLD, reason=held.reason), b, text=after) == after
    left = parse(PATH, known_file.dropped(after, ["a", "b"]))
    assert (left.entries, left.environment) == ((), HERE)
    assert [line for line in new.split("\n") if line.startswith("#")] == [
        line for line in after.split("\n") if line.startswith("# ") and "parity" not in line
    ]


def test_a_layout_that_cannot_be_edited_is_left_with_a_message() -> None:
    text = 'format = 1\nknown = [{ id = "a", reason = "r", ops = ["exp"], status = "wrong" }]\n'
    assert parse(PATH, text).entries
    said = r"parity-known.toml has a layout that parity can't edit, and is left as it was"
    with pytest.raises(KnownError, match=said):
        written(OLD, text=text)
    with pytest.raises(KnownError, match=said):
        known_file.dropped(text, ["a"])


def test_members_that_a_person_wrote_as_sections_grow() -> None:
    text = written(replace(ENTRY, members=())) + "".join(
        f'\n[[known.members]]\nsubject = "{m.subject}"\nsymptom = "values"\nproperties = ["NaN"]\n' for m in ENTRY.members
    )
    assert written(ENTRY, text=text) == text
    more = replace(ENTRY, members=(*ENTRY.members, Cause("aten::sin", "values")))
    assert parse(PATH, written(more, text=text)).entries[0].members == more.members


def test_comments_stay_where_a_person_put_them() -> None:
    """Below an entry, behind a value that changes, and in a list that grows."""
    text = written(replace(OLD, shows=("values in out", "values in grad")), replace(OLD, id="c"))
    for old, new in (
        ("2027-01-31\n", "2027-01-31  # ask Anna\n"),
        ('["float32", "float16"]', '["float32", "float16"]  # not double'),
        ('"exp",\n    "log_softmax",', '"exp",  # the worst\n    # "cos", soon\n    "log_softmax"  # last'),
        ('"values in out",\n    "values in grad",\n]', '"values in out", "values in grad"\n    # more?\n]  # all'),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    text = text.replace('\n\n[[known]]\nid = "c"', '\n# below a\n\n# above c\n[[known]]\nid = "c"')
    grown = replace(
        OLD, until=date(2028, 1, 1), dtypes=("float32", "float16", "int8"), ops=(*OLD.ops, "sin"),
        shows=("values in out", "values in grad", "strides in out"),
    )  # fmt: skip
    after = written(grown, replace(OLD, id="b"), text=text)
    assert [replace(e, line=0) for e in parse(PATH, after).entries] == [grown, replace(OLD, id="b"), replace(OLD, id="c")]
    for kept in (
        "until = 2028-01-01  # ask Anna\n",
        'dtypes = ["float32", "float16", "int8"]  # not double\n',
        '    "exp",  # the worst\n    # "cos", soon\n    "log_softmax",  # last\n    "sin",\n]',
        '    "strides in out",\n    # more?\n]  # all\n',
        '# below a\n\n[[known]]\nid = "b"',
        '# above c\n[[known]]\nid = "c"',
    ):
        assert kept in after
    assert "# below a" not in known_file.dropped(after, ["a"])


def test_an_id_with_an_escape_is_one_entry() -> None:
    text = HAND.replace('"a"', r'"a\u001bb"')
    (e,) = parse(PATH, text).entries
    assert e.id == r"a\x1bb"
    assert len(parse(PATH, written(e, text=text)).entries) == 1
    assert r'"a\u001bb"' in written(e, text=text)
    assert parse(PATH, known_file.dropped(text, [e.id])).entries == ()


TEXTS = st.text(st.characters() | st.sampled_from("\"'\\#,[]{}=\n\r\t\x00\x7f\x85\u2028\u2029\U000e0001"), max_size=12)


@settings(max_examples=30, database=None, deadline=None, derandomize=True)
@given(TEXTS.filter(str.strip), TEXTS, TEXTS)
@example("\u2028", "\x85\u2029", "\x7f\ud800")
@example('\'"""', "'''\\", '[[known]]\nid = "a"')
def test_any_text_makes_the_round_trip(reason: str, what: str, word: str) -> None:
    """Written, read, edited, and read again: as a text that is safe to print."""
    e = replace(ENTRY, reason=reason, shows=(f"x{word}", "values in out"))
    text = known_file.updated("", [(e, what)], HERE)
    for made in (text, known_file.updated(text, [(replace(e, id="other"), what)]), known_file.updated(text, [(e, f"{what}.")])):
        held = parse(PATH, made).by_id[e.id]
        assert (held.reason, held.shows[0]) == (untrusted.printable(reason), untrusted.printable(e.shows[0]))
        made.encode()
    assert known_file.updated(text, [(parse(PATH, text).entries[0], what)]) == text


def test_lines_are_counted_as_editors_do() -> None:
    """Not at the line ends of Unicode, and no text is taken for the head of an entry."""
    text = HAND.replace("format", "# \u2028\x85\nformat").replace('"r"', '"""r\n[[known]]\n"""')
    assert [e.line for e in parse(PATH, text + HAND[HAND.index("[[") :].replace('"a"', '"b"')).entries] == [4, 12]
