"""Rows of a recording gathered into the columns of a Trace: checked, counted and put in the order of arrival.

It knows no format: the readers hand it rows, or the reason why a line is none.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, TypeVar

from tunetui.core.trace import Messages, Trace
from tunetui.traces.lines import BrokenLine, TraceError

MOST_TOKENS = 10_000_000  # no model takes more: a longer request is a broken line
MOST_BROKEN_SHARE = 0.01
_SHOWN = 5


class LeftOut(Exception):
    """A line that is well formed and yet no request to send; the message is what it is, in the plural."""


class Row(NamedTuple):
    """One request, as a reader found it. `time_s` is on the recording's own clock."""

    time_s: float | None
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] | None = None
    text: str | Messages | None = None
    conversation: int = 0
    counted: bool = True
    note: str = ""  # what must be said once of such rows, in the plural, before their number


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading a recording was like: nothing that was skipped, reordered or estimated stays unsaid.

    `lines`: lines (or items of a list) that were to be requests; `broken` of them could not be read, `first_broken`
    are the first few with number and reason. `out_of_order`: requests that stood after a later one. `notes`: phrases.
    """

    format: str
    lines: int
    broken: int = 0
    first_broken: tuple[str, ...] = ()
    out_of_order: int = 0
    notes: tuple[str, ...] = ()

    def said(self) -> Iterator[str]:
        """What must be said of it, a sentence each."""
        if self.broken:
            more = ", ..." if self.broken > len(self.first_broken) else ""
            yield f"skipped {self.broken} broken of {self.lines}: {'; '.join(self.first_broken)}{more}"
        if self.out_of_order:
            yield f"requests that stood after a later one, sorted by time: {self.out_of_order}"
        yield from self.notes


_T = TypeVar("_T")


class Columns:
    """Gathers rows. `place` is what a row's number counts: "line" or "item"; `keeps` names the columns beyond lengths
    and times that the format can have: "blocks", "texts", "conversations"."""

    def __init__(self, format_name: str, place: str = "line", keeps: Sequence[str] = ()) -> None:
        self._format, self._place, self._keeps = format_name, place, frozenset(keeps)
        self._times, self._prompts, self._outputs = array("d"), array("q"), array("q")
        self._timed: bool | None = None
        self._blocks: list[tuple[int, ...] | None] = []
        self._texts: list[str | Messages | None] = []
        self._conversations = array("q")
        self._uncounted = self._broken = 0
        self._first_broken: list[str] = []
        self._notes: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        """Take a request. The first one decides whether the recording has times. Raises BrokenLine."""
        if self._timed is None:
            self._timed = row.time_s is not None
        if self._timed:
            if row.time_s is None:
                raise BrokenLine("the time is missing")
            if not math.isfinite(row.time_s):
                raise BrokenLine("the time is not a number")
            self._times.append(row.time_s)
        elif row.time_s is not None:
            self._notes["requests with a time, which is ignored for the first request has none"] += 1
        self._prompts.append(row.prompt_tokens)
        self._outputs.append(row.output_tokens)
        if "blocks" in self._keeps:
            self._blocks.append(row.blocks)
        if "texts" in self._keeps:
            self._texts.append(row.text)
        if "conversations" in self._keeps:
            self._conversations.append(row.conversation)
        self._uncounted += not row.counted
        if row.note:
            self._notes[row.note] += 1

    def left_out(self, what: object) -> None:
        """Count a line that is no request to send: `what` in the plural, e.g. "failed requests"."""
        self._notes[f"{what} left out"] += 1

    def broken(self, number: int, reason: object) -> None:
        """Count a line that cannot be read."""
        self._broken += 1
        if self._broken <= _SHOWN:
            self._first_broken.append(f"{self._place} {number}: {reason}")

    def finish(
        self, block_tokens: int = 0, notes: Iterable[str] = (), counted: bool = True, lengths_only: bool = False
    ) -> tuple[Trace, Reading]:
        """The recording in the order of arrival. Raises TraceError without requests and with over 1 % broken lines."""
        requests, lines = len(self._prompts), len(self._prompts) + self._broken
        if self._broken > MOST_BROKEN_SHARE * lines:
            raise TraceError(
                f"{self._broken} of {lines} {self._place}s cannot be read as {self._format}, more than 1 % "
                f"({self._first_broken[0]}): repair the file or give another"
            )
        said = [*notes, *(f"{what}: {number}" for what, number in self._notes.items())]
        if not requests:
            why = f" ({'; '.join(said)})" if said else ""
            raise TraceError(f"the file is {self._format} without a request in it{why}: give another")
        texts: list[str | Messages] | None = _whole(self._texts)
        if texts is None and any(text is not None for text in self._texts):
            said.append("some prompts have no text, so lengths alone are kept")
        if 0 < self._uncounted < requests:
            said.append(f"prompts without a token count, estimated at 4 characters a token: {self._uncounted}")
        blocks = _with_fresh_ids(self._blocks, self._prompts, block_tokens)
        order, late = self._order()
        trace = Trace(
            format=self._format,
            prompt_tokens=_lengths(self._prompts, order),
            output_tokens=_lengths(self._outputs, order),
            arrivals_s=self._arrivals(order),
            block_tokens=block_tokens if blocks is not None else 0,
            blocks=_in_order(blocks, order),
            texts=_in_order(texts, order),
            conversations=_in_order(self._conversations or None, order),
            counted=counted and not self._uncounted,
            lengths_only=lengths_only,
        )
        return trace, Reading(self._format, lines, self._broken, tuple(self._first_broken), late, tuple(said))

    def _order(self) -> tuple[Sequence[int] | None, int]:
        """The indices in the order of arrival, None where they stand in it, and how many stood after a later one."""
        import numpy as np  # here, not above: the first paint must not wait for it

        times = np.frombuffer(self._times, dtype=np.float64) if self._times else np.empty(0)
        late = int((times < np.maximum.accumulate(times)).sum()) if times.size else 0
        return (np.argsort(times, kind="stable").tolist() if late else None), late

    def _arrivals(self, order: Sequence[int] | None) -> tuple[float, ...] | None:
        if not self._timed:
            return None
        first = min(self._times)
        times = self._times if order is None else map(self._times.__getitem__, order)
        return tuple(round(time - first, 6) for time in times)  # below lies rounding of the clock


def _in_order(values: Sequence[_T] | None, order: Sequence[int] | None) -> tuple[_T, ...] | None:
    if values is None:
        return None
    return tuple(values) if order is None else tuple(values[index] for index in order)


def _lengths(values: Sequence[int], order: Sequence[int] | None) -> tuple[int, ...]:
    """Equal lengths as one object: millions of them stay at 8 bytes each."""
    same: dict[int, int] = {}
    ordered = values if order is None else map(values.__getitem__, order)
    return tuple(same.setdefault(value, value) for value in ordered)


def _whole(values: Sequence[_T | None]) -> list[_T] | None:
    """The column, or None where it has gaps or is empty."""
    found = [value for value in values if value is not None]
    return found if found and len(found) == len(values) else None


def _with_fresh_ids(
    blocks: Sequence[tuple[int, ...] | None], prompts: Sequence[int], block_tokens: int
) -> list[tuple[int, ...]] | None:
    """The blocks of every prompt: one of which the recording says nothing shares none, so it gets ids of its own."""
    if all(ids is None for ids in blocks):
        return None
    fresh = count(-1, -1)
    return [
        ids if ids is not None else tuple(next(fresh) for _ in range(math.ceil(prompt / block_tokens)))
        for ids, prompt in zip(blocks, prompts, strict=True)
    ]


def token_count(value: object, name: str) -> int:
    """A length in tokens, from 1 to MOST_TOKENS, of a JSON value or a CSV field. Raises BrokenLine naming it."""
    if value is None or value == "":
        raise BrokenLine(f"{name} is missing")
    if type(value) is int:
        number = value
    elif isinstance(value, str) and value.isdecimal() and len(value) < 19:
        number = int(value)
    elif isinstance(value, bool) or not isinstance(value, str | float):
        raise BrokenLine(f"{name} is not a number")
    else:
        number = _whole_number(value, name)
    if number < 1:
        raise BrokenLine(f"{name} is {number}, below 1" if number > -MOST_TOKENS else f"{name} is below 1")
    if number > MOST_TOKENS:
        raise BrokenLine(f"{name} is above {MOST_TOKENS}")
    return number


def _whole_number(value: str | float, name: str) -> int:
    try:
        number = float(value)
    except ValueError:
        raise BrokenLine(f"{name} is not a number") from None
    if not math.isfinite(number) or number != math.floor(number):
        raise BrokenLine(f"{name} is not a whole number")
    return int(number)


def text_tokens(characters: int) -> int:
    """The estimate for a text that nobody counted: 4 characters a token, at least 1."""
    return max(1, math.ceil(characters / 4))
