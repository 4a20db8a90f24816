"""Generation token by token: the step, the operator and the cache that are wrong are named; ties are not wrong logits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import parity
from parity.comparing.function import compared
from parity.core.errors import NothingCompared, UsageError
from parity.core.results import Status
from parity.devices import Call, Device, Fault, resolve
from parity.devices.sim.honest import FAULTS as HONEST
from parity.training import generation

PROMPT = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])
WORDS, WIDTH = 11, 8


class Layer(nn.Module):
    """Attention over a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, past: Any) -> Any:
        """x: (batch, new tokens, WIDTH); past: keys and values of the tokens before."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if past is not None:
            k, v = torch.cat((past[0], k), 1), torch.cat((past[1], v), 1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=past is None)), (k, v)


class Decoder(nn.Module):
    """Two layers between an embedding and a head: (logits, cache) of new tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor, cache: Any = None) -> Any:
        """tokens: (batch, new tokens)."""
        x, kept = self.words(tokens), []
        for layer, past in zip(self.layers, cache or (None, None)):
            x, now = layer(x, past)
            kept.append(now)
        return self.head(x), kept


class Named(nn.Module):
    """The same as Hugging Face's models are called, the cache as an object."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Decoder()

    def generate(self) -> None:
        """Marks the model; parity calls `forward`."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, past_key_values: Any, use_cache: bool) -> Any:
        """attention_mask: (batch, tokens so far)."""
        logits, cache = self.inner(input_ids, past_key_values.kept if past_key_values else None)
        assert use_cache
        assert attention_mask.shape[1] == cache[0][0].shape[1]
        return SimpleNamespace(logits=logits, past_key_values=SimpleNamespace(kept=cache))


class Renamed(Named):
    """The name that newer ones have for the cache, in what they take and return."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, cache: Any, use_cache: bool) -> Any:
        """attention_mask: (batch, tokens so far)."""
        out = super().forward(input_ids, attention_mask, cache, use_cache)
        return SimpleNamespace(logits=out.logits, cache=out.past_key_values)


class Sticky(nn.Module):
    """Keeps its cache in a buffer."""

    sum: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.register_buffer("sum", torch.zeros(2, WIDTH))

    def forward(self, tokens: Tensor, cache: Any) -> Any:
        """Logits of (batch, WORDS)."""
        with torch.no_grad():
            self.sum += self.words(tokens).sum(1)
        return self.head(torch.tanh(self.sum)), None


def planted(op: str, effect: Any, **more: Any) -> Device:
    return resolve("sim", (Fault("f", (op,), effect, **more),))


def off_by_a_percent(call: Call) -> Any:
    return call.run() * 1.01


def of_length(n: int) -> Any:
    return lambda call: any(t.dim() == 3 and t.shape[1] == n for t in call.outs)


def test_healthy_and_honest_devices_agree() -> None:
    """Also with MPS's limits, and under half types."""
    for model in (Decoder(), Sticky()):
        for device in (resolve("sim"), resolve("sim:mps"), resolve("sim", HONEST)):
            found = parity.compare_generation(model, PROMPT, device=device, max_new_tokens=6)
            assert found, str(found)
            assert len(found.steps) == 6
            assert found.divergence is None
            assert "rounding explains the logits of 6 steps of generation and the cache; the tokens are the same" in str(found)
    assert parity.compare_generation(Decoder().half(), PROMPT, device="sim:mps", max_new_tokens=3)


@pytest.mark.slow
def test_the_step_the_operator_and_the_cache_are_named() -> None:
    """A cache that goes wrong when it holds nine tokens: the prompt has five, so that is step five."""
    device = planted("cat", off_by_a_percent, when=of_length(9))
    found = parity.compare_generation(Decoder(), PROMPT, device=device, max_new_tokens=7)
    assert not found
    assert found.first is not None
    assert found.first.number == 5
    assert [s.number for s in found.steps if not s.agrees] == [5, 6, 7]  # they are judged along the CPU's tokens
    assert {n for n, _ in found.state} == {f"out['cache']['cache[{k}][{j}]']" for k in range(2) for j in range(2)}
    assert found.located is not None
    assert found.located.first is not None
    assert (found.located.first.place.module, found.located.first.operator) == ("layers.0", "aten::cat")
    text = str(found)
    assert "Decoder float32 on sim: generation diverges from the CPU's at step 5 of 7: logits " in text
    assert "cache[0][0]: " in text
    assert "next: parity run cat --dtype float32 --device sim --setup FILE" in text
    assert "\n  workaround: cat on the CPU agrees (" in text


def test_a_step_that_nobody_judged_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large model results next to one far outside may not be judged; their verdicts become a note."""

    def without_the_second(*args: Any) -> Any:
        got = compared(*args)
        left = tuple((n, v) for n, v in got.comparison.verdicts if n != "out['logits'][1]")
        return replace(got, comparison=replace(got.comparison, verdicts=left))

    monkeypatch.setattr(generation, "compared", without_the_second)
    device = planted("cat", off_by_a_percent, when=of_length(9))
    found = parity.compare_generation(Decoder(), PROMPT, device=device, max_new_tokens=7)
    assert [s.number for s in found.steps if s.verdict.status is Status.VOID] == [2]
    assert found.first is not None
    assert found.first.number == 5


def test_no_workaround_is_said_where_nothing_was_located() -> None:
    assert "workaround" not in str(parity.compare_generation(Decoder(), PROMPT, device="sim", max_new_tokens=3))


@pytest.mark.slow
def test_a_cache_that_is_wrong_too_late_to_be_read_is_found() -> None:
    """The keys of the last step reach no logit, because nothing reads them any more. Both layers have such keys."""

    def spoiled(call: Call) -> Any:
        out = call.run()
        out[:, -1] = 7.0
        return out

    class Late(Decoder):
        def forward(self, tokens: Tensor, cache: Any = None) -> Any:
            logits, kept = super().forward(tokens, cache)
            return logits, [(torch.cat((k, k[:, :1]), 1)[:, :-1].clone(), v) for k, v in kept]

    device = planted("copy_", spoiled, when=of_length(7))
    found = parity.compare_generation(Late(), PROMPT, device=device, max_new_tokens=3, locate=False)
    assert found.first is None
    assert [n for n, _ in found.state] == ["out['cache']['cache[0][0]']", "out['cache']['cache[1][0]']"]
    assert "the logits of 3 steps agree, but cache[0][0] is wrong" in found.headline
    assert "cache[1][0]" in str(found)


@pytest.mark.slow
def test_a_wrong_logit_changes_the_token() -> None:
    def swapped(call: Call) -> Any:
        return call.run().flip(-1)

    device = planted("linear", swapped, when=lambda call: call.args[1].shape[0] == WORDS)
    found = parity.compare_generation(Decoder(), PROMPT, device=device, max_new_tokens=3, locate=False)
    assert found.divergence is not None
    assert not found.divergence.tie
    assert "on the device, for its wrong logits" in found.headline


def test_a_tie_is_no_finding() -> None:
    """Two words with equal weights: the last bit decides, and all later steps are judged all the same."""
    model = Decoder()
    best = int(model(PROMPT)[0][0, -1].argmax())
    twin = (best + 3) % WORDS
    with torch.no_grad():
        model.head.weight[twin], model.head.bias[twin] = model.head.weight[best], model.head.bias[best]

    def nudged(call: Call) -> Any:
        out = call.run()
        late = out[..., max(best, twin)]
        out[..., max(best, twin)] = torch.nextafter(late, torch.full_like(late, float("inf")))
        return out

    device = planted("linear", nudged, when=lambda call: call.args[1].shape[0] == WORDS)
    found = parity.compare_generation(model, PROMPT, device=device, max_new_tokens=4)
    assert found, str(found)
    assert found.divergence is not None
    assert found.divergence.tie
    assert found.divergence.gap == 0.0
    assert "tokens diverge at step 1 in sequence 0: " in found.headline
    assert "a tie that rounding explains (the CPU's logits are 0 apart)" in found.headline


def test_models_as_hugging_face_calls_them_and_steps_of_ones_own() -> None:
    """An attention mask grows with the tokens; the cache may be any object, by either name; a step gets the model on its
    side."""
    mask = torch.ones_like(PROMPT)
    for model in (Named(), Renamed()):
        assert parity.compare_generation(model, PROMPT, attention_mask=mask, device="sim", max_new_tokens=3)

    def step(model: Any, tokens: Tensor, cache: Any) -> Any:
        logits, cache = model.inner(tokens, cache)
        return logits[:, -1], cache

    found = parity.compare_generation(Named(), PROMPT, step=step, device="sim", max_new_tokens=3)
    assert [v.status for _, v in found.comparison.verdicts] == [Status.AGREE] * 7  # three logits, two keys and values


def test_a_cache_in_a_buffer_is_compared() -> None:
    """What the model keeps in itself over all steps."""
    device = planted("add", off_by_a_percent, when=lambda call: bool(call.outs) and call.outs[0].shape == (2, WIDTH))
    found = parity.compare_generation(Sticky(), PROMPT, device=device, max_new_tokens=3)
    assert "after[model.sum]" in [n for n, _ in found.state]


def test_a_device_that_raises_is_told() -> None:
    def refused(call: Call) -> Any:
        raise RuntimeError("no kernel for this")

    found = parity.compare_generation(Decoder(), PROMPT, device=planted("cat", refused), max_new_tokens=3)
    assert not found
    assert not found.steps
    assert "no kernel for this" in found.headline


@pytest.mark.parametrize(
    ("given", "more", "text"),
    [
        ((Decoder().forward, PROMPT), {}, "the model is method; give an nn.Module"),
        ((Decoder(), PROMPT[0]), {}, r"the prompt is int64 \[5\]; give integer tokens of shape \(batch, length\)"),
        ((Decoder(), [1, 2]), {}, r"the prompt is \[1, 2\]; give integer tokens"),
        ((Decoder(), PROMPT), {"max_new_tokens": 0}, "max_new_tokens is 0; give a whole number from 1 on"),
        ((Decoder(), PROMPT), {"attention_mask": PROMPT}, "'attention_mask' is for models with generate"),
        ((Decoder(), PROMPT), {"step": 3}, "step is int; give a function"),
        ((nn.Linear(3, 3), PROMPT), {}, "Linear does not generate on the CPU: TypeError: .* a step returns"),
        ((nn.Embedding(11, 3), PROMPT), {"step": lambda m, t, c: m(t)}, "the step returned Tensor; a step returns"),
    ],
)
def test_what_cannot_generate_is_an_error_of_the_user(given: Any, more: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        parity.compare_generation(*given, device="sim", **more)


def test_a_model_that_never_reaches_the_device_compares_nothing() -> None:
    def near(model: Any, tokens: Tensor, cache: Any) -> Any:
        return torch.ones(2, WORDS) * tokens.shape[1], None

    with pytest.raises(NothingCompared):
        parity.compare_generation(Decoder(), PROMPT, step=near, device="sim", max_new_tokens=2)
