"""Two modes are found where there are two, and seldom where there is one: the rates behind VALLEY_Z."""

import time
from collections.abc import Callable

import numpy as np
import pytest
import queueing

from tunetui.core.distribution import LatencyHistogram
from tunetui.core.modes import two_modes

COUNT = 400
RUNS = 300
Draw = Callable[[np.random.Generator, int], np.ndarray]


ONE_MODE: dict[str, Draw] = {
    "lognormal 0.25": lambda rng, n: rng.lognormal(-1, 0.25, n),
    "lognormal 1": lambda rng, n: rng.lognormal(-1, 1, n),
    "exponential": lambda rng, n: rng.exponential(0.3, n),
    "gamma 4": lambda rng, n: rng.gamma(4, 0.1, n),
    "gamma 0.5": lambda rng, n: rng.gamma(0.5, 0.1, n),
    "uniform": lambda rng, n: rng.uniform(0.1, 1.0, n),
    "uniform from 0": lambda rng, n: rng.uniform(0.0, 1.0, n),
    "uniform in the logarithm": lambda rng, n: np.exp(rng.uniform(0, 2, n)),
    "pareto 2": lambda rng, n: 0.1 * (1 + rng.pareto(2, n)),
}


def mixture(factor: float, sigma: float, share_high: float) -> Draw:
    return lambda rng, n: np.where(rng.random(n) < share_high, factor, 1.0) * 0.3 * rng.lognormal(0, sigma, n)


def found(draw: Draw, count: int = COUNT, runs: int = RUNS) -> float:
    rng = np.random.default_rng(1)
    return float(np.mean([two_modes(draw(rng, count)) is not None for _ in range(runs)]))


@pytest.mark.parametrize("name", ONE_MODE)
def test_one_mode_is_seldom_called_two(name: str) -> None:
    assert found(ONE_MODE[name]) <= 0.05
    assert found(ONE_MODE[name], 2000, 100) <= 0.05


@pytest.mark.parametrize(("utilization", "most"), [(0.5, 0.05), (0.7, 0.05), (0.9, 0.15)])
def test_waits_of_which_many_are_zero_are_one_mode(utilization: float, most: float) -> None:
    queue = queueing.simulate(RUNS, 500 + COUNT, utilization, seed=2)
    waits_s, sojourns_s = queue.waits_s[:, 500:], queue.sojourns_s[:, 500:]
    assert (waits_s == 0).any()
    assert np.mean([two_modes(run) is not None for run in waits_s]) <= most
    assert np.mean([two_modes(run) is not None for run in sojourns_s]) <= 0.05


@pytest.mark.parametrize(
    ("factor", "sigma", "share_high"), [(3, 0.25, 0.2), (3, 0.25, 0.5), (3, 0.25, 0.8), (10, 0.4, 0.1)]
)
def test_two_modes_are_found(factor: float, sigma: float, share_high: float) -> None:
    assert found(mixture(factor, sigma, share_high)) >= 0.90
    assert found(mixture(factor, sigma, share_high), 2000, 50) >= 0.98


def test_where_they_are_and_in_which_words() -> None:
    values_s = mixture(5, 0.2, 0.3)(np.random.default_rng(3), 5000)
    modes = two_modes(values_s)
    assert modes is not None
    assert modes.low_s == pytest.approx(0.3, rel=0.1)
    assert modes.high_s == pytest.approx(1.5, rel=0.1)
    assert 0.45 < modes.split_s < 1.1
    assert modes.share_high == pytest.approx(np.mean(values_s > modes.split_s), abs=0.01)
    assert modes.words == (f"two modes: 69% near {modes.low_s * 1000:.0f} ms and 31% near {modes.high_s * 1000:.0f} ms")


def test_a_histogram_gives_what_its_values_give() -> None:
    values_s = mixture(4, 0.25, 0.25)(np.random.default_rng(4), 3000)
    histogram = LatencyHistogram()
    histogram.add_many(values_s)
    direct, held = two_modes(values_s), two_modes(histogram)
    assert direct is not None
    assert held is not None
    assert held.low_s == pytest.approx(direct.low_s, rel=0.05)
    assert held.high_s == pytest.approx(direct.high_s, rel=0.05)
    assert held.share_high == pytest.approx(direct.share_high, abs=0.01)
    one = LatencyHistogram()
    one.add_many(np.random.default_rng(5).lognormal(-1, 0.5, 3000))
    assert two_modes(one) is None


@pytest.mark.parametrize("values_s", [[], [0.1] * 500, [0.0] * 500, [np.nan] * 500, [0.1] * 40 + [1.0] * 40], ids=str)
def test_too_little_to_tell_is_one_mode(values_s: list[float]) -> None:
    assert two_modes(np.array(values_s)) is None


def test_two_exact_values_are_two_modes() -> None:
    modes = two_modes([0.1] * 300 + [1.0] * 100 + [np.nan, 0.0, np.inf])
    assert modes is not None
    assert modes.share_high == pytest.approx(0.25)


def test_two_thousand_values_take_under_five_milliseconds() -> None:
    values_s = mixture(3, 0.25, 0.2)(np.random.default_rng(6), 2000)
    two_modes(values_s)
    began = time.perf_counter()
    for _ in range(20):
        two_modes(values_s)
    assert (time.perf_counter() - began) / 20 < 0.005
