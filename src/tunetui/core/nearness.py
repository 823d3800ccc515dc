"""How far two workloads are apart, feature by feature (MEASURES, Workload features). It measures no workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

Features = Mapping[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of a feature is a distance of 1: a ratio (`log`), or a difference."""

    size: float
    log: bool = True

    def distance(self, one: float, other: float) -> float:
        """At least 0; a ratio with nothing on one side is as far as four sizes."""
        if not self.log:
            return abs(one - other) / self.size
        if one <= 0 or other <= 0:
            return 0.0 if one == other else 4.0
        return abs(math.log(one / other)) / math.log(self.size)


SCALES: dict[str, Scale] = {
    "rate_rps": Scale(1.25),
    "concurrency": Scale(1.25),
    "burstiness": Scale(2.0),
    "prompt_tokens_mean": Scale(1.25),
    "prompt_tokens_p95": Scale(1.35),
    "output_tokens_mean": Scale(1.25),
    "output_tokens_p95": Scale(1.35),
    "length_correlation": Scale(0.3, log=False),
    "long_prompt_share": Scale(0.05, log=False),
    "shared_prefix_share": Scale(0.1, log=False),
    "turns_per_conversation": Scale(1.5),
}


def distances(one: Features, other: Features) -> dict[str, float]:
    """The distance in each feature that both have, in units of its scale."""
    found = {}
    for name, scale in SCALES.items():
        mine, theirs = one.get(name), other.get(name)
        if isinstance(mine, int | float) and isinstance(theirs, int | float):
            found[name] = scale.distance(float(mine), float(theirs))
    return found


def out_of_range(then: Features, now: Features) -> tuple[str, ...]:
    """A sentence for each feature that has moved by more than its scale, farthest first: `prompt_tokens_mean 219 ->
    900`."""
    apart = {name: distance for name, distance in distances(then, now).items() if distance > 1 + 1e-9}
    return tuple(f"{name} {then[name]:g} -> {now[name]:g}" for name in sorted(apart, key=lambda n: -apart[n]))
