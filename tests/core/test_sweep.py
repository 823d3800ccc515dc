"""The sweep for capacity in worlds where each point's capacity is a plain function, and forecasts are as asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from core.test_candidates import BEST, FACTS
from core.test_edge import measured
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tunetui.core.candidates import Around, Stage, candidates
from tunetui.core.edge import RESOLUTION, Length, Seen, Trial
from tunetui.core.knobs import How, Knob, Point, plan_step
from tunetui.core.slo import parse_slo
from tunetui.core.sweep import GAIN, MEASURED_GAIN, SAFETY, sweep
from tunetui.core.tasks import BACK_OFF, CONFIRMATIONS, MOST_CONFIRMATIONS, Ask, Confirm, Forecast, Goal, Outcome, Told

SLO = parse_slo(["ttft:600", "tpot:80"])
GOAL = Goal(SLO, BEST, FACTS, 8.0, Length(400, 2.0))
TRIAL_S, START_S = 40.0, 60.0
Capacity = Callable[[Point], float]


@dataclass
class World:
    """Points pass up to their `capacity`, and up to `fresh` of it after a restart. Forecasts are off by `bias`, known
    from the first trial on (None: there are none)."""

    capacity: Capacity
    bias: float | None = 1.0
    trusted: bool = True
    fresh: float = 1.0
    tasks: list[Any] = field(default_factory=list)
    elapsed_s: float = 0.0
    restarted: bool = False

    @property
    def trials(self) -> list[Trial]:
        """Before the fresh server."""
        return [task for task in self.tasks if isinstance(task, Trial) and not task.whole]

    @property
    def confirmations(self) -> list[Trial]:
        return [task for task in self.tasks if isinstance(task, Trial) and task.whole]

    @property
    def left_out(self) -> list[Told]:
        return [task for task in self.tasks if isinstance(task, Told) and task.text]

    def answer(self, task: Any) -> Any:
        self.tasks.append(task)
        match task:
            case Trial():
                self.elapsed_s += TRIAL_S
                capacity_rps = self.capacity(task.point) * (self.fresh if self.restarted else 1.0)
                return Seen(task, measured(task.rate_rps <= capacity_rps, task.requests))
            case Ask(points):
                return tuple(self.forecast(point) for point in points)
            case Confirm():
                self.elapsed_s += START_S
                self.restarted = True
            case Told():
                return self.elapsed_s

    def forecast(self, point: Point) -> Forecast:
        if self.bias is None:
            return Forecast(point)
        return Forecast(point, self.capacity(point) * self.bias, None, self.trusted)


def carried_out(plan: Generator[Any, Any, Outcome], answer: Callable[[Any], Any]) -> Outcome:
    """How `plan` ends when each task is answered by `answer`."""
    try:
        task = next(plan)
        while True:
            task = plan.send(answer(task))
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


def hill(peak_seqs: float, height: float = 12.0, steepness: float = 1.0, unchunked: float = 0.8) -> Capacity:
    """One hill over the sequences; smaller token budgets and thresholds give less, chunking off gives `unchunked`."""

    def capacity_rps(point: Point) -> float:
        off = math.log(point.max_num_seqs / peak_seqs)
        budget = (point.max_num_batched_tokens / 8192) ** 0.1
        cut = 0.95 if point.long_prefill_token_threshold else 1.0
        return height * math.exp(-steepness * off**2) * budget * cut * (1.0 if point.chunked_prefill else unchunked)

    return capacity_rps


def neighbours(goal: Goal, point: Point) -> list[Point]:
    """Every candidate around `point`, of every stage."""
    return [p for stage in Stage for p in candidates(stage, Around(point, goal.features), goal.facts, goal.knobs)]


HILLS = st.builds(hill, st.floats(110, 700), st.floats(5.0, 40.0), st.floats(0.2, 1.5), st.floats(0.5, 1.5))
STARTS = st.sampled_from([replace(BEST, max_num_seqs=seqs) for seqs in (128, 256, 512)])


@settings(deadline=None)
@given(capacity=HILLS, start=STARTS, guess_rps=st.floats(1.0, 30.0))
def test_exact_forecasts_end_at_the_best_of_all_neighbours(capacity: Capacity, start: Point, guess_rps: float) -> None:
    goal = replace(GOAL, start=start, guess_rps=guess_rps)
    world = World(capacity)
    outcome = carried_out(sweep(goal), world.answer)
    assert not outcome.reason
    assert outcome.point is not None
    assert capacity(outcome.point) * GAIN**2 >= max(map(capacity, neighbours(goal, outcome.point)))
    assert outcome.load is not None
    assert outcome.load.rate_rps == pytest.approx(SAFETY * capacity(outcome.point))


@settings(deadline=None)
@given(capacity=HILLS, start=STARTS, bias=st.floats(0.7, 1.4))
def test_forecasts_that_are_all_off_by_a_share_do_no_harm_to_what_is_accepted(
    capacity: Capacity, start: Point, bias: float
) -> None:
    goal = replace(GOAL, start=start)
    world = World(capacity, bias)
    outcome = carried_out(sweep(goal), world.answer)
    assert outcome.point is not None
    assert not outcome.reason
    assert outcome.load is not None
    assert outcome.load.rate_rps is not None
    assert outcome.load.rate_rps <= capacity(outcome.point)
    if bias <= 1.0:  # each forecast holds, and all are wrong alike
        assert capacity(outcome.point) * GAIN**2 >= max(map(capacity, neighbours(goal, outcome.point)))


SHORT_OF_IT = MEASURED_GAIN * RESOLUTION


def measured_shortfall(capacity: Capacity, start: Point, world: World) -> float:
    """How many times as high the capacity of the best neighbour of where a sweep without forecasts ended is."""
    goal = replace(GOAL, start=start)
    outcome = carried_out(sweep(goal), world.answer)
    assert outcome.point is not None
    assert not outcome.reason
    return max(map(capacity, neighbours(goal, outcome.point))) / capacity(outcome.point)


@pytest.mark.parametrize(("bias", "trusted"), [(None, False), (2.0, False)])
@pytest.mark.parametrize("seqs", [128, 256])
def test_without_trusted_forecasts_a_sweep_climbs_a_hill_behind_its_start(
    bias: float | None, trusted: bool, seqs: int
) -> None:
    capacity = hill(200.0, steepness=0.5)
    start = replace(BEST, max_num_seqs=seqs)
    assert measured_shortfall(capacity, start, World(capacity, bias, trusted)) <= SHORT_OF_IT


@settings(max_examples=50, phases=[Phase.generate], deadline=None)
@given(capacity=HILLS, start=STARTS)
def test_without_forecasts_a_sweep_ends_within_its_resolution_of_the_best_neighbour(
    capacity: Capacity, start: Point
) -> None:
    assert measured_shortfall(capacity, start, World(capacity, None)) <= SHORT_OF_IT


def test_a_race_without_forecasts_goes_up_from_its_start_though_fewer_sequences_lose() -> None:
    capacity = hill(512.0)
    outcome = carried_out(sweep(replace(GOAL, start=BEST)), World(capacity, None).answer)
    assert outcome.point is not None
    assert outcome.point.max_num_seqs >= 448


def test_a_point_that_won_a_race_is_not_beaten_by_one_with_less_capacity() -> None:
    known = {128: 10.0, 192: 20.0, 256: 18.0, 320: 15.0, 384: 12.0, 448: 11.0, 512: 10.5}
    world = World(lambda point: known.get(point.max_num_seqs, 1.0), None)
    goal = replace(GOAL, start=replace(BEST, max_num_seqs=128), knobs=frozenset({Knob.SEQS}))
    outcome = carried_out(sweep(goal), world.answer)
    assert outcome.point is not None
    assert outcome.point.max_num_seqs == 192


def test_trusted_forecasts_take_fewer_trials_than_measured_races() -> None:
    capacity = hill(400.0)
    predicted, raced = World(capacity), World(capacity, None)
    for world in (predicted, raced):
        carried_out(sweep(GOAL), world.answer)
    assert len(predicted.trials) <= 6
    assert 2 * len(predicted.trials) < len(raced.trials)


def test_what_is_predicted_to_be_worse_is_left_out_and_said_so() -> None:
    capacity = hill(320.0)
    world = World(capacity)
    outcome = carried_out(sweep(GOAL), world.answer)
    tried = {trial.point for trial in world.trials}
    assert outcome.point is not None
    assert world.left_out
    assert {told.text for told in world.left_out} == {"left out: predicted"}
    assert not {told.point for told in world.left_out} & tried - {outcome.point}
    for told in world.left_out:
        assert told.point is not None
        assert told.capacity_rps == capacity(told.point) <= capacity(outcome.point) * GAIN


def test_a_point_that_is_predicted_to_win_and_does_not_pass_is_not_taken() -> None:
    capacity = hill(256.0)
    liar = replace(BEST, max_num_seqs=448)
    world = World(capacity)
    honest = world.forecast
    world.forecast = lambda p: Forecast(p, 99.0, None, True) if p == liar else honest(p)  # type: ignore[method-assign]
    outcome = carried_out(sweep(GOAL), world.answer)
    assert outcome.point is not None
    assert outcome.point.max_num_seqs in range(224, 289)
    assert {trial.seed for trial in world.trials if trial.point == liar} == {0, 1}


def test_of_points_that_cannot_be_told_apart_the_plainest_is_taken() -> None:
    start = replace(BEST, chunked_prefill=False)
    world = World(lambda _: 10.0)
    outcome = carried_out(sweep(replace(GOAL, start=start, features={"long_prompt_share": 0.1})), world.answer)
    assert outcome.point is not None
    assert (outcome.point.chunked_prefill, outcome.point.long_prefill_token_threshold) == (True, 0)


@settings(deadline=None)
@given(
    capacity=HILLS, bias=st.sampled_from([None, 0.9, 1.0, 1.2, 1.5]), trusted=st.booleans(), fresh=st.floats(0.8, 1.1)
)
def test_what_is_accepted_has_passed_on_a_fresh_server_with_exactly_its_flags(
    capacity: Capacity, bias: float | None, trusted: bool, fresh: float
) -> None:
    world = World(capacity, bias, trusted, fresh)
    outcome = carried_out(sweep(GOAL), world.answer)
    assert not outcome.reason
    assert outcome.point is not None
    assert outcome.load is not None
    assert outcome.load.rate_rps is not None
    assert outcome.load.rate_rps <= capacity(outcome.point) * fresh
    assert [task.point for task in world.tasks if isinstance(task, Confirm)] == [outcome.point]
    rates = [trial.rate_rps for trial in world.confirmations]
    assert all(after == before or after == before * BACK_OFF for before, after in pairwise(rates))
    assert rates[-CONFIRMATIONS:] == [outcome.load.rate_rps] * CONFIRMATIONS
    assert len(outcome.confirmed) == CONFIRMATIONS
    seeds = [trial.seed for trial in world.confirmations]
    assert len(set(seeds)) == len(seeds)
    assert not set(seeds) & {0}  # arrivals that no decision was made on
    assert world.confirmations == world.tasks[-len(seeds) :]


def test_a_point_that_does_not_hold_on_a_fresh_server_is_not_accepted() -> None:
    world = World(hill(256.0), fresh=0.01)
    outcome = carried_out(sweep(GOAL), world.answer)
    assert outcome.reason == "it did not hold on a fresh server"
    assert outcome.confirmed == ()
    assert len(world.confirmations) == MOST_CONFIRMATIONS


def confirmed_with(percentile: int, missed: list[int], applies_to: int | None = None) -> Outcome:
    """How a sweep ends whose confirmations miss so many of 400 requests each."""
    world = World(hill(256.0))
    misses = iter(missed)

    def answer(task: Any) -> Any:
        answered = world.answer(task)
        if isinstance(task, Trial) and task.whole:
            episode = measured(True, task.requests, next(misses), tpot_applies_to=applies_to)
            return Seen(task, episode)
        return answered

    return carried_out(sweep(replace(GOAL, slo=replace(SLO, percentile=percentile))), answer)


@pytest.mark.parametrize(
    ("percentile", "missed", "rate"),
    [
        (95, [60, 0, 0], 1.0),  # an episode may miss where all of them together do not
        (95, [20, 20, 20], 1.0),
        (95, [20, 20, 21, 0, 0, 0], BACK_OFF),
        (95, [61, 0, 0, 0], BACK_OFF),
        (99, [4, 4, 4], 1.0),
        (99, [4, 4, 5, 0, 0, 0], BACK_OFF),
        pytest.param(
            90, [40, 40, 40, 0, 0, 0], 1.0,
        ),
    ],
)  # fmt: skip
def test_confirmations_must_meet_the_slo_together(percentile: int, missed: list[int], rate: float) -> None:
    outcome = confirmed_with(percentile, missed)
    held = confirmed_with(percentile, [0, 0, 0])
    assert outcome.load is not None
    assert held.load is not None
    assert held.load.rate_rps == pytest.approx(SAFETY * held.capacity_rps)
    assert outcome.load.rate_rps == held.load.rate_rps * rate
    # What was predicted, unless a rate below it did not hold: then it is no more than what did.
    assert outcome.capacity_rps == (held.capacity_rps if rate == 1.0 else outcome.load.rate_rps)
    assert len(outcome.confirmed) == CONFIRMATIONS


def test_an_objective_that_few_requests_have_must_be_met_by_the_share_of_those() -> None:
    outcome = confirmed_with(95, [20] * 12, applies_to=100)  # TPOT is met by 80 %
    assert outcome.reason


def test_overload_on_the_fresh_server_lowers_the_rate_at_once() -> None:
    world = World(hill(256.0))

    def answer(task: Any) -> Any:
        answered = world.answer(task)
        if isinstance(task, Trial) and task.whole and len(world.confirmations) == 1:
            return Seen(task, measured(False, task.requests, 0, overload="waiting grows"))
        return answered

    outcome = carried_out(sweep(GOAL), answer)
    assert outcome.load is not None
    assert outcome.load.rate_rps == world.confirmations[0].rate_rps * BACK_OFF
    assert len(world.confirmations) == 1 + CONFIRMATIONS


def test_one_confirmation_that_fails_lowers_the_rate() -> None:
    world = World(hill(256.0))

    def answer(task: Any) -> Any:
        answered = world.answer(task)
        if isinstance(task, Trial) and task.whole and len(world.confirmations) == 3:
            return Seen(task, measured(False, task.requests, 0))  # together they would still meet it
        return answered

    outcome = carried_out(sweep(GOAL), answer)
    assert outcome.load is not None
    assert outcome.load.rate_rps == world.confirmations[0].rate_rps * BACK_OFF
    assert len(world.confirmations) == 3 + CONFIRMATIONS


@pytest.mark.parametrize("bias", [None, 1.0])
def test_an_slo_that_no_rate_meets_ends_with_a_reason(bias: float | None) -> None:
    world = World(lambda _: 0.0, bias)
    outcome = carried_out(sweep(GOAL), world.answer)
    assert outcome.point is None
    assert outcome.capacity_rps == 0.0
    assert "not met at any rate" in outcome.reason
    assert not any(isinstance(task, Confirm) for task in world.tasks)


@settings(max_examples=30, deadline=None)
@given(budget_s=st.floats(0.0, 3000.0), bias=st.sampled_from([None, 1.0]))
def test_a_budget_that_is_used_up_ends_in_a_confirmation(budget_s: float, bias: float | None) -> None:
    goal = replace(GOAL, budget_s=budget_s, confirm_s=START_S + 3 * TRIAL_S)
    world = World(hill(400.0), bias)
    outcome = carried_out(sweep(goal), world.answer)
    assert not outcome.reason
    assert len(outcome.confirmed) == CONFIRMATIONS
    used_up = [told for told in world.left_out if "budget" in told.text]
    whole = World(hill(400.0), bias)
    carried_out(sweep(GOAL), whole.answer)
    assert bool(used_up) == (len(world.tasks) < len(whole.tasks))
    if used_up:  # the last stage may run over, and nothing begins after it
        assert [type(task) for task in world.tasks[world.tasks.index(used_up[0]) :]] == [
            Told, Told, Confirm, *[Trial] * CONFIRMATIONS,
        ]  # fmt: skip


@settings(deadline=None)
@given(capacity=HILLS, bias=st.sampled_from([None, 0.8, 1.0, 1.3]), knobs=st.frozensets(st.sampled_from(list(Knob))))
def test_every_trial_is_of_a_point_that_can_be_stepped_to(
    capacity: Capacity, bias: float | None, knobs: frozenset[Knob]
) -> None:
    world = World(capacity, bias)
    carried_out(sweep(replace(GOAL, knobs=knobs)), world.answer)
    points = [trial.point for trial in world.trials]
    steps = [plan_step(a, b, FACTS).how for a, b in pairwise(points)]
    assert How.REFUSED not in steps
    if not knobs:
        assert set(points) == {BEST}


def test_equal_answers_give_equal_plans() -> None:
    first, second = World(hill(400.0), None), World(hill(400.0), None)
    for world in (first, second):
        carried_out(sweep(GOAL), world.answer)
    assert first.tasks == second.tasks


def test_the_stages_follow_the_guide() -> None:
    world = World(hill(256.0))
    carried_out(sweep(GOAL), world.answer)
    stages = [task.stage for task in world.tasks if isinstance(task, Told) and not task.text]
    assert stages == [Stage.BASELINE, Stage.SEQS, Stage.PREFILL, Stage.MEMORY, Stage.FINE, Stage.CONFIRM]
