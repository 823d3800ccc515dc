"""An engine in virtual time that trials are measured on: the simulated engine, judged by what judges a real load.

It plans no trial (`core.sweep` does) and predicts nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunetui.core.edge import Seen, Trial, seen_with
from tunetui.core.knobs import EngineFacts, How, Point, plan_step, start_ceiling
from tunetui.core.load import Load
from tunetui.core.slo import Slo, Verdict
from tunetui.core.steps import EngineStep
from tunetui.core.workload import Workload, plan_episode
from tunetui.demo.engine import BLOCK_SIZE, Engine, Step, blocks_for
from tunetui.demo.machine import Machine
from tunetui.demo.virtual import RING, StepTimes, VirtualLoad
from tunetui.drive.meter import Meter
from tunetui.drive.virtual_episode import batch_of

START_S = 60.0
REPORT_S = 0.5
WARM_REQUESTS = 16


def virtual_facts(machine: Machine, ceiling: Point) -> EngineFacts:
    """What an engine on `machine` would say of itself, started with `ceiling`."""
    length = machine.model.max_model_len
    return EngineFacts(
        version="simulated",
        model=machine.model.name,
        ceiling=ceiling,
        max_model_len=length,
        whole_request=length,
        live=True,
        num_blocks=machine.num_blocks(ceiling.memory, ceiling.max_num_batched_tokens),
        block_size=BLOCK_SIZE,
        blocks_per_max_request=blocks_for(length),
        bytes_per_block=machine.bytes_per_block,
        least_threshold=BLOCK_SIZE,
        total_memory_bytes=int(machine.card.memory_gib * 2**30),
        hardware=machine.name,
    )


@dataclass(slots=True)
class Spent:
    """Where virtual time went, in seconds."""

    starting_s: float = 0.0
    serving_s: float = 0.0
    starts: int = 0
    trials: int = 0

    @property
    def total_s(self) -> float:
        return self.starting_s + self.serving_s


class _Stepped(Engine):
    """An engine that goes to a point as one under the live scheduler class does: what the running batch does not let
    it reach at once it looks at again before each step. Prefix caching is as it was started."""

    def __init__(self, num_blocks: int, point: Point, shares: bool) -> None:
        super().__init__(
            num_blocks, point.max_num_seqs, point.max_num_batched_tokens, point.chunked_prefill,
            point.long_prefill_token_threshold, point.prefix_caching, shares,
        )  # fmt: skip
        self._wanted, self._hold, self._pending = point, 0, False

    def step_to(self, point: Point, held_blocks: int) -> None:
        self._wanted, self._hold = point, held_blocks
        self._apply()

    def schedule(self) -> Step:
        if self._pending:
            self._apply()
        return super().schedule()

    def _apply(self) -> None:
        wanted, running = self._wanted, len(self.running)
        self.max_num_seqs = wanted.max_num_seqs
        self.chunked = wanted.chunked_prefill
        self.threshold = wanted.long_prefill_token_threshold
        self.token_budget = max(wanted.max_num_batched_tokens, running)  # each that runs decodes a token
        self.hold(self._hold)
        self._pending = len(self.held) != self._hold or running > wanted.max_num_seqs


class VirtualRig:
    """One engine, started at `point` below `ceiling`. `times`: what its steps take, if not what `machine` says."""

    def __init__(
        self,
        machine: Machine,
        ceiling: Point,
        point: Point,
        workload: Workload,
        slo: Slo,
        times: StepTimes | None = None,
        start_s: float = START_S,
    ) -> None:
        self._machine, self._workload, self._slo = machine, workload, slo
        self._times: StepTimes = times if times is not None else machine
        self.start_s = start_s
        self.mean_e2el_s = 0.0  # of the last warm-up
        self._number = 0
        self.spent = Spent()
        self.point = point
        self._start(ceiling)

    def _start(self, ceiling: Point, live: bool = True) -> None:
        self.spent.starting_s += self.start_s
        self.spent.starts += 1
        self.facts = replace(virtual_facts(self._machine, ceiling), live=live)
        point = self.point
        warm = plan_episode(self._workload, Load(concurrency=WARM_REQUESTS), 0, WARM_REQUESTS)
        self._engine = _Stepped(self.facts.num_blocks, point, bool(warm.blocks))
        self._ring: deque[EngineStep] = deque(maxlen=RING)
        self._load = VirtualLoad(self._engine, self._times, ring=self._ring)
        samples = self._load.run(warm)
        self.mean_e2el_s = sum(s.ended_s - s.scheduled_s for s in samples) / len(samples)
        self.spent.serving_s += self._load.now_s
        self._set_limits()

    @property
    def elapsed_s(self) -> float:
        """Virtual seconds that have passed, starts included."""
        return self.spent.total_s

    async def confirm(self, point: Point) -> None:
        """A fresh server with exactly the flags of `point`."""
        self.point = point
        self._start(point)

    def _go(self, point: Point) -> None:
        """Step to `point`, live where that can be. Raises ValueError for one that vLLM would refuse."""
        if point == self.point:
            return
        step = plan_step(self.point, point, self.facts)
        if step.how is How.REFUSED:
            raise ValueError(step.reason)
        self.point = point
        if step.how is How.RESTART:
            self._start(start_ceiling(point, self.facts.ceiling))
            return
        self._set_limits()

    def _set_limits(self) -> None:
        """Ask the engine for the limits of the present point."""
        held = self.facts.held_blocks(self.point.memory) or 0
        self._engine.step_to(self.point, min(held, self.facts.most_held_blocks))

    async def measure(self, trial: Trial) -> tuple[Seen, Sequence[EngineStep]]:
        """Carry out one trial: as far as its verdict is certain, as a step does it (MEASURES): what waits is dropped,
        what runs goes on, the first turnover is left out."""
        self._go(trial.point)
        self._load.drop()
        began_s = self._load.now_s
        workload = replace(self._workload, seed=self._workload.seed + trial.seed)
        plan = plan_episode(workload, trial.load, trial.cut, trial.requests)
        self._number += 1
        fresh = (tuple(hash((self._number, block)) for block in blocks) for blocks in plan.blocks)
        plan = replace(plan, blocks=tuple(fresh))  # no prompt of a trial before is known
        meter = Meter(self._slo)
        meter.expect(self._number, plan)
        meter.started(self._number)
        self._ring.clear()
        for report in self._load.reports(plan, self._number, REPORT_S):
            meter.took(batch_of(report, self._number, plan.size, self._load.in_flight, self._load.awaiting))
            seen = meter.measurement(report.t_s)
            if not trial.whole and seen is not None and seen.verdict is not Verdict.UNDECIDED:
                break
        measurement = meter.measurement(self._load.now_s)
        assert measurement is not None
        self._load.drop()
        self.spent.serving_s += self._load.now_s - began_s
        self.spent.trials += 1
        steps = tuple(self._ring)
        return seen_with(trial, measurement, steps), steps
