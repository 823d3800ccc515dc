"""The coach's rules as data: when each holds, which points it would go to, why, and what that should bring.

It chooses among no rules and checks no limits; `advice` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tunetui.core import rule_targets as to
from tunetui.core.expectation import Expectation, Figure
from tunetui.core.knobs import Point
from tunetui.core.limits import LONG_TIME, Limit
from tunetui.core.situation import LONG_SHARE, Situation
from tunetui.core.slo import Metric

WAITS, FEW_WAITS = 0.10, 0.02  # of the steps; the second where TTFT is over
SPARE = 0.10  # of a limit: less is none to spare
KV_FREE = 0.85  # the largest share in use at which there is memory to spare
SHARED = 0.10  # of the prompt tokens
MAIN_CAUSE = 0.5  # of the time that requests waited
MANY_PREEMPTIONS = 0.2  # a request
HINT_FACTOR = 1.2  # the guide's rule for the token budget


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: `targets` are points that it would go to, the best first; none of them: it speaks of the load alone.

    `reason` is given the target. The rules stand in the order in which they are asked.
    """

    name: str
    when: Callable[[Situation], bool]
    targets: Callable[[Situation], Iterator[Point]]
    reason: Callable[[Situation, Point], str]
    expects: Callable[[Situation], Expectation | None]

    @property
    def of_load(self) -> bool:
        return self.targets is to.nowhere


# -- sentences ------------------------------------------------------------------------------------------------------


def _ms(s: Situation, metric: Metric) -> str:
    """`TTFT has 188 ms to spare`, or `TTFT is 80 ms over`."""
    objective, value = s.slo.objective(metric), s.value_s(metric)
    if objective is None or value is None:
        return f"{metric.label} is not bounded"
    left_ms = (objective.limit_s - value) * 1000
    shown = f"{abs(left_ms):.0f}" if abs(left_ms) >= 20 else f"{abs(left_ms):.1f}"
    return f"{metric.label} has {shown} ms to spare" if left_ms >= 0 else f"{metric.label} is {shown} ms over"


def _slots(s: Situation) -> str:
    f = s.figures
    if f.stopped_by_seqs >= FEW_WAITS:
        return f"requests wait for a slot on {f.stopped_by_seqs:.0%} of steps"
    return f"every slot is taken on {f.slots_full:.0%} of steps"


def _kv(s: Situation) -> str:
    usage = s.figures.kv_usage
    return "" if usage is None else f"KV {usage:.0%} used"


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _over_capacity(s: Situation, _: Point) -> str:
    offered, served = s.load.mean_rps(), s.capacity_rps or s.measurement.requests_per_s
    known = "its capacity is" if s.capacity_rps else "it serves at most"
    if not offered or not served:
        return "more arrives than is served, and no knob will do: lower the load (-) or add replicas"
    replicas = max(math.ceil(offered / served), 2)
    return (
        f"{offered:.3g} req/s arrive and {known} {served:.3g}: no knob will do, lower the load (-) to "
        f"{math.floor(served * 10) / 10:g} or run {replicas} replicas"
    )


def _no_knob(s: Situation, _: Point) -> str:
    over = [o.metric for o in s.slo.objectives if s.over(o.metric)]
    return _joined(*(_ms(s, metric) for metric in over)) + ", and no knob is known to help: lower the load (-)"


# -- conditions -----------------------------------------------------------------------------------------------------


def _waits_for_slots(s: Situation) -> bool:
    f = s.figures
    if s.closed_at_cap:
        return s.cap_follows and f.slots_full >= 0.5
    enough = FEW_WAITS if s.over(Metric.TTFT) else WAITS
    return f.stopped_by_seqs >= enough and f.waits_for_seqs >= MAIN_CAUSE


def _prefill_unchunked(s: Situation) -> bool:
    """A prompt that must fit whole makes the others wait, or its long step does."""
    f = s.figures
    blocked = f.waits_for_head >= MAIN_CAUSE or (s.limit is Limit.PREFILL_BLOCKING and f.head_blocked > 0)
    return not s.point.chunked_prefill and s.over(Metric.TTFT) and blocked and not s.kv_short


def _mix_unchunked(s: Situation) -> bool:
    return not s.point.chunked_prefill and s.long_prompts and s.over(Metric.TTFT) and s.figures.waits_for_head >= 0.2


def _short_blocked(s: Situation) -> bool:
    """Only where the percentile is a short prompt's: the long ones themselves take longer in more pieces."""
    few = LONG_SHARE <= s.number("long_prompt_share") < 1 - s.slo.share
    waiting = (bool(s.blocked_short) or s.figures.long_time >= LONG_TIME) and s.figures.waits_for_seqs < MAIN_CAUSE
    possible = s.point.chunked_prefill and not s.overloaded and not s.kv_short and not s.over(Metric.TPOT)
    return possible and few and waiting and s.over(Metric.TTFT)


def _decodes_delayed(s: Situation) -> bool:
    delayed = s.figures.long_time >= LONG_TIME and s.point.chunked_prefill and s.load.open_loop
    return s.over(Metric.TPOT) and delayed and s.spare(Metric.TTFT) > 0.6


def _wants_slots(s: Situation) -> bool:
    if not _waits_for_slots(s) or s.over(Metric.TPOT) or s.limit is Limit.KV_PRESSURE:
        return False
    if s.closed_at_cap:
        return not s.failing and s.spare(Metric.TTFT) >= SPARE
    return s.spare(Metric.TPOT) >= SPARE


def _wants_tokens(s: Situation) -> bool:
    f = s.figures
    waits = f.stopped_by_tokens >= 0.05 and f.waits_for_tokens >= MAIN_CAUSE
    return waits and s.over(Metric.TTFT) and s.spare(Metric.TPOT) >= SPARE


def _tpot_over(s: Situation) -> bool:
    """A smaller batch is shorter steps; under any load but one that follows it only if requests can wait for it."""
    if not s.over(Metric.TPOT):
        return False
    return s.cap_follows or (s.load.open_loop and not s.overloaded and s.spare(Metric.TTFT) > 0.5)


def _latency_over_kv_free(s: Situation) -> bool:
    usage = s.figures.kv_usage
    return s.cap_follows and s.failing and (usage is None or usage < KV_FREE)


def _thrashes(s: Situation) -> bool:
    """So many preemptions that what they compute again costs more than fewer sequences would."""
    f = s.figures
    requests = s.measurement.requests_per_s * f.span_s
    worth_it = s.cap_follows or (
        s.load.concurrency is not None and s.over(Metric.TPOT)
    )  # else those that then wait for a slot wait longer than for blocks
    return s.kv_short and worth_it and f.preemptions >= max(MANY_PREEMPTIONS * requests, 1)


def _kv_promise(s: Situation) -> Expectation:
    waits = s.figures.waits_for_blocks >= MAIN_CAUSE and s.figures.stopped_by_blocks >= WAITS
    return Expectation(Figure.TTFT if waits else Figure.PREEMPTIONS, False)


def _shares_prefixes(s: Situation) -> bool:
    return not s.point.prefix_caching and s.number("shared_prefix_share") >= SHARED


def _promise(figure: Figure, up: bool, least: float = 0.02) -> Callable[[Situation], Expectation | None]:
    return lambda _: Expectation(figure, up, least)


def _slots_promise(s: Situation) -> Expectation:
    if s.closed_at_cap:
        return Expectation(Figure.THROUGHPUT, True, 0.005)
    return Expectation(Figure.TTFT, False)


RULES = (
    Rule(
        "chunk prefill",
        _prefill_unchunked,
        to.chunked,
        lambda s, _: _joined(s.finding.sentence, _kv(s), "chunk it before lowering the batch"),
        _promise(Figure.TTFT, False),
    ),
    Rule(
        "decouple a wide mix",
        _mix_unchunked,
        to.chunked,
        lambda s, _: _joined(
            f"prompts of {s.number('prompt_tokens_p50'):.0f} and {s.number('prompt_tokens_p95'):.0f} tokens share one "
            f"budget",
            _ms(s, Metric.TTFT),
        ),
        _promise(Figure.TTFT, False),
    ),
    Rule(
        "limit long prefills",
        _short_blocked,
        to.threshold,
        lambda s, _: _joined(_ms(s, Metric.TTFT), "short prompts wait behind long ones", _kv(s)),
        _promise(Figure.TTFT, False),
    ),
    Rule(
        "smaller token budget",
        _decodes_delayed,
        to.smaller_budget,
        lambda s, _: _joined(
            _ms(s, Metric.TPOT), f"{s.figures.long_time:.0%} of the decode time is beside long prefills"
        ),
        _promise(Figure.TPOT, False),
    ),
    Rule(
        "more KV cache",
        lambda s: s.kv_short,
        to.more_memory,
        lambda s, _: s.finding.sentence,
        _kv_promise,
    ),
    Rule(
        "fewer sequences for the KV cache",
        _thrashes,
        to.seqs_that_fit,
        lambda s, _: f"{s.finding.sentence}, no memory is left to give",
        lambda _: Expectation(Figure.PREEMPTIONS, False, without_loss=Figure.THROUGHPUT),
    ),
    Rule(
        "more sequences",
        _wants_slots,
        to.more_seqs,
        lambda s, _: _joined(_slots(s), _ms(s, Metric.TTFT if s.spare(Metric.TTFT) >= 0 else Metric.TPOT)),
        _slots_promise,
    ),
    Rule(
        "larger token budget",
        _wants_tokens,
        to.larger_budget,
        lambda s, _: _joined(
            f"requests wait for tokens on {s.figures.stopped_by_tokens:.0%} of steps", _ms(s, Metric.TPOT)
        ),
        _promise(Figure.TTFT, False),
    ),
    Rule(
        "share prefixes",
        _shares_prefixes,
        to.with_prefixes,
        lambda s, _: f"{s.number('shared_prefix_share'):.0%} of the prompt tokens were sent before",
        _promise(Figure.TTFT, False),
    ),
    Rule(
        "shorter steps",
        _tpot_over,
        to.fewer_seqs,
        lambda s, _: _joined(_ms(s, Metric.TPOT), f"{s.figures.mean_running:.0f} sequences in a step"),
        _promise(Figure.TPOT, False),
    ),
    Rule(
        "fewer sequences, memory to spare",
        _latency_over_kv_free,
        to.fewer_seqs,
        lambda s, _: _joined(_ms(s, Metric.TTFT), _kv(s), "memory is not the bottleneck"),
        _promise(Figure.TTFT, False),
    ),
    Rule("over capacity", lambda s: s.overloaded, to.nowhere, _over_capacity, lambda _: None),
    Rule("lower the load", lambda s: s.failing, to.nowhere, _no_knob, lambda _: None),
)
