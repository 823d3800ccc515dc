"""A point's edge: the search for the highest request rate at which it meets the SLO, as a plan of trials.

It measures nothing: whoever carries a trial out sends what was seen back in.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunetui.core.episode import Measurement
from tunetui.core.knobs import Point
from tunetui.core.load import MOST_RPS, Load
from tunetui.core.slo import Verdict
from tunetui.core.steps import EngineStep
from tunetui.core.workload import turnover

RESOLUTION = 1.05  # the edge is known when the lowest rate that failed is this close to the highest that passed
WIDEST = 2.0  # the largest factor between two trials while only one side is known
MOST_TRIALS = 14
TURNOVERS = 4  # an episode must outlast this many mean E2ELs, or a backlog has no time to show
MOST_REQUESTS = 5  # times the default episode
LEAST_SHARE = 1 / 200  # of the first guess: a point that fails below it does not meet the SLO at any rate


@dataclass(frozen=True, slots=True)
class Trial:
    """One episode to be measured at `point`: under `load`, `requests` of them counted after the `cut` of the first
    turnover. Trials with equal `seed` have the same arrivals and lengths. `why` is for the operator. `whole`: to its
    end, even if its verdict is certain before."""

    point: Point
    load: Load
    requests: int
    cut: int
    seed: int = 0
    why: str = ""
    whole: bool = False

    @property
    def rate_rps(self) -> float:
        """Requests per second; 0 in a closed loop."""
        return self.load.rate_rps or 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a trial brought. `kv_used`: the largest share of KV blocks in use (None: not known); `preemptions`: those of
    the trial."""

    trial: Trial
    measurement: Measurement
    kv_used: float | None = None
    preemptions: int = 0

    @property
    def passed(self) -> bool:
        return self.measurement.verdict is Verdict.PASS

    @property
    def on_the_line(self) -> bool:
        return self.measurement.on_the_line


def seen_with(trial: Trial, measurement: Measurement, steps: Sequence[EngineStep]) -> Seen:
    """What a trial brought, with what its steps say of the KV cache."""
    if not steps:
        return Seen(trial, measurement)
    used = max(step.used_blocks / max(step.used_blocks + step.free_blocks, 1) for step in steps)
    return Seen(trial, measurement, used, steps[-1].preemptions - steps[0].preemptions)


@dataclass(frozen=True, slots=True)
class Edge:
    """How far the search has come. `low_rps` passed (0: none did), `high_rps` failed (None: none did)."""

    point: Point
    low_rps: float = 0.0
    high_rps: float | None = None
    trials: int = 0
    on_the_line: bool = False
    best: Seen | None = None  # at `low_rps`

    @property
    def capacity_rps(self) -> float:
        """The highest rate that passed; 0 where the SLO is met at no rate."""
        return self.low_rps

    @property
    def found(self) -> bool:
        """Whether both sides are known, close enough to each other or on the line."""
        if self.on_the_line or self.trials >= MOST_TRIALS:
            return True
        return self.high_rps is not None and self.low_rps > 0 and self.high_rps <= self.low_rps * RESOLUTION

    def after(self, seen: Seen) -> Edge:
        """The edge with one more trial. Where two trials contradict each other the newer one is believed."""
        rate_rps, low_rps, high_rps, best = seen.trial.rate_rps, self.low_rps, self.high_rps, self.best
        if seen.passed:
            low_rps, best = rate_rps, seen
            high_rps = None if high_rps is not None and high_rps <= rate_rps else high_rps
        else:
            high_rps = rate_rps
            low_rps, best = (0.0, None) if low_rps >= rate_rps else (low_rps, best)
        line = seen.on_the_line and low_rps > 0
        return Edge(self.point, low_rps, high_rps, self.trials + 1, line, best)


def rate_after(edge: Edge, guess_rps: float, factor: float) -> float | None:
    """The next rate to try, or None where the edge is found or there is none. `factor` is how far the first guess may
    be off: while only one side is known the steps widen from it."""
    if edge.found:
        return None
    if not edge.trials:
        return min(guess_rps, MOST_RPS)
    stride = min(factor**2.0 ** min(edge.trials - 1, 8), WIDEST)
    if edge.high_rps is None:
        return min(edge.low_rps * stride, MOST_RPS) if edge.low_rps < MOST_RPS else None
    if not edge.low_rps:
        lower = edge.high_rps / stride
        return lower if lower >= guess_rps * LEAST_SHARE else None
    return math.sqrt(edge.low_rps * edge.high_rps)


@dataclass(frozen=True, slots=True)
class Length:
    """How long episodes must be: `requests` are counted by default, and an answer takes `mean_e2el_s` (0: unknown)."""

    requests: int
    mean_e2el_s: float = 0.0

    def after(self, seen: Seen) -> Length:
        """What is known with one more trial."""
        return replace(self, mean_e2el_s=seen.measurement.mean_e2el_s or self.mean_e2el_s)

    def trial(self, point: Point, load: Load, why: str, seed: int = 0, whole: bool = False) -> Trial:
        """The episode of `load` at `point`: the default, or as many requests as arrive in some mean E2ELs."""
        in_time = math.ceil(TURNOVERS * (load.rate_rps or 0.0) * self.mean_e2el_s)
        counted = min(max(in_time, self.requests), MOST_REQUESTS * self.requests)
        return Trial(point, load, counted, turnover(load, self.mean_e2el_s, counted), seed, why, whole)


def find_edge(
    point: Point, guess_rps: float, length: Length, factor: float = 1.5, known: Edge | None = None
) -> Generator[Trial, Any, Edge]:
    """The trials that find the edge of `point`, each sent back as Seen; returns the edge. `known`: trials of before."""
    edge = known or Edge(point)
    while (rate_rps := rate_after(edge, guess_rps, factor)) is not None:
        side = "bisect" if edge.low_rps and edge.high_rps else "bracket"
        seen: Seen = yield length.trial(point, Load(rate_rps), f"{side} its edge")
        length = length.after(seen)
        edge = edge.after(seen)
    return edge
