"""What people call an op, and what they mean by it."""

from __future__ import annotations

import pytest

from parity.catalog import lookup
from parity.core.errors import UsageError
from parity.engine import suite


def names(pattern: str, source: str = "native") -> list[str]:
    return list(dict.fromkeys(i.row.name for i in suite.select([pattern], source=source)))


@pytest.mark.parametrize(
    ("pattern", "op"),
    [
        *((spelling, "relu") for spelling in ("nn.functional.relu", "torch.nn.functional.relu", "F.relu", "torch.relu")),
        *((spelling, "gelu") for spelling in ("F.gelu", "nn.GELU", "torch._C._nn.gelu", "Gelu")),
        *((spelling, "exp") for spelling in ("torch.exp", "aten::exp", "torch.ops.aten.exp", "EXP", "torch.Tensor.exp_")),
        *((spelling, "solve") for spelling in ("linalg.solve", "torch.linalg.solve")),
        *((spelling, "conv2d") for spelling in ("Conv2d", "torch.nn.Conv2d", "nn.functional.conv2d")),
        ("aten::add.Tensor", "add"),
        ("LSTM", "lstm"),
        ("torch.nn.LayerNorm", "layer_norm"),
        ("torch.nn.MultiheadAttention", "multi_head_attention"),
    ],
)  # fmt: skip
def test_every_public_spelling_names_the_row(pattern: str, op: str) -> None:
    assert names(pattern) == [op]


def test_patterns_go_over_public_names_too() -> None:
    """Those of torch's namespaces, and of one function all rows of it."""
    assert {"solve", "inv", "cholesky"} <= set(names("linalg.*"))
    assert {"max_pool2d", "avg_pool2d"} <= set(names("F.*pool2d"))
    assert {"interpolate_nearest", "interpolate_area"} <= set(names("torch.nn.functional.interpolate"))
    assert {"softmax", "softplus"} <= set(names("SOFT*"))


def test_a_pattern_without_a_dot_means_names_alone() -> None:
    """Or `a*` would be every op, as `aten::`, and `t*` as `torch.`."""
    assert "exp" not in names("a*") + names("t*")
    assert names("exp*", "all")[0] == "exp"
    assert not any(n.startswith("opinfo:") for n in names("nn.functional.*"))
    assert {"relu", "opinfo:nn.functional.relu"} <= set(names("nn.functional.relu", "all"))


@pytest.mark.parametrize(
    ("pattern", "source", "hint"),
    [
        ("torch.sofmax", "native", "did you mean 'softmax'"),
        ("torch.nn.BatchNorm2d", "native", "did you mean 'batch_norm'"),
        ("torch.nn.CrossEntropyLoss", "native", "did you mean 'cross_entropy'"),
        ("numpy.exp", "native", "did you mean 'exp'?"),
        ("pca_lowrank", "native", "it is in torch's OpInfo only: add --source all"),
        ("optim.SGD", "opinfo", "it is in parity's own rows only: add --source all"),
    ],
)
def test_a_miss_has_one_good_hint(pattern: str, source: str, hint: str) -> None:
    with pytest.raises(UsageError) as told:
        suite.select([pattern], source=source)
    assert str(told.value).startswith(f"no op matches '{pattern}'; {hint}")


def test_every_row_is_found_by_its_own_name_and_by_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is found with it."""
    rows = suite.rows("native")
    public = {r.name: lookup.public_names(r) for r in rows}  # once for all patterns
    monkeypatch.setattr(lookup, "public_names", lambda r: public[r.name])
    for r in rows:
        assert r in lookup.matching(r.name, rows)
        if r.call.startswith("torch."):
            assert r in lookup.matching(r.call, rows), r.name
