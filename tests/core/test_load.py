"""Arrivals: the asked rate, burstiness and ramp, equal seeds give equal arrivals, and odd loads are refused."""

import math

import numpy as np
import pytest

from tunetui.core.load import Arrival, Load, Ramp, WorkloadError, parse_ramp
from tunetui.core.trace import Trace
from tunetui.core.workload import Workload, features, parse_lengths, plan_episode, turnover, variability

SIZE = 20_000


def gaps(load: Load, seed: int = 1) -> np.ndarray:
    return np.diff(load.arrivals_s(np.random.default_rng(seed), SIZE), prepend=0.0)


@pytest.mark.parametrize(
    ("load", "cv2"),
    [
        (Load(10.0), 1.0),
        (Load(10.0, arrival=Arrival.CONSTANT), 0.0),
        (Load(10.0, arrival=Arrival.GAMMA, burstiness=0.25), 4.0),
        (Load(10.0, arrival=Arrival.GAMMA, burstiness=4.0), 0.25),
    ],
)
def test_gaps_have_the_rate_and_the_burstiness_of_vllm(load: Load, cv2: float) -> None:
    drawn = gaps(load)
    assert drawn.mean() == pytest.approx(0.1, rel=0.05)
    assert drawn.var() / drawn.mean() ** 2 == pytest.approx(cv2, rel=0.1, abs=1e-9)
    assert np.array_equal(drawn, gaps(load))
    assert load.arrival is Arrival.CONSTANT or not np.array_equal(drawn, gaps(load, seed=2))


@pytest.mark.parametrize("exponential", [False, True])
@pytest.mark.parametrize(("first", "last"), [(2.0, 20.0), (20.0, 2.0), (5.0, 5.0)])
def test_a_ramp_goes_from_one_rate_to_the_other(first: float, last: float, exponential: bool) -> None:
    load = Load(first, arrival=Arrival.CONSTANT, ramp=Ramp(last, exponential))
    arrivals = load.arrivals_s(np.random.default_rng(1), SIZE)
    seen = 1 / np.diff(arrivals)
    assert (seen[0], seen[-1]) == (pytest.approx(first, rel=0.01), pytest.approx(last, rel=0.01))
    middle = float(np.interp(arrivals[-1] / 2, arrivals[1:], seen))
    assert middle == pytest.approx(math.sqrt(first * last) if exponential else (first + last) / 2, rel=0.01)
    assert SIZE / arrivals[-1] == pytest.approx(load.mean_rps(), rel=0.01)


def test_drawn_gaps_that_outlast_the_ramp_go_on_at_its_last_rate() -> None:
    load = Load(2.0, ramp=Ramp(20.0))
    for seed in range(20):
        arrivals = load.arrivals_s(np.random.default_rng(seed), 50)
        assert (np.diff(arrivals) >= 0).all()
        assert np.isfinite(arrivals).all()


def test_two_rates_differ_in_scale_alone() -> None:
    assert np.allclose(gaps(Load(2.0)) / gaps(Load(8.0)), 4.0)


@pytest.mark.parametrize(
    ("text", "said"), [("2", "FROM:TO"), ("a:b", "FROM:TO"), ("2:20:steep", "FROM:TO"), ("2:nan", "FROM:TO")]
)
def test_a_ramp_that_does_not_parse(text: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        parse_ramp(text)


def test_a_ramp_that_parses() -> None:
    assert parse_ramp("2:20") == (2.0, Ramp(20.0))
    assert parse_ramp("2:20:exponential") == (2.0, Ramp(20.0, True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "either"),
        ({"rate_rps": 1.0, "concurrency": 2}, "either"),
        ({"rate_rps": 1.0, "ramp": Ramp(0.0)}, "rate must be above 0"),
        ({"rate_rps": 1.0, "burstiness": 0.0}, "burstiness"),
        ({"concurrency": 1, "ramp": Ramp(2.0)}, "need a request rate"),
        ({"speed": 0.0}, "speed"),
        ({"speed": math.nan}, "speed"),
    ],
)
def test_odd_loads_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        Load(**options)  # type: ignore[arg-type]


TRACE = Trace(
    "mooncake", (700, 900, 600), (5, 6, 7), (0.0, 1.0, 3.0), 512, ((0, 1), (0, 2), (3, 4)), conversations=(0, 0, 1)
)
REPLAYED = Workload(parse_lengths("1"), parse_lengths("1"), trace=TRACE)


def test_a_trace_is_replayed_at_its_own_moments_and_begins_again_as_new_requests() -> None:
    plan = plan_episode(REPLAYED, Load(speed=2.0), 0, 7)
    assert plan.arrivals_s == (0.0, 0.5, 1.5, 2.25, 2.75, 3.75, 4.5)
    assert plan.prompt_tokens == (700, 900, 600, 700, 900, 600, 700)
    assert plan.output_tokens == (5, 6, 7, 5, 6, 7, 5)
    assert plan.blocks == ((0, 1), (0, 2), (3, 4), (5, 6), (5, 7), (8, 9), (10, 11))
    assert plan.conversations == (0, 0, 1, 2, 2, 3, 4)
    assert plan.block_tokens == 512
    assert features(plan)["shared_prefix_share"] == pytest.approx(1024 / sum(plan.prompt_tokens), abs=1e-4)


def test_a_trace_can_be_resampled_at_a_rate_and_has_no_turnover_of_its_own() -> None:
    plan = plan_episode(REPLAYED, Load(4.0), 1, 2)
    assert plan.prompt_tokens == TRACE.prompt_tokens
    assert plan.arrivals_s == plan_episode(Workload(parse_lengths("9"), parse_lengths("9")), Load(4.0), 1, 2).arrivals_s
    assert turnover(Load(speed=1.0), 5.0, 400) == 0
    assert turnover(Load(4.0), 5.0, 400) == 20


def test_a_trace_without_times_cannot_be_replayed() -> None:
    still = Workload(parse_lengths("1"), parse_lengths("1"), trace=Trace("custom", (1,), (1,)))
    with pytest.raises(WorkloadError, match="no times"):
        plan_episode(still, Load(speed=1.0), 0, 1)


def test_variability_is_that_of_gaps_and_lengths() -> None:
    steady = Workload(parse_lengths("100"), parse_lengths("50"))
    assert variability(plan_episode(steady, Load(5.0, arrival=Arrival.CONSTANT), 0, 1000)) == pytest.approx(0, abs=1e-9)
    assert variability(plan_episode(steady, Load(5.0), 0, SIZE)) == pytest.approx(0.5, rel=0.05)
    mixed = Workload(parse_lengths("100@0.9,4000@0.1"), parse_lengths("50"))
    values = [100] * 9 + [4000]
    cv2 = np.var(values) / np.mean(values) ** 2
    assert variability(plan_episode(mixed, Load(5.0), 0, SIZE)) == pytest.approx((1 + cv2) / 2, rel=0.1)
