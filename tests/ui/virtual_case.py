"""The tuning guide's case as sessions to look at: the simulated engine in virtual time, its events folded as they come.

No clock, no server and no load process: equal calls give equal sessions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from tunetui.cli.tune import cards_of, parser, settings_from
from tunetui.core import coaching, events
from tunetui.core.episode import Measurement
from tunetui.core.fold import fold
from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.load import Load
from tunetui.core.rows import certain, row_of, row_on_leaving
from tunetui.core.sample import Sample
from tunetui.core.session import SIMULATED, EngineView, Phase, Session, StepState, usage_without_held
from tunetui.core.step_figures import figures_of, shortest_decode_s
from tunetui.core.steps import EngineStep
from tunetui.core.workload import EpisodePlan, features, plan_episode
from tunetui.demo.engine import Engine
from tunetui.demo.profiles import PROFILES
from tunetui.demo.virtual import VirtualLoad
from tunetui.drive.meter import Meter
from tunetui.drive.observe import STEPS
from tunetui.drive.settings import Settings, ceiling_of, first_point
from tunetui.drive.virtual_rig import virtual_facts
from tunetui.load.events import Batch, First, Sent

LIVE_S = 4.0  # when the load begins, on the session's clock
ACCEPTED_S, SETTLED_S = 0.02, 0.6  # after a step was asked for
BATCHES_PER_TICK = 10
EPISODES = 3  # handed over at a point: no look comes after them


def settings_of(*words: str) -> Settings:
    """What `tunetui --demo case` and `words` ask for."""
    return settings_from(parser().parse_args(["--demo", "case", *words]), [])


@dataclass(frozen=True, slots=True)
class Ran:
    """What a load and an engine did at a point, and `tokens`: the ends of steps and what each made."""

    plan: EpisodePlan
    samples: tuple[Sample, ...]
    looks: tuple[EngineStep, ...]
    tokens: tuple[tuple[float, int], ...]

    def batch(self, after_s: float, until_s: float) -> Batch:
        """What happened meanwhile, as the load process tells it."""

        def now(time_s: float | None) -> bool:
            return time_s is not None and after_s < time_s <= until_s

        inside = [s for s in self.samples if (s.sent_s or 0.0) <= until_s < s.ended_s]
        return Batch(
            until_s,
            sum(count for time_s, count in self.tokens if now(time_s)),
            len(inside),
            sum(s.first_s is None or s.first_s > until_s for s in inside),
            tuple(Sent(s.episode, s.index, s.scheduled_s, s.sent_s or 0.0) for s in self.samples if now(s.sent_s)),
            tuple(First(s.episode, s.index, s.first_s or 0.0) for s in self.samples if now(s.first_s)),
            tuple(s for s in self.samples if now(s.ended_s)),
        )

    def view(self, until_s: float, num_blocks: int) -> EngineView:
        """The engine at `until_s`."""
        past = self.steps(until_s)
        if not past:
            return EngineView(kv_usage=0.0, kv_blocks=num_blocks)
        last = past[-1]
        usage = usage_without_held(last.free_blocks, num_blocks, 0)
        return EngineView(last.running, last.waiting, usage, num_blocks)

    def steps(self, until_s: float) -> list[EngineStep]:
        """The newest steps up to `until_s`, as many as a session keeps."""
        return [look for look in self.looks if look.time_s <= until_s][-STEPS:]


def ran(point: Point, num_blocks: int, begin_s: float, settings: Settings) -> Ran:
    """Episodes one after the other at `point` with as many streams as it has slots, from `begin_s` on."""
    streams = point.max_num_seqs
    engine = Engine(num_blocks, streams, point.max_num_batched_tokens, point.chunked_prefill)
    plan = plan_episode(settings.workload, Load(concurrency=streams), streams, settings.episode_requests)
    all_of_them = replace(
        plan, counted=plan.size * EPISODES - plan.cut,
        prompt_tokens=plan.prompt_tokens * EPISODES, output_tokens=plan.output_tokens * EPISODES,
    )  # fmt: skip
    looks = deque[EngineStep]()  # at each step, none is left out
    load = VirtualLoad(engine, PROFILES["case"].machine, now_s=begin_s, ring=looks)
    samples = tuple(
        replace(s, episode=1 + s.index // plan.size, index=s.index % plan.size) for s in load.run(all_of_them)
    )
    return Ran(plan, samples, tuple(looks), tuple(load.steps))


class Walk:
    """A session on the case. `step` to a point, then `look`; `state` is what a screen shows at `now_s`."""

    def __init__(self) -> None:
        self.settings = settings_of("--port", "8001", "--sessions-dir", "sessions")
        cards = cards_of(PROFILES["case"])
        self.facts = facts_of(ceiling_of(self.settings, cards), cards[0].name)
        self.now_s = LIVE_S
        self.state = Session(self.settings.model, self.settings.slo, self.settings.load, demo=True)
        self._meter = Meter(self.settings.slo)
        self._base_s: float | None = None
        first = first_point(self.settings, self.facts.ceiling, cards)
        self._fold(
            events.StartBegan(0.0, Phase.STARTING, first, None),
            events.EngineReady(self.facts, LIVE_S, first),
            events.PhaseChanged(Phase.LIVE),
        )
        self._begin(first)

    def _fold(self, *happened: events.Event) -> None:
        for event in happened:
            self.state = fold(self.state, event)

    def _begin(self, point: Point) -> None:
        self._ran = ran(point, self.facts.num_blocks, self.now_s, self.settings)
        self._meter.reset()
        for number in range(1, EPISODES + 1):
            self._meter.expect(number, self._ran.plan)
            self._meter.started(number)
        self._fold(events.EpisodeReset())

    def step(self, point: Point) -> None:
        """Leave the present point for `point`."""
        asked_s = self.now_s
        if (row := row_on_leaving(self.state)) is not None:
            self._fold(events.Measured(row))
        self._fold(
            events.LoadChanged(Load(concurrency=point.max_num_seqs), False, True),
            events.StepAsked(asked_s, point),
            events.StepMoved(asked_s + ACCEPTED_S, StepState.ACCEPTED),
            events.StepMoved(asked_s + SETTLED_S, StepState.SETTLED),
        )
        self.now_s += SETTLED_S
        self._begin(point)

    def look(self, holds: Callable[[Session], bool]) -> Session:
        """Let ticks go by until `holds`."""
        while not holds(self.state):
            self._tick()
        return self.state

    def _tick(self) -> None:
        before_s, meter = self.now_s, self._meter
        for part in range(BATCHES_PER_TICK):
            meter.took(self._ran.batch(before_s + part / BATCHES_PER_TICK, before_s + (part + 1) / BATCHES_PER_TICK))
        self.now_s += 1.0
        seen = meter.measurement(self.now_s)
        view = self._ran.view(self.now_s, self.facts.num_blocks)
        chart, of_point = meter.chart(self.now_s), meter.statistics.view(None)
        self._fold(events.Ticked(chart, seen, view, meter.in_flight, meter.errors, meter.last_error, of_point))
        if (found := certain(meter.completed(self.now_s), seen)) is not None:
            self._fold(events.Measured(row_of(self.state, found)))
        self._coach(found)

    def _coach(self, found: Measurement | None) -> None:
        """What the coach says of the steps so far, and of an advice that was taken."""
        steps, point = self._ran.steps(self.now_s), self.state.point
        assert point is not None
        shortest_s = min(filter(None, (self._base_s, shortest_decode_s(steps))), default=None)
        self._base_s = shortest_s
        figures = figures_of(steps, point.max_num_seqs, point.chunked_prefill, shortest_s)
        self._fold(coaching.look(self.state, figures, features(self._ran.plan), True, found))
        if (outcome := coaching.came_of_it(self.state, self.now_s)) is not None:
            self._fold(outcome)


def facts_of(ceiling: Point, hardware: str) -> EngineFacts:
    """What the simulated engine says of itself when it has started with `ceiling`."""
    facts = virtual_facts(PROFILES["case"].machine, ceiling)
    return replace(facts, version=f"0.32.0{SIMULATED}", hardware=hardware)
