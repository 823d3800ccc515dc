"""What the load process has to tell: rows that gather between two batches, and events that go out at once.

It writes to no pipe; the line writer is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

    def tokens(self, count: int) -> None:
        self._tokens += count

    def sent(self, stream: Stream) -> None:
        request = stream.request
        self._sent.append([request.episode, request.index, scheduled_s(stream), stream.sent_s])

    def first(self, stream: Stream) -> None:
        self._firsts.append([stream.request.episode, stream.request.index, stream.answer.first_s])

    def ended(self, stream: Stream) -> None:
        request, answer = stream.request, stream.answer
        moments = [scheduled_s(stream), stream.sent_s, answer.first_s, answer.last_s]
        counts = [request.prompt_tokens, answer.output_tokens]
        row = [request.episode, request.index, *moments, *counts, stream.outcome, stream.ended_s, stream.error]
        self._samples.append(row)

    def take_batch(self, now_s: float, in_flight: int, awaiting: int) -> dict[str, Any]:
        """The batch event of all rows since the last one; the next batch starts empty."""
        batch = {
            "ev": "batch", "t": now_s, "tokens": self._tokens, "in_flight": in_flight, "awaiting": awaiting,
            "sent": self._sent, "firsts": self._firsts, "samples": self._samples,
        }  # fmt: skip
        self._tokens = 0
        self._sent, self._firsts, self._samples = [], [], []
        return batch
