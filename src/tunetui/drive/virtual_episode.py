"""One episode of a point in virtual time, with any step times, judged by what judges a real load.

It predicts nothing by itself: `predict` brings fitted step times, a test or a benchmark a machine's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tunetui.core.episode import Measurement
from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.load import Load
from tunetui.core.slo import Slo, Verdict
from tunetui.core.workload import EpisodePlan, Workload, plan_episode
from tunetui.demo.engine import BLOCK_SIZE, Engine, Step, blocks_for
from tunetui.demo.virtual import Report, StepTimes, VirtualLoad
from tunetui.drive.meter import Meter
from tunetui.load.events import Batch, First, Sent

MOST_STEPS = 150_000  # of one episode: three seconds or so of a CPU
REPORT_S = 0.1  # virtual, as a load process reports
LOOKS = 25  # at an episode, to see whether its verdict is certain
LEAST_S = 1e-6  # of a step: time must pass

TimesOf = Callable[[Engine], StepTimes]


class _Enough(Exception):
    """The run has taken the most steps, or nothing moves in it."""


@dataclass(slots=True)
class _Bounded:
    """Step times that end the run after `most` steps, or where two in a row hold nothing."""

    times: StepTimes
    most: int
    steps: int = 0
    empty: int = 0

    def step_s(self, step: Step) -> float:
        self.steps += 1
        self.empty = 0 if step.decodes or step.prefills else self.empty + 1
        if self.steps > self.most or self.empty > 1:
            raise _Enough
        return max(self.times.step_s(step), LEAST_S)


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """An episode in virtual time: what it measured, FAIL where it was overloaded (`measurement.overload` says why)."""

    measurement: Measurement
    steps: int
    times: StepTimes
    cut_short: bool = False  # the most steps were taken before it was complete


def engine_at(facts: EngineFacts, point: Point, workload: Workload, shares: bool = True) -> Engine:
    """An engine with the limits of `point`, empty. Where the KV cache's size is not known, everything fits. `shares`:
    whether prompts have prefixes in common."""
    blocks = facts.capacity_blocks(point.memory)
    blocks = facts.num_blocks if blocks is None else blocks
    num_blocks = blocks * max(facts.block_size, 1) // BLOCK_SIZE
    if not facts.num_blocks:
        num_blocks = point.max_num_seqs * blocks_for(workload.longest) + 1
    return Engine(
        max(num_blocks, 1), point.max_num_seqs, point.max_num_batched_tokens, point.chunked_prefill,
        point.long_prefill_token_threshold if point.chunked_prefill else 0, point.prefix_caching, shares,
    )  # fmt: skip


def batch_of(report: Report, number: int, size: int, in_flight: int = 0, awaiting: int = 0) -> Batch:
    """`report` as a load process tells it, of episodes of `size` requests one after the other, the first of them
    `number`. It does not count the streams that are open: those are given, where somebody looks at them."""
    return Batch(
        report.t_s,
        report.tokens,
        in_flight,
        awaiting,
        tuple(Sent(number + i // size, i % size, at_s, at_s) for i, at_s in report.sent),
        tuple(First(number + i // size, i % size, at_s) for i, at_s in report.firsts),
        tuple(
            s if s.index < size else replace(s, episode=number + s.index // size, index=s.index % size)
            for s in report.samples
        ),
    )


@dataclass(slots=True)
class _Judge:
    """Shows an episode, and the same requests again after it, to a Meter: as in a real load, no batch drains at its
    end. The reports are those of one plan of both."""

    plan: EpisodePlan
    slo: Slo
    meter: Meter = field(init=False)

    def __post_init__(self) -> None:
        self.meter = Meter(self.slo)
        for number in (1, 2):
            self.meter.expect(number, self.plan)
            self.meter.started(number)

    def take(self, report: Report) -> None:
        self.meter.took(batch_of(report, 1, self.plan.size))

    def measurement(self, now_s: float) -> Measurement:
        """The first episode, complete or as it stands."""
        completed = self.meter.completed(now_s)
        found = completed[0] if completed and completed[0].episode == 1 else self.meter.measurement(now_s)
        assert found is not None
        return found


def virtual_episode(
    times_of: TimesOf,
    facts: EngineFacts,
    point: Point,
    workload: Workload,
    load: Load,
    slo: Slo,
    cut: int,
    counted: int,
    until_certain: bool = False,
    most_steps: int = MOST_STEPS,
    report_s: float = REPORT_S,
) -> VirtualRun:
    """One episode on an engine that is empty at its start. `times_of` gives the step times of that engine: fitted ones,
    or a machine's. `until_certain` ends it where its verdict is certain, not only where it is overloaded."""
    plan = plan_episode(workload, load, cut, counted)
    engine = engine_at(facts, point, workload, bool(plan.blocks))
    times = times_of(engine)
    bounded = _Bounded(times, most_steps)
    virtual = VirtualLoad(engine, bounded, ring=None)
    judge = _Judge(plan, slo)
    if blocks_for(workload.longest) > engine.pool.num_blocks - 1:
        return VirtualRun(_not_served(judge.measurement(0.0), workload.longest), 0, times)
    looked, cut_short = 0, False
    ended = 0
    try:
        for report in virtual.reports(_twice(plan), 1, report_s):
            judge.take(report)
            ended += len(report.samples)
            if ended < plan.size and (ended - looked) * LOOKS < plan.size and not judge.meter.overload:
                continue
            looked = ended
            seen = judge.measurement(virtual.now_s)
            if seen.complete or seen.overload or (until_certain and seen.verdict is not Verdict.UNDECIDED):
                break
    except _Enough:
        cut_short = True
    return VirtualRun(judge.measurement(virtual.now_s), bounded.steps, times, cut_short)


def _not_served(seen: Measurement, longest: int) -> Measurement:
    why = f"a request of {longest} tokens does not fit into the KV cache"
    return replace(seen, verdict=Verdict.FAIL if seen.objectives else seen.verdict, overload=why)


def _twice(plan: EpisodePlan) -> EpisodePlan:
    """The plan and after it once more; prefixes are shared within each of the two, as prompts are new every time."""
    period_s = plan.arrivals_s[-1] * (1 + 1 / max(plan.size - 1, 1)) if plan.arrivals_s else 0.0
    most = max((max(blocks, default=0) for blocks in plan.blocks), default=0) + 1
    again = tuple(tuple(block + most for block in blocks) for blocks in plan.blocks)
    return EpisodePlan(
        load=plan.load,
        cut=plan.cut,
        counted=plan.counted + plan.size,
        arrivals_s=plan.arrivals_s + tuple(period_s + at_s for at_s in plan.arrivals_s),
        prompt_tokens=plan.prompt_tokens * 2,
        output_tokens=plan.output_tokens * 2,
        block_tokens=plan.block_tokens,
        blocks=plan.blocks + again,
    )
