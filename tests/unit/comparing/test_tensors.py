"""Tensors that are not dense, and modules that move what is their own: opened where they have dense parts, else refused by
name. Each kind agrees on an honest device, and a fault in it is found and placed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.masked import masked_tensor
from torch.utils._pytree import tree_map

import parity
from parity.comparing.comparison import ParityFailure
from parity.core.errors import UsageError
from parity.devices import Device, Fault, resolve
from parity.devices.sim import honest
from parity.locating.asserting import assert_parity

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of", "ignore:torch.quantize_per_tensor", "ignore:Sparse")


@pytest.fixture(autouse=True)
def _alike() -> None:
    """Simulated devices need the backward pass on the calling thread."""
    torch.autograd.set_multithreading_enabled(False)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def sound() -> Device:
    return resolve("sim", tuple(honest.FAULTS))


@pytest.fixture(scope="module")
def faulty() -> dict[str, Device]:
    """One operator is 2 % too large."""
    return {op: resolve("sim", (Fault("off", (op,), lambda c: c.run() * 1.02),)) for op in ("mul", "silu")}


# --------------------------------------------------------------------------------------------------------------- classes


class Scaled(torch.Tensor):
    """Small integers and a factor for each row, as quantized weights are kept."""

    q: Tensor
    s: Tensor

    @staticmethod
    def __new__(cls, q: Tensor, s: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=s.dtype, device=q.device)

    def __init__(self, q: Tensor, s: Tensor) -> None:
        self.q, self.s = q, s

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # as torch calls it
        if func is torch.ops.aten.detach.default:
            return cls(args[0].q, args[0].s)
        if func is torch.ops.aten._to_copy.default:
            how = {k: v for k, v in kwargs.items() if k in ("device", "dtype") and v is not None}
            return cls(args[0].q.to(how.get("device")), args[0].s.to(**how))

        def plain(t: Any) -> Any:
            return t.q.to(t.s.dtype) * t.s if isinstance(t, Scaled) else t

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


class Flat(Scaled):
    """The same with torch's protocol."""

    def __tensor_flatten__(self) -> Any:
        return ["q", "s"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Flat:
        return cls(inner["q"], inner["s"])


class Closed(torch.Tensor):
    """Holds nothing that anybody could know of."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # as torch calls it
        return torch.ones(3)


class Image(torch.Tensor):
    """A plain subclass with an attribute, as monai's and torchvision's are."""

    meta: dict[str, float]


class Weight(nn.Parameter):
    tag: int


def scaled(kind: type[Scaled], rows: int = 3) -> Scaled:
    return kind(torch.randint(-9, 9, (rows, 4), dtype=torch.int8), torch.rand(rows, 1))


def image() -> Image:
    made = torch.randn(2, 4).as_subclass(Image)
    made.meta = {"spacing": 1.5}
    return made


class Linear(nn.Module):
    """With a weight of some class, which it asks for."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        return nn.functional.linear(x, self.weight) * (2 if isinstance(self.weight, (Scaled, Weight)) else 3)


class Jagged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n, self.q = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        rows = torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 3, 8], device=x.device))
        return nn.functional.silu(self.q(self.n(rows))).to_padded_tensor(0.0)


class Attention(nn.Module):
    """torch takes strided nested tensors for the jagged ones in there."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        q = nn.functional.silu(self.q(x)).unflatten(-1, [2, 2]).transpose(1, 2)  # type: ignore[no-untyped-call]
        return nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)


class Metric(nn.Module):
    """Moves a tensor that is no buffer, as torchmetrics and gpytorch do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.w = torch.rand(3), nn.Linear(3, 3)

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        super()._apply(fn, *args, **kwargs)  # type: ignore[no-untyped-call]  # as torch has it
        self.seen = fn(self.seen)
        return self

    def forward(self, x: Tensor) -> Any:
        return self.w(x) * self.seen


class Lightning(nn.Module):
    """Knows its device by its own `to`."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.place = nn.Linear(3, 3), torch.device("cpu")

    def to(self, *args: Any, **kwargs: Any) -> Any:
        self.place = torch._C._nn._parse_to(*args, **kwargs)[0]
        return super().to(*args, **kwargs)

    def forward(self, x: Tensor) -> Any:
        return self.w(x) * torch.full((3,), 2.0, device=self.place)


class Exact(Metric):
    """Takes its training inputs alone."""

    def forward(self, x: Tensor) -> Any:
        if not torch.equal(x, self.seen):
            raise RuntimeError("You must train on the training inputs!")
        return (self.w(x) * 2.0).square()


class Hessian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        return torch.func.hessian(lambda v: nn.functional.silu(self.w(v)).sum())(x)


class Graph(nn.Module):
    """With the neighbours of each place as a sparse buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(4, 3)
        self.register_buffer("near", torch.eye(4).to_sparse_csr())

    def forward(self, x: Tensor) -> Any:
        return nn.functional.silu(self.near @ self.w(x))


def rows(grad: bool = True) -> Tensor:
    return torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(5, 4)], layout=torch.jagged, requires_grad=grad)


def masked() -> Tensor:
    x = torch.randn(3, 4)
    return masked_tensor(x, x > 0)


def eye() -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [1, 1, 2]]), torch.randn(3), (4, 4))


def known() -> tuple[nn.Module, Tensor]:
    model = Exact()
    return model, model.seen.clone()


KINDS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "a wrapper's attributes, as a parameter": lambda: (Linear(scaled(Scaled)), torch.randn(2, 4)),
    "a wrapper as a parameter": lambda: (Linear(scaled(Flat)), torch.randn(2, 4)),
    "a wrapper as an input": lambda: (lambda x, w: x @ w.t(), torch.randn(2, 4), scaled(Flat)),
    "a wrapper as a result": lambda: (lambda x: Flat(x.to(torch.int8), x * 3), torch.randn(2, 4)),
    "a jagged tensor inside": lambda: (Jagged(), torch.randn(8, 8)),
    "two jagged inputs": lambda: (lambda a, b: nn.functional.silu(a) * b, a := rows(), a.detach() + 1),
    "jagged attention": lambda: (Attention(), rows()),
    "a nested result": lambda: (lambda x: torch.nested.as_nested_tensor([x[:2] * 3, x * 2]), torch.randn(3, 4)),
    "a masked input": lambda: (lambda m: (m * 2).sum(1), masked()),
    "a masked result": lambda: (lambda x: masked_tensor(x * 3, x > 0), torch.randn(3, 4)),
    "a sparse result": lambda: (lambda x: (x * 3).relu().to_sparse(), torch.randn(3, 4)),
    "a sparse input": lambda: (lambda a, b: nn.functional.silu(a @ b), eye().requires_grad_(), torch.randn(4, 3)),
    "a sparse input not coalesced": lambda: (lambda a: a.to_dense() * 3, eye()),
    "a sparse buffer": lambda: (Graph(), torch.randn(4, 4)),
    "lazy modules": lambda: (nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.SiLU()), torch.randn(8, 4)),
    "a subclass as a result": lambda: (lambda x: (x * 3).as_subclass(Image), torch.randn(3)),
    "a subclass as an input": lambda: (lambda x: x * x.meta["spacing"], image()),
    "a subclass of Parameter": lambda: (Linear(Weight(torch.randn(3, 4))), torch.randn(2, 4)),
    "second derivatives": lambda: (Hessian(), torch.randn(3)),
    "a derivative without memory": lambda: (lambda x: torch.func.jvp(lambda v: v.sign() * 3, (x,), (x,)), torch.randn(3)),
    "vmap": lambda: (torch.vmap(lambda v: nn.functional.silu(v)), torch.randn(3, 4)),
    "an own _apply": lambda: (Metric(), torch.randn(2, 3)),
    "an own to": lambda: (Lightning(), torch.randn(2, 3)),
    "an own _apply below": lambda: (nn.Sequential(Metric(), nn.Tanh()), torch.randn(2, 3)),
    "a check of the inputs": known,
}
LEFT = ("jagged attention", "a nested result")
SILU = (
    *("a jagged tensor inside", "two jagged inputs", "second derivatives", "vmap", "a sparse input", "a sparse buffer"),
    *("lazy modules", "jagged attention"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_agrees_and_a_fault_in_it_is_placed(kind: str, sound: Device, faulty: dict[str, Device]) -> None:
    """Operators inside of a subclass are seen."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", parity.ParityWarning)
        assert assert_parity(*KINDS[kind](), device=sound).agrees
    op = "silu" if kind in SILU else "mul"
    found = parity.locate(*KINDS[kind](), device=faulty[op], whole=False)
    assert found.first is not None
    assert found.first.operator == f"aten::{op}"
    assert "test_tensors" in found.first.place.line
    assert not found.left or kind in LEFT or "sparse" in kind  # of such operands it is said that they were left out


@pytest.mark.parametrize("kind", ["a wrapper as a parameter", "a masked result", "a subclass as a result"])
def test_a_comparison_fails_for_a_fault_in_what_it_opened(kind: str, faulty: dict[str, Device]) -> None:
    with pytest.raises(ParityFailure, match=r"aten::mul wrong, .* at \S*test_tensors.py:\d+"):
        assert_parity(*KINDS[kind](), device=faulty["mul"])


def test_attention_of_jagged_tensors_that_is_wrong_is_found() -> None:
    off = Fault("attention", ("scaled_dot_product_attention",), lambda call: call.run() * 1.02, level="function")
    with pytest.raises(ParityFailure, match=r"wrong in out\.values"):
        assert_parity(Attention(), rows(), device=resolve("sim", (off,)))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: torch.nested.to_padded_tensor(torch.nested.as_nested_tensor([x[:2], x]), 0.0), "_nested_tensor_from_tensor"),
        (lambda x: x.to_sparse_csr() @ x, "aten::to_sparse_csr"),
        (lambda x: x.to_sparse().to_dense() * 2, "will run on MPS"),
    ],
)
def test_audit_names_what_mps_does_not_have_for_such_tensors(function: Callable[[Tensor], Tensor], said: str) -> None:
    assert said in parity.audit(function, torch.randn(3, 3)).headline


@pytest.mark.parametrize("kind", ["a wrapper as a parameter", "a subclass as a result", "an own _apply"])
def test_audit_sees_the_operators_inside(kind: str) -> None:
    assert parity.audit(*KINDS[kind]()).complete


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_jagged_tensors_are_judged_by_their_own_roundings(dtype: torch.dtype, sound: Device) -> None:
    """The roundings inside count in half types as well."""
    assert "8 times" not in str(assert_parity(Jagged().to(dtype), torch.randn(8, 8, dtype=dtype), device=sound))


def test_lazy_modules_stay_lazy_and_the_first_call_is_told() -> None:
    """Also those that a function is given."""
    net = nn.Sequential(nn.LazyLinear(3), nn.Dropout())
    made = assert_parity(lambda m, x: m(x).square().sum(), net, torch.randn(2, 4), device="sim")
    assert any("first call on the CPU" in line for line in made.notes)
    assert nn.parameter.is_lazy(next(net.parameters()))


# -------------------------------------------------------------------------------------------------------------- refusals


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LazyLinear(3), nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Any:
        return self.a(x)


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(3)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda f: f(torch.exp, fake()), "'input' of exp is a FakeTensor, which has no numbers: give a real tensor"),
        (lambda f: f(torch.exp, Closed()), r"'input' of exp is a \S+Closed, a tensor subclass without memory of its own, and "),
        (lambda f: f(lambda x: Closed(), torch.ones(3)), r"'out' of the result is a \S+Closed, a tensor subclass without"),
        (lambda f: torch.vmap(lambda x: f(torch.exp, x))(torch.ones(2, 3)), "'input' of exp is a level of torch.func"),
        (lambda f: torch.func.grad(lambda x: f(torch.exp, x))(torch.ones(3)), "'input' of exp is a level of torch.func"),
        (lambda f: f(nn.functional.relu, torch.nested.nested_tensor([torch.ones(3)])), "'input' of relu is nested and strided"),
        (lambda f: f(nn.functional.relu, torch.eye(4).to_sparse_bsr((2, 2))), "'input' of relu is sparse in blocks; give its"),
        (lambda f: f(torch.relu, torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)), "is quantized; give its "),
        (
            lambda f: f(nn.LazyLinear(3), torch.ones(3).to(torch.int8)),
            "the first call, which gives lazy modules their shapes, r",
        ),
        (lambda f: f(Unused(), torch.ones(3)), "parameter 'b.weight' has no shape after a first call"),
    ],
)
def test_what_cannot_be_opened_is_refused_by_its_name(call: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        call(lambda *given: assert_parity(*given, device="sim"))


def test_a_quantized_result_is_judged_by_its_numbers() -> None:
    """The simulated device has none, which it says as MPS does."""

    def quantized(x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)

    x = torch.randn(3)
    assert parity.compare(quantized, quantized(x), quantized(x), x).agrees
    assert not parity.compare(quantized, quantized(x * 1.5), quantized(x), x).agrees
    with pytest.raises(ParityFailure, match=r"unsupported: NotImplementedError in run: Could not run 'torch.qint8'"):
        assert_parity(quantized, x, device="sim")


# -------------------------------------------------------------------------------------------------------------- training


class Adapted(nn.Module):
    """A frozen quantized weight with an adapter that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.a = Linear(scaled(Flat)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        return self.w(x) + self.a(x)


@pytest.mark.parametrize("model", [Adapted, Exact])
def test_training_takes_wrapper_weights_and_a_check_of_the_batch(model: type[nn.Module], faulty: dict[str, Device]) -> None:
    given = [torch.randn(2, 4)] if model is Adapted else [known()[1]]

    def make(device: torch.device) -> Any:
        m = model().to(device)
        if isinstance(m, Exact):
            m.seen = given[0].to(device)
        o = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], 0.1)

        def step(batch: Tensor) -> Any:
            o.zero_grad()
            loss = m(batch).square().mean()
            loss.backward()
            o.step()
            return loss

        return m, o, step

    assert parity.compare_training(make, given, steps=2, device="sim").agrees
    assert not parity.compare_training(make, given, steps=2, device=faulty["mul"], locate=False).agrees


class Guarded(torch.Tensor):
    """A plain subclass with what Python cannot copy."""


def test_what_a_tensor_holds_and_cannot_be_copied_goes_along(sound: Device, faulty: dict[str, Device]) -> None:
    x = torch.randn(4, 4).as_subclass(Guarded)
    x.lock = threading.Lock()  # type: ignore[attr-defined]
    x.names = ["a"]  # type: ignore[attr-defined]
    assert assert_parity(lambda x: x * 2.5, x, device=sound, backward=False).agrees
    with pytest.raises(ParityFailure):
        assert_parity(lambda x: x * 2.5, x, device=faulty["mul"], backward=False)
