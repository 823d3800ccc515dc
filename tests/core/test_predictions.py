"""What a session's errors say of the next prediction: its interval, its correction, and when to measure instead."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.core.predictions import KEPT, Predicted, PredictionErrors

FIGURE = Predicted.TTFT


def after(*ratios: float, figure: Predicted = FIGURE) -> PredictionErrors:
    """Errors of predictions of 2 that turned out as 2 times each ratio."""
    errors = PredictionErrors()
    for ratio in ratios:
        errors = errors.after(figure, 2.0, 2.0 * ratio)
    return errors


def test_before_any_error_the_interval_is_thirty_percent_and_nothing_is_poor() -> None:
    errors = PredictionErrors()
    found = errors.range_of(FIGURE, 100.0)
    assert (found.low, found.value, found.high) == pytest.approx((70, 100, 130))
    assert (errors.bias(FIGURE), errors.error(FIGURE), errors.poor) == (0.0, None, ())


@pytest.mark.parametrize(
    ("ratios", "poor"),
    [((1.6,), False), ((1.6, 0.6), False), ((1.6, 0.5, 1.7), True), ((1.1, 0.9, 1.2), False),
     ((1.0, 1.0, 1.0, 2.0), False), ((2.0, 0.5, 2.0, 0.5, 2.0), True)],
)  # fmt: skip
def test_poor_is_a_median_error_above_a_quarter_over_three(ratios: tuple[float, ...], poor: bool) -> None:
    errors = after(*ratios)
    assert errors.is_poor(FIGURE) is poor
    assert errors.poor == ((FIGURE,) if poor else ())
    assert not errors.is_poor(Predicted.TPOT)


def test_an_error_that_is_always_the_same_is_corrected_and_is_not_poor_for_long() -> None:
    errors = after(*[1.5] * 12)
    found = errors.range_of(FIGURE, 2.0)
    assert found.value == pytest.approx(3.0, rel=0.08)
    assert 3.0 in found
    assert not errors.is_poor(FIGURE)
    assert errors.bias(FIGURE) == pytest.approx(12 / 14 * math.log(1.5))


def test_the_interval_narrows_with_good_predictions_and_widens_with_bad_ones() -> None:
    def width(errors: PredictionErrors) -> float:
        found = errors.range_of(FIGURE, 1.0)
        return math.log(found.high / found.low)

    good, bad = [1.02, 0.98] * 8, [1.8, 0.55] * 8
    widths = [width(after(*good[:n])) for n in range(0, 17, 4)]
    assert widths == sorted(widths, reverse=True)
    assert width(after(*bad)) > 1.6 * width(PredictionErrors())
    assert width(after(*[1.0] * 200)) >= 0.04
    assert PredictionErrors().range_of(FIGURE, 1.0, 2.0).high == pytest.approx(1.69)


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.5])
def test_the_interval_holds_most_of_what_comes(spread: float) -> None:
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(300):
        errors, bias = PredictionErrors(), float(rng.normal(0, 0.1))
        for n in range(16):
            measured = math.exp(bias + float(rng.normal(0, spread)))
            if n >= 8:
                inside.append(measured in errors.range_of(FIGURE, 1.0))
            errors = errors.after(FIGURE, 1.0, measured)
    assert np.mean(inside) > 0.84


@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 1e6)), max_size=50), st.floats(1e-6, 1e6))
def test_the_value_lies_inside_its_interval_and_memory_is_bounded(
    pairs: list[tuple[float, float]], modelled: float
) -> None:
    errors = PredictionErrors()
    for said, seen in pairs:
        errors = errors.after(FIGURE, said, seen)
    found = errors.range_of(FIGURE, modelled)
    assert 0 <= found.low <= found.value <= found.high
    assert errors.count(FIGURE) <= KEPT
    assert errors.count(FIGURE) == min(sum(said > 0 and seen > 0 for said, seen in pairs), KEPT)


def test_figures_without_a_ratio_change_nothing() -> None:
    errors = after(1.1)
    for said, seen in [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan), (-1.0, 1.0)]:
        assert errors.after(FIGURE, said, seen) == errors
