"""The search for a point's edge on synthetic truths; and measurements as a test wants them (`measured`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tunetui.core.edge import LEAST_SHARE, MOST_REQUESTS, MOST_TRIALS, RESOLUTION, Edge, Length, Seen, Trial, find_edge
from tunetui.core.episode import Measurement, ObjectiveResult
from tunetui.core.knobs import Point
from tunetui.core.load import MOST_RPS, Load
from tunetui.core.slo import Metric, Verdict

POINT = Point(256, 8192, True, 0.92, True)
LENGTH = Length(400, 2.0)
LIMITS_S = {Metric.TTFT: 0.6, Metric.TPOT: 0.08}


def measured(
    passed: bool,
    requests: int = 400,
    missed: int | None = None,
    ttft_s: float | None = None,
    tpot_s: float | None = 0.05,
    on_the_line: bool = False,
    overload: str = "",
    mean_e2el_s: float | None = 2.0,
    tpot_applies_to: int | None = None,
) -> Measurement:
    """A whole episode: `missed` of its requests are over the TTFT, or by default some more or less than 5 %."""
    missed = requests // (50 if passed else 10) if missed is None else missed
    verdict = Verdict.PASS if passed else Verdict.FAIL
    alike = tpot_applies_to if tpot_applies_to is not None else requests
    over = 0 if tpot_applies_to is None else missed
    return Measurement(
        episode=1, counted=requests, judged=requests,
        objectives=(
            ObjectiveResult(Metric.TTFT, 0.6, verdict, requests - missed, missed, requests, 0, 1 - missed / requests),
            ObjectiveResult(Metric.TPOT, 0.08, Verdict.PASS, alike - over, over, alike, 0, 1 - over / alike),
        ),
        verdict=verdict, on_the_line=on_the_line, good=requests - missed, attainment=1 - missed / requests,
        ttft_s=ttft_s or (0.4 if passed else 0.9), tpot_s=tpot_s, ttft_from_send_s=None, mean_e2el_s=mean_e2el_s,
        output_tokens_per_s=2000.0, requests_per_s=10.0, goodput_rps=9.0, goodput_tokens_per_s=1800.0, window_s=40.0,
        failed=0, cancelled=0, one_token_answers=0, lateness_p99_s=0.0, overload=overload,
    )  # fmt: skip


def carried_out(
    search: Generator[Trial, Any, Edge],
    passes: Callable[[Trial], bool],
    line: Callable[[float], bool] = lambda _: False,
) -> tuple[Edge, list[Trial]]:
    """The edge that `search` ends with, and its trials."""
    trials: list[Trial] = []
    try:
        trial = next(search)
        while True:
            trials.append(trial)
            passed = passes(trial)
            trial = search.send(Seen(trial, measured(passed, trial.requests, on_the_line=line(trial.rate_rps))))
    except StopIteration as end:
        edge: Edge = end.value
        return edge, trials


GUESSES = st.floats(0.01, 200.0)
FACTORS = st.floats(1.05, 4.0)


@settings(deadline=None)
@given(guess_rps=GUESSES, times=st.floats(1 / 50, 50.0), factor=FACTORS)
def test_an_edge_within_fifty_times_the_guess_is_found(guess_rps: float, times: float, factor: float) -> None:
    truth_rps = guess_rps * times
    edge, trials = carried_out(find_edge(POINT, guess_rps, LENGTH, factor), lambda t: t.rate_rps <= truth_rps)
    assert edge.trials == len(trials) <= MOST_TRIALS
    assert edge.high_rps is not None
    assert edge.low_rps <= truth_rps < edge.high_rps <= edge.low_rps * RESOLUTION
    assert edge.capacity_rps == edge.low_rps
    assert edge.best is not None
    assert edge.best.passed
    assert edge.best.trial.rate_rps == edge.low_rps


@pytest.mark.parametrize(("factor", "truth_rps"), [(1.5, 12.0 * 2**7), (2.0, 64.0)])
def test_a_truth_far_from_the_guess_takes_all_the_trials_there_are(factor: float, truth_rps: float) -> None:
    edge, trials = carried_out(find_edge(POINT, 1.0, LENGTH, factor), lambda t: t.rate_rps <= truth_rps)
    assert len(trials) <= MOST_TRIALS
    assert edge.low_rps <= truth_rps


@settings(phases=[Phase.generate], deadline=None)
@given(guess_rps=GUESSES, truth_rps=st.floats(1e-3, 2.0 * MOST_RPS), factor=FACTORS)
def test_any_truth_is_between_what_passed_and_what_failed(guess_rps: float, truth_rps: float, factor: float) -> None:
    edge, trials = carried_out(find_edge(POINT, guess_rps, LENGTH, factor), lambda t: t.rate_rps <= truth_rps)
    assert len(trials) <= MOST_TRIALS
    assert edge.low_rps <= truth_rps
    assert edge.high_rps is None or truth_rps < edge.high_rps
    assert all(t.rate_rps <= MOST_RPS for t in trials)


@settings(deadline=None)
@given(verdicts=st.lists(st.booleans(), min_size=MOST_TRIALS, max_size=MOST_TRIALS), factor=FACTORS)
def test_any_verdicts_end_it_and_what_it_calls_passed_has_passed(verdicts: list[bool], factor: float) -> None:
    given_out = iter(verdicts)
    edge, trials = carried_out(find_edge(POINT, 10.0, LENGTH, factor), lambda _: next(given_out))
    passed = {t.rate_rps for t, passed in zip(trials, verdicts, strict=False) if passed}
    failed = {t.rate_rps for t, passed in zip(trials, verdicts, strict=False) if not passed}
    assert edge.low_rps in passed | {0.0}
    assert edge.high_rps in failed | {None}
    assert edge.high_rps is None or edge.low_rps < edge.high_rps


def test_a_newer_trial_is_believed_against_an_older_one() -> None:
    edge = Edge(POINT)
    for passed in (True, False, True):
        edge = edge.after(Seen(LENGTH.trial(POINT, Load(10.0), ""), measured(passed)))
        assert (edge.low_rps, edge.high_rps) == ((10.0, None) if passed else (0.0, 10.0))
        assert (edge.best is not None) is passed


@settings(deadline=None)
@given(guess_rps=GUESSES, factor=FACTORS)
def test_a_point_that_never_passes_has_no_capacity(guess_rps: float, factor: float) -> None:
    edge, trials = carried_out(find_edge(POINT, guess_rps, LENGTH, factor), lambda _: False)
    assert edge.capacity_rps == 0.0
    assert edge.best is None
    assert guess_rps * LEAST_SHARE <= trials[-1].rate_rps <= guess_rps * LEAST_SHARE * 2.001


def test_a_point_that_never_fails_is_tried_up_to_the_most_that_can_be_sent() -> None:
    edge, trials = carried_out(find_edge(POINT, MOST_RPS / 3, LENGTH), lambda _: True)
    assert edge.capacity_rps == MOST_RPS
    assert edge.high_rps is None
    assert [t.rate_rps for t in trials] == [MOST_RPS / 3, MOST_RPS / 2, MOST_RPS]


def test_a_pass_on_the_line_ends_it() -> None:
    edge, trials = carried_out(find_edge(POINT, 10.0, LENGTH), lambda t: t.rate_rps <= 16, lambda rate: rate > 14)
    assert edge.on_the_line
    assert [t.rate_rps for t in trials] == [10.0, 15.0]
    assert edge.capacity_rps == 15.0


def test_a_first_failure_on_the_line_does_not_end_it_for_no_rate_has_passed() -> None:
    edge, _ = carried_out(find_edge(POINT, 10.0, LENGTH), lambda t: t.rate_rps < 9.9, lambda rate: rate == 10.0)
    assert 9.9 / RESOLUTION <= edge.capacity_rps < 9.9


@settings(deadline=None)
@given(times=st.floats(0.7, 1.4), passed=st.booleans())
def test_trials_of_before_are_not_made_again(times: float, passed: bool) -> None:
    known = Edge(POINT).after(Seen(LENGTH.trial(POINT, Load(10.0), ""), measured(passed)))
    truth_rps = 10.0 * max(times, 1.0) if passed else 9.99 * min(times, 1.0)
    edge, trials = carried_out(find_edge(POINT, 10.0, LENGTH, known=known), lambda t: t.rate_rps <= truth_rps)
    assert 10.0 not in [t.rate_rps for t in trials]
    assert edge.trials == len(trials) + 1
    assert edge.low_rps <= truth_rps < (edge.high_rps or math.inf) <= edge.low_rps * RESOLUTION


@settings(deadline=None)
@given(rate_rps=st.floats(0.01, 1000.0), mean_e2el_s=st.floats(0.0, 60.0))
def test_an_episode_outlasts_some_answers_within_five_times_the_default(rate_rps: float, mean_e2el_s: float) -> None:
    trial = Length(400, mean_e2el_s).trial(POINT, Load(rate_rps), "", seed=3, whole=True)
    assert 400 <= trial.requests <= 400 * MOST_REQUESTS
    assert trial.requests >= min(4 * rate_rps * mean_e2el_s, 400 * MOST_REQUESTS)
    assert 1 <= trial.cut <= trial.requests / 2
    assert (trial.rate_rps, trial.seed, trial.whole) == (rate_rps, 3, True)


@pytest.mark.parametrize(("e2el_s", "known_s"), [(3.0, 3.0), (None, 2.0)])
def test_the_length_of_an_answer_is_the_newest_that_is_known(e2el_s: float | None, known_s: float) -> None:
    seen = Seen(LENGTH.trial(POINT, Load(1.0), ""), measured(False, mean_e2el_s=e2el_s))
    assert LENGTH.after(seen) == Length(400, known_s)
