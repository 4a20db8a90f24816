"""Which of equal elements a device chooses is free where torch leaves it free, and what follows is judged along its choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity import Call, Fault, ParityFailure, assert_parity, locate
from parity.devices import Device, resolve
from parity.devices.sim import honest
from parity.locating import asserting

FREE: dict[str, Callable[[Tensor], Any]] = {
    "sort": lambda x: x.sort(-1),
    "argsort": lambda x: x.argsort(-1),
    "descending": lambda x: x.sort(-1, descending=True).indices,
    "topk": lambda x: x.topk(2),
    "unordered topk": lambda x: x.topk(3, sorted=False),
    "median": lambda x: x.median(-1),
    "kthvalue": lambda x: x.kthvalue(2, keepdim=True),
    "mode": lambda x: x.mode(-1),
    "unique": lambda x: torch.unique(x, sorted=False, return_inverse=True, return_counts=True),
    "max_pool1d": lambda x: F.max_pool1d(x, 2, return_indices=True),
    "max_pool2d": lambda x: F.max_pool2d(x[None], 2, return_indices=True),
    "max_pool2d that overlaps": lambda x: F.max_pool2d(x[None], 3, 1, 1, 2, return_indices=True),
    "max_pool2d without positions": lambda x: F.max_pool2d(x[None], 2),
    "overlapping without positions": lambda x: F.max_pool2d(x[None], 3, 1, 1),
    "max_pool3d": lambda x: F.max_pool3d(x[None, None], (1, 2, 2), return_indices=True),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[None], 2, return_indices=True),
    "cummax": lambda x: x.cummax(-1),
    "cummin": lambda x: x.cummin(0),
    "gathered": lambda x: torch.arange(4.0, device=x.device)[x.argsort(-1)],
    "gathered and rounded": lambda x: (x + torch.arange(4, device=x.device) / 7).gather(-1, x.argsort(-1)).softmax(-1),
}
DOCUMENTED: dict[str, Callable[[Tensor], Any]] = {
    "max": lambda x: x.max(-1).indices,
    "min": lambda x: x.min(-1).indices,
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "stable sort": lambda x: x.sort(dim=-1, stable=True).indices,
}


@pytest.fixture(autouse=True)
def _not_located(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is judged wrong is asked here; where it begins takes as long again, and is asked in `tests/unit/locating`."""
    monkeypatch.setattr(asserting, "with_divergence", lambda comparison, _: comparison)


@pytest.fixture(scope="module")
def sound() -> Device:
    """The honest device, which chooses otherwise than the CPU."""
    return resolve("sim", tuple(honest.FAULTS))


def tied(dtype: torch.dtype) -> Tensor:
    return torch.tensor([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 0.0, 2.0]] * 10).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*FREE, *DOCUMENTED])
def test_an_honest_device_agrees(sound: Device, name: str, dtype: torch.dtype) -> None:
    assert assert_parity((FREE | DOCUMENTED)[name], tied(dtype), device=sound).agrees


def test_a_choice_that_differs_is_said(sound: Device) -> None:
    found = assert_parity(FREE["argsort"], tied(torch.float32), device=sound)
    assert "sort chose otherwise among equal elements than on the CPU" in str(found)


def places(op: str, change: Callable[[Tensor], Tensor]) -> Fault:
    """An operator with other positions."""

    def effect(call: Call) -> Any:
        out = call.run()
        return (out[0], change(out[1])) if isinstance(out, tuple) else change(out)

    return Fault("places", (op,), effect, level="kernel")


@pytest.mark.parametrize(
    ("name", "op"), [("sort", "sort"), ("argsort", "sort"), ("topk", "topk"), ("median", "median"), ("mode", "mode")]
)
@pytest.mark.parametrize("wrong", ["another element", "one element twice"])
def test_a_wrong_position_is_found(name: str, op: str, wrong: str) -> None:
    """The third of each row is neither median nor mode of both, nor among the two largest of the second."""
    device = resolve("sim", (places(op, lambda i: i ^ 2 if wrong == "another element" else torch.full_like(i, 2)),))
    with pytest.raises(ParityFailure):
        assert_parity(FREE[name], tied(torch.float32), device=device)


@pytest.mark.parametrize("name", ["argmax", "max"])
def test_the_last_of_equal_elements_is_found_where_torch_documents_the_first(name: str) -> None:
    """The largest are 1 and 2 in the first row, 0, 1 and 3 in the second."""
    last = places(name, lambda i: torch.where(i == 1, 2, 3))
    with pytest.raises(ParityFailure):
        assert_parity(DOCUMENTED[name], tied(torch.float32), device=resolve("sim", (last,)))


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_the_code_behind_a_choice_is_judged(factor: float) -> None:
    off = Fault("softmax", ("_softmax",), lambda call: call.run() * factor, level="kernel")
    device, f = resolve("sim", (off, *honest.FAULTS)), FREE["gathered and rounded"]
    if factor == 1.0:
        assert assert_parity(f, tied(torch.float32), device=device).agrees
        return
    with pytest.raises(ParityFailure, match="times the budget"):
        assert_parity(f, tied(torch.float32), device=device)


POOLED = {
    "max_pool1d": "max_pool2d_with_indices",
    "max_pool2d": "max_pool2d_with_indices",
    "max_pool2d that overlaps": "max_pool2d_with_indices",
    "max_pool3d": "max_pool3d_with_indices",
    "adaptive_max_pool2d": "adaptive_max_pool2d",
}


@pytest.mark.parametrize("name", POOLED)
def test_a_position_of_an_element_that_is_no_maximum_is_found(name: str) -> None:
    device = resolve("sim", (places(POOLED[name], lambda i: i ^ 2),))
    with pytest.raises(ParityFailure, match=r"wrong in out\[1\]"):
        assert_parity(FREE[name], tied(torch.float32), device=device)


@pytest.mark.parametrize("name", list(POOLED)[1:])
def test_a_position_outside_of_the_window_is_found_though_the_element_there_is_equal(name: str) -> None:
    """Every other row is the same, and ten rows on lies another window."""
    device = resolve("sim", (places(POOLED[name], lambda i: (i + 40) % 80),))
    with pytest.raises(ParityFailure, match=r"wrong in out\[1\]"):
        assert_parity(FREE[name], tied(torch.float32), device=device)


@pytest.mark.parametrize("wrong", ["ahead of its place", "another element"])
def test_a_wrong_position_of_a_running_maximum_is_found(wrong: str) -> None:
    """In the first row 3 follows 3, in the second 2 follows 2."""

    def effect(call: Call) -> None:
        call.run()
        at = call.args[2]
        at.copy_(torch.where(at > 0, at, 1) if wrong == "ahead of its place" else torch.zeros_like(at))

    device = resolve("sim", (Fault("places", ("_cummax_helper",), effect, level="kernel"),))
    with pytest.raises(ParityFailure, match=r"wrong in out\[1\]"):
        assert_parity(FREE["cummax"], tied(torch.float32), device=device)


@pytest.mark.parametrize("name", ["max_pool2d without positions", "overlapping without positions"])
@pytest.mark.parametrize("wrong", ["another element", "a factor"])
def test_a_wrong_gradient_of_a_pool_that_returns_no_positions_is_found(name: str, wrong: str) -> None:
    def effect(call: Call) -> Tensor:
        got: Tensor = call.run()
        return got.roll(1, -1) if wrong == "another element" else got * 1.001

    off = Fault("gradient", ("max_pool2d_backward",), effect, level="kernel")
    with pytest.raises(ParityFailure, match=r"wrong in grad|times the budget"):
        assert_parity(FREE[name], tied(torch.float32), device=resolve("sim", (off, *honest.FAULTS)))


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_network_in_bfloat16_is_judged_along_the_picks_of_its_pools(sound: Device, factor: float) -> None:
    """Half types have many equal elements, whose gradients are not equal."""
    torch.manual_seed(0)
    parts = nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
    model = nn.Sequential(*parts, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2048, 10)).to(torch.bfloat16)
    x = torch.randn(4, 3, 32, 32).to(torch.bfloat16)
    if factor == 1.0:
        assert "max_pool2d chose otherwise among equal elements" in str(assert_parity(model, x, device=sound))
        return
    off = Fault("pool", ("max_pool2d_backward",), lambda call: call.run() * factor, level="kernel")
    with pytest.raises(ParityFailure, match=r"in grad\["):
        assert_parity(model, x, device=resolve("sim", (off, *honest.FAULTS)))


def test_distinct_values_are_followed_next_to_nan(sound: Device) -> None:
    x = torch.tensor([3.0, 1.0, float("nan"), 2.0, 1.0, 3.0, -1.0])
    found = assert_parity(FREE["unique"], x, device=sound)
    assert "unique2 chose otherwise" in str(found)


@pytest.mark.parametrize("ordered", [True, False])
def test_which_nan_is_which_is_free(sound: Device, ordered: bool) -> None:
    def function(x: Tensor) -> Any:
        return torch.unique(x, sorted=ordered, return_inverse=True, return_counts=True)

    def elsewhere(call: Call) -> Any:
        values, places, counts = call.run()
        return values, torch.where(places == 0, 1, places), counts

    x = torch.tensor([3.0, 1.0, float("nan"), 2.0, float("nan"), 3.0, -1.0, float("nan")])
    assert assert_parity(function, x, device=sound).agrees
    last = places("_unique2", lambda i: i)
    for effect, wrong in ((lambda call: swapped(call.run()), False), (elsewhere, True)):
        device = resolve("sim", (replace(last, effect=effect),))
        if not wrong:
            assert assert_parity(function, x, device=device).agrees
            continue
        with pytest.raises(ParityFailure, match=r"in out\[1\]|_unique2 wrong"):
            assert_parity(function, x, device=device)


def swapped(out: Any) -> Any:
    """Two NaN of a unique changed places."""
    values, places, counts = out
    one, other = values.isnan().nonzero().flatten()[:2]
    return values, torch.where(places == one, other, torch.where(places == other, one, places)), counts


# ------------------------------------------------------------------------------------------------ factorizations

VECTORS: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "svd": ("_linalg_svd", lambda x: torch.linalg.svd(x, full_matrices=False)),
    "full svd": ("_linalg_svd", torch.linalg.svd),
    "eigh": ("_linalg_eigh", lambda x: torch.linalg.eigh(x.mT @ x)),
    "eig": ("linalg_eig", lambda x: torch.linalg.eig(x[..., :5, :])),
    "qr": ("linalg_qr", torch.linalg.qr),
    "complete qr": ("linalg_qr", lambda x: torch.linalg.qr(x, mode="complete")),
    "qr of r": ("linalg_qr", lambda x: torch.linalg.qr(x, mode="r").R),
    "behind": ("_linalg_eigh", lambda x: torch.linalg.eigh(x.mT @ x).eigenvectors.exp().softmax(-1)),
}


def matrices(dtype: torch.dtype) -> Tensor:
    return torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("name", VECTORS)
def test_signs_phases_and_the_order_of_eigenvalues_are_free(sound: Device, name: str, dtype: torch.dtype) -> None:
    if name == "behind" and dtype.is_complex:
        pytest.skip("softmax takes no complex numbers")
    found = assert_parity(VECTORS[name][1], matrices(dtype), device=sound)
    assert found.agrees
    assert ("chose other signs, phases or order than on the CPU" in str(found)) == (name != "qr of r")  # the CPU's own there


def test_gradients_go_along_the_signs_of_the_device(sound: Device) -> None:
    assert "grad[" in str(
        assert_parity(VECTORS["behind"][1], matrices(torch.float32).requires_grad_(), device=sound, detail=True)
    )


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ("one vector", ("svd", "eigh", "eig", "qr", "qr of r", "behind")),
        ("one sign", ("svd", "qr")),
        ("two vectors", ("full svd", "eigh")),
        ("another space", ("full svd", "complete qr")),
    ],
)
def test_wrong_vectors_are_found(wrong: str, names: tuple[str, ...]) -> None:
    """One vector is a thousandth too long; one side of a factorization alone has another sign; two vectors changed places; the
    last vector is no longer orthogonal to the others."""

    def effect(call: Call) -> Any:
        out = list(call.run())
        at = next(k for k in (1, 0) if out[k].dim() > 2 and out[k].numel())
        at = 0 if wrong == "another space" else at
        x = out[at] = out[at].clone()
        if wrong == "one vector":
            x[..., 0] *= 1.001
        elif wrong == "one sign":
            x[..., 0] *= -1
        elif wrong == "two vectors":
            x[..., :2] = x[..., :2].flip(-1)
        else:
            x[..., -1] += 0.01 * x[..., 0]
        return tuple(out)

    for name in names:
        op, function = VECTORS[name]
        fault = Fault("vectors", (op,), effect, level="kernel")
        with pytest.raises(ParityFailure, match=r"(wrong|drift) in out"):
            assert_parity(function, matrices(torch.float32), device=resolve("sim", (fault, *honest.FAULTS)))


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_vectors_of_an_empty_matrix_are_free_and_of_length_one(factor: float) -> None:
    def effect(call: Call) -> Any:
        u, s, v = call.run()
        return u, s, v.roll(1, -1) * factor

    device, x = resolve("sim", (Fault("vectors", ("_linalg_svd",), effect, level="kernel"),)), torch.zeros(2, 0, 5)
    if factor == 1.0:
        assert assert_parity(torch.linalg.svd, x, device=device).agrees
        return
    with pytest.raises(ParityFailure, match=r"in out\[2\]"):
        assert_parity(torch.linalg.svd, x, device=device)


REPEATED: dict[str, tuple[str, Callable[[Tensor], Any], Tensor]] = {
    "eigh of one": ("_linalg_eigh", torch.linalg.eigh, torch.eye(5)),
    "eigh": ("_linalg_eigh", torch.linalg.eigh, torch.diag(torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0])).expand(2, 5, 5)),
    "complex eigh": ("_linalg_eigh", torch.linalg.eigh, torch.diag(torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0 + 0j]))),
    "eig": ("linalg_eig", torch.linalg.eig, torch.diag(torch.tensor([1.0, 2.0, 2.0, 3.0])).expand(2, 4, 4)),
    "complex eig": ("linalg_eig", torch.linalg.eig, torch.diag(torch.tensor([1.0, 2.0j, 2.0j, 3.0]))),
    "svd": ("_linalg_svd", torch.linalg.svd, torch.diag(torch.tensor([4.0, 2.0, 2.0, 1.0]))),
    "svd of less": ("_linalg_svd", torch.linalg.svd, torch.diag(torch.tensor([4.0, 2.0, 2.0, 0.0, 0.0]))[:, :4]),
}


def mixed(out: Any, one: int, other: int) -> Any:
    """A factorization with two of its vectors turned by 40 degrees within their plane, on both sides."""
    c, s = 0.766, (1 - 0.766**2) ** 0.5
    made = [t.clone() for t in out]
    at = [k for k, t in enumerate(made) if t.dim() > 1 and t.shape[-1] == t.shape[-2]]
    for t in (made[k].mT if k == 2 else made[k] for k in at):
        a, b = t[..., one].clone(), t[..., other].clone()
        t[..., one], t[..., other] = c * a - s * b, s * a + c * b
    return tuple(made)


@pytest.mark.parametrize("name", REPEATED)
def test_vectors_of_equal_values_are_any_of_their_space(name: str) -> None:
    op, function, x = REPEATED[name]
    device = resolve("sim", (Fault("turned", (op,), lambda call: mixed(call.run(), 1, 2)),))
    assert "chose other signs, phases or order" in str(assert_parity(function, x, device=device))


@pytest.mark.parametrize("name", list(REPEATED)[1:])
@pytest.mark.parametrize("wrong", ["another space", "one vector"])
def test_vectors_of_another_space_are_found_next_to_equal_values(name: str, wrong: str) -> None:
    def effect(call: Call) -> Any:
        out = mixed(call.run(), *((0, 1) if wrong == "another space" else (1, 2)))
        at = 0 if name.startswith("svd") else 1
        if wrong == "one vector":
            out[at][..., 1] *= 1.01
        return out

    op, function, x = REPEATED[name]
    with pytest.raises(ParityFailure, match=r"(wrong|drift)"):
        assert_parity(function, x, device=resolve("sim", (Fault("turned", (op,), effect),)))


SIMILAR = torch.tensor([[1.0, 0.0, 1.0, 0.5], [0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0], [0.0, 0.25, 0.0, 1.0]])


@pytest.mark.parametrize("wrong", ["", "one vector twice", "one vector", "a vector of another space"])
def test_eigenvectors_of_equal_values_are_any_that_span_their_space_in_any_order(wrong: str) -> None:
    """Vectors of a matrix that is not symmetric need not be orthogonal, whatever torch calls behind them."""

    def effect(call: Call) -> Any:
        values, vectors = (t.flip(-1) for t in call.run())
        first, second = (values.real - 2).abs().sort().indices[:2].tolist()
        vectors[:, first] = torch.nn.functional.normalize(vectors[:, first] + 0.5 * vectors[:, second], dim=0)
        if wrong == "one vector":
            vectors[:, first] *= 1.001
        elif wrong:
            vectors[:, first] = vectors[:, second if "twice" in wrong else (values.real - 1).abs().argmin()]
        return values, vectors

    device = resolve("sim", (Fault("turned", ("linalg_eig",), effect, level="kernel"),))
    functions = torch.linalg.eig, lambda x: torch.linalg.eig(x).eigenvectors.abs().exp() * x.sum()
    for function in functions:
        if not wrong:
            assert "linalg_eig chose other signs, phases or order" in str(assert_parity(function, SIMILAR, device=device))
            continue
        with pytest.raises(ParityFailure, match=r"(wrong|drift)"):
            assert_parity(function, SIMILAR, device=device)


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_eigenvalues_without_gradients_come_in_any_order(factor: float) -> None:
    off = Fault("order", ("_linalg_eigvals",), lambda call: call.run().flip(-1) * factor)
    x, device = matrices(torch.float32)[..., :5, :], resolve("sim", (off,))
    if factor == 1.0:
        assert "linalg_eigvals chose other signs, phases or order" in str(assert_parity(torch.linalg.eigvals, x, device=device))
        return
    with pytest.raises(ParityFailure, match="times the budget"):
        assert_parity(torch.linalg.eigvals, x, device=device)


def assigned(y: Tensor, at: Tensor, v: Tensor) -> Tensor:
    y = y * 2
    y[at] = v
    return y.exp()


WRITING: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scatter": lambda y, at, v: y.scatter(0, at[:, None].expand(v.shape), v),
    "scatter_": lambda y, at, v: y.clone().scatter_(0, at[:, None].expand(v.shape), v.sin()).exp(),
    "index_put": lambda y, at, v: y.index_put((at, at % 3), v[:, 0]).softmax(-1),
    "assigned": assigned,
    "index_copy": lambda y, at, v: y.index_copy(0, at, v) @ y.mT,
    "index_copy_": lambda y, at, v: y.mT.clone().index_copy_(1, at, v.mT).sum(0),
    "put": lambda y, at, v: y.put(at - 20, v[:, 0]),
    "put_": lambda y, at, v: y.clone().put_(at, v[:, 0]),
}


def written(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """What is written to, places of which two are written to three times, one once and one never, and the values."""
    draw = torch.Generator().manual_seed(0)
    y, v = (torch.randn(n, 5, generator=draw).to(dtype).requires_grad_() for n in (4, 7))
    return y, torch.tensor([0, 2, 0, 1, 2, 0, 2]), v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", WRITING)
def test_which_of_several_written_values_stays_is_free(sound: Device, name: str, dtype: torch.dtype) -> None:
    found = assert_parity(WRITING[name], *written(dtype), device=sound)
    assert found.agrees
    assert "chose otherwise among values written to one place than on the CPU" in str(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", WRITING)
def test_no_operator_is_blamed_for_which_written_value_stays(sound: Device, name: str, dtype: torch.dtype) -> None:
    found = locate(WRITING[name], *written(dtype), device=sound)
    assert found.agrees
    assert found.compared > 4


@pytest.mark.parametrize("wrong", ["a mean", "lost", "another place", "nan"])
@pytest.mark.parametrize(("name", "op"), [("scatter", "scatter"), ("assigned", "_index_put_impl"), ("put_", "put")])
def test_a_value_that_nobody_wrote_to_its_place_is_found(name: str, op: str, wrong: str) -> None:
    """Place 0 is written to three times."""

    def effect(call: Call) -> Any:
        before, out = call.args[0].clone(), call.run()
        line = out.view(-1)  # a result that is not contiguous is not made here
        line[0] = {"a mean": line[0] * 0.9, "lost": before.view(-1)[0], "another place": line[1], "nan": torch.nan}[wrong]
        return out

    fault = Fault("writes", (op,), effect, level="kernel")
    with pytest.raises(ParityFailure):
        assert_parity(WRITING[name], *written(torch.float32), device=(device := resolve("sim", (fault, *honest.FAULTS))))
    first = locate(WRITING[name], *written(torch.float32), device=device).first
    assert first is not None
    assert op in first.operator
