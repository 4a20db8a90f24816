"""`parity.compare_generation`: at which step the logits of a model that generates tokens are more than rounding away from the
CPU's, and where its tokens diverge.

Two greedy generations part for good at the first token that differs, and a tie of two logits is enough for that. So the CPU
chooses all tokens, and every side follows them with a cache of its own: the logits of every step are judged, behind such a
token as well, and the cache at the end. Another token is a tie where its logits are within what rounding explains, and a
consequence of wrong ones where they are not.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parity.comparing.comparison import Comparison, Line, ParityWarning, Request
from parity.comparing.function import Sides, compared, target
from parity.comparing.leaves import held
from parity.comparing.subject import forward, subject, word
from parity.comparing.truth import seeded
from parity.core.errors import ParityError, UsageError
from parity.core.results import Raised, Status, Verdict
from parity.devices import Device
from parity.execution import execute as ex
from parity.locating.located import Located, plural
from parity.locating.search import PATIENCE, located, with_place

Step = Callable[[Any, Tensor, Any], tuple[Tensor, Any]]
LOGITS = re.compile(r"out\['logits'\]\[(\d+)\]$")
RETURNS = "a step returns (logits, cache): logits of (batch, new tokens, vocabulary) or (batch, vocabulary), and any cache"
SHOWN = 5  # steps, or other tensors, that are shown


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """A step of a generation. number: from 1; verdict: of its logits; token, device_token: what the two sides would have
    chosen, one for each sequence of the batch; gap: smallest distance of the CPU's logits for the two where they differ, else
    None."""

    number: int
    verdict: Verdict
    token: tuple[int, ...]
    device_token: tuple[int, ...]
    gap: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether rounding explains its logits."""
        return self.verdict.status is Status.AGREE

    @property
    def tie(self) -> bool:
        """Whether the sides choose other tokens for no more than a rounding."""
        return self.agrees and self.token != self.device_token


@dataclass(frozen=True, slots=True, repr=False)
class Generation:
    """What `compare_generation` found. subject: "GPT2 float32 on mps"; steps: all of them, along the CPU's tokens; comparison:
    the verdicts of logits, cache and whatever the model writes; located: the operators that diverge by themselves."""

    subject: str
    steps: tuple[GeneratedToken, ...]
    comparison: Comparison
    located: Located | None = None

    @property
    def agrees(self) -> bool:
        """Whether rounding explains all logits and the cache."""
        return not self.comparison.findings

    @property
    def first(self) -> GeneratedToken | None:
        """The first step whose logits rounding does not explain; None if there is none."""
        return next((s for s in self.steps if not s.agrees and s.verdict.status is not Status.VOID), None)

    @property
    def table(self) -> tuple[Line, ...]:
        """A line for the logits of each step, and for the cache and whatever else was compared."""
        others = (Line.of(_name(n), v) for n, v in self.comparison.verdicts if not LOGITS.match(n))
        return (*(Line.of(f"step {s.number}", s.verdict) for s in self.steps), *others)

    @property
    def divergence(self) -> GeneratedToken | None:
        """The first step at which the device would have chosen another token; None if there is none."""
        return next((s for s in self.steps if s.token != s.device_token), None)

    @property
    def state(self) -> tuple[tuple[str, Verdict], ...]:
        """Findings other than the logits: the cache, and buffers that the model writes."""
        return tuple((n, v) for n, v in self.comparison.findings if not LOGITS.match(n))

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if not self.steps:  # the device raised
            return str(self.comparison).splitlines()[0]
        many = plural(len(self.steps), "step")
        if self.first is not None:
            where = f"generation diverges from the CPU's at step {self.first.number} of {len(self.steps)}"
            return f"{self.subject}: {where}: logits {_how(self.first.verdict)}; {self._tokens()}"
        if self.state:
            name, verdict = self.state[0]
            return f"{self.subject}: the logits of {many} agree, but {_name(name)} is {_how(verdict)}"
        return f"{self.subject}: rounding explains the logits of {many} of generation and the cache; {self._tokens()}"

    def __repr__(self) -> str:
        return f"<{self.headline}>"

    def __bool__(self) -> bool:
        return self.agrees

    def __str__(self) -> str:
        lines = [self.headline]
        if self.located is not None and self.located.first is not None:
            lines += [f"  {x.removeprefix(self.located.subject).strip()}" for x in str(self.located).splitlines()[:3]]
            lines += [f"  workaround: {self.located.workaround}"] if self.located.workaround else []
        off = [s for s in self.steps if not s.agrees]
        lines += [f"  step {s.number}: logits {_how(s.verdict)}" for s in off[:SHOWN]]
        lines += [f"  ... and {plural(len(off) - SHOWN, 'more step')}"] if len(off) > SHOWN else []
        state = self.state if self.steps else ()
        lines += [f"  {_name(n)}: {_how(v)}" for n, v in state[:SHOWN]]
        lines += [f"  ... and {len(state) - SHOWN} more of the cache"] if len(state) > SHOWN else []
        lines += [f"note: {n}" for n in self.comparison.notes]
        return "\n".join([*lines, f"next: {self.comparison.next}"] if self.comparison.next else lines)

    def _tokens(self) -> str:
        if (p := self.divergence) is None:
            return "the tokens are the same"
        k = next(k for k, (a, b) in enumerate(zip(p.token, p.device_token)) if a != b)
        why = f"a tie that rounding explains (the CPU's logits are {p.gap:.2g} apart)" if p.tie else "for its wrong logits"
        which = f" in sequence {k}" if len(p.token) > 1 else ""
        return f"tokens diverge at step {p.number}{which}: {p.token[k]} on the CPU, {p.device_token[k]} on the device, {why}"


def _how(v: Verdict) -> str:
    m = v.measure
    if m is not None and m.share is not None and 0.0 < m.share < float("inf"):
        return f"{v.status}, {m.share:.3g} times the budget"
    return f"{v.status}: {v.reason}" if v.reason else str(v.status)


def _name(path: str) -> str:
    return path.removeprefix("out['cache']['").removesuffix("']")


def compare_generation(
    model: nn.Module,
    tokens: Tensor,
    *,
    step: Step | None = None,
    max_new_tokens: int = 20,
    device: str | torch.device | Device = "auto",
    locate: bool = True,
    **kwargs: Any,
) -> Generation:
    """Generate tokens greedily on the CPU and have the device follow them: judge the logits of each step and the cache, and
    say where the device would have chosen another token.

    model: one of Hugging Face's with `generate`, or any module with a step. tokens: the prompt, integers of (batch, length),
    all of one length. step(model, tokens, cache): one pass over new tokens, which returns logits, of (batch, new tokens,
    vocabulary) or (batch, vocabulary), and the cache for the next pass; the first gets the prompt and None. By default Hugging
    Face's call for a model that has `generate`, else model(tokens, cache). max_new_tokens: how many steps; an end token ends
    nothing. locate: search the generation for the operator that diverges. kwargs: more arguments of each call of a Hugging Face
    model; an attention_mask grows with the tokens.

    The result is true in a test where rounding explains all (`assert parity.compare_generation(...)`). Raises UsageError for
    what is no such model or does not run on the CPU, NothingCompared if no operator ran on the device, DeviceError for a device
    that is not available.

    >>> step = lambda model, tokens, cache: (model(tokens), cache)
    >>> parity.compare_generation(torch.nn.Embedding(5, 5), torch.tensor([[1, 2]]), step=step, device="sim").agrees
    True
    """
    _check(model, tokens, step, max_new_tokens, kwargs)
    place = target(device)
    own: Step = step or (_hugging_face if callable(getattr(model, "generate", None)) else _plain)
    decode = functools.partial(_decoded, own)
    decode.__name__ = type(model).__name__  # type: ignore[attr-defined]  # how messages call it
    forced = _greedy(functools.partial(_chosen, own, max_new_tokens), model, tokens, kwargs)
    sides: dict[str, Mapping[str, Tensor]] = {}

    def keep(seen: Sides) -> None:
        sides.update(ours=seen.ours, theirs=seen.theirs)

    q = Request(decode, (model, tokens, forced, dict(kwargs)), {}, place, backward=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ParityWarning)
        comparison = compared(q, keep).comparison
    steps = tuple(_steps(defaultdict(_not_judged, comparison.verdicts), sides)) if sides else ()
    found = None
    if locate and any(v.status.differs for _, v in comparison.findings):
        found = _located(q)
        comparison = comparison if found is None else with_place(comparison, found)
    return Generation(comparison.subject, steps, comparison, found)


def _check(model: Any, tokens: Any, step: Any, steps: Any, kwargs: Mapping[str, Any]) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model is {type(model).__name__}; give an nn.Module, so that its weights can be moved")
    if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.is_floating_point() or not tokens.numel():
        kind = f"{word(tokens.dtype)} {list(tokens.shape)}" if isinstance(tokens, Tensor) else repr(tokens)[:80]
        raise UsageError(f"the prompt is {kind}; give integer tokens of shape (batch, length), at least one")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise UsageError(f"max_new_tokens is {steps!r}; give a whole number from 1 on")
    if step is not None and not callable(step):
        raise UsageError(f"step is {type(step).__name__}; give a function (model, tokens, cache) -> (logits, cache)")
    if kwargs and (step is not None or not hasattr(model, "generate")):
        raise UsageError(f"'{next(iter(kwargs))}' is for models with generate; let your own step pass what the model takes")


def _greedy(choose: Callable[..., Tensor], model: nn.Module, tokens: Tensor, kwargs: Mapping[str, Any]) -> Tensor:
    """The CPU's own tokens, (batch, steps). Raises UsageError if the model does not run there."""
    s = subject(choose, (model, tokens, dict(kwargs)), {})
    with seeded():
        got = ex.attempt(lambda: forward(s, torch.clone, False).outputs[0][1], "run")
    if isinstance(got, Raised):
        if got.type == "UsageError":
            raise UsageError(got.message)
        raise UsageError(f"{type(model).__name__} does not generate on the CPU: {got.type}: {got.message}; {RETURNS}")
    chosen: Tensor = got
    return chosen


def _chosen(step: Step, steps: int, model: Any, tokens: Tensor, given: dict[str, Any]) -> Tensor:
    new, cache, chosen = tokens, _start(given), []
    for _ in range(steps):
        logits, cache = _taken(step, model, new, cache)
        new = _last(logits).argmax(-1, keepdim=True)
        chosen.append(new)
    return torch.cat(chosen, 1)


def _decoded(step: Step, model: Any, tokens: Tensor, forced: Tensor, given: dict[str, Any]) -> Any:
    """The logits of each step along given tokens, and the tensors of the last cache by name."""
    new, cache, logits = tokens, _start(given), []
    for k in range(forced.shape[1]):
        some, cache = _taken(step, model, new, cache)
        logits.append(some)
        new = forced[:, k : k + 1]
    kept = cache.cache if isinstance(cache, _State) else cache
    return {"logits": logits, "cache": dict(held(kept, "cache"))}


def _taken(step: Step, model: Any, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
    got = step(model, tokens, cache)
    if not isinstance(got, tuple) or len(got) != 2 or not isinstance(got[0], Tensor):
        raise UsageError(f"the step returned {type(got).__name__}; {RETURNS}")
    if got[0].dim() not in (2, 3) or not got[0].is_floating_point():
        raise UsageError(f"the step's logits are {word(got[0].dtype)} {list(got[0].shape)}; {RETURNS}")
    return got


def _last(logits: Tensor) -> Tensor:
    return logits[:, -1] if logits.dim() == 3 else logits


def _not_judged() -> Verdict:
    return Verdict(Status.VOID, "not judged: the notes say why")


def _steps(verdicts: Mapping[str, Verdict], sides: Mapping[str, Mapping[str, Tensor]]) -> Iterator[GeneratedToken]:
    names = [n for n in sides["ours"] if LOGITS.match(n)]
    for number, name in enumerate(names, 1):
        ours, theirs = (_last(sides[k][name].to(torch.float64)) for k in ("ours", "theirs"))
        token = ours.argmax(-1)
        other = theirs.argmax(-1) if theirs.shape == ours.shape else token
        rows = torch.arange(len(token))
        gaps = (ours[rows, token] - ours[rows, other])[token != other]
        gap = float(gaps.min()) if gaps.numel() else None
        yield GeneratedToken(number, verdicts[name], tuple(token.tolist()), tuple(other.tolist()), gap)


def _located(q: Request) -> Located | None:
    try:
        return located(q, PATIENCE, whole=False)
    except ParityError:
        return None


# --------------------------------------------------------------------------------------------------------------- the steps


@dataclass(slots=True)
class _State:
    """What a Hugging Face model is given at each call. more: arguments of the caller; cache: what it kept; encoded: what
    an encoder gave; begun: whether a call was made."""

    more: dict[str, Any]
    cache: Any = None
    encoded: Any = None
    begun: bool = False


def _start(given: dict[str, Any]) -> Any:
    return _State(dict(given)) if given else None


def _plain(model: Any, tokens: Tensor, cache: Any) -> Any:
    return model(tokens, cache)


def _hugging_face(model: Any, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
    state = cache if isinstance(cache, _State) else _State({})
    more, config = dict(state.more), getattr(model, "config", None)
    call = {"input_ids": tokens}
    if getattr(config, "is_encoder_decoder", False):
        if state.begun:
            call = {"encoder_outputs": state.encoded, "decoder_input_ids": tokens}
        else:
            begin = getattr(config, "decoder_start_token_id", None) or 0
            call["decoder_input_ids"] = torch.full_like(tokens[:, :1], begin)
    elif isinstance(mask := more.get("attention_mask"), Tensor) and state.begun:
        more["attention_mask"] = torch.cat((mask, torch.ones_like(mask[:, :1])), 1)
    kept = "cache" if _takes_cache(model) else "past_key_values"
    out = model(**call, **more, **{kept: state.cache}, use_cache=True)
    encoded = state.encoded
    if encoded is None and getattr(out, "encoder_last_hidden_state", None) is not None:
        encoded = (out.encoder_last_hidden_state,)
    return out.logits, _State(more, getattr(out, kept, None), encoded, True)


def _takes_cache(model: Any) -> bool:
    """Whether a model has the newer name of Transformers for its cache, and warns of the older one."""
    taken = inspect.signature(model.forward).parameters
    return "cache" in taken and "past_key_values" not in taken
