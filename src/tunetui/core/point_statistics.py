"""What can be said of one point under one load over all of its episodes: in general, by length, and of overload.

Its memory is flat: a million requests take what some thousands do. It gives no verdict on an episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunetui.core.general import GeneralAttainment, Interval, LatencyInterval
from tunetui.core.lengths import ByLength, by_length
from tunetui.core.modes import TwoModes, two_modes
from tunetui.core.requests import CANCELLED, OK, OPEN, Requests
from tunetui.core.slo import Metric, Slo, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Seconds = NDArray[np.float64]

RECENT = 4000  # requests that distributions and buckets are of: the newest ones
BARS = 24  # of a histogram


@dataclass(frozen=True, slots=True)
class General:
    """One objective in general: the interval of its attainment and of its percentile; None: nothing can be said yet."""

    metric: Metric
    interval: Interval | None
    percentile: LatencyInterval | None


@dataclass(frozen=True, slots=True)
class Closing:
    """One look of the past: the interval of the least attained objective after so many requests."""

    requests: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """A latency of the newest requests: `counts` between `edges_s` (one more, log-spaced), and two modes if seen."""

    metric: Metric
    edges_s: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    modes: TwoModes | None = None

    @property
    def total(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Statement:
    """What is said now. `verdict` is the general one: PASS when every objective's interval lies above the target.

    `utilization` is what it stands on; without it, or at 1, nothing is said.
    """

    requests: int
    general: tuple[General, ...]
    verdict: Verdict
    closing: tuple[Closing, ...] = ()
    utilization: float | None = None

    @property
    def worst(self) -> Interval | None:
        """The interval of the objective that is attained least; None while one of them has none."""
        intervals = [one.interval for one in self.general]
        known = [interval for interval in intervals if interval is not None]
        return min(known, key=lambda i: i.low + i.high) if known and len(known) == len(intervals) else None


@dataclass(frozen=True, slots=True)
class PointView:
    """All that a screen can show of a point beyond its episode."""

    statement: Statement
    ttft: Distribution
    tpot: Distribution
    by_length: ByLength


class PointStatistics:
    """Take the counted requests of each episode in the order of their arrival; look whenever you like."""

    def __init__(self, slo: Slo, variability: float = 1.0) -> None:
        """`variability` of the load, as GeneralAttainment takes it."""
        count = max(len(slo.objectives), 1)
        self._general = [(o, GeneralAttainment(slo.share, count, variability=variability)) for o in slo.objectives]
        self._closing: list[Closing] = []
        self._recent: list[NDArray[np.float64]] = []  # columns: prompt tokens, TTFT, TPOT, E2EL, good
        self.requests = 0

    def take(self, seen: Requests, rows: slice) -> int:
        """The requests of `rows` up to the first that has not ended; returns how many these are (cancelled ones are
        passed over). Call again from there."""
        import numpy as np  # here, not above: the first paint must not wait for it

        outcome = seen.outcome[rows]
        ended = int(np.argmax(outcome == OPEN)) if (outcome == OPEN).any() else outcome.size
        if not ended:
            return 0
        rows = slice(rows.start, rows.start + ended)
        kept = seen.outcome[rows] != CANCELLED
        good = seen.outcome[rows] == OK
        for objective, general in self._general:
            met = seen.met(objective.metric, objective.limit_s, rows)
            good = good & met
            general.add_many(met[kept], seen.value_s(objective.metric, rows)[kept])
        latencies = [seen.value_s(metric, rows) for metric in Metric]
        new = np.stack([seen.prompt_tokens[rows].astype(float), *latencies, good.astype(float)])[:, kept]
        self._keep(new)
        self.requests += new.shape[1]
        return ended

    def _keep(self, new: NDArray[np.float64]) -> None:
        self._recent.append(new)
        while sum(part.shape[1] for part in self._recent[1:]) >= RECENT:
            self._recent.pop(0)

    def look(self, utilization: float | None) -> Statement:
        """What can be said in general; `utilization` as GeneralAttainment.look takes it."""
        general = []
        for objective, attainment in self._general:
            interval = attainment.look(utilization)
            general.append(General(objective.metric, interval, attainment.percentile_interval()))
        statement = Statement(self.requests, tuple(general), _verdict(general))
        if (worst := statement.worst) and (not self._closing or self._closing[-1].requests != worst.requests):
            self._closing.append(Closing(worst.requests, worst.low, worst.high))
        return Statement(self.requests, tuple(general), statement.verdict, tuple(self._closing), utilization)

    def view(self, utilization: float | None) -> PointView:
        """What can be said and shown now."""
        return PointView(
            self.look(utilization), self.distribution(Metric.TTFT), self.distribution(Metric.TPOT), self.by_length()
        )

    def distribution(self, metric: Metric) -> Distribution:
        """The latencies of the newest requests, log-spaced over what was seen."""
        import numpy as np

        values = self._column(1 + list(Metric).index(metric))
        values = values[values > 0]  # False for NaN
        if not values.size:
            return Distribution(metric)
        low, high = float(values.min()), float(values.max())
        edges = np.geomspace(low * 0.999, max(high, low * 1.05) * 1.001, BARS + 1)
        counts, _ = np.histogram(values, edges)
        return Distribution(metric, tuple(edges.tolist()), tuple(counts.tolist()), two_modes(values))

    def by_length(self) -> ByLength:
        """TTFT of the newest requests by the length of their prompts."""
        return by_length(self._column(0), self._column(1), self._column(-1) > 0)

    def _column(self, number: int) -> Seconds:
        import numpy as np

        parts: list[Any] = [part[number] for part in self._recent]
        return np.concatenate(parts)[-RECENT:] if parts else np.zeros(0)


def _verdict(general: list[General]) -> Verdict:
    verdicts = [one.interval.verdict if one.interval is not None else Verdict.UNDECIDED for one in general]
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    return Verdict.PASS if verdicts and set(verdicts) == {Verdict.PASS} else Verdict.UNDECIDED
