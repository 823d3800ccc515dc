"""The sweep at a load that was given: its ranking, what it leaves out, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from core.test_candidates import BEST, FACTS
from core.test_edge import measured
from core.test_sweep import carried_out
from hypothesis import given, settings
from hypothesis import strategies as st

from tunetui.core.candidates import Stage
from tunetui.core.edge import Length, Seen, Trial
from tunetui.core.episode import Measurement
from tunetui.core.fixed_load import GAIN, Held, margin_of, sweep_at
from tunetui.core.knobs import Knob, MemoryFlag, Point
from tunetui.core.load import Load
from tunetui.core.slo import Slo, parse_slo
from tunetui.core.tasks import CONFIRMATIONS, Ask, Confirm, Forecast, Goal, Told

SLO = parse_slo(["ttft:600", "tpot:80"])
LOAD = Load(10.0)
GOAL = Goal(SLO, BEST, FACTS, 10.0, Length(400, 2.0))
Margin = Callable[[Point], float]


@dataclass
class World:
    """Each point has a margin of its TTFT under the load, and meets the SLO where that is not below 0."""

    margin: Margin
    bias: float | None = 0.0
    trusted: bool = True
    holds: bool = True
    spent_s: float = 0.0
    tasks: list[Any] = field(default_factory=list)
    restarted: bool = False

    @property
    def tried(self) -> list[Point]:
        """Before the fresh server."""
        return [task.point for task in self.tasks if isinstance(task, Trial) and task.seed == 0]

    def answer(self, task: Any) -> Any:
        self.tasks.append(task)
        match task:
            case Trial():
                margin = self.margin(task.point)
                meets = margin >= 0 and (self.holds or not self.restarted)
                return Seen(task, measured(meets, task.requests, ttft_s=0.6 * (1 - margin), tpot_s=0.01))
            case Ask(points, load):
                assert load == LOAD
                margins = [None if self.bias is None else self.margin(p) + self.bias for p in points]
                return tuple(Forecast(p, None, m, self.trusted) for p, m in zip(points, margins, strict=True))
            case Confirm():
                self.restarted = True
            case Told():
                return self.spent_s


def slope(peak_seqs: int, at_peak: float = 0.4, memory: float = 0.0) -> Margin:
    """The margin falls on both sides of `peak_seqs`, with smaller token budgets, and by `memory` for each 0.05 less."""

    def margin(point: Point) -> float:
        off = abs(point.max_num_seqs - peak_seqs) / 512 + (not point.chunked_prefill) * 0.3
        budget = (8192 - point.max_num_batched_tokens) / 8192 * 0.2
        return at_peak - off - budget - (0.92 - point.memory) / 0.05 * memory

    return margin


@pytest.mark.parametrize(
    ("parts", "ttft_s", "tpot_s", "margin"),
    [
        (["ttft:600", "tpot:80"], 0.3, 0.02, 0.5),
        (["ttft:600", "tpot:80"], 0.3, 0.06, 0.25),
        (["ttft:600", "tpot:80"], 0.9, 0.02, -0.5),
        (["ttft:600", "tpot:80"], 0.3, None, 0.5),
        (["tpot:80"], 9.0, 0.02, 0.75),
        (["e2el:6000"], 0.3, 0.02, 0.5),
    ],
)
def test_a_margin_is_what_is_left_of_the_tightest_objective(
    parts: list[str], ttft_s: float, tpot_s: float | None, margin: float
) -> None:
    # An episode whose P95 E2EL is three seconds.
    seen = replace(measured(True, ttft_s=ttft_s, tpot_s=tpot_s), e2el_s=3.0)
    assert margin_of(seen, parse_slo(parts)) == pytest.approx(margin)


def test_the_rank_is_meets_the_slo_then_the_larger_margin() -> None:
    def held(measurement: Measurement) -> tuple[bool, float]:
        length = Length(400)
        return Held(BEST, Seen(length.trial(BEST, LOAD, ""), measurement), length).rank(SLO)

    wide, narrow = held(measured(True, ttft_s=0.2)), held(measured(True, ttft_s=0.5))
    near, far = held(measured(False, ttft_s=0.61)), held(measured(False, ttft_s=2.0))
    lucky = held(measured(False, ttft_s=0.1))  # fails, whatever its percentile says
    assert wide > narrow > lucky > near > far


@settings(deadline=None)
@given(peak=st.integers(64, 512), bias=st.floats(-0.3, 0.3), start=st.sampled_from([128, 256, 512]))
def test_forecasts_that_are_all_off_alike_end_at_the_largest_margin(peak: int, bias: float, start: int) -> None:
    world = World(slope(peak), bias)
    goal = replace(GOAL, start=replace(BEST, max_num_seqs=start))
    outcome = carried_out(sweep_at(goal, LOAD), world.answer)
    assert not outcome.reason
    assert outcome.point is not None
    steps = (*range(128, 513, 32), 96)
    assert slope(peak)(outcome.point) + 3 * GAIN >= max(
        slope(peak)(replace(outcome.point, max_num_seqs=s)) for s in steps
    )
    assert outcome.load == LOAD
    assert len(outcome.confirmed) == CONFIRMATIONS


@settings(deadline=None)
@given(data=st.data(), bias=st.sampled_from([None, 0.0]), trusted=st.booleans())
def test_what_is_accepted_meets_the_slo_and_no_point_that_was_tried_is_clearly_better(
    data: st.DataObject, bias: float | None, trusted: bool
) -> None:
    margins: dict[Point, float] = {}

    def margin(point: Point) -> float:
        return margins.setdefault(point, data.draw(st.sampled_from([-0.5, -0.1, 0.0, 0.1, 0.2, 0.3, 0.6])))

    world = World(margin, bias, trusted)
    goal = replace(GOAL, facts=replace(FACTS, live=False, why_not_live="attached"))  # memory stays
    outcome = carried_out(sweep_at(goal, LOAD), world.answer)
    best = max(margins[point] for point in world.tried)
    assert outcome.point is not None
    assert bool(outcome.reason) == (best < 0)
    assert margins[outcome.point] + 2 * GAIN >= best  # a tie, and again against the next


def test_without_forecasts_a_race_goes_up_from_its_start_though_fewer_sequences_lose() -> None:
    world = World(slope(512), None)
    outcome = carried_out(sweep_at(GOAL, LOAD), world.answer)
    assert outcome.point is not None
    assert outcome.point.max_num_seqs >= 448


def test_a_start_that_fails_is_left_for_the_first_point_that_meets_the_slo() -> None:
    world = World(lambda point: 0.01 if point.max_num_seqs == 128 else -0.005)
    outcome = carried_out(sweep_at(GOAL, LOAD), lambda task: replaced(world.answer(task)))
    assert outcome.point is not None
    assert outcome.point.max_num_seqs == 128


def replaced(answer: Any) -> Any:
    """No forecast is trusted."""
    return tuple(replace(f, trusted=False) for f in answer) if isinstance(answer, tuple) else answer


def test_trusted_forecasts_leave_out_what_has_no_larger_margin_and_say_so() -> None:
    world = World(slope(256))
    goal = replace(GOAL, facts=replace(FACTS, live=False, why_not_live="attached"))  # memory stays
    outcome = carried_out(sweep_at(goal, LOAD), world.answer)
    assert outcome.point == BEST
    assert world.tried == [BEST]
    told = [task for task in world.tasks if isinstance(task, Told) and task.text]
    assert {task.text for task in told} == {"left out: no larger margin predicted"}
    untrusted = World(slope(256), trusted=False)
    carried_out(sweep_at(goal, LOAD), untrusted.answer)
    assert len(untrusted.tried) > len(world.tried)


@pytest.mark.parametrize(
    ("cost", "start", "memory"),
    [(0.0, 0.92, 0.77), (0.03, 0.92, 0.92), (0.015, 0.92, 0.87), (0.0, 0.85, 0.75)],
)
def test_of_equal_margins_the_point_with_less_memory_is_taken(cost: float, start: float, memory: float) -> None:
    world = World(slope(256, memory=cost))
    goal = replace(GOAL, start=replace(BEST, memory=start), facts=replace(FACTS, blocks_per_max_request=2000))
    outcome = carried_out(sweep_at(goal, LOAD), world.answer)
    assert outcome.point is not None
    assert outcome.point.memory == memory


@pytest.mark.parametrize(
    "goal",
    [
        replace(GOAL, facts=replace(FACTS, memory_flag=MemoryFlag.KV_BYTES, num_blocks=0)),
        replace(GOAL, facts=replace(FACTS, live=False, why_not_live="attached")),
        pytest.param(
            replace(GOAL, knobs=frozenset(Knob) - {Knob.MEMORY}),
        ),
    ],
)
def test_memory_is_left_as_it_is_where_it_may_not_be_moved_live(goal: Goal) -> None:
    outcome = carried_out(sweep_at(goal, LOAD), World(slope(256)).answer)
    assert outcome.point == BEST


@pytest.mark.parametrize("slo", [SLO, parse_slo(["ttft:600"], 99)])
def test_a_load_that_no_point_meets_the_slo_at_ends_with_a_reason(slo: Slo) -> None:
    world = World(slope(256, -0.1))
    outcome = carried_out(sweep_at(replace(GOAL, slo=slo), LOAD), world.answer)
    assert "no point that was tried meets the SLO" in outcome.reason
    assert outcome.confirmed == ()
    assert not world.restarted


def test_a_point_that_misses_on_the_fresh_server_is_not_accepted_and_the_load_stays() -> None:
    world = World(slope(256), holds=False)
    outcome = carried_out(sweep_at(GOAL, LOAD), world.answer)
    assert outcome.reason == "it did not hold on a fresh server"
    assert outcome.confirmed == ()
    assert {task.load for task in world.tasks if isinstance(task, Trial)} == {LOAD}


def test_a_budget_that_is_used_up_ends_in_a_confirmation() -> None:
    world = World(slope(320), spent_s=601.0)
    goal = replace(GOAL, budget_s=900.0, confirm_s=300.0, facts=replace(FACTS, memory_flag=MemoryFlag.KV_BYTES))
    outcome = carried_out(sweep_at(goal, LOAD), world.answer)
    assert (outcome.point, outcome.reason) == (BEST, "")
    assert world.tried == [BEST]
    told = [(task.stage, task.text) for task in world.tasks if isinstance(task, Told)]
    assert told[-2:] == [(Stage.SEQS, "left out: the budget is used up"), (Stage.CONFIRM, "")]


def test_nothing_is_tried_with_less_memory_once_the_budget_is_used_up() -> None:
    world = World(slope(320), spent_s=601.0)
    carried_out(sweep_at(replace(GOAL, budget_s=900.0, confirm_s=300.0), LOAD), world.answer)
    assert world.tried == [BEST]
