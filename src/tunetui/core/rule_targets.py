"""The points that rules would go to: those that keys reach, as far as they are felt and what is foreseen there holds.

It checks no limits of vLLM; `knobs.plan_step` does, for `advice`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tunetui.core.knobs import Knob, MemoryFlag, Point, stepped
from tunetui.core.situation import Situation

MOST_UTILIZATION = 0.95  # beyond it the card's own needs are at risk (the guide)
LEAST_GAIN, NO_LOSS = 1.015, 0.97


def _steps(s: Situation, knob: Knob, direction: int, fine: bool = False) -> Iterator[Point]:
    """The points that keys would reach one after the other."""
    point = s.point
    for _ in range(100):
        following = stepped(point, knob, direction, fine, s.facts)
        if following == point:
            return
        yield (point := following)


def more_seqs(s: Situation) -> Iterator[Point]:
    """The widest step up of those whose slower steps still meet TPOT."""
    for fine in (False, True):
        for target in _steps(s, Knob.SEQS, +1, fine):
            factor = _factor(s, target)
            must_pay = s.closed_at_cap or s.overloaded
            pays = not must_pay or (s.figures.gain(factor) or LEAST_GAIN) >= LEAST_GAIN
            if s.tpot_holds_at(factor) and s.kv_holds_at(factor) and pays:
                yield _with_budget(target)
            break


def _with_budget(target: Point) -> Point:
    return replace(target, max_num_batched_tokens=max(target.max_num_batched_tokens, target.max_num_seqs))


def _factor(s: Situation, target: Point) -> float:
    """How many times as large the batch may become: more slots bring no more than there are requests."""
    running = max(s.figures.mean_running, 1.0)
    most = s.load.concurrency if s.load.concurrency and not s.cap_follows else None
    wanted = min(target.max_num_seqs, most or target.max_num_seqs, target.max_num_seqs)
    return max(wanted / max(min(running, s.point.max_num_seqs), 1.0), 1.0)


def fewer_seqs(s: Situation) -> Iterator[Point]:
    """The first steps down that are felt: fewer than run now."""
    felt = min(s.figures.mean_running, s.point.max_num_seqs)
    for target in _steps(s, Knob.SEQS, -1):
        if target.max_num_seqs < felt * 0.97:
            if s.load.concurrency is not None or _serves_as_much(s, target.max_num_seqs / felt):
                yield target
            return


def seqs_that_fit(s: Situation) -> Iterator[Point]:
    """A little fewer than the KV cache held, so that each has room to grow."""
    fit = int(0.9 * s.figures.mean_running)
    for target in _steps(s, Knob.SEQS, -1, fine=True):
        if target.max_num_seqs <= fit:  # where a key's step is wide, what a typed value would be
            yield target if target.max_num_seqs >= 0.9 * fit else s.point.with_value(Knob.SEQS, fit)
            return


def _serves_as_much(s: Situation, factor: float) -> bool:
    """What arrives at a rate must still be served: only a saturated engine does with fewer in a step."""
    gain = s.figures.gain(factor)
    return gain is not None and gain >= NO_LOSS


def smaller_budget(s: Situation) -> Iterator[Point]:
    """The first step down that is felt: below what the larger steps carry."""
    for target in _steps(s, Knob.TOKENS, -1):
        if target.max_num_batched_tokens <= 0.75 * s.figures.tokens_p95:
            yield target
            return


def larger_budget(s: Situation) -> Iterator[Point]:
    """The widest step whose full steps, longer by as much, still meet TPOT."""
    for fine in (False, True):
        target = stepped(s.point, Knob.TOKENS, +1, fine, s.facts)
        if s.tpot_holds_at(target.max_num_batched_tokens / s.point.max_num_batched_tokens):
            yield target


def chunked(s: Situation) -> Iterator[Point]:
    yield replace(s.point, chunked_prefill=True)


def threshold(s: Situation) -> Iterator[Point]:
    """The first limit below the long prompts, and below what is in force."""
    long = s.figures.longest_prefill or s.number("prompt_tokens_p95")
    now = s.point.long_prefill_token_threshold
    if now == 0:
        target = stepped(s.point, Knob.THRESHOLD, +1, False, s.facts)
        if target.long_prefill_token_threshold < long:
            yield target


def more_memory(s: Situation) -> Iterator[Point]:
    """Up to the server's own ceiling while that is more, which is live; beyond it a restart, as far as the guide."""
    flag, ceiling = s.facts.memory_flag, s.facts.ceiling.memory
    target = stepped(s.point, Knob.MEMORY, +1, False, s.facts).memory
    for most in (ceiling, MOST_UTILIZATION if flag is MemoryFlag.UTILIZATION else ceiling):
        memory = min(target, most)
        if memory > s.point.memory + 1e-9 and s.tpot_holds_at(_capacity_factor(s, memory)):
            yield replace(s.point, memory=memory)


def _capacity_factor(s: Situation, memory: float) -> float:
    """How many times as many blocks `memory` gives: a cache that is full lets as many more run."""
    now, then = s.facts.capacity_blocks(s.point.memory), s.facts.capacity_blocks(memory)
    return then / now if now and then else memory / s.point.memory


def nowhere(_: Situation) -> Iterator[Point]:
    """For what no knob does."""
    yield from ()


def with_prefixes(s: Situation) -> Iterator[Point]:
    yield replace(s.point, prefix_caching=True)
