"""An episode on the simulated engine in virtual time: no server, no sleeping, the same samples that a load would bring.

It judges nothing: `core` does, with what it judges a real load with.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tunetui.core.sample import Outcome, Sample
from tunetui.core.steps import EngineStep, Stop
from tunetui.core.workload import EpisodePlan
from tunetui.demo.engine import BLOCK_SIZE, Engine, Request, Step

RING = 2048  # steps, as many as the control block holds


class StepTimes(Protocol):
    """What takes time: a machine, or times fitted to a real engine."""

    def step_s(self, step: Step) -> float:
        """Seconds that `step` takes."""


@dataclass(slots=True)
class _Sent:
    index: int
    scheduled_s: float
    sent_s: float
    tries: int = 1
    first_s: float | None = None


@dataclass(slots=True)
class Report:
    """What happened since the report before, up to `t_s`: requests sent and their scheduled moments, first tokens and
    theirs, requests that ended, output tokens."""

    t_s: float
    tokens: int = 0
    sent: list[tuple[int, float]] = field(default_factory=list)
    firsts: list[tuple[int, float]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class VirtualLoad:
    """Runs episodes one after the other on `engine`, whose time is `now_s`. `timeout_s` ends a request that takes
    longer; its client sends it again, up to `retries` times, as a new request at once. `steps` holds each step's end
    and the output tokens that it made, those of answers that nobody waits for to the end included; `ring` the newest
    steps as a control block would (None: nobody reads them)."""

    engine: Engine
    machine: StepTimes
    timeout_s: float = float("inf")
    retries: int = 0
    now_s: float = 0.0
    steps: list[tuple[float, int]] = field(default_factory=list)
    ring: deque[EngineStep] | None = field(default_factory=lambda: deque(maxlen=RING))
    busy_s: float = 0.0
    _sent: dict[Request, _Sent] = field(default_factory=dict)
    _deadlines: list[tuple[float, int, Request]] = field(default_factory=list)

    def run(self, plan: EpisodePlan, episode: int = 1) -> list[Sample]:
        """Every request of `plan`, from the present moment on; the samples in the order in which they ended."""
        return [sample for report in self.reports(plan, episode) for sample in report.samples]

    @property
    def in_flight(self) -> int:
        """Requests of the present episode in the engine."""
        return len(self._sent)

    @property
    def awaiting(self) -> int:
        """... of which so many have no token yet."""
        return sum(sent.first_s is None for sent in self._sent.values())

    def reports(self, plan: EpisodePlan, episode: int = 1, every_s: float = float("inf")) -> Iterator[Report]:
        """`run`, told every `every_s` virtual seconds. To end it early close it, and `drop` what is left."""
        begin_s, engine, size = self.now_s, self.engine, plan.size
        closed = plan.load.concurrency
        next_one = 0
        report, due_s = Report(begin_s), begin_s + every_s
        while next_one < size or self._sent:
            while next_one < size and (
                len(self._sent) < closed if closed is not None else begin_s + plan.arrivals_s[next_one] <= self.now_s
            ):
                at_s = self.now_s if closed is not None else begin_s + plan.arrivals_s[next_one]
                self._send(plan, _Sent(next_one, at_s, at_s))
                report.sent.append((next_one, at_s))
                next_one += 1
            if engine.idle:
                self.now_s = begin_s + plan.arrivals_s[next_one]
                continue
            self._step(plan, episode, report)
            if self.now_s >= due_s:
                yield report
                report, due_s = Report(self.now_s), self.now_s + every_s
        yield report

    def drop(self) -> None:
        """End of an episode before its time: requests without a token go, those with one end by themselves."""
        for request, sent in self._sent.items():
            if sent.first_s is None:
                self.engine.abort(request)
        self._sent.clear()
        self._deadlines.clear()

    def _step(self, plan: EpisodePlan, episode: int, report: Report) -> None:
        """One step of the engine, and what it brought."""
        engine = self.engine
        step = engine.schedule()
        if self.ring is not None:
            self._record(step, self.ring)
        step_s = self.machine.step_s(step)
        self.now_s += step_s
        self.busy_s += step_s
        firsts, ended = engine.finish(step)
        self.steps.append((self.now_s, step.decodes + len(firsts)))
        report.t_s = self.now_s
        report.tokens += step.decodes + len(firsts)
        for request in firsts:
            sent = self._sent.get(request)
            if sent is not None and sent.first_s is None:
                sent.first_s = self.now_s
                report.firsts.append((sent.index, self.now_s))
        for request in ended:
            if request in self._sent:
                report.samples.append(self._sample(plan, request, episode, Outcome.OK))
        while self._deadlines and self._deadlines[0][0] <= self.now_s:
            request = heapq.heappop(self._deadlines)[2]
            if request in self._sent:
                self._give_up(plan, request, episode, report.samples)

    def _record(self, step: Step, ring: deque[EngineStep]) -> None:
        engine, pool = self.engine, self.engine.pool
        held = len(engine.held)
        ring.append(EngineStep(
            self.now_s, len(engine.running), len(engine.waiting), step.decodes + len(step.prefills), step.tokens,
            pool.num_blocks - 1 - pool.free - held, pool.free, engine.preemptions, Stop(step.stopped_by),
            engine.token_budget,
        ))  # fmt: skip

    def _send(self, plan: EpisodePlan, sent: _Sent) -> None:
        i = sent.index
        request = Request(plan.prompt_tokens[i], plan.output_tokens[i], _shared(plan, i))
        self._sent[request] = sent
        self.engine.add(request)
        if self.timeout_s != float("inf"):
            heapq.heappush(self._deadlines, (sent.sent_s + self.timeout_s, id(request), request))

    def _give_up(self, plan: EpisodePlan, request: Request, episode: int, samples: list[Sample]) -> None:
        self.engine.abort(request)
        sent = self._sent[request]
        if sent.tries > self.retries:
            samples.append(
                self._sample(plan, request, episode, Outcome.FAILED, f"timed out after {self.timeout_s:g} s")
            )
            return
        del self._sent[request]
        self._send(plan, _Sent(sent.index, sent.scheduled_s, self.now_s, sent.tries + 1))

    def _sample(self, plan: EpisodePlan, request: Request, episode: int, outcome: Outcome, error: str = "") -> Sample:
        sent = self._sent.pop(request)
        done = outcome is Outcome.OK
        return Sample(
            episode=episode,
            index=sent.index,
            scheduled_s=sent.scheduled_s,
            sent_s=sent.sent_s,
            first_s=sent.first_s,
            last_s=self.now_s if done else None,
            prompt_tokens=plan.prompt_tokens[sent.index],
            output_tokens=plan.output_tokens[sent.index] if done else 0,
            outcome=outcome,
            ended_s=self.now_s,
            error=error,
            retries=sent.tries - 1,
        )


def _shared(plan: EpisodePlan, index: int) -> tuple[int, ...]:
    """The hashes of the prompt's blocks that are shared with others of a trace; fresh prompts have none."""
    if not plan.blocks:
        return ()
    each = max(plan.block_tokens // BLOCK_SIZE, 1)
    whole = plan.prompt_tokens[index] // BLOCK_SIZE
    return tuple(hash((block, part)) for block in plan.blocks[index] for part in range(each))[:whole]
