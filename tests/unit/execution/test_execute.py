"""Case, device -> outcome: what happened is a value."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from spoiled import Spoiled
from torch import Tensor

from parity import catalog
from parity.core.case import Case, Cotangent
from parity.core.errors import CaseError
from parity.core.notation import parse
from parity.core.results import Computed, Raised
from parity.devices import resolve
from parity.devices.refusals import listening
from parity.execution import execute
from parity.execution.execute import Live, Program
from parity.execution.inputs import Inputs, build

CPU = resolve("cpu")


def prepared(text: str) -> tuple[Program, Case, Inputs]:
    case = parse(text)
    return execute.program(catalog.row(case.op)), case, build(case)


def forward(text: str, grad: bool = False) -> Live:
    p, case, inputs = prepared(text)
    return execute.forward(p, case, inputs, execute.place(inputs, CPU), grad)


def test_results_are_named_by_their_place() -> None:
    assert [n for n, _ in forward("exp(float32[2])").outputs] == ["out"]
    assert [n for n, _ in forward("sort(float32[2])").outputs] == ["out[0]", "out[1]"]
    made = execute.outputs(({"a": torch.ones(1)}, [2.5, True]))
    assert [(n, t.dtype) for n, t in made] == [("out[a]", torch.float32), ("out[1]", torch.float64), ("out[2]", torch.bool)]
    made = execute.outputs(({"a": torch.ones(1), "b": {"c": 1}}, {"a": (torch.ones(2), torch.ones(3))}))
    assert [n for n, _ in made] == ["out[a]", "out[b.c]", "out[2]", "out[3]"]  # none takes another's place


def test_the_view_is_cut_on_the_device_from_the_uploaded_base() -> None:
    _, _, inputs = prepared("exp(float32[3, 4].transpose(0, 1).step(0, 2, 1))")
    placed = execute.place(inputs, Spoiled())
    view, base = placed.views[0], placed.bases[0]
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert view.untyped_storage().data_ptr() != inputs.operands[0].base.untyped_storage().data_ptr()
    assert (view.stride(), view.storage_offset()) == (
        inputs.operands[0].view.stride(),
        inputs.operands[0].view.storage_offset(),
    )


def test_an_operand_that_stays_on_the_cpu_is_not_uploaded() -> None:
    _, _, inputs = prepared("add(float32[2], float32[()].on_cpu())")
    placed = execute.place(inputs, Spoiled())
    assert placed.bases[1] is inputs.operands[1].base


def test_gradients_belong_to_the_operands_that_ask_for_them() -> None:
    live = forward("mul(float32[2].frozen(), float32[2])", grad=True)
    grads = execute.backward(live, [torch.ones(2)])
    assert [n for n, _ in grads] == ["grad[1]"]


def test_a_row_that_writes_works_on_a_copy_of_its_operand() -> None:
    p, case, inputs = prepared("copy_(float32[3].step(0, 2, 0), float32[3].normal(seed=1))")
    before = inputs.operands[0].base.clone()
    live = execute.forward(p, case, inputs, execute.place(inputs, CPU), False)
    assert [n for n, _ in live.outputs] == ["out", "base[out]"]
    assert torch.equal(inputs.operands[0].base, before)
    assert torch.equal(live.outputs[0][1], inputs.operands[1].view)


def test_a_step_writes_dense_copies_that_begin_where_its_operands_do() -> None:
    far = torch.arange(12.0)[5:11].view(2, 3).t()
    copy = execute._copied(far)
    assert (copy.storage_offset(), copy.stride(), copy.tolist()) == (5, far.stride(), far.tolist())
    assert copy.data_ptr() != far.data_ptr()
    assert execute._copied(far[:, :1].expand(3, 2)).is_contiguous()


def test_a_destination_is_full_of_the_fill_value_and_written_through_its_view() -> None:
    p, case, inputs = prepared('exp(float32[3]).into("stepped")')
    target = execute.destination(torch.zeros(3), case.into)
    assert target.base.tolist() == [7.25] * 6
    ((name, base),) = execute.write_out(p, case, inputs, execute.place(inputs, CPU), [target], CPU)
    assert name == "base[out]"
    assert base[1::2].tolist() == [7.25] * 3
    assert torch.equal(base[::2], inputs.operands[0].view.exp())
    assert target.base.tolist() == [7.25] * 6


def test_the_in_place_form_gives_the_whole_base() -> None:
    p, case, inputs = prepared("exp(float32[3].flat(1, 1))")
    ((name, base),) = execute.write_inplace(p, case, inputs, execute.place(inputs, CPU), CPU)
    assert name == "base[out]"
    assert base[[0, 4]].tolist() == [7.25, 7.25]
    assert torch.equal(base[1:4], inputs.operands[0].view.exp())


def test_an_expanded_cotangent_is_one_element() -> None:
    def ones(family: str, dtype: torch.dtype, n: int, seed: int, position: int) -> Tensor:
        return torch.ones(n, dtype=dtype)

    made = execute.cotangent(Cotangent("ones", "expanded"), torch.zeros(3, 4), 0, ones)
    assert made.base.shape == (1, 1)
    assert made.shape == (3, 4)


def test_what_a_device_throws_is_a_value() -> None:
    def fall() -> None:
        raise NotImplementedError("no\n kernel here")

    got = execute.attempt(fall, "run")
    assert isinstance(got, Raised)
    assert (got.type, got.message, got.stage) == ("NotImplementedError", "no kernel here", "run")
    assert execute.attempt(lambda: 3, "run") == 3


def test_ctrl_c_is_no_result() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute.attempt(interrupt, "run")


def test_an_error_that_the_device_kept_for_later_belongs_to_the_call() -> None:
    class Late(Spoiled):
        def synchronize(self) -> None:
            raise RuntimeError("asynchronous")

    got = execute.computed((("out", torch.ones(1)),), Late())
    assert isinstance(got, Raised)
    assert got.stage == "download"
    assert isinstance(execute.computed((("out", torch.ones(1)),), Spoiled()), Computed)


def test_fallback_warnings_become_notes_and_others_are_silent() -> None:
    notes: list[str] = []
    text = "The operator 'aten::foo' is not currently supported on the X backend and will fall back to run on the CPU."
    with listening(notes):
        warnings.warn(text, stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert notes == ["aten::foo"]


def test_a_path_that_torch_lacks_costs_the_cases_that_need_it() -> None:
    assert execute.attribute("torch.nn.functional.relu") is torch.nn.functional.relu
    missing: Any = "torch.no_such_op"
    with pytest.raises(CaseError, match=r"this torch does not have torch\.no_such_op"):
        execute.attribute(missing)


def test_gradients_are_those_of_torchs_own_function() -> None:
    x, y = (torch.tensor([1.5, -2.0]).requires_grad_() for _ in range(2))
    for create in (False, True):
        out = x.exp() * 2
        told = execute.gradients([out], [x, y], [torch.ones(2)], create)
        assert told[0] is not None
        assert torch.equal(told[0], 2 * x.detach().exp())
        assert told[0].requires_grad is create
        assert told[1] is None
    with pytest.raises(RuntimeError):
        execute.gradients([x.detach().exp()], [x], [torch.ones(2)])
    with pytest.raises(RuntimeError, match=r"(?i)shape"):
        execute.gradients([x.exp()], [x], [torch.ones(3)])


def test_every_fallback_of_a_process_is_heard() -> None:
    """MPS warns of the first operator alone, unless torch must warn always."""
    device, heard = resolve("sim:mps"), []
    x = device.upload(torch.eye(3))
    for _ in range(2):
        notes: list[str] = []
        with device.active(), listening(notes):
            torch.linalg.svd(x)
        heard.append(notes)
    assert [n[:1] for n in heard] == [["aten::linalg_svd"], ["aten::linalg_svd"]]
    assert not torch.is_warn_always_enabled()
