"""How often two points are put in the wrong order by one episode each: the same seeded episode against two loads.

`uv run python benchmarks/paired_episodes.py [PAIRS]` (default 4,000 pairs a row). M/G/4 with lognormal services of CV
1, episodes of 400 requests after a cut of 40, each from an empty server, judged by their TTFT (the wait). Paired: both
points get the same arrivals and the same work. Independent: loads of the same kind and length, drawn anew.

The second point is 5 % slower, or has 5 servers of 4/5 the speed. Noise: each point multiplies each request's work by a
lognormal factor of that CV of its own, since no server repeats itself. Without it a slower first-come-first-served
queue makes *every* request wait longer, so the paired order cannot be wrong: an idealisation that is shown, not meant.
The true order is that of all pairs pooled. Ties, which attainment has, count as half wrong.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from queueing import SERVERS, Floats, lognormal_services, poisson_arrivals, serve

COUNTED, CUT = 400, 40
RATE_RPS = 10.0
TARGET = 0.95
POINTS = {"5 % slower": (SERVERS, 1.05), "5 servers": (SERVERS + 1, 1.0)}  # servers, work


def load(rng: np.random.Generator, pairs: int) -> tuple[Floats, Floats]:
    """Arrival times and work of mean 1, each of shape (pairs, CUT + COUNTED)."""
    shape = (pairs, CUT + COUNTED)
    return poisson_arrivals(rng, shape, RATE_RPS), lognormal_services(rng, shape)


def waits(
    rng: np.random.Generator, episode: tuple[Floats, Floats], utilization: float, servers: int, noise: float
) -> Floats:
    """Waits of the counted requests of `episode`, at a point whose noise is drawn from `rng`."""
    arrivals_s, work = episode
    own = lognormal_services(rng, work.shape, cv=noise) if noise else 1.0
    return serve(arrivals_s, work * own * servers * utilization / RATE_RPS, servers).waits_s[:, CUT:]


def wrong(first: Floats, second: Floats, first_is_better: bool) -> float:
    """% of pairs in which the better point has the larger figure; a tie is half."""
    better, worse = (first, second) if first_is_better else (second, first)
    return float(100 * np.mean((better > worse) + 0.5 * (better == worse)))


def row(pairs: int, utilization: float, point: str, noise: float) -> list[float]:
    """% wrong by P95, paired and independent, and by attainment, paired and independent."""
    rng = np.random.default_rng([7, round(100 * utilization), round(100 * noise), len(point)])
    same, other = load(rng, pairs), load(rng, pairs)
    servers, work = POINTS[point]
    first = waits(rng, same, utilization, SERVERS, noise)
    seconds = [waits(rng, episode, utilization * work, servers, noise) for episode in (same, other)]
    limit_s = float(np.quantile(first, TARGET))
    first_is_better = limit_s < np.quantile(np.concatenate(seconds), TARGET)
    p95 = [wrong(*(np.percentile(w, 95, axis=1) for w in (first, s)), first_is_better) for s in seconds]  # type: ignore[misc]
    missed = [wrong(*((w > limit_s).mean(axis=1) for w in (first, s)), first_is_better) for s in seconds]  # type: ignore[misc]
    return [*p95, *missed]


def main(pairs: int) -> None:
    began_s = time.monotonic()
    print(f"% of {pairs} pairs in the wrong order (attainment: of the first point's long-run P95)")
    print(f"{'':27} | {'by P95':^18} | {'by attainment':^18}")
    heads = f"{'paired':>6} {'independent':>11}"
    print(f"{'rho':>4} {'second point':>12} {'noise':>9} | {heads} | {heads}")
    for utilization in (0.5, 0.7, 0.85):
        for point in POINTS:
            for noise in (0.0, 0.1, 0.3):
                a, b, c, d = row(pairs, utilization, point, noise)
                print(f"{utilization:4} {point:>12} {noise:9} | {a:6.1f} {b:11.1f} | {c:6.1f} {d:11.1f}", flush=True)
    print(f"{time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
