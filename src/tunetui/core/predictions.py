"""How far predictions were off in this session, and so within what the next one lies, and whether it is worth showing.

It predicts nothing (`drive.predict` does).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

LEVEL = 0.9  # of the predictions should lie within their interval
FIRST_LOW, FIRST_HIGH = 0.7, 1.3  # times the value, before any error is known
FIRST_WEIGHT = 3  # that first interval counts as so many errors, and where errors reach beyond it ...
BEYOND_WEIGHT = 1  # ... only as so many
BIAS_WEIGHT = 2  # errors by which the median is drawn to none
NARROWEST = 0.02  # of the value, to either side
FARTHEST = math.log(1000)  # a miss by more counts as by so much
KEPT = 32  # newest errors of each figure
POOR = 0.25  # a median absolute error above this ...
POOR_AFTER = 3  # ... over so many predictions


class Predicted(StrEnum):
    """A figure that is predicted."""

    THROUGHPUT = "throughput"
    TTFT = "TTFT"
    TPOT = "TPOT"
    CAPACITY = "capacity"


@dataclass(frozen=True, slots=True)
class Range:
    """A predicted value and the interval around it, in the unit of the figure."""

    low: float
    value: float
    high: float

    def __contains__(self, measured: float) -> bool:
        return self.low <= measured <= self.high


@dataclass(frozen=True, slots=True)
class Miss:
    """One prediction that was measured: natural logs of measured / what the model said, and of measured / what was
    shown, which the bias known by then had corrected."""

    of_model: float
    of_shown: float


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """The newest misses of each figure, oldest first."""

    misses: Mapping[Predicted, tuple[Miss, ...]] = field(default_factory=dict)

    def after(self, figure: Predicted, modelled: float, measured: float) -> PredictionErrors:
        """With one more: what the model said before any correction, and what was measured. Figures that are not above 0
        tell nothing of a ratio, and change nothing."""
        if not (0 < modelled < math.inf and 0 < measured < math.inf):
            return self
        of_model = max(min(math.log(measured) - math.log(modelled), FARTHEST), -FARTHEST)
        miss = Miss(of_model, of_model - self.bias(figure))
        return PredictionErrors({**self.misses, figure: (*self._of(figure), miss)[-KEPT:]})

    def _of(self, figure: Predicted) -> tuple[Miss, ...]:
        return self.misses.get(figure, ())

    def count(self, figure: Predicted) -> int:
        return len(self._of(figure))

    def bias(self, figure: Predicted) -> float:
        """Natural log of what a modelled figure is to be multiplied by: the median miss, drawn to 0 while few are known
        (n misses count n / (n + 2))."""
        misses = self._of(figure)
        if not misses:
            return 0.0
        return len(misses) / (len(misses) + BIAS_WEIGHT) * median(miss.of_model for miss in misses)

    def error(self, figure: Predicted) -> float | None:
        """The median absolute relative error of what was shown, e.g. 0.08; None before any is known."""
        misses = self._of(figure)
        return median(abs(math.exp(miss.of_shown) - 1) for miss in misses) if misses else None

    def is_poor(self, figure: Predicted) -> bool:
        """Whether to measure instead: the median absolute error was above 25 %, over at least 3 predictions."""
        error = self.error(figure)
        return self.count(figure) >= POOR_AFTER and error is not None and error > POOR

    @property
    def poor(self) -> tuple[Predicted, ...]:
        """The figures that are predicted poorly here."""
        return tuple(figure for figure in Predicted if self.is_poor(figure))

    def range_of(self, figure: Predicted, modelled: float, widen: float = 1.0) -> Range:
        """What to show for a modelled figure: corrected by the bias, within 0.7 to 1.3 times before any error is known,
        later within the quantiles of the misses around their bias, weighed with the first interval.

        `widen` multiplies the interval's logarithms: above 1 where the model is asked for what was not seen.
        """
        bias = self.bias(figure)
        around = [miss.of_model - bias for miss in self._of(figure)]
        below = widen * _reach(-math.log(FIRST_LOW), [max(-one, 0.0) for one in around])
        above = widen * _reach(math.log(FIRST_HIGH), [max(one, 0.0) for one in around])
        value = modelled * math.exp(bias)
        return Range(value * math.exp(-below), value, value * math.exp(above))


def _reach(first: float, misses: Sequence[float]) -> float:
    """How far an interval reaches to one side: the quantile of the misses to it, weighed with the first reach."""
    if not misses:
        return first
    ordered, count = sorted(misses), len(misses)
    # Each side leaves out half of what the interval leaves out. Of few misses that is beyond the largest; then it is
    # the largest, and a little more, for the next one exceeds it with a chance of 1 / (n + 1).
    rank = min((1 + LEVEL) / 2 * (count + 1) - 1, count - 1)
    under = math.floor(rank)
    over = min(under + 1, count - 1)
    quantile = (ordered[under] + (rank - under) * (ordered[over] - ordered[under])) * (1 + 1 / count)
    weight = FIRST_WEIGHT if quantile < first else BEYOND_WEIGHT
    return max((weight * first + count * quantile) / (weight + count), NARROWEST)
