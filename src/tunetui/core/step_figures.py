"""What a window of the engine's steps shows: shares, means and times of it. It names no cause; `limits` does.

Also what a short history of /metrics shows, in the same figures, where there is no ring: coarser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

from tunetui.core.steps import EngineStep, Stop, durations_s

FULL_SLOTS = 0.95  # of max-num-seqs: a stream of a closed loop is away for a moment between two requests
ROOM = 0.75  # of the budget
LONG_STEP = 3.0  # times a decode-only step
LEAST_DECODE_STEPS = 5  # decode-only steps that give a median; else the shortest steps stand for them
SMALLEST_STEPS = 40  # decode-only steps of the smallest batches, whose median stands for a step that carries nothing
IDLE_RUNNING = 4  # requests that one step may end all of: only then can the engine have paused after it


class StepTimeModel(Protocol):
    """A fitted model of this engine's step times."""

    def step_s(self, tokens: float, sequences: float, kv_tokens: float) -> float:
        """Seconds of a step."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Figures of a window. Shares are of the steps, but for those that are named as of the time.

    `slots_full`: steps that ran (nearly) as many sequences as are allowed, whether or not others waited.
    `head_blocked`: steps whose budget had tokens left while requests waited, for the prompt at the head did not fit
    whole. `waits_for_...`: the same causes as shares of the requests' time in the queue, which TTFT is made of: a
    few steps can hold up many.
    `long_steps`: those whose prefill made them LONG_STEP times a decode-only step; `long_time` is their share of the
    time. `mean_step_s` is the time of a step, `decode_step_s` the median of those without prefill, `base_s` that of a
    step that carries next to nothing. `compute_time` is what prefill added, `batch_time` what the batch did, as shares
    of the time. Of an engine that is asked through /metrics alone the shares are of the looks, and the times are None.
    """

    steps: int
    waiting_share: float
    slots_full: float
    stopped_by_seqs: float
    stopped_by_tokens: float
    stopped_by_blocks: float
    head_blocked: float
    mean_running: float
    mean_waiting: float
    kv_usage: float | None
    kv_peak: float | None
    preemptions: int
    span_s: float = 0.0
    waits_for_seqs: float = 0.0
    waits_for_tokens: float = 0.0
    waits_for_blocks: float = 0.0
    waits_for_head: float = 0.0
    tokens_p95: float = 0.0
    long_steps: float = 0.0
    long_time: float = 0.0
    longest_prefill: int = 0
    mean_step_s: float | None = None
    decode_step_s: float | None = None
    base_s: float | None = None
    compute_time: float = 0.0
    batch_time: float = 0.0
    pauses: float = 0.0
    exact: bool = True

    @property
    def grows(self) -> float | None:
        """The share of a step's time that grows with what it carries, 0 to 1: at 1 a larger batch gains nothing."""
        if not self.mean_step_s or self.base_s is None:
            return None
        return min(max(1 - self.base_s / self.mean_step_s, 0.0), 1.0)

    def gain(self, factor: float) -> float | None:
        """What throughput becomes where the batch becomes `factor` times as large: each part of a step but the base
        grows with it."""
        grows = self.grows
        return None if grows is None else factor / (1 + grows * (factor - 1))

    def slowdown(self, factor: float) -> float:
        """What a step's time becomes there; without figures, as much as the batch."""
        return 1 + (1.0 if self.grows is None else self.grows) * (factor - 1)


def figures_of(
    steps: Sequence[EngineStep],
    max_num_seqs: int,
    chunked: bool = True,
    base_s: float | None = None,
    model: StepTimeModel | None = None,
) -> StepFigures | None:
    """The figures of `steps`, all of one point; None of fewer than two.

    `base_s`: the least `shortest_decode_s` of this server so far, or None for that of the window.
    """
    if len(steps) < 2:
        return None
    count = len(steps)
    usage = [s.used_blocks / (s.used_blocks + s.free_blocks) for s in steps if s.used_blocks + s.free_blocks > 0]
    head, seqs, tokens, blocks = _waits(steps, chunked)
    return StepFigures(
        steps=count,
        waiting_share=sum(s.waiting > 0 for s in steps) / count,
        slots_full=sum(s.running >= FULL_SLOTS * max_num_seqs for s in steps) / count,
        stopped_by_seqs=sum(s.stopped_by is Stop.SEQS for s in steps) / count,
        stopped_by_tokens=sum(_short_of_tokens(s, chunked) for s in steps) / count,
        stopped_by_blocks=sum(s.stopped_by is Stop.BLOCKS for s in steps) / count,
        head_blocked=sum(_head(s, chunked) for s in steps) / count,
        mean_running=sum(s.running for s in steps) / count,
        mean_waiting=sum(s.waiting for s in steps) / count,
        kv_usage=sum(usage) / len(usage) if usage else None,
        kv_peak=max(usage, default=None),
        preemptions=max(steps[-1].preemptions - steps[0].preemptions, 0),
        span_s=steps[-1].time_s - steps[0].time_s,
        waits_for_seqs=seqs,
        waits_for_tokens=tokens,
        waits_for_blocks=blocks,
        waits_for_head=head,
        tokens_p95=_quantile([s.tokens for s in steps], 95),
        longest_prefill=max(s.prefill_tokens for s in steps),
        **_times(steps, base_s, model),
    )


def _waits(steps: Sequence[EngineStep], chunked: bool) -> tuple[float, float, float, float]:
    """The shares of the time that requests waited in steps stopped by the head, sequences, tokens and blocks."""
    head = seqs = tokens = blocks = total = 0.0
    for step, took_s in zip(steps, durations_s(steps), strict=True):
        waited_s = step.waiting * (took_s or 0.0)
        total += waited_s
        if _head(step, chunked):
            head += waited_s
        elif step.stopped_by is Stop.SEQS:
            seqs += waited_s
        elif _short_of_tokens(step, chunked):
            tokens += waited_s
        elif step.stopped_by is Stop.BLOCKS:
            blocks += waited_s
    return (head / total, seqs / total, tokens / total, blocks / total) if total else (0.0, 0.0, 0.0, 0.0)


def _head(step: EngineStep, chunked: bool) -> bool:
    """Without chunking a prompt that does not fit whole holds up all behind it, while the step has tokens left. vLLM's
    own scheduler cannot tell this from other causes."""
    return not chunked and step.waiting > 0 and step.stopped_by in (Stop.TOKENS, Stop.OTHER) and _has_room(step)


def _short_of_tokens(step: EngineStep, chunked: bool) -> bool:
    """Stopped by the budget; without chunking vLLM's scheduler says so only of a step full to the last token."""
    nearly = not chunked and step.stopped_by is Stop.OTHER and not _has_room(step)
    return nearly or (step.stopped_by is Stop.TOKENS and not _head(step, chunked))


def _has_room(step: EngineStep) -> bool:
    """A good part of the budget stays unused; a step that is nearly full is short of tokens."""
    return step.tokens < ROOM * step.token_budget


def _times(steps: Sequence[EngineStep], base_s: float | None, model: StepTimeModel | None) -> dict[str, Any]:
    timed = _timed(steps)
    if not timed:
        return {}
    decode_only = sorted(took_s for step, took_s in timed if not step.prefill_tokens)
    if len(decode_only) < LEAST_DECODE_STEPS:
        decode_only = sorted(took_s for _, took_s in timed)[: max(len(timed) // 10, 1)]
    decode_s, total_s = median(decode_only), sum(took_s for _, took_s in timed)
    shortest_s = _smallest(timed) or decode_s
    base_s = min(base_s, shortest_s) if base_s is not None else shortest_s
    if model is not None:
        base_s = min(model.step_s(1, 1, 0), decode_s)
    long = [took_s for step, took_s in timed if step.prefill_tokens and took_s > LONG_STEP * decode_s]
    added_s = sum(max(took_s - decode_s, 0.0) for step, took_s in timed if step.prefill_tokens)
    return {
        "long_steps": len(long) / len(timed),
        "long_time": sum(long) / total_s,
        "mean_step_s": total_s / len(timed),
        "decode_step_s": decode_s,
        "base_s": base_s,
        "compute_time": added_s / total_s,
        "batch_time": max(1 - (added_s + len(timed) * base_s) / total_s, 0.0),
        "pauses": (len(steps) - 1 - len(timed)) / (len(steps) - 1),
    }


def _timed(steps: Sequence[EngineStep]) -> list[tuple[EngineStep, float]]:
    """Steps with the time that they took; those after which the engine may have paused are left out."""
    found = []
    for (step, following), took_s in zip(pairwise(steps), durations_s(steps), strict=False):
        only_new = following.prefill_tokens > 0 and step.running <= IDLE_RUNNING and not step.waiting
        if took_s is not None and took_s > 0 and not (only_new and following.running <= IDLE_RUNNING):
            found.append((step, took_s))
    return found


def shortest_decode_s(steps: Sequence[EngineStep]) -> float | None:
    """Seconds of a decode-only step that carries as little as any of `steps`; None where there are too few."""
    return _smallest(_timed(steps))


def _smallest(timed: Sequence[tuple[EngineStep, float]]) -> float | None:
    """The median over the smallest batches, not the least of all: a scheduler that is ahead, or catches up after a
    stall, makes some steps look short."""
    decode_only = sorted((step.tokens, took_s) for step, took_s in timed if not step.prefill_tokens)
    count = min(len(decode_only) // 4, SMALLEST_STEPS)
    return median(took_s for _, took_s in decode_only[:count]) if count >= LEAST_DECODE_STEPS else None


def _quantile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[(len(values) - 1) * percent // 100]


@dataclass(frozen=True, slots=True)
class Look:
    """One look at /metrics."""

    running: int
    waiting: int
    kv_usage: float | None
    preemptions: int


def figures_of_looks(looks: Sequence[Look], max_num_seqs: int | None) -> StepFigures | None:
    """What a history of looks shows. Where the number of slots is not known it is taken from a plateau: as many as
    were ever seen running, if others waited meanwhile."""
    if len(looks) < 2:
        return None
    count = len(looks)
    slots = max_num_seqs or max(look.running for look in looks)
    usage = [look.kv_usage for look in looks if look.kv_usage is not None]
    waited = [look for look in looks if look.waiting > 0]
    full = sum(look.running >= slots for look in (looks if max_num_seqs else waited))
    blocked = sum((look.kv_usage or 0.0) >= FULL for look in waited)
    return StepFigures(
        steps=count,
        waiting_share=len(waited) / count,
        slots_full=full / count,
        stopped_by_seqs=sum(look.running >= slots and (look.kv_usage or 0.0) < FULL for look in waited) / count,
        stopped_by_tokens=0.0,
        stopped_by_blocks=blocked / count,
        head_blocked=0.0,
        waits_for_seqs=1 - blocked / len(waited) if waited and full else 0.0,
        waits_for_blocks=blocked / len(waited) if waited else 0.0,
        mean_running=sum(look.running for look in looks) / count,
        mean_waiting=sum(look.waiting for look in looks) / count,
        kv_usage=sum(usage) / len(usage) if usage else None,
        kv_peak=max(usage, default=None),
        preemptions=max(looks[-1].preemptions - looks[0].preemptions, 0),
        exact=False,
    )


FULL = 0.97  # of the KV cache: what is left of it holds no further prompt
