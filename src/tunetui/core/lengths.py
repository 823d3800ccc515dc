"""TTFT by prompt length: count, percentiles and attainment a bucket, and whether long prompts hold up the short ones.

It knows nothing of output lengths or of TPOT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST_IN_BUCKET = 20  # fewer have no P95 worth a statement: it would be their largest value
TAIL_FACTOR = 3.0  # short prompts are held up when their P95 is this multiple of their own P50
NEAR_LONG = 0.5  # ... and at least this share of the P50 of the long ones
LONG_FACTOR = 4  # short: at most this part of the lowest of the last bucket (MEASURES, Workload features)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests with `low` <= prompt tokens <= `high`. TTFT in seconds of those that have one; None where none has.

    `attainment`: the share that met what was asked of them, among all of them, failed ones included.
    """

    low: int
    high: int
    count: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    attainment: float

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class ByLength:
    """The buckets in rising order of prompt length, and one sentence when long prompts block short ones, or ""."""

    buckets: tuple[Bucket, ...]
    finding: str


def by_length(prompt_tokens: Any, ttft_s: Any, met: Any) -> ByLength:
    """Break requests down by prompt length; arrays of shape (n,): tokens, TTFT in seconds (NaN: none), whether met.

    Buckets are powers of two ([2^k, 2^(k+1) - 1] tokens). Neighbours are joined from the short end until each holds
    LEAST_IN_BUCKET requests, for a percentile of a handful is no figure. Raises ValueError where the shapes differ.
    """
    import numpy as np  # here, not above: the first paint must not wait for it

    tokens = np.asarray(prompt_tokens, dtype=np.int64)
    seconds, flags = np.asarray(ttft_s, dtype=float), np.asarray(met, dtype=bool)
    if not tokens.shape == seconds.shape == flags.shape or tokens.ndim != 1:
        raise ValueError(f"shapes differ: {tokens.shape} prompts, {seconds.shape} TTFTs, {flags.shape} flags")
    if not tokens.size:
        return ByLength((), "")
    power = np.floor(np.log2(np.maximum(tokens, 1))).astype(np.int64)

    def bucket(first: int, last: int) -> Bucket:
        inside = (power >= first) & (power <= last)
        return _bucket(first, last, seconds[inside], flags[inside])

    buckets = tuple(bucket(first, last) for first, last in _joined(np.bincount(power)))
    short = [b for b in buckets if LONG_FACTOR * b.high <= buckets[-1].low]
    if not short:
        return ByLength(buckets, "")
    joined = bucket(short[0].low.bit_length() - 1, short[-1].high.bit_length() - 1)
    return ByLength(buckets, _finding(joined, buckets[-1]))


def _joined(counts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Runs of powers of two, first and last, that hold LEAST_IN_BUCKET each; what is left joins the last run."""
    runs: list[tuple[int, int]] = []
    first, held = -1, 0
    for power, count in enumerate(counts.tolist()):
        if count and not held:
            first = power
        held += count
        if held >= LEAST_IN_BUCKET:
            runs.append((first, power))
            held = 0
    if held:
        last = len(counts) - 1
        runs = [*runs[:-1], (runs[-1][0], last)] if runs else [(first, last)]
    return runs


def _bucket(first: int, last: int, ttft_s: NDArray[np.float64], met: NDArray[np.bool_]) -> Bucket:
    """The bucket of the powers of two from `first` to `last`, given what is in it."""
    import numpy as np

    known = ttft_s[np.isfinite(ttft_s)]
    p50_s, p95_s = (float(v) for v in np.percentile(known, [50, 95])) if known.size else (None, None)
    return Bucket(2**first, 2 ** (last + 1) - 1, int(met.size), p50_s, p95_s, float(met.mean()))


def _finding(short: Bucket, long: Bucket) -> str:
    """Say it when some short prompts take as long as a long prompt, and not as long as short ones.

    A short prompt needs little prefill of its own, so its P50 is what it costs when nothing is in the way. A P95
    several times that, and a good part of what a prompt at least LONG_FACTOR times as long costs, is time spent behind
    those. Where all prompts are alike and queue, there is no long bucket; where long ones are slow by themselves and
    block nobody, the short ones' P95 stays near their P50, or at the part of a long one that is their own length.
    """
    if min(short.count, long.count) < LEAST_IN_BUCKET:
        return ""
    if short.ttft_p50_s is None or short.ttft_p95_s is None or long.ttft_p50_s is None:
        return ""
    if long.ttft_p50_s < 2 * short.ttft_p50_s:
        return ""  # long prompts that are as fast as short ones hold nobody up
    if short.ttft_p95_s < max(TAIL_FACTOR * short.ttft_p50_s, NEAR_LONG * long.ttft_p50_s):
        return ""
    return (
        f"prompts of {short} tokens wait behind those of {long}: their P95 TTFT is {short.ttft_p95_s * 1000:.0f} ms, "
        f"{short.ttft_p95_s / short.ttft_p50_s:.0f} times their P50; half of the long ones take "
        f"{long.ttft_p50_s * 1000:.0f} ms or more"
    )
