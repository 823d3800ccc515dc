"""The service level objective: which latencies, what limits, at which percentile. It judges one request at a time.

It does not judge episodes; `verdict` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PERCENTILES = (50, 90, 95, 99)


class Metric(StrEnum):
    """A latency of one request that an objective can bound."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2EL = "e2el"

    @property
    def label(self) -> str:
        return self.value.upper()


class Verdict(StrEnum):
    """What can be said of an objective on an episode. The word itself is shown: colour only decorates it."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNDECIDED = "UNDECIDED"


class SloError(ValueError):
    """An SLO that does not parse; the message names the part and the form."""


@dataclass(frozen=True, slots=True)
class Objective:
    """One latency and its limit in seconds, inclusive."""

    metric: Metric
    limit_s: float

    def __str__(self) -> str:
        return f"{self.metric.value}:{self.limit_s * 1000:g}"


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives that must each hold at `percentile`. No objectives means: measure only."""

    objectives: tuple[Objective, ...]
    percentile: int = 95

    @property
    def share(self) -> float:
        """The share of requests that must meet each objective, e.g. 0.95."""
        return self.percentile / 100

    def objective(self, metric: Metric) -> Objective | None:
        return next((o for o in self.objectives if o.metric is metric), None)

    def __str__(self) -> str:
        return " ".join(str(o) for o in self.objectives)


def parse_slo(parts: list[str], percentile: int = 95) -> Slo:
    """Read vLLM's KEY:MS form, e.g. `["ttft:600", "tpot:80"]`.

    Raises SloError naming the part that is wrong and the form expected.
    """
    if percentile not in PERCENTILES:
        raise SloError(f"percentile {percentile} is not one of 50, 90, 95, 99")
    objectives: list[Objective] = []
    for part in parts:
        key, colon, text = part.partition(":")
        metric = next((m for m in Metric if m.value == key.strip().lower()), None)
        if metric is None or not colon:
            raise SloError(f"cannot read the SLO {part!r}: write KEY:MS with KEY ttft, tpot or e2el, e.g. ttft:600")
        try:
            limit_ms = float(text)
        except ValueError:
            limit_ms = float("nan")
        if not 0 < limit_ms < 86_400_000:
            raise SloError(f"cannot read the SLO {part!r}: the limit must be milliseconds above 0, e.g. {key}:600")
        if any(o.metric is metric for o in objectives):
            raise SloError(f"the SLO names {metric.value} twice: give it once")
        objectives.append(Objective(metric, limit_ms / 1000))
    return Slo(tuple(objectives), percentile)
