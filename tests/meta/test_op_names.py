"""An op's oddities stand in its row: outside the catalog nothing asks for the name of an op or for the path of its function.

Five places may name ops, because the names are their data: the catalog, the zoo's bugs, what scores them, the simulated device,
and the calls by which the preflight looks at a device. The words that a row holds (relations, laws) may stand where they are
defined. Operators of torch (aten) may be named in the modules of the oracle that see no row, and elsewhere in constants whose
names begin with ATEN.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import layers
import pytest

from parity.catalog import ROWS, opinfo
from parity.core.devices import all_backends
from parity.judging.laws import LAWS
from parity.judging.relations import RELATIONS

PACKAGE = Path(__file__).parents[2] / "parity"
FREE = ("catalog", "zoo", "prove", "devices/sim", "devices/preflight.py")
# Names of flags, which look like paths of functions.
FLAGS = frozenset(f.name for b in all_backends() for f in b.flags)
MODULE = frozenset({"torch._subclasses"})  # of torch, with classes of tensors
VOCABULARY = {
    "judging/relations": frozenset(RELATIONS),
    "judging/laws": frozenset(LAWS),
    "checks/gauge.py": frozenset(RELATIONS),
    "core/backends": FLAGS,
    "report/schema.py": frozenset({"minimum"}),  # of JSON Schema
    "comparing/leaves.py": MODULE,
    "core/observer.py": MODULE,
    "core/copies.py": frozenset({"torch._decomp.decompositions_for_jvp"}),  # a module
    "core/devices.py": frozenset({"aten::op.out"}),  # no operator: what stands in a message's place for one, in examples
}
# Constants of operators, and of words that calls take as arguments.
CONSTANTS = ("ATEN", "ARGUMENT")
# Names of ops that are words of English, of Python, of layouts or of dtypes as well.
ORDINARY = frozenset((
    "bfloat16", "bool", "byte", "char", "clone", "combinations", "complex", "conj", "contiguous", "copy", "cross",
    "default", "diff", "dist", "double", "empty", "equal", "expand", "fill", "flip", "float", "floor", "full", "gather",
    "gradient", "half", "histogram", "imag", "index", "item", "linear", "long", "mean", "median", "mode", "narrow",
    "nearest", "norm", "normal", "ones", "outer", "permute", "polar", "positive", "quantile", "rand", "range", "ravel",
    "real", "reciprocal", "repeat", "reshape", "resize", "roll", "round", "select", "short", "sign", "slice", "sort",
    "split", "square", "stack", "take", "threshold", "tile", "trace", "transpose", "unbind", "uniform", "unique", "view",
    "where", "zeros",
))  # fmt: skip
NAMES = frozenset(
    name
    for key in (*ROWS, *opinfo.ENTRIES)
    for name in (key, key.partition(":")[0], key.partition(":")[0].rpartition(".")[2])
    if len(name) >= 4 and name not in ORDINARY
)
PLACES = ("opinfo:", "torch.", "operator.")  # where the function of a row comes from
ASKED = re.compile(r"\brow\.(name|call|inplace)|\.op\b")
PATH = re.compile(r"(torch|operator|parity\.catalog\.glue\.\w+)\.[\w.]*\w|(aten::|opinfo:)\w.*")


def literals(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that are neither docstrings nor parts of an f-string, outside the constants that may hold names."""
    for node in ast.iter_child_nodes(tree):
        named = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if (isinstance(named, ast.Name) and named.id.lstrip("_").startswith(CONSTANTS)) or isinstance(node, ast.JoinedStr):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node
        yield from literals(node)


def names_ops(text: str) -> bool:
    """Whether a string is the name of an op, the path of a function, or a list of such: at least half of its words are."""
    words = text.split()
    return sum(w in NAMES or PATH.fullmatch(w) is not None for w in words) * 2 >= max(len(words), 1)


def asks_names(tree: ast.AST) -> Iterator[ast.Constant]:
    """What the name of an op, or the path of its function, is asked to begin or end with."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in ("startswith", "endswith") and ASKED.search(ast.unparse(node.func.value)):
            yield from (n for a in node.args for n in ast.walk(a) if isinstance(n, ast.Constant) and n.value not in PLACES)


def sees_rows(tree: ast.AST) -> bool:
    """Whether a module can know which op is being run: it imports the catalog, or reads `.row` or `.op` of anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("parity.catalog"):
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("row", "op"):
            return True
    return False


def named(path: str, tree: ast.AST) -> list[str]:
    """Every place of a module that names an op without right, as "line: text"."""
    if path.startswith(FREE) or (path.startswith("oracle/") and not sees_rows(tree)):
        return []
    allowed = next((words for place, words in VOCABULARY.items() if path.startswith(place)), frozenset[str]())
    wrong = [n for n in literals(tree) if n.value not in allowed and names_ops(str(n.value))]
    return [f"{n.lineno}: {n.value!r}" for n in (*wrong, *asks_names(tree))]


MODULES = {p.relative_to(PACKAGE).as_posix(): p for p in sorted(PACKAGE.rglob("*.py"))}


def test_no_module_names_an_op() -> None:
    """Give the row a field instead (`parity/catalog/row.py`), and ask the row for it."""
    found = {path: named(path, layers.tree(file)) for path, file in MODULES.items()}
    assert {path: places for path, places in found.items() if places} == {}


PLANTED = (
    'ODD = ("layer_norm", "x")',
    'def f(row):\n    return row.name == "cumsum"',
    'def f(row):\n    return row.name.startswith("batch_norm")',
    'def f(row):\n    return row.name.removeprefix("opinfo:").startswith(("conv", "fft"))',
    'def f(call):\n    return call.op.endswith("_")',
    'MANY = """softmax gelu\n    logsumexp"""',
    'def f(row):\n    return row.call == "torch.nn.functional.rms_norm"',
    'def f(row):\n    return row.call in {"parity.catalog.glue.calls.lstm": 1}',
    'def f(case):\n    return case.op == "opinfo:svd"',
    'def f(case):\n    return case.op == "nn.functional.linear"',
)


@pytest.mark.parametrize("source", PLANTED)
@pytest.mark.parametrize("path", ["generation/generate.py", "judging/laws/picks.py", "checks/check.py"])
def test_a_planted_name_is_seen(path: str, source: str) -> None:
    assert named(path, ast.parse(source))


def test_the_oracle_may_name_operators_only_where_it_sees_no_row() -> None:
    blind, seeing = (
        ast.parse('def f(name):\n    return name == "cumsum"' + more) for more in ("", "\n\ndef g(p):\n    return p.row")
    )
    assert not named("oracle/rounding.py", blind)
    assert named("oracle/oracle.py", seeing)
    assert named("generation/generate.py", blind)


@pytest.mark.parametrize(
    "source",
    [
        '"""cumsum"""',
        'ATEN_SUMS = ("cumsum", "nansum")',
        'raise ValueError("name an op, such as softmax, and a dtype")',
        'MODES = ("mean", "repeat", "view")',
        'f"softmax {1}"',
    ],
)
def test_sentences_operators_and_ordinary_words_are_no_names_of_ops(source: str) -> None:
    assert not named("generation/generate.py", ast.parse(source))
