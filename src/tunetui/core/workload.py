"""What load to send: lengths, arrivals and seeded episodes of them, as plain arrays.

It plans; it sends nothing and makes no prompt text. Equal seeds give equal episodes, so that points are compared on
the same load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class WorkloadError(ValueError):
    """A length or load that does not parse; the message names the part and the form."""


@dataclass(frozen=True, slots=True)
class LengthMix:
    """Token counts: ranges [low, high] (inclusive, uniform) with their shares, which sum to 1."""

    ranges: tuple[tuple[int, int], ...]
    shares: tuple[float, ...]

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """`count` lengths in tokens, shape (count,)."""
        import numpy as np  # here, not above: the first paint must not wait for it

        which = rng.choice(len(self.ranges), size=count, p=self.shares)
        low = np.array([r[0] for r in self.ranges])[which]
        high = np.array([r[1] for r in self.ranges])[which]
        return rng.integers(low, high + 1)

    @property
    def largest(self) -> int:
        return max(high for _, high in self.ranges)

    @property
    def mean(self) -> float:
        return sum(share * (low + high) / 2 for (low, high), share in zip(self.ranges, self.shares, strict=True))

    def __str__(self) -> str:
        def one(low: int, high: int) -> str:
            return str(low) if low == high else f"{low}-{high}"

        if len(self.ranges) == 1:
            return one(*self.ranges[0])
        return ",".join(f"{one(*r)}@{s:g}" for r, s in zip(self.ranges, self.shares, strict=True))


def parse_lengths(text: str) -> LengthMix:
    """Read `256`, `64-512` or a mix `100@0.8,4000@0.2` (ranges may stand in a mix; shares are made to sum to 1).

    Raises WorkloadError naming what is wrong.
    """
    ranges: list[tuple[int, int]] = []
    shares: list[float] = []
    for part in text.split(","):
        span, at, share_text = part.strip().partition("@")
        low_text, _, high_text = span.partition("-")
        try:
            low = int(low_text)
            high = int(high_text) if high_text else low
            share = float(share_text) if at else 1.0
        except ValueError:
            raise WorkloadError(
                f"cannot read the token count {text!r}: write 256, 64-512 or 100@0.8,4000@0.2"
            ) from None
        if low < 1 or high < low:
            raise WorkloadError(f"cannot use the token count {part.strip()!r}: the range must be 1 or more and rise")
        if not (share > 0 and math.isfinite(share)):
            raise WorkloadError(f"cannot use the share in {part.strip()!r}: it must be above 0")
        ranges.append((low, high))
        shares.append(share)
    total = sum(shares)
    return LengthMix(tuple(ranges), tuple(s / total for s in shares))


@dataclass(frozen=True, slots=True)
class Load:
    """How requests arrive: open loop at `rate_rps` (Poisson), or closed loop with `concurrency` streams; one is set."""

    rate_rps: float | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if (self.rate_rps is None) == (self.concurrency is None):
            raise WorkloadError("give either a request rate or a concurrency, not both")
        if self.rate_rps is not None and not 0 < self.rate_rps <= 100_000:
            raise WorkloadError(f"cannot send {self.rate_rps:g} requests/s: the rate must be above 0")
        if self.concurrency is not None and not 0 < self.concurrency <= 100_000:
            raise WorkloadError(f"cannot keep {self.concurrency} streams: the concurrency must be 1 or more")

    @property
    def open_loop(self) -> bool:
        return self.rate_rps is not None

    def stepped(self, direction: int) -> Load:
        """The load one key press up or down: about 10 %, on round figures."""
        if self.rate_rps is not None:
            size = max(_round_step(self.rate_rps / 8), 0.01)
            return replace(self, rate_rps=round(max(self.rate_rps + direction * size, size), 6))
        assert self.concurrency is not None
        size_n = max(1, round(self.concurrency / 8))
        return replace(self, concurrency=max(1, self.concurrency + direction * size_n))

    def __str__(self) -> str:
        if self.rate_rps is not None:
            return f"{self.rate_rps:g} rps poisson"
        return f"{self.concurrency} streams closed loop"


def _round_step(most: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is at most `most`."""
    power = 10.0 ** math.floor(math.log10(most) + 1e-9)
    return max(m * power for m in (1, 2, 5) if m * power <= most * (1 + 1e-9))


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of an episode: their lengths in tokens, and the seed that makes every episode the same one."""

    prompt: LengthMix
    output: LengthMix
    seed: int = 0


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """One seeded stretch of load: `cut` requests for the first turnover, then `counted` ones that are judged.

    `arrivals_s`: offsets from the episode's start, shape (cut + counted,), or empty in a closed loop.
    """

    load: Load
    cut: int
    counted: int
    arrivals_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.cut + self.counted


def plan_episode(workload: Workload, load: Load, cut: int, counted: int) -> EpisodePlan:
    """The episode of `workload` under `load`: the same arguments give the same episode.

    Poisson gaps are unit exponentials over the rate, so that episodes at two rates differ in scale alone.
    """
    import numpy as np

    size = cut + counted
    # One independent stream for each quantity: changing one flag then leaves the other draws as they were.
    gap_rng, prompt_rng, output_rng = (np.random.default_rng([workload.seed, stream]) for stream in range(3))
    arrivals: tuple[float, ...] = ()
    if load.rate_rps is not None:
        arrivals = tuple((np.cumsum(gap_rng.exponential(1.0, size)) / load.rate_rps).tolist())
    return EpisodePlan(
        load=load,
        cut=cut,
        counted=counted,
        arrivals_s=arrivals,
        prompt_tokens=tuple(workload.prompt.draw(prompt_rng, size).tolist()),
        output_tokens=tuple(workload.output.draw(output_rng, size).tolist()),
    )


def default_episode_requests(percentile: int) -> int:
    """Counted requests for 20 bad ones at the target: 400 for P95 (MEASURES, Episodes)."""
    return round(20 / (1 - percentile / 100))


def turnover(load: Load, mean_e2el_s: float, counted: int) -> int:
    """How many requests the first turnover leaves out: about one mean E2EL of arrivals, fixed before data are seen.

    Bounded by half of the counted ones, for an overloaded warm-up says nothing about the points to come.
    """
    wanted = math.ceil(load.rate_rps * mean_e2el_s) if load.rate_rps is not None else load.concurrency or 0
    return min(max(wanted, 1), max(1, counted // 2))


def features(plan: EpisodePlan) -> dict[str, float | int | str]:
    """The features that tag a baseline: rate, burstiness and lengths of what is sent (MEASURES, Workload features)."""
    import numpy as np

    prompts = np.array(plan.prompt_tokens[plan.cut :], dtype=float)
    outputs = np.array(plan.output_tokens[plan.cut :], dtype=float)
    tags: dict[str, float | int | str] = {"arrival": "poisson" if plan.load.open_loop else "closed"}
    if plan.load.rate_rps is not None:
        gaps = np.diff(plan.arrivals_s)
        tags["rate_rps"] = plan.load.rate_rps
        if gaps.size > 1 and gaps.std() > 0:
            tags["burstiness"] = round(float((gaps.mean() / gaps.std()) ** 2), 3)
    if plan.load.concurrency is not None:
        tags["concurrency"] = plan.load.concurrency
    for name, values in (("prompt_tokens", prompts), ("output_tokens", outputs)):
        tags[f"{name}_mean"] = round(float(values.mean()), 1)
        tags[f"{name}_p50"] = float(np.percentile(values, 50))
        tags[f"{name}_p95"] = round(float(np.percentile(values, 95)), 1)
        tags[f"{name}_max"] = int(values.max())
    if prompts.std() > 0 and outputs.std() > 0:
        tags["length_correlation"] = round(float(np.corrcoef(prompts, outputs)[0, 1]), 3)
    tags["long_prompt_share"] = round(float((prompts > 4 * np.median(prompts)).mean()), 4)
    tags["shared_prefix_share"] = 0.0
    tags["turns_per_conversation"] = 1
    return tags
