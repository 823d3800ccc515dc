"""Workload features and histograms of requests given as plain columns (MEASURES, Workload features).

It reads no recording and plans no load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LONG_PROMPT = 4  # times the median prompt


def features_of(
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    arrivals_s: Sequence[float] | None = None,
    blocks: Sequence[Sequence[int]] | None = None,
    block_tokens: int = 0,
    conversations: Sequence[int] | None = None,
) -> dict[str, float | int | str]:
    """The features that tag a load, from columns of one entry a request in the order of their arrival.

    `rate_rps`, `burstiness` and `length_correlation` are missing where the columns do not have them (no times, no
    spread). `shared_prefix_share` is of the prompt tokens, 0 to 1: the hit share of an infinite prefix cache, 0 where
    neither blocks nor conversations are given. Without requests there is only `requests`. Raises ValueError for
    columns of different lengths.
    """
    import numpy as np  # here, not above: the first paint must not wait for it

    columns = (output_tokens, arrivals_s, blocks, conversations)
    if any(column is not None and len(column) != len(prompt_tokens) for column in columns):
        raise ValueError("the columns of a workload must have one entry a request each")
    tags: dict[str, float | int | str] = {"requests": len(prompt_tokens)}
    if not prompt_tokens:
        return tags
    prompts, outputs = np.asarray(prompt_tokens, dtype=np.int64), np.asarray(output_tokens, dtype=np.int64)
    if arrivals_s is not None:
        tags |= _arrival_features(np.asarray(arrivals_s, dtype=float))
    for name, values in (("prompt_tokens", prompts), ("output_tokens", outputs)):
        p50, p95 = np.percentile(values, [50, 95])
        tags[f"{name}_mean"] = round(float(values.mean()), 1)
        tags[f"{name}_p50"] = float(p50)
        tags[f"{name}_p95"] = round(float(p95), 1)
        tags[f"{name}_max"] = int(values.max())
    if prompts.std() > 0 and outputs.std() > 0:
        tags["length_correlation"] = round(float(np.corrcoef(prompts, outputs)[0, 1]), 3)
    tags["long_prompt_share"] = round(float((prompts > LONG_PROMPT * np.median(prompts)).mean()), 4)
    shared = 0
    if blocks is not None:
        shared = _tokens_in_seen_blocks(prompts, blocks, block_tokens)
    elif conversations is not None:
        shared = _tokens_in_earlier_turns(prompts, np.asarray(conversations, dtype=np.int64))
    tags["shared_prefix_share"] = round(shared / int(prompts.sum()), 4)
    tags["turns_per_conversation"] = 1
    if conversations is not None:
        tags["turns_per_conversation"] = round(len(prompt_tokens) / len(set(conversations)), 2)
    return tags


def _arrival_features(arrivals: NDArray[np.float64]) -> dict[str, float]:
    """Rate (the inverse of the mean gap) and burstiness, 1 / CV^2 of the gaps: 1 is Poisson, below 1 is bursty."""
    import numpy as np

    gaps = np.diff(arrivals)
    if not gaps.size or not gaps.mean() > 0:
        return {}
    found = {"rate_rps": float(f"{1 / gaps.mean():.6g}")}
    if gaps.size > 1 and gaps.std() > 1e-9 * gaps.mean():  # below that it is rounding: the gaps are equal
        found["burstiness"] = round(float((gaps.mean() / gaps.std()) ** 2), 3)
    return found


def _tokens_in_seen_blocks(prompts: NDArray[np.int64], blocks: Sequence[Sequence[int]], block_tokens: int) -> int:
    """Prompt tokens in leading blocks that an earlier request began with, too.

    Level by level: requests are grouped by their first k blocks, and all but the first of a group hit block k. A
    request that is alone in its group shares nothing further on and is left out of the next level.
    """
    import numpy as np

    if block_tokens < 1:
        raise ValueError("blocks need their size: block_tokens must be 1 or more")
    counts = np.fromiter(map(len, blocks), dtype=np.int64, count=len(blocks))
    ids = np.fromiter(chain.from_iterable(blocks), dtype=np.int64, count=int(counts.sum()))
    starts = np.cumsum(counts) - counts
    shared, level = 0, 0
    alive = np.flatnonzero(counts > 0)
    groups = np.zeros(alive.size, dtype=np.int64)
    while alive.size:
        groups, first, sizes = _grouped(groups, ids[starts[alive] + level])
        hit = np.ones(alive.size, dtype=bool)
        hit[first] = False
        shared += int(np.clip(prompts[alive[hit]] - level * block_tokens, 0, block_tokens).sum())
        level += 1
        stay = (sizes[groups] > 1) & (counts[alive] > level)
        alive, groups = alive[stay], groups[stay]
    return shared


def _grouped(
    groups: NDArray[np.int64], ids: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Groups of equal (group, id) pairs: the new group of each, and each group's first member and size."""
    import numpy as np

    offsets = ids - ids.min()
    if (int(groups.max()) + 1) * (int(offsets.max()) + 1) >= 2**62 or offsets.min() < 0:  # the pair must fit one number
        offsets = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    pairs = groups * (int(offsets.max()) + 1) + offsets
    _, first, inverse, sizes = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
    return inverse.astype(np.int64), first, sizes


def _tokens_in_earlier_turns(prompts: NDArray[np.int64], conversations: NDArray[np.int64]) -> int:
    """Prompt tokens that the turn before had: its whole prompt. Its answer is not counted: a replay gets another."""
    import numpy as np

    order = np.argsort(conversations, kind="stable")
    earlier, later = order[:-1], order[1:]
    same = conversations[earlier] == conversations[later]
    return int(np.minimum(prompts[earlier[same]], prompts[later[same]]).sum())


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values in [edges[i], edges[i + 1]): one edge more than counts. `below`: values under the first edge."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    below: int = 0


def log_histogram(values: Sequence[float], least: float = 1.0, most_buckets: int = 14) -> Histogram:
    """A histogram on edges of 1, 2 and 5 times powers of ten (powers alone where those are more than `most_buckets`),
    from the smallest to the largest value that is at least `least`."""
    import numpy as np

    array = np.asarray(values, dtype=float)
    counted = array[array >= least]
    if not counted.size:
        return Histogram((), (), int(array.size))
    edges = _edges(float(counted.min()), float(counted.max()), (1, 2, 5))
    if len(edges) - 1 > most_buckets:
        edges = _edges(float(counted.min()), float(counted.max()), (1,))
    counts = np.histogram(counted, np.array([*edges[:-1], np.inf]))[0]
    return Histogram(edges, tuple(counts.tolist()), int(array.size - counted.size))


def _edges(low: float, high: float, steps: tuple[int, ...]) -> tuple[float, ...]:
    import numpy as np

    powers = range(int(np.floor(np.log10(low))) - 1, int(np.floor(np.log10(high))) + 2)
    # From text, so that an edge is the number that it is shown as.
    series = [float(f"{step}e{power}") for power in powers for step in steps]
    first = max(index for index, edge in enumerate(series) if edge <= low)
    last = min(index for index, edge in enumerate(series) if edge > high)
    return tuple(series[first : last + 1])


def rates_over_time(arrivals_s: Sequence[float], bins: int) -> tuple[float, tuple[float, ...]]:
    """The width in seconds of each of `bins` equal parts of the recording, and the request rate in each.

    A recording that takes no time has neither: (0, ()).
    """
    import numpy as np

    if len(arrivals_s) < 2 or not arrivals_s[-1] > arrivals_s[0]:
        return 0.0, ()
    counts, edges = np.histogram(np.asarray(arrivals_s, dtype=float), bins)
    width_s = float(edges[1] - edges[0])
    return width_s, tuple((counts / width_s).tolist())
