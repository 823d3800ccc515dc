"""The histogram of latencies keeps quantiles to 0.1 %, in the same memory however much is added."""

import numpy as np
import pytest

from tunetui.core.distribution import BINS, HIGHEST_S, LOWEST_S, LatencyHistogram


def held(values_s: object) -> LatencyHistogram:
    histogram = LatencyHistogram()
    histogram.add_many(values_s)
    return histogram


@pytest.mark.parametrize("scale_s", [0.0005, 0.3, 200.0])
@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.95, 0.99, 1.0])
def test_a_quantile_is_that_of_the_values_within_a_bin(q: float, scale_s: float) -> None:
    values_s = np.random.default_rng(1).lognormal(np.log(scale_s), 0.7, 5_001)
    assert held(values_s).quantile(q) == pytest.approx(np.quantile(values_s, q), rel=0.001)


def test_a_quantile_between_two_far_values_is_interpolated_as_numpy_does() -> None:
    assert held([0.1, 0.3]).quantile(0.5) == pytest.approx(0.2, rel=0.001)


def test_no_values_have_no_quantile_and_a_wrong_q_is_refused() -> None:
    assert held([]).quantile(0.5) is None
    assert held([np.nan]).quantile(0.5) is None
    with pytest.raises(ValueError, match="between 0 and 1"):
        held([1.0]).quantile(95)


def test_what_is_out_of_range_is_counted_in_the_end_bins_and_nan_nowhere() -> None:
    histogram = held([0.0, -1.0, 1e-9, 1e9, np.inf, np.nan])
    assert histogram.total == 5
    assert histogram.quantile(0.0) == pytest.approx(LOWEST_S, rel=0.001)
    assert histogram.quantile(1.0) == pytest.approx(HIGHEST_S, rel=0.001)


def test_used_bins_hold_every_value_near_its_place() -> None:
    centres_s, counts = held([0.2, 0.2, 5.0]).used()
    assert counts.tolist() == [2, 1]
    assert centres_s == pytest.approx([0.2, 5.0], rel=0.0006)


def test_memory_does_not_grow() -> None:
    histogram = held([0.1])
    for seed in range(3):
        histogram.add_many(np.random.default_rng(seed).exponential(0.3, 100_000))
    assert histogram.total == 300_001
    assert histogram._kept().size == BINS
