"""Whether a latency distribution has two modes, as it does where prefill and decode or short and long waits mix.

It names no cause, and looks for no third mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunetui.core.distribution import LatencyHistogram

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST_VALUES = 100
LEAST_SHARE = 0.05  # a mode of fewer requests than this is a tail
NARROWEST = 0.02  # of the logarithm: structure finer than 2 % is not looked for
VALLEY_Z = 1.85  # standard errors by which the valley lies below the lower mode: chosen in tests/core/test_modes.py
VALLEY_PART = 0.8  # of the lower mode's density, at most: with many requests a mere ripple is significant
CELLS = 4  # grid cells a bandwidth


@dataclass(frozen=True, slots=True)
class TwoModes:
    """Two modes of a latency, in seconds: where they are, the valley between, and the share of values above it."""

    low_s: float
    high_s: float
    split_s: float
    share_high: float

    @property
    def words(self) -> str:
        low, high = _ms(self.low_s), _ms(self.high_s)
        return f"two modes: {1 - self.share_high:.0%} near {low} ms and {self.share_high:.0%} near {high} ms"


def two_modes(latencies: Any) -> TwoModes | None:
    """The two modes of latencies in seconds (any array of shape (n,), or a LatencyHistogram); None for one mode.

    A kernel density of the log latency (Silverman's rule of thumb for the width) has a valley whose depth below the
    lower of the two modes exceeds VALLEY_Z standard errors of the difference, and a fifth of that mode. Latencies of
    zero have no logarithm and are left out, as NaN is: requests that did not wait at all are no mode of the wait. But
    where a short service and a long wait add up, those that waited and those that did not are two modes.

    Neighbouring latencies depend on each other; close to saturation a few busy periods can look like modes (about one
    time in ten at utilization 0.9 with 400 requests).
    """
    logs, weights = _logs(latencies)
    count = float(weights.sum())
    if count < LEAST_VALUES:
        return None
    bandwidth = _bandwidth(logs, weights)
    grid, density, below = _density(logs, weights, bandwidth)
    valley = _deepest_valley(density, below, math.sqrt(0.2821 / (count * bandwidth)))  # 1 / (2 sqrt(pi)): Gaussian
    if valley is None:
        return None
    low, high = int(density[:valley].argmax()), valley + int(density[valley:].argmax())
    split = low + int(density[low : high + 1].argmin())
    low_s, split_s, high_s = (math.exp(grid[place]) for place in (low, split, high))
    return TwoModes(low_s, high_s, split_s, 1 - float(below[split]))


def _logs(latencies: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rising log latencies and how many values each stands for."""
    import numpy as np  # here, not above: the first paint must not wait for it

    if isinstance(latencies, LatencyHistogram):
        values, counts = latencies.used()
        return np.log(values), counts.astype(float)
    values = np.asarray(latencies, dtype=float).ravel()
    values = np.sort(values[np.isfinite(values) & (values > 0)])
    return np.log(values), np.ones(values.size)


def _bandwidth(logs: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Silverman's rule of thumb (1986, eq. 3.31): 0.9 min(standard deviation, IQR / 1.34) n^(-1/5)."""
    import numpy as np

    count = float(weights.sum())
    cumulated = np.cumsum(weights) / count
    mean = float(np.average(logs, weights=weights))
    spread = math.sqrt(float(np.average((logs - mean) ** 2, weights=weights)))
    lower, upper = logs[np.searchsorted(cumulated, [0.25, 0.75])]
    middle = float(upper - lower) / 1.34
    return max(0.9 * min(spread, middle) * math.pow(count, -0.2), NARROWEST)


def _density(
    logs: NDArray[np.float64], weights: NDArray[np.float64], bandwidth: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Grid of log latencies, the smoothed density on it, and the share of values up to each place of it."""
    import numpy as np

    cell = bandwidth / CELLS
    start = float(logs[0]) - 3 * bandwidth
    size = int((float(logs[-1]) + 3 * bandwidth - start) / cell) + 1
    counts = np.bincount(((logs - start) / cell).astype(np.int64), weights, minlength=size)
    kernel = np.exp(-0.5 * (np.arange(-3 * CELLS, 3 * CELLS + 1) / CELLS) ** 2)
    total = float(weights.sum())
    density: NDArray[np.float64] = np.convolve(counts, kernel / kernel.sum(), "same") / (total * cell)
    grid: NDArray[np.float64] = start + (np.arange(size, dtype=np.float64) + 0.5) * cell
    below: NDArray[np.float64] = np.cumsum(counts) / total
    return grid, density, below


def _deepest_valley(density: NDArray[np.float64], below: NDArray[np.float64], error: float) -> int | None:
    """The place lowest, in standard errors, below the lower of the highest densities on its two sides; None: none is.

    `error`: the standard error of a density of 1, which grows with the root of the density.
    """
    import numpy as np

    left = np.maximum.accumulate(density)
    right = np.maximum.accumulate(density[::-1])[::-1]
    lower = np.minimum(left, right)
    depth = (lower - density) / (error * np.sqrt(lower + density + 1e-300))
    depth[(below < LEAST_SHARE) | (below > 1 - LEAST_SHARE) | (density > VALLEY_PART * lower)] = 0.0
    place = int(depth.argmax())
    return place if depth[place] >= VALLEY_Z else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}" if seconds >= 0.1 else f"{seconds * 1000:.3g}"
