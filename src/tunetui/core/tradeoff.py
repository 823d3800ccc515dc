"""Points traded against each other: throughput or capacity for a latency, the front of the best, and its knee.

It measures nothing and knows no SLO: whether a point meets it comes with the point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traded:
    """One point: what it gives (`gain`, the more the better) at which latency in seconds. `met`: it meets the SLO."""

    number: int
    latency_s: float
    gain: float
    met: bool


def front(points: Sequence[Traded]) -> tuple[Traded, ...]:
    """The points of which none other gives as much at a lower latency, or more at the same: the Pareto front, by rising
    latency."""
    found: list[Traded] = []
    for point in sorted(points, key=lambda p: (p.latency_s, -p.gain)):
        if not found or point.gain > found[-1].gain:
            found.append(point)
    return tuple(found)


def knee(points: Sequence[Traded]) -> Traded | None:
    """The point of the front that lies farthest above the straight line between its ends, both axes scaled to them.

    None for fewer than three, or where none lies above it: then every step up costs the same or less. Source: Satopää
    et al., Finding a "Kneedle" in a Haystack (2011), without its smoothing.
    """
    best = front(points)
    if len(best) < 3:
        return None
    first, last = best[0], best[-1]
    wide, high = last.latency_s - first.latency_s, last.gain - first.gain

    def above(point: Traded) -> float:
        return (point.gain - first.gain) / high - (point.latency_s - first.latency_s) / wide

    farthest = max(best[1:-1], key=above)
    return farthest if above(farthest) > 0 else None
