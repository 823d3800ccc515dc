"""A recorded workload: requests in the order of their arrival, as plain columns.

It reads no file (the readers of `traces` do) and plans no load (`workload` does).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

Messages = tuple[tuple[str, str], ...]  # (role, content) of each turn up to the one that is to be answered


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests of a recording. Every column that is not None has one entry a request.

    `arrivals_s`: offsets from the first arrival, in rising order; None where the recording has no times.
    `blocks`: for each prompt, ids of its blocks of `block_tokens` tokens, the last one not always full: equal ids are
    equal tokens, so prompts that begin with the same ids share a prefix.
    `texts`: the prompt itself, or the messages of a chat.
    `counted`: whether the lengths are tokens as the recording counted them; else estimates from the texts.
    `lengths_only`: drawn from histograms: neither order nor correlation of the lengths means anything.
    """

    format: str
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    arrivals_s: tuple[float, ...] | None = None
    block_tokens: int = 0
    blocks: tuple[tuple[int, ...], ...] | None = None
    texts: tuple[str | Messages, ...] | None = None
    conversations: tuple[int, ...] | None = None  # equal numbers are turns of one conversation
    counted: bool = True
    lengths_only: bool = False

    @property
    def requests(self) -> int:
        return len(self.prompt_tokens)

    @property
    def mean_rps(self) -> float | None:
        """Requests per second as recorded; None without times."""
        if self.arrivals_s is None or self.arrivals_s[-1] <= 0:
            return None
        return self.requests / self.arrivals_s[-1]


@dataclass(frozen=True, slots=True)
class FitCounts:
    """How many requests of a recording did not fit: `clipped` are kept, but shorter; `dropped` are gone."""

    clipped: int = 0
    dropped: int = 0


def fitted(trace: Trace, max_model_len: int, policy: Literal["clip", "drop"]) -> tuple[Trace, FitCounts]:
    """The recording with no request over `max_model_len` tokens (prompt and output together), and what that took.

    "clip" shortens the prompt until both fit (an output that fills the model alone is cut to leave it one token), its
    blocks and its text in the same share; "drop" leaves the request out, and counts arrivals from the first one kept.
    Raises ValueError for a `max_model_len` below 2.
    """
    if max_model_len < 2:
        raise ValueError(f"no request fits {max_model_len} tokens: a model length of 2 or more is needed")
    lengths = zip(trace.prompt_tokens, trace.output_tokens, strict=True)
    over = [index for index, (prompt, output) in enumerate(lengths) if prompt + output > max_model_len]
    if not over:
        return trace, FitCounts()
    if policy == "clip":
        return _clipped(trace, max_model_len, over), FitCounts(clipped=len(over))
    gone = set(over)
    kept = [index for index in range(trace.requests) if index not in gone]
    return _picked(trace, kept), FitCounts(dropped=len(over))


def taken(trace: Trace, count: int) -> Trace:
    """The first `count` requests (all, where there are fewer)."""
    return trace if count >= trace.requests else _picked(trace, range(max(count, 0)))


def _clipped(trace: Trace, max_model_len: int, over: Iterable[int]) -> Trace:
    prompts, outputs = list(trace.prompt_tokens), list(trace.output_tokens)
    blocks = None if trace.blocks is None else list(trace.blocks)
    texts = None if trace.texts is None else list(trace.texts)
    for index in over:
        outputs[index] = min(outputs[index], max_model_len - 1)
        prompt = min(prompts[index], max_model_len - outputs[index])
        if blocks is not None:
            blocks[index] = blocks[index][: math.ceil(prompt / trace.block_tokens)]
        if texts is not None and prompt < prompts[index]:
            texts[index] = _shortened(texts[index], prompt / prompts[index])
        prompts[index] = prompt
    return replace(
        trace,
        prompt_tokens=tuple(prompts),
        output_tokens=tuple(outputs),
        blocks=None if blocks is None else tuple(blocks),
        texts=None if texts is None else tuple(texts),
    )


def _shortened(text: str | Messages, share: float) -> str | Messages:
    """The beginning of a prompt; of a chat its last messages, as clients shorten one, the oldest of them cut."""
    if isinstance(text, str):
        return text[: max(1, int(len(text) * share))]
    room = max(1, int(sum(len(content) for _, content in text) * share))
    kept: list[tuple[str, str]] = []
    for role, content in reversed(text):
        if room <= 0:
            break
        if len(content) <= room or not kept:
            kept.append((role, content[:room]))
        room -= len(content)
    return tuple(reversed(kept))


_T = TypeVar("_T")


def _picked(trace: Trace, kept: Sequence[int]) -> Trace:
    """The requests at the rising indices `kept`, with arrivals counted from the first of them."""

    def column(values: tuple[_T, ...] | None) -> tuple[_T, ...] | None:
        return None if values is None else tuple(values[index] for index in kept)

    arrivals = column(trace.arrivals_s)
    if arrivals and arrivals[0]:
        first = arrivals[0]
        arrivals = tuple(arrival - first for arrival in arrivals)
    return replace(
        trace,
        prompt_tokens=column(trace.prompt_tokens) or (),
        output_tokens=column(trace.output_tokens) or (),
        arrivals_s=arrivals,
        blocks=column(trace.blocks),
        texts=column(trace.texts),
        conversations=column(trace.conversations),
    )
