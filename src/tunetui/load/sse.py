"""A parser of server-sent events: bytes in, the data payloads of whole events out.

It knows nothing of HTTP, JSON or tokens, and it keeps no more than one unfinished event.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 8 * 1024 * 1024


class EventTooLargeError(ValueError):
    """An event grew beyond the limit before it ended."""


class EventParser:
    """Feeds of any size, cut at any byte; lines may end in LF or CRLF (a lone CR is not a line end)."""

    __slots__ = ("_data", "_max_bytes", "_pieces", "held_bytes")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []  # the unfinished line, joined only once its end has come
        self._data: list[bytes] = []  # the data lines of the unfinished event
        self.held_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads of the events that `data` completes; several data lines are joined by a newline.

        Raises EventTooLargeError when an unfinished event holds more than `max_bytes`.
        """
        if (
            not self.held_bytes
            and data.count(b"\n") == 2
            and data[:6] == b"data: "
            and data[-2:] == b"\n\n"
            and data[-3:-2] != b"\r"
        ):
            self._check(len(data))
            return [data[6:-2]] if len(data) > 8 else []  # what nearly every piece is: one whole event
        events: list[bytes] = []
        if b"\n" in data:
            if self._pieces:
                self._pieces.append(data)
                data = b"".join(self._pieces)
                self._pieces.clear()
            lines = data.split(b"\n")
            data = lines.pop()
            for line in lines:
                self._take_line(line, events)
            self.held_bytes = sum(map(len, self._data)) + len(self._data)
        if data:
            self._pieces.append(data)
            self.held_bytes += len(data)
        self._check(self.held_bytes)
        return events

    def _take_line(self, line: bytes, events: list[bytes]) -> None:
        if line.endswith(b"\r"):
            line = line[:-1]
        if line.startswith(b"data:"):
            self._check(len(line))
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif not line and self._data:
            payload = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            self._data.clear()
            if payload:  # the standard dispatches no empty event
                events.append(payload)
        # Comments and the fields event, id and retry carry nothing that a completion needs.

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise EventTooLargeError(f"an event of the stream is larger than {self._max_bytes} bytes")
