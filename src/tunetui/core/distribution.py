"""A latency distribution in bounded memory: counts in narrow logarithmic bins, and the quantiles read from them.

It decides nothing, and exact percentiles do not come from here: those are `numpy.percentile` of the values themselves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LOWEST_S = 1e-5
HIGHEST_S = 36_000.0
BIN_WIDTH = 0.001  # of the natural logarithm: a bin is 0.1 % wide
BINS = math.ceil(math.log(HIGHEST_S / LOWEST_S) / BIN_WIDTH)  # 22,005: 176 kB


class LatencyHistogram:
    """Counts of latencies between 10 us and 10 h in bins 0.1 % wide. What lies outside is counted in the end bins."""

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] | None = None
        self._total = 0

    @property
    def total(self) -> int:
        """How many latencies were added."""
        return self._total

    def add_many(self, values_s: Any) -> None:
        """Add latencies in seconds, any array or sequence. NaN (a request that has none) is left out."""
        import numpy as np  # here, not above: the first paint must not wait for it

        values = np.asarray(values_s, dtype=float).ravel()
        values = np.clip(values[~np.isnan(values)], LOWEST_S, HIGHEST_S)
        places = np.minimum((np.log(values / LOWEST_S) / BIN_WIDTH).astype(np.int64), BINS - 1)
        np.add.at(self._kept(), places, 1)
        self._total += int(values.size)

    def quantile(self, q: float) -> float | None:
        """The `q`-quantile in seconds, within 0.1 % of `numpy.quantile` (linear); None for no values.

        Raises ValueError for a `q` outside 0 to 1.
        """
        import numpy as np

        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies between 0 and 1, not {q}")
        if not self._total:
            return None
        rank = q * (self._total - 1)
        below = math.floor(rank)
        ranks = [below, min(below + 1, self._total - 1)]
        places = np.searchsorted(np.cumsum(self._kept()), ranks, side="right")
        low_s, high_s = (_centre_s(int(place)) for place in places)
        return low_s + (rank - below) * (high_s - low_s)

    def used(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The bins that hold anything: centres in seconds and counts, both of shape (bins used,)."""
        import numpy as np

        places = np.flatnonzero(self._kept())
        return LOWEST_S * np.exp((places + 0.5) * BIN_WIDTH), self._kept()[places]

    def _kept(self) -> NDArray[np.int64]:
        if self._counts is None:
            import numpy as np

            self._counts = np.zeros(BINS, dtype=np.int64)
        return self._counts


def _centre_s(place: int) -> float:
    return LOWEST_S * math.exp((place + 0.5) * BIN_WIDTH)
