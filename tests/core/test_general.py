"""The interval for the long-run attainment: its evidence is a martingale, it knows queues, and its memory is flat."""

import math

import numpy as np
import pytest
import queueing

from tunetui.core import general
from tunetui.core.general import GeneralAttainment, Interval
from tunetui.core.slo import Verdict

CUT = 500  # requests until the queue is stationary


def fed(met: np.ndarray, latency_s: np.ndarray | None = None, share: float = 0.95) -> GeneralAttainment:
    attainment = GeneralAttainment(share)
    attainment.add_many(met, np.full(len(met), np.nan) if latency_s is None else latency_s)
    return attainment


# -- the confidence sequence --------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("count", [1, 7, 200])
def test_the_evidence_against_the_truth_is_one_on_average(count: int, share: float) -> None:
    def log_probability(met: int) -> float:
        log_ways = math.lgamma(count + 1) - math.lgamma(met + 1) - math.lgamma(count - met + 1)
        return log_ways + met * math.log(share) + (count - met) * math.log1p(-share)

    expected = sum(math.exp(log_probability(k) + general._log_evidence(count, k, share)) for k in range(count + 1))
    assert expected == pytest.approx(1.0, rel=1e-6)


def test_looking_all_along_misses_the_truth_in_at_most_one_run_of_twenty() -> None:
    rng, runs, missed = np.random.default_rng(1), 400, 0
    for _ in range(runs):
        met = np.cumsum(rng.random(3000) < 0.95)
        looks = np.unique(np.geomspace(20, 3000, 60).astype(int))
        missed += any(general._log_evidence(n, int(met[n - 1]), 0.95) >= math.log(20) for n in looks)
    assert 0 < missed <= 0.05 * runs


@pytest.mark.parametrize(("count", "share"), [(60, 1.0), (600, 0.98), (600, 0.5), (60, 0.0)])
def test_the_bounds_are_where_the_evidence_reaches_its_limit(count: float, share: float) -> None:
    low, high = general._bounds(count, share, math.log(20))
    assert low <= share <= high
    for edge in (low, high):
        if 0 < edge < 1:
            assert general._log_evidence(count, count * share, edge) == pytest.approx(math.log(20), abs=1e-3)


def test_sixty_good_requests_are_the_first_that_allow_a_pass_at_95_percent() -> None:
    # (1 / 0.95)^58.4 = 20: no evidence of mean 1 can be stronger.
    assert general._bounds(57, 1.0, math.log(20))[0] < 0.95
    assert general._bounds(120, 1.0, math.log(20))[0] > 0.95


def test_more_objectives_widen_the_interval() -> None:
    met = np.random.default_rng(2).random(2000) < 0.97
    one, three = GeneralAttainment(0.95, 1), GeneralAttainment(0.95, 3)
    for attainment in (one, three):
        attainment.add_many(met, np.ones(2000))
    a, b = one.look(0.1), three.look(0.1)
    assert a is not None
    assert b is not None
    assert b.low < a.low < a.high < b.high
    assert general._bounds(a.effective_requests, 0.97, math.log(3 / 0.05))[0] == pytest.approx(b.low, abs=0.003)


# -- when nothing is said -----------------------------------------------------------------------------------------


def test_nothing_is_said_without_utilization_or_at_full_utilization() -> None:
    attainment = fed(np.ones(5000, dtype=bool))
    assert attainment.look(None) is None
    assert attainment.look(1.0) is None
    assert attainment.look(1.3) is None
    assert attainment.look(math.nan) is None
    assert attainment.percentile_interval() is None
    said = attainment.look(0.5)
    assert said is not None
    assert said.verdict is Verdict.PASS


def test_nothing_is_said_before_twenty_independent_requests() -> None:
    # At utilization 0.5 tau is at least 3 / 0.25 = 12.
    assert fed(np.ones(239, dtype=bool)).look(0.5) is None
    said = fed(np.ones(240, dtype=bool)).look(0.5)
    assert said is not None
    assert (said.tau, said.effective_requests) == (pytest.approx(12), pytest.approx(20))
    assert said.verdict is Verdict.UNDECIDED
    assert GeneralAttainment(0.95).look(0.5) is None


def test_a_more_variable_load_counts_for_less_and_a_steadier_one_not_for_more() -> None:
    taus = []
    for variability in (0.1, 1.0, 2.5):
        attainment = GeneralAttainment(0.95, variability=variability)
        attainment.add_many(np.ones(2000, dtype=bool), np.ones(2000))
        said = attainment.look(0.5)
        assert said is not None
        taus.append(said.tau)
    assert taus == pytest.approx([12, 12, 30])
    with pytest.raises(ValueError, match="cannot judge"):
        GeneralAttainment(0.95, variability=-1.0)


@pytest.mark.parametrize(("share", "alpha", "count"), [(1.0, 0.05, 1), (0.95, 0.0, 1), (0.95, 0.05, 0)])
def test_what_cannot_be_judged_is_refused(share: float, alpha: float, count: int) -> None:
    with pytest.raises(ValueError, match="cannot judge"):
        GeneralAttainment(share, count, alpha)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="as many latencies"):
        GeneralAttainment(0.95).add_many([True, False], [0.1])


# -- looks, memory and the series ---------------------------------------------------------------------------------


def test_looks_between_the_grid_points_give_the_last_interval() -> None:
    attainment = fed(np.ones(1000, dtype=bool))
    first = attainment.look(0.2)
    attainment.add(False, None)
    assert attainment.look(0.2) is first
    for _ in range(60):
        attainment.add(False, None)
    second = attainment.look(0.2)
    assert second is not first
    assert second is not None
    assert second.requests == 1061


def test_one_by_one_is_the_same_as_many_at_once() -> None:
    rng = np.random.default_rng(3)
    met, latency_s = rng.random(7001) < 0.9, rng.lognormal(0, 1, 7001)
    latency_s[rng.random(7001) < 0.02] = np.nan
    single, pieces = GeneralAttainment(0.95), GeneralAttainment(0.95)
    for good, seconds in zip(met.tolist(), latency_s.tolist(), strict=True):
        single.add(good, None if math.isnan(seconds) else seconds)
    for start in range(0, 7001, 613):
        pieces.add_many(met[start : start + 613], latency_s[start : start + 613])
    intervals = [a.look(0.3) for a in (single, pieces, fed(met, latency_s))]
    for interval in intervals:
        assert interval is not None
        assert interval.requests == 7001
        assert interval.tau == pytest.approx(intervals[0].tau)  # type: ignore[union-attr]
        assert interval.low == pytest.approx(intervals[0].low)  # type: ignore[union-attr]


def test_memory_is_flat_over_millions_of_requests() -> None:
    attainment, rng = GeneralAttainment(0.95), np.random.default_rng(4)
    for _ in range(20):
        attainment.add_many(rng.random(100_000) < 0.96, rng.exponential(0.2, 100_000))
    batches = attainment._batches
    assert attainment.requests == 2_000_000
    assert batches._sums is not None
    assert batches._sums.shape == (general.BATCHES, 3)
    assert batches._size == 2048
    held = batches._full * batches._size + batches._open_count
    assert held == 2_000_000
    assert batches._sums[:, 0].sum() == pytest.approx(attainment._batches.attainment * 2_000_000)
    assert 1.0 <= batches.tau() < 1.8


@pytest.mark.parametrize("length", [10, 50])
def test_batch_means_find_how_long_requests_hang_together(length: int) -> None:
    rng = np.random.default_rng(5)
    met = np.repeat(rng.random(60_000 // length) < 0.9, length)
    # Equal neighbours in runs of `length`: the mean of n is that of n / length independent ones.
    assert fed(met)._batches.tau() == pytest.approx(length, rel=0.45)
    latency_s = np.repeat(rng.lognormal(0, 1, 60_000 // length), length)
    assert fed(np.ones(60_000, dtype=bool), latency_s)._batches.tau() == pytest.approx(length, rel=0.45)


def test_failed_requests_have_no_latency_and_count_as_missed() -> None:
    attainment = GeneralAttainment(0.95)
    for _ in range(3000):
        attainment.add(False, None)
    said = attainment.look(0.3)
    assert said is not None
    assert said.verdict is Verdict.FAIL
    assert said.low == 0.0
    assert attainment.percentile_interval() is None
    attainment.add(True, 0.2)
    assert attainment.latencies.total == 0  # pending ones are taken in at the next look
    attainment.look(0.3)


# -- on queues ----------------------------------------------------------------------------------------------------


def judge(run: int, queue: object, limit_s: float) -> list[Interval]:
    """All intervals given while 20,000 requests of one run come in."""
    waits_s = queue.waits_s[run, CUT:-1]  # type: ignore[attr-defined]
    attainment, said, seen = GeneralAttainment(0.95), [], 0
    while seen < len(waits_s):
        upto = min(len(waits_s), int(seen * 1.06) + 100)
        attainment.add_many(waits_s[seen:upto] <= limit_s, waits_s[seen:upto] + 0.02)
        seen = upto
        interval = attainment.look(queue.utilization(run, CUT, CUT + seen))  # type: ignore[attr-defined]
        said += [interval] if interval is not None else []
    return said


@pytest.fixture(scope="module")
def busy_queue() -> object:
    return queueing.simulate(60, CUT + 20_001, 0.7, seed=6)


@pytest.fixture(scope="module")
def true_waits_s() -> np.ndarray:
    return queueing.simulate(120, CUT + 20_000, 0.7, seed=7).waits_s[:, CUT:]


@pytest.mark.parametrize(("attainment", "right"), [(0.90, Verdict.FAIL), (0.98, Verdict.PASS)])
def test_verdicts_on_a_queue_are_seldom_wrong_and_mostly_given(
    attainment: float, right: Verdict, busy_queue: object, true_waits_s: np.ndarray
) -> None:
    limit_s = float(np.quantile(true_waits_s, attainment))
    decided = wrong = missed = 0
    for run in range(60):
        said = judge(run, busy_queue, limit_s)
        verdicts = {i.verdict for i in said} - {Verdict.UNDECIDED}
        decided += bool(verdicts)
        wrong += verdicts not in (set(), {right})
        missed += any(not i.low <= attainment <= i.high for i in said)
    assert wrong <= 3
    assert missed <= 4
    assert decided >= 40


def test_the_interval_of_the_p95_holds_the_true_p95(busy_queue: object, true_waits_s: np.ndarray) -> None:
    true_p95_s, held, widths = float(np.quantile(true_waits_s, 0.95)) + 0.02, 0, []
    for run in range(60):
        waits_s = busy_queue.waits_s[run, CUT:-1]  # type: ignore[attr-defined]
        attainment = fed(waits_s <= 0.5, waits_s + 0.02)
        attainment.look(busy_queue.utilization(run, CUT, CUT + 20_000))  # type: ignore[attr-defined]
        found = attainment.percentile_interval()
        assert found is not None
        assert found.high_s is not None
        assert found.low_s < np.quantile(waits_s + 0.02, 0.95) < found.high_s
        held += found.low_s <= true_p95_s <= found.high_s
        widths.append(found.high_s / found.low_s)
    assert held >= 57
    assert np.median(widths) < 3


def test_the_p95_has_no_upper_bound_while_few_have_come() -> None:
    latency_s = np.random.default_rng(8).exponential(1.0, 60)
    attainment = fed(np.ones(60, dtype=bool), latency_s)
    assert attainment.look(0.1) is None
    more = np.random.default_rng(9).exponential(1.0, 40)
    attainment.add_many(np.ones(40, dtype=bool), more)
    assert attainment.look(0.1) is not None
    found = attainment.percentile_interval()
    assert found is not None
    assert found.high_s is None
    assert found.low_s < np.quantile(np.concatenate([latency_s, more]), 0.95)


def test_the_simulated_queue_is_the_one_of_the_textbook() -> None:
    # M/M/1 would wait rho / (1 - rho) services; M/M/4 at 0.7 makes a share of Erlang's C = 0.4287 wait.
    rng = np.random.default_rng(10)
    arrivals_s = queueing.poisson_arrivals(rng, (40, 20_000), 10.0)
    one = queueing.serve(arrivals_s, rng.exponential(0.07, (40, 20_000)), servers=1)
    assert one.waits_s[:, CUT:].mean() == pytest.approx(0.07 * 0.7 / 0.3, rel=0.05)
    four = queueing.serve(arrivals_s, rng.exponential(0.28, (40, 20_000)))
    assert (four.waits_s[:, CUT:] > 0).mean() == pytest.approx(0.4287, rel=0.03)
    assert np.mean([four.utilization(r, CUT, 19_999) for r in range(40)]) == pytest.approx(0.7, rel=0.01)
    starts_s, departures_s = four.starts_s[0], four.departures_s[0]
    busy = ((starts_s <= 1000.0) & (departures_s > 1000.0)).sum()
    assert busy <= 4
