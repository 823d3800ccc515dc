"""A recording out of a live server's /metrics page: lengths from its histograms, arrivals from its counters.

It asks no server: pages are handed to it. What comes out has lengths only, for a histogram keeps neither the order of
the lengths nor which prompt had which output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tunetui.core.trace import Trace
from tunetui.traces.lines import TraceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PROMPT, _OUTPUT = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
_FINISHED = "vllm:request_success_total"
_ACTIVE = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_SAMPLE = re.compile(r"(vllm:\w+)(\{[^\n]*\})?\s+(\S+)")
_EDGE = re.compile(r'[{,]\s*le="([^"]+)"')
_MOST_REQUESTS = 10_000_000  # between two pages
_MOST_TILT = 8.0
_OPEN_ENDED = 2.5  # the last bucket has no upper edge: edges go 1, 2, 5, so the next would be at most this far


@dataclass(frozen=True, slots=True)
class Scrape:
    """One page: when it was read, requests finished so far and in the engine now, and for prompts and outputs the
    cumulative counts by upper edge with the sum of tokens. Several engines are summed."""

    at_s: float
    finished: float
    active: float
    prompts: Mapping[float, float]
    outputs: Mapping[float, float]
    prompt_sum: float
    output_sum: float


def parse_scrape(text: str, at_s: float) -> Scrape:
    """Read a /metrics page. Raises TraceError for one without vLLM's length histograms."""
    totals: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {_PROMPT: {}, _OUTPUT: {}}
    for found in map(_SAMPLE.match, text.split("\n")):
        if not found:
            continue
        name, labels = found[1], found[2] or ""
        value = _number(found[3])
        if not math.isfinite(value):
            continue
        counts = buckets.get(name.removesuffix("_bucket")) if name.endswith("_bucket") else None
        if counts is None:
            totals[name] = totals.get(name, 0.0) + value
        elif edge := _EDGE.search(labels):
            upper = _number(edge[1])
            if upper >= 0:
                counts[upper] = counts.get(upper, 0.0) + value
    if not buckets[_PROMPT] or not buckets[_OUTPUT]:
        raise TraceError("the metrics page has no histogram of vLLM's request lengths: is this the server's own port?")
    return Scrape(
        at_s=at_s,
        finished=totals.get(_FINISHED, totals.get(f"{_PROMPT}_count", 0.0)),
        active=sum(totals.get(name, 0.0) for name in _ACTIVE),
        prompts=buckets[_PROMPT],
        outputs=buckets[_OUTPUT],
        prompt_sum=totals.get(f"{_PROMPT}_sum", 0.0),
        output_sum=totals.get(f"{_OUTPUT}_sum", 0.0),
    )


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise TraceError(f"the metrics page has {text!r} where a number belongs: is this a vLLM server?") from None
    return value


def sampled_trace(scrapes: Sequence[Scrape], seed: int) -> tuple[Trace, tuple[str, ...]]:
    """The recording between the first and the last page, and what must be said of it.

    Arrivals between two pages are the requests that finished plus the change of those in the engine, at times drawn
    uniformly (Poisson, given their number). Lengths are drawn from what the histograms gained, with the mean that
    the server's sums give. Equal seeds give equal recordings. Raises TraceError where nothing arrived or finished.
    """
    import numpy as np  # here, not above: the first paint must not wait for it

    rng = np.random.default_rng(seed)
    arrivals = _arrivals(scrapes, rng)
    seconds = scrapes[-1].at_s - scrapes[0].at_s if scrapes else 0.0
    prompt_gain = _gained([page.prompts for page in scrapes])
    output_gain = _gained([page.outputs for page in scrapes])
    finished = round(sum(prompt_gain.values()))
    if not finished or not arrivals.size or not sum(output_gain.values()) > 0:
        raise TraceError(
            f"nothing to record: {finished} requests finished and {arrivals.size} came in {seconds:.0f} s; "
            "sample for longer, while there is traffic"
        )
    prompts = _drawn(prompt_gain, _mean([page.prompt_sum for page in scrapes], finished), arrivals.size, rng)
    outputs = _drawn(output_gain, _mean([page.output_sum for page in scrapes], finished), arrivals.size, rng)
    notes = [
        f"lengths drawn from the histograms of {finished} requests that finished in {seconds:.0f} s: "
        "their order and the correlation of prompt and output are not known"
    ]
    if any(later.finished < earlier.finished for earlier, later in pairwise(scrapes)):
        notes.append("the server was restarted meanwhile")
    trace = Trace(
        format="vllm metrics",
        prompt_tokens=tuple(prompts.tolist()),
        output_tokens=tuple(outputs.tolist()),
        arrivals_s=tuple(np.round(arrivals - arrivals[0], 6).tolist()),
        lengths_only=True,
    )
    return trace, tuple(notes)


def _arrivals(scrapes: Sequence[Scrape], rng: np.random.Generator) -> NDArray[np.float64]:
    """When requests came, in rising order."""
    import numpy as np

    parts = [np.empty(0)]
    owed = 0.0  # below 0 after an interval in which requests left without being counted as finished
    for earlier, later in pairwise(scrapes):
        if later.finished < earlier.finished:  # a new server, which counts from 0
            owed += later.finished + later.active
        else:
            owed += later.finished - earlier.finished + later.active - earlier.active
        came = max(0, round(owed))
        if came > _MOST_REQUESTS:
            raise TraceError(f"the metrics page counts {came} requests in a few seconds: is this a vLLM server?")
        owed -= came
        parts.append(np.sort(rng.uniform(earlier.at_s, later.at_s, came)))
    return np.concatenate(parts)


def _mean(sums: Sequence[float], finished: int) -> float:
    """Tokens of a finished request; 0 where the pages have no sums."""
    return sum(later - earlier if later >= earlier else later for earlier, later in pairwise(sums)) / finished


def _gained(pages: Sequence[Mapping[float, float]]) -> dict[float, float]:
    """What each bucket (by upper edge; not cumulative) gained from the first page to the last."""
    gained: dict[float, float] = {}
    for earlier, later in pairwise(pages):
        restarted = later.get(math.inf, 0.0) < earlier.get(math.inf, 0.0)
        below = 0.0
        for edge in sorted(later):
            cumulative = later[edge] - (0.0 if restarted else earlier.get(edge, 0.0))
            gained[edge] = gained.get(edge, 0.0) + max(0.0, cumulative - below)
            below = max(below, cumulative)
    return gained


def _drawn(gained: Mapping[float, float], mean: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`size` lengths in tokens: a bucket by its share, then a whole number above its lower edge and up to its upper
    one, log-uniform but for a tilt, the same in all buckets, that brings the mean to the server's."""
    import numpy as np

    edges = np.array(sorted(gained))
    counts = np.array([gained[edge] for edge in edges.tolist()])
    lower = np.floor(np.concatenate(([0.0], edges[:-1])))
    upper = np.where(np.isfinite(edges), np.floor(edges), np.maximum(1.0, np.floor(lower * _OPEN_ENDED)))
    which = rng.choice(edges.size, size=size, p=counts / counts.sum())
    low = lower[which] + 1
    ratio = (np.maximum(upper[which], low) + 1) / low
    place = rng.random(size)

    def tilted(power: float) -> NDArray[np.int64]:
        """Density x ** (power - 1) within the bucket: 0 is log-uniform, 1 uniform."""
        scale = ratio**place if abs(power) < 1e-6 else (1 + place * (ratio**power - 1)) ** (1 / power)
        lengths: NDArray[np.int64] = np.clip(np.floor(low * scale), low, low * ratio - 1).astype(np.int64)
        return lengths

    return tilted(_tilt(lambda power: float(tilted(power).mean()), mean) if mean > 0 else 0.0)


def _tilt(mean_at: Callable[[float], float], mean: float) -> float:
    """The power between the most tilts at which the rising `mean_at` is nearest to `mean`."""
    low, high = -_MOST_TILT, _MOST_TILT
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if mean_at(middle) < mean else (low, middle)
    return (low + high) / 2
