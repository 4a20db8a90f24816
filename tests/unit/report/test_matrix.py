"""The table of ops by dtype and pass."""

from __future__ import annotations

from parity.core.results import Fingerprint, Status
from parity.report import answers, matrix
from parity.store.rows import Death, Header, ItemRow

ITEMS = (
    ItemRow(
        "add", "float32", 3, {"forward": {"agree": 3}, "backward": {"agree": 2, "drift": 1}, "out=": {"wrong": 1, "agree": 9}}
    ),
    ItemRow("add", "int64", 3, {"forward": {"agree": 3}}),
    ItemRow("mode", "float32", 3, {"forward": {"unsupported": 3}}),
    ItemRow("sin", "float32", 3, {"forward": {"agree": 3}, "refusal": {"void": 1}}),
    ItemRow("pinv", "float16", 3, {"forward": {"fallback": 1, "agree": 3}, "in-place": {"error": 1, "unsupported": 2}}),
)


def test_every_status_has_a_letter() -> None:
    assert all(f"{s.letter} " in matrix.LEGEND for s in Status)


def test_a_cell_shows_the_worst_of_each_pass() -> None:
    """Four letters: forward, backward, writes, the rest."""
    assert matrix.rows(ITEMS, everything=True) == [
        ["op", "float32", "float16", "int64"],
        ["add", ".DW-", "", ".---"],
        ["mode", "u---", "", ""],
        ["pinv", "", "f-E-", ""],
        ["sin", ".--v", "", ""],
    ]


def test_ops_that_agree_are_counted_and_those_that_died_are_shown() -> None:
    """A death has no counts of its own."""
    dead = Death("cos", "int8", "cos(int8[2])", signal="SIGABRT")
    text = matrix.render(ITEMS, (dead,))
    assert "all agree: 1 more op" in text
    assert "sin" not in [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    assert any(line.split() == ["cos", "X---"] for line in text.splitlines())
    assert "| `add` | `.DW-` |" in matrix.as_markdown(ITEMS)
    assert "| `sin` |" not in matrix.as_markdown(ITEMS)


def test_a_death_stands_in_its_pass() -> None:
    """With what the op's other cases gave."""
    dead = Death("add", "float32", "add(float32[2], float32[2])", "backward", "hang")
    assert matrix.rows(ITEMS, (dead,))[1] == ["add", ".XW-", "", ".---"]
    tree = answers.tree(matrix.answer(Header(Fingerprint(*"abcdefgh")), ITEMS, (dead,)))
    assert tree["ops"][0]["passes"] == {
        "forward": "agree", "backward": "hang", "out= and in-place": "wrong", "transfer and refusal": "not run",
    }  # fmt: skip


def test_markdown_fits_a_comment_worst_first() -> None:
    """And a name of another's file ends no cell."""
    items = [ItemRow(f"op_{k:04}", "float32", 1, {"forward": {"fallback": 1}}) for k in range(5000)]
    text = matrix.as_markdown([*items, *ITEMS])
    assert len(text) <= 65_536
    body = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")]
    assert body[:2] == ["`add`", "`pinv`"]
    assert "more ops: `parity report RUN --matrix`" in text
    assert "| `a\\|b'c` |" in matrix.as_markdown([ItemRow("a|b`c", "float32", 1, {"forward": {"wrong": 1}})])
