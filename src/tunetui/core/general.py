"""The long-run attainment of an objective, as an interval that stays valid however often it is looked at.

It says nothing of one episode, whose verdict is exact (`episode`), and nothing of a server without a utilization.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunetui.core.distribution import LatencyHistogram
from tunetui.core.slo import Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCHES = 1024  # memory is flat: when this many batches are full they are merged in pairs
GROUPS = 64  # batch means behind an estimate of tau: few enough that each is long, enough for 18 % precision
LEAST_EFFECTIVE = 20  # nothing is said on fewer independent requests than this
GRID = 1.05  # looks are this factor of requests apart
QUEUE_FACTOR = 3.0  # tau of a queue at utilization rho is about 3 / (1 - rho)^2 (MEASURES, In general)
LEAST_VARIABILITY = 1.0  # ... of Poisson arrivals and services of CV 1; steadier ones are not given credit
PRIOR = 30.0  # the mixture is sharpest at some hundreds of independent requests; any value is valid


@dataclass(frozen=True, slots=True)
class Interval:
    """The long-run attainment lies in [`low`, `high`]. `tau`: requests that tell as much as one independent one."""

    low: float
    high: float
    requests: int
    effective_requests: float
    tau: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LatencyInterval:
    """The long-run percentile lies between these latencies in seconds; `high_s` None: no bound can be given yet."""

    low_s: float
    high_s: float | None


class GeneralAttainment:
    """Whether `share` of all requests meet one objective in the long run, of which `objectives_count` are asked.

    A confidence sequence: with probability 1 - `alpha` none of the intervals of none of the objectives, at any look,
    misses the true attainment, as far as tau is right. Neighbouring requests queue together, so n requests count as
    n / tau, tau = max(batch means of met/missed, batch means of the log latency, 3 variability / (1 - utilization)^2).

    `variability`: (CV^2 of the gaps between arrivals + CV^2 of what a request costs) / 2, which is 1 for Poisson
    arrivals and services of CV 1 and by which busy periods of heavy traffic lengthen (Kingman 1961). 1 / burstiness is
    the first; the CV^2 of the lengths can stand for the second. Left at 1 on a more variable load, 12-23 % of the runs
    gave an interval that missed the truth.

    The first estimate alone is blind until the first bad busy period, the second sees queueing before anything is
    missed, and the third, which knows how long busy periods get, is what makes the interval hold.
    """

    def __init__(
        self, share: float, objectives_count: int = 1, alpha: float = 0.05, variability: float = LEAST_VARIABILITY
    ) -> None:
        """Raises ValueError for a `share` or `alpha` not between 0 and 1, no objective, or a negative variability."""
        if not (0 < share < 1 and 0 < alpha < 1 and objectives_count >= 1 and variability >= 0):
            raise ValueError(f"cannot judge a share of {share} at an error of {alpha} over {objectives_count}")
        self._queue_factor = QUEUE_FACTOR * max(variability, LEAST_VARIABILITY)
        self.share = share
        self.latencies = LatencyHistogram()
        self._log_bound = math.log(objectives_count / alpha)
        self._batches = _Batches()
        self._pending: list[tuple[bool, float]] = []
        self._next_look = 1
        self._last: Interval | None = None

    @property
    def requests(self) -> int:
        return self._batches.requests + len(self._pending)

    def add(self, met: bool, latency_s: float | None) -> None:
        """One judged request in order of arrival; `latency_s` None where it has none (it failed)."""
        self._pending.append((met, math.nan if latency_s is None else latency_s))
        if len(self._pending) >= BATCHES:
            self._flush()

    def add_many(self, met: Any, latency_s: Any) -> None:
        """Judged requests in order of arrival: whether met, and latencies in seconds (NaN: none), both of shape (n,).

        Raises ValueError where the shapes differ.
        """
        import numpy as np  # here, not above: the first paint must not wait for it

        self._flush()
        self._absorb(np.asarray(met, dtype=float), np.asarray(latency_s, dtype=float))

    def look(self, utilization: float | None) -> Interval | None:
        """The interval now, or the last one when too few requests have come since. None: nothing can be said.

        `utilization`: the mean share of the engine that was busy over the requests added, 0 to 1. Without it (a server
        that shows no metrics) there is never a statement: batch means alone are wrong in up to 42 % of runs
        (benchmarks/general_verdict.py). Nor is there one at 1 or above, where no long-run attainment exists, or before
        20 tau requests.

        The intervals are not intersected: each stands on the tau of its own look, and an early tau can be too small.
        """
        if utilization is None or not 0 <= utilization < 1:
            return None
        if self.requests >= self._next_look:
            self._flush()
            self._next_look = math.ceil(self.requests * GRID)
            self._last = self._interval(utilization)
        return self._last

    def percentile_interval(self) -> LatencyInterval | None:
        """Where the `share` percentile of the latency lies in the long run, by the interval last given; or None.

        The latencies x at which a true share of `share` below x is not refuted by the share seen below x: the same
        sequence inverted (Howard and Ramdas 2022), on the same effective number of requests.
        """
        if self._last is None or not self.latencies.total:
            return None
        effective = self.latencies.total / self._last.tau
        low, high = _unrefuted_shares(effective, self.share, self._log_bound)
        low_s = self.latencies.quantile(low)
        high_s = None if high >= 1 else self.latencies.quantile(high)
        return None if low_s is None else LatencyInterval(low_s, high_s)

    def _flush(self) -> None:
        import numpy as np

        if self._pending:
            rows = np.array(self._pending, dtype=float)
            self._pending.clear()
            self._absorb(rows[:, 0], rows[:, 1])

    def _absorb(self, met: NDArray[np.float64], latency_s: NDArray[np.float64]) -> None:
        if met.shape != latency_s.shape or met.ndim != 1:
            raise ValueError(f"as many latencies as requests are needed, not {latency_s.shape} for {met.shape}")
        self.latencies.add_many(latency_s)
        self._batches.add_many(met, latency_s)

    def _interval(self, utilization: float) -> Interval | None:
        tau = max(self._batches.tau(), self._queue_factor / (1 - utilization) ** 2)
        effective = self.requests / tau
        if effective < LEAST_EFFECTIVE:
            return None
        low, high = _bounds(effective, self._batches.attainment, self._log_bound)
        verdict = Verdict.PASS if low >= self.share else Verdict.FAIL if high < self.share else Verdict.UNDECIDED
        return Interval(low, high, self.requests, effective, tau, verdict)


class _Batches:
    """Sums over at most BATCHES equal runs of neighbouring requests. Columns: met, log latency, has a latency."""

    def __init__(self) -> None:
        self.requests = 0
        self._size = 1
        self._full = 0
        self._sums: NDArray[np.float64] | None = None
        self._open_count = 0
        self._met = 0.0
        self._logs = (0.0, 0.0, 0.0)  # count, sum and sum of squares of the log latencies

    @property
    def attainment(self) -> float:
        return self._met / self.requests

    def add_many(self, met: NDArray[np.float64], latency_s: NDArray[np.float64]) -> None:
        import numpy as np

        known = ~np.isnan(latency_s)
        logs = np.log(np.maximum(np.where(known, latency_s, 1.0), 1e-5))
        self._met += float(met.sum())
        count, total, squares = self._logs
        self._logs = (count + int(known.sum()), total + float(logs.sum()), squares + float((logs * logs).sum()))
        rows = np.stack([met, logs, known.astype(float)], axis=1)
        while len(rows):
            rows = rows[self._take(rows) :]

    def _take(self, rows: NDArray[np.float64]) -> int:
        """Add what fits before the batches must be merged; returns how many rows that were."""
        import numpy as np

        if self._sums is None:
            self._sums = np.zeros((BATCHES, 3))
        used = self._full * self._size + self._open_count
        taken = min(len(rows), BATCHES * self._size - used)
        places = (used + np.arange(taken)) // self._size
        first, last = places[0], places[-1]
        for column in range(3):
            self._sums[first : last + 1, column] += np.bincount(places - first, rows[:taken, column])
        self.requests += taken
        self._full, self._open_count = divmod(used + taken, self._size)
        if self._full == BATCHES:
            half = BATCHES // 2
            self._sums[:half] = self._sums.reshape(half, 2, 3).sum(axis=1)
            self._sums[half:] = 0.0
            self._size, self._full = self._size * 2, half
        return taken

    def tau(self) -> float:
        """The larger batch-means estimate of the two series, at least 1; 1 while there are too few batches."""
        import numpy as np

        each = self._full // GROUPS
        if self._sums is None or each == 0:
            return 1.0
        grouped = self._sums[self._full - each * GROUPS : self._full].reshape(GROUPS, each, 3).sum(axis=1)
        length = each * self._size
        share = self.attainment
        estimates = [1.0]
        if 0 < share < 1:
            estimates.append(length * float(np.var(grouped[:, 0] / length, ddof=1)) / (share * (1 - share)))
        count, total, squares = self._logs
        variance = squares / count - (total / count) ** 2 if count else 0.0
        known = grouped[grouped[:, 2] > 0]
        if variance > 1e-9 and len(known) > 1:
            estimates.append(length * float(np.var(known[:, 1] / known[:, 2], ddof=1)) / variance)
        return max(estimates)


def _log_evidence(count: float, met: float, share: float) -> float:
    """The logarithm of the evidence that a true attainment is not `share`, having seen `met` of `count`.

    The likelihood under a beta mixture around `share` over that under `share` itself: a martingale of mean 1 if `share`
    is true, so that it ever exceeds 1 / alpha with probability alpha at most (Ville). Robbins 1970; Howard et al. 2021,
    beta-binomial mixture. Fractional counts are effective ones.
    """
    a, b, missed = PRIOR * share, PRIOR * (1 - share), count - met
    mixture = math.lgamma(met + a) + math.lgamma(missed + b) - math.lgamma(count + PRIOR)
    return (
        mixture
        - (math.lgamma(a) + math.lgamma(b) - math.lgamma(PRIOR))
        - (met * math.log(share) + missed * math.log1p(-share))
    )


def _bounds(count: float, share: float, log_bound: float) -> tuple[float, float]:
    """The lowest and the highest true share that are not refuted when `share` of `count` was seen."""
    met = count * share

    def refuted(true: float) -> bool:
        return _log_evidence(count, met, true) >= log_bound

    return _edge(refuted, 1e-9, share), _edge(refuted, 1 - 1e-9, share)


def _unrefuted_shares(count: float, true: float, log_bound: float) -> tuple[float, float]:
    """The lowest and the highest share of `count` that could be seen without refuting the share `true`."""

    def refuted(seen: float) -> bool:
        return _log_evidence(count, count * seen, true) >= log_bound

    return _edge(refuted, 0.0, true), _edge(refuted, 1.0, true)


def _edge(refuted: Callable[[float], bool], far: float, near: float) -> float:
    """Where `refuted` turns from true at `far` to false at `near`; the end of the range where it is never true."""
    if not refuted(far):
        return float(round(far))
    for _ in range(40):
        middle = (far + near) / 2
        far, near = (middle, near) if refuted(middle) else (far, middle)
    return near
