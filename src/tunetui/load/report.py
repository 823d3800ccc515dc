"""What the load process has to tell: rows that gather between two batches, and events that go out at once.

It writes to no pipe; the line writer is passed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tunetui.core.sample import itl_bin
from tunetui.load.client import Stream

Row = list[Any]


def scheduled_s(stream: Stream) -> float | None:
    """When the request should have left: in a closed loop, when it did (or, never sent, when it ended)."""
    if stream.request.scheduled_s is not None:
        return stream.request.scheduled_s
    return stream.sent_s if stream.sent_s is not None else stream.ended_s


class Report:
    """Rows of the next batch. `emit` sends one event to the parent at once."""

    def __init__(self, emit: Callable[[dict[str, Any]], None]) -> None:
        self.emit = emit
        self._tokens = 0
        self._sent: list[Row] = []
        self._firsts: list[Row] = []
        self._samples: list[Row] = []

    def started(self, episode: int, base_s: float) -> None:
        self.emit({"ev": "started", "id": episode, "base_s": base_s})

    def exhausted(self, episode: int) -> None:
        self.emit({"ev": "exhausted", "id": episode})

    def sent(self, stream: Stream) -> None:
        request = stream.request
        self._sent.append([request.episode, request.index, scheduled_s(stream), stream.sent_s])

    def ended(self, stream: Stream) -> None:
        self._notice(stream)
        request, answer = stream.request, stream.answer
        moments = [scheduled_s(stream), stream.sent_s, answer.first_s, answer.last_s]
        counts = [request.prompt_tokens if answer.prompt_tokens is None else answer.prompt_tokens, answer.output_tokens]
        bins = sorted(Counter(map(itl_bin, answer.itl_s)).items())
        row = [request.episode, request.index, *moments, *counts, stream.outcome, stream.ended_s, stream.error]
        self._samples.append([*row, stream.retries, bins])

    def _notice(self, stream: Stream) -> None:
        """Take what has arrived of a stream since the last look. Nothing is told token by token: there are too many."""
        answer = stream.answer
        self._tokens += answer.tokens - stream.told_tokens
        stream.told_tokens = answer.tokens
        if answer.first_s is not None and not stream.told_first:
            stream.told_first = True
            self._firsts.append([stream.request.episode, stream.request.index, answer.first_s])

    def take_batch(self, now_s: float, active: Iterable[Stream]) -> dict[str, Any]:
        """The batch event of all that happened since the last one; the next batch starts empty."""
        in_flight = awaiting = 0
        for stream in active:
            self._notice(stream)
            in_flight += 1
            awaiting += stream.answer.first_s is None
        batch = {
            "ev": "batch", "t": now_s, "tokens": self._tokens, "in_flight": in_flight, "awaiting": awaiting,
            "sent": self._sent, "firsts": self._firsts, "samples": self._samples,
        }  # fmt: skip
        self._tokens = 0
        self._sent, self._firsts, self._samples = [], [], []
        return batch
