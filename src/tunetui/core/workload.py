"""What load to send: lengths, arrivals and seeded episodes of them, as plain arrays.

It plans; it sends nothing and makes no prompt text. Equal seeds give equal episodes, so that points are compared on
the same load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tunetui.core.features import features_of
from tunetui.core.load import Load, WorkloadError
from tunetui.core.trace import Messages, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
class Workload:
    """The requests of an episode, and the seed that makes every episode the same one.

    Lengths are drawn from `prompt` and `output`, in tokens, unless there is a `trace`: then its requests are sent in
    their order, from the start again when they are through. `chat` sends them as the turns of a chat.
    """

    prompt: LengthMix
    output: LengthMix
    seed: int = 0
    trace: Trace | None = None
    chat: bool = False

    @property
    def longest(self) -> int:
        """The most tokens of one request, prompt and output."""
        if self.trace is None:
            return self.prompt.largest + self.output.largest
        return max(map(sum, zip(self.trace.prompt_tokens, self.trace.output_tokens, strict=True)))

    @property
    def mean_output_tokens(self) -> float:
        return self.output.mean if self.trace is None else fmean(self.trace.output_tokens)

    @property
    def asked(self) -> dict[str, str | int]:
        """What was asked for, as a baseline keeps it."""
        lengths = {"prompt_tokens": str(self.prompt), "output_tokens": str(self.output)}
        source: dict[str, str | int] = {**lengths} if self.trace is None else {"trace": self.trace.format}
        return {"seed": self.seed, "endpoint": "chat" if self.chat else "completions", **source}

    def __str__(self) -> str:
        if self.trace is not None:
            return f"{self.trace.format} trace of {self.trace.requests} requests"
        return f"{self.prompt} prompt and {self.output} output tokens"


@dataclass(frozen=True, slots=True)
class Material:
    """What prompts are made of: valid `token_ids`, and else `words` of which one is `tokens_per_word` tokens."""

    token_ids: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    tokens_per_word: float = 1.0


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """One seeded stretch of load: `cut` requests for the first turnover, then `counted` ones that are judged.

    `arrivals_s`: offsets from the episode's start, shape (cut + counted,), or empty in a closed loop. `blocks` and
    `texts` are those of the trace, or empty.
    """

    load: Load
    cut: int
    counted: int
    arrivals_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    block_tokens: int = 0
    blocks: tuple[tuple[int, ...], ...] = ()
    texts: tuple[str | Messages, ...] = ()
    conversations: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return self.cut + self.counted


def plan_episode(workload: Workload, load: Load, cut: int, counted: int) -> EpisodePlan:
    """The episode of `workload` under `load`: the same arguments give the same episode."""
    import numpy as np

    size = cut + counted
    # One independent stream for each quantity: changing one flag then leaves the other draws as they were.
    gap_rng, prompt_rng, output_rng = (np.random.default_rng([workload.seed, stream]) for stream in range(3))
    arrivals: tuple[float, ...] = ()
    if load.rate_rps is not None:
        arrivals = tuple(load.arrivals_s(gap_rng, size).tolist())
    elif load.speed is not None:
        arrivals = _replayed_s(workload.trace, load.speed, size)
    if workload.trace is not None:
        return EpisodePlan(load, cut, counted, arrivals, **_columns(workload.trace, size))
    return EpisodePlan(
        load=load,
        cut=cut,
        counted=counted,
        arrivals_s=arrivals,
        prompt_tokens=tuple(workload.prompt.draw(prompt_rng, size).tolist()),
        output_tokens=tuple(workload.output.draw(output_rng, size).tolist()),
    )


def _replayed_s(trace: Trace | None, speed: float, size: int) -> tuple[float, ...]:
    """The trace's own moments; after its end it begins again, a mean gap later."""
    if trace is None or trace.arrivals_s is None:
        raise WorkloadError("this trace has no times to replay: give --rate or --concurrency")
    once = trace.arrivals_s
    period_s = once[-1] * (1 + 1 / max(len(once) - 1, 1)) if once[-1] > 0 else 1.0
    return tuple((once[i % len(once)] + i // len(once) * period_s) / speed for i in range(size))


def _columns(trace: Trace, size: int) -> dict[str, Any]:
    """The columns of `size` requests of a trace, which begins again at its end: as new requests, with new blocks."""
    count = trace.requests
    around = [i % count for i in range(size)]
    columns: dict[str, Any] = {
        "prompt_tokens": tuple(trace.prompt_tokens[i] for i in around),
        "output_tokens": tuple(trace.output_tokens[i] for i in around),
    }
    if trace.texts is not None:
        columns["texts"] = tuple(trace.texts[i] for i in around)
    if trace.conversations is not None:
        most = max(trace.conversations) + 1
        columns["conversations"] = tuple(trace.conversations[i % count] + i // count * most for i in range(size))
    if trace.blocks is not None:
        most = max((max(blocks, default=0) for blocks in trace.blocks), default=0) + 1
        columns["block_tokens"] = trace.block_tokens
        columns["blocks"] = tuple(
            tuple(block + i // count * most for block in trace.blocks[i % count]) for i in range(size)
        )
    return columns


def default_episode_requests(percentile: int) -> int:
    """Counted requests for 20 bad ones at the target: 400 for P95 (MEASURES, Episodes)."""
    return round(20 / (1 - percentile / 100))


def turnover(load: Load, mean_e2el_s: float, counted: int) -> int:
    """How many requests the first turnover leaves out: about one mean E2EL of arrivals, fixed before data are seen.

    In a closed loop these are the streams, which all begin at once. At a rate it is bounded by half of the counted
    ones, for an overloaded warm-up says nothing about the points to come. A trace that is replayed has no turnover: it
    begins as it was recorded.
    """
    if load.concurrency is not None:
        return load.concurrency
    if load.rate_rps is None:
        return 0
    return min(max(math.ceil(load.rate_rps * mean_e2el_s), 1), max(1, counted // 2))


def variability(plan: EpisodePlan) -> float:
    """How much more than a Poisson stream of requests of CV 1 this one makes a queue vary, as GeneralAttainment needs
    it: (CV^2 of the gaps + CV^2 of the lengths) / 2, of the lengths that vary more."""
    import numpy as np

    def cv2(values: Sequence[float]) -> float:
        drawn = np.asarray(values, dtype=float)
        return float(drawn.var() / drawn.mean() ** 2) if drawn.size > 1 and drawn.mean() > 0 else 0.0

    gaps = np.diff(plan.arrivals_s)
    return (cv2(gaps.tolist()) + max(cv2(plan.prompt_tokens), cv2(plan.output_tokens))) / 2


def features(plan: EpisodePlan) -> dict[str, float | int | str]:
    """The features that tag a baseline: of what is sent and counted (MEASURES, Workload features)."""
    counted = slice(plan.cut, None)
    asked: dict[str, float | int | str] = {"arrival": "closed" if not plan.load.open_loop else "trace"}
    if plan.load.rate_rps is not None:
        asked = {"arrival": plan.load.arrival.value}
        if plan.load.ramp is None:
            asked["rate_rps"] = plan.load.rate_rps
    if plan.load.concurrency is not None:
        asked["concurrency"] = plan.load.concurrency
    seen = features_of(
        plan.prompt_tokens[counted],
        plan.output_tokens[counted],
        arrivals_s=plan.arrivals_s[counted] or None,
        blocks=plan.blocks[counted] or None,
        block_tokens=plan.block_tokens,
        conversations=plan.conversations[counted] or None,
    )
    return seen | asked
