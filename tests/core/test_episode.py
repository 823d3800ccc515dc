"""The verdict is exact, whatever the order in which requests end; the figures leave out the cut."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.core.episode import Episode, Trailing, curtailed
from tunetui.core.load import Load
from tunetui.core.sample import Outcome, Sample
from tunetui.core.slo import Metric, Verdict, parse_slo
from tunetui.core.workload import Workload, parse_lengths, plan_episode

SLO = parse_slo(["ttft:600", "tpot:80"], 95)


def episode(counted: int, cut: int = 0, output: str = "11") -> Episode:
    workload = Workload(parse_lengths("10"), parse_lengths(output))
    return Episode(1, plan_episode(workload, Load(concurrency=4), cut, counted), SLO)


def sample(index: int, ttft_s: float = 0.1, tpot_s: float = 0.05, outcome: Outcome = Outcome.OK, n: int = 11) -> Sample:
    at = float(index)
    last = at + ttft_s + tpot_s * (n - 1)
    return Sample(1, index, at, at + 0.001, at + ttft_s, last, 10, n, outcome, last)


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_curtailed_equals_the_full_computation(outcomes: list[bool], share: float) -> None:
    full = Verdict.PASS if sum(outcomes) >= math.ceil(share * len(outcomes) - 1e-9) else Verdict.FAIL
    for seen in range(len(outcomes) + 1):
        met = sum(outcomes[:seen])
        verdict, left = curtailed(met, seen - met, len(outcomes), share)
        assert verdict in (full, Verdict.UNDECIDED)
        assert left == (len(outcomes) - seen if verdict is Verdict.UNDECIDED else 0)
    assert verdict is full


def test_verdict_does_not_depend_on_the_order_of_ends() -> None:
    rng = random.Random(3)
    for _ in range(200):
        counted = rng.randint(1, 60)
        bad = rng.randint(0, 6)
        samples = [sample(i, ttft_s=0.9 if i < bad else 0.1) for i in range(counted)]
        rng.shuffle(samples)
        watched = episode(counted)
        early: Verdict | None = None
        for one in samples:
            watched.add(one)
            verdict = watched.measure(1e6).objectives[0].verdict
            if early is None and verdict is not Verdict.UNDECIDED:
                early = verdict
        ttft = [s.ttft_s <= 0.6 for s in samples if s.ttft_s is not None]
        assert early is (Verdict.PASS if sum(ttft) >= math.ceil(0.95 * counted - 1e-9) else Verdict.FAIL)


def test_a_ttft_that_is_over_counts_at_once() -> None:
    watched = episode(20)
    for i in range(3):
        watched.sent(i, 0.0)
    assert watched.measure(0.5).verdict is Verdict.UNDECIDED
    now = watched.measure(0.7)
    assert now.objectives[0].missed == 3
    assert now.verdict is Verdict.FAIL


def test_failed_is_bad_cancelled_is_left_out_and_counted() -> None:
    watched = episode(20)
    for i in range(18):
        watched.add(sample(i))
    watched.add(sample(18, outcome=Outcome.CANCELLED))
    watched.add(sample(19, outcome=Outcome.FAILED))
    seen = watched.measure(1e6)
    assert (seen.counted, seen.judged, seen.failed, seen.cancelled) == (19, 19, 1, 1)
    assert seen.attainment == pytest.approx(18 / 19)
    assert seen.verdict is Verdict.FAIL


def test_one_token_answers_are_judged_on_ttft_alone() -> None:
    watched = episode(20, output="1")
    for i in range(20):
        watched.add(sample(i, n=1))
    seen = watched.measure(1e6)
    assert seen.one_token_answers == 20
    assert seen.objectives[1].applies_to == 0
    assert (seen.tpot_s, seen.attainment, seen.verdict) == (None, 1.0, Verdict.PASS)


def test_the_cut_is_left_out_of_latencies_and_the_window_begins_after_it() -> None:
    watched = episode(10, cut=5)
    for i in range(15):
        watched.add(sample(i, ttft_s=5.0 if i < 5 else 0.2))
    seen = watched.measure(1e6)
    assert seen.ttft_s == pytest.approx(0.2)
    assert seen.verdict is Verdict.PASS
    assert watched.window_start_s == 5.0
    assert seen.window_s == pytest.approx(14 + 0.2 + 0.5 - 5.0)


def test_percentiles_are_numpys_and_throughput_counts_arrivals_in_the_window() -> None:
    watched = episode(40)
    values = [0.01 * (i % 17 + 1) for i in range(40)]
    for i in range(40):
        watched.sent(i, float(i))
    for i, value in enumerate(values):
        watched.arrived(i + 0.5, 10)
        watched.finished(sample(i, value))
        watched.add(sample(i, value))
    seen = watched.measure(1e6)
    assert seen.ttft_s == pytest.approx(np.percentile(values, 95))
    assert seen.output_tokens_per_s == pytest.approx(400 / seen.window_s)
    assert seen.requests_per_s == pytest.approx(40 / seen.window_s)


def test_on_the_line_is_said_when_the_share_is_within_a_point_of_the_target() -> None:
    for bad, expected in ((5, True), (6, True), (9, False), (1, False)):
        watched = episode(100)
        for i in range(100):
            watched.add(sample(i, ttft_s=0.9 if i < bad else 0.1))
        assert watched.measure(1e6).on_the_line is expected, bad


def test_a_late_generator_is_said() -> None:
    watched = episode(20)
    for i in range(20):
        watched.add(Sample(1, i, float(i), i + 0.05, i + 0.1, i + 0.2, 10, 11, Outcome.OK, i + 0.2))
    assert "late" in watched.measure(1e6).suspect
    assert Metric.TTFT.label == "TTFT"


def test_trailing_forgets_what_is_older_than_its_window() -> None:
    trailing = Trailing(95, window_s=10)
    trailing.first_token(0.0, 9.0)
    trailing.first_token(8.0, 1.0)
    assert trailing.at(9.0).ttft_s == pytest.approx(np.percentile([9.0, 1.0], 95))
    assert trailing.at(12.0).ttft_s == 1.0
    assert trailing.at(30.0).ttft_s is None
