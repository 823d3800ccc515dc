"""What the body of one streamed completion has said so far: tokens and their moments, the end, or an error.

It reads no clock and no socket: the arrival time of the bytes is an argument.
"""

from __future__ import annotations

import json
from typing import Any

from tunetui.load.sse import EventParser, EventTooLargeError

MAX_MESSAGE_CHARS = 200


class Answer:
    """The state of one answer. `first_s` and `last_s` are the arrivals of the first and last chunk with a token."""

    __slots__ = ("_counted_tokens", "_events", "_reported_tokens", "done", "error", "first_s", "last_s", "tokens")

    def __init__(self) -> None:
        self._events = EventParser()
        self._reported_tokens: int | None = None
        self._counted_tokens = 0
        self.tokens = 0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.done = False
        self.error = ""

    def feed(self, data: bytes, at_s: float) -> int:
        """Take body bytes that arrived at `at_s`; returns the output tokens they add.

        An error in them is kept in `error`, and nothing after it is read.
        """
        if self.error:
            return 0
        before = self.tokens
        try:
            for payload in self._events.feed(data):
                self._take(payload, at_s)
                if self.error:
                    break
        except EventTooLargeError as error:
            self.error = str(error)
        return self.tokens - before

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer: the server's usage where it came, else those counted in the chunks."""
        return self._counted_tokens if self._reported_tokens is None else self._reported_tokens

    def failure(self) -> str:
        """Why this is not a whole answer now that it has ended; empty when it is."""
        if self.error:
            return self.error
        if not self.done:
            return "truncated stream"
        return "" if self.first_s is not None else "an answer without tokens"

    def _take(self, payload: bytes, at_s: float) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            chunk = json.loads(payload)
            if "error" in chunk or chunk.get("object") == "error":
                self.error = error_message(chunk)
                return
            new_tokens = sum(self._take_choice(choice) for choice in chunk["choices"])
            usage = chunk.get("usage")
            if usage:
                self._reported_tokens = int(usage["completion_tokens"])
        except (ValueError, KeyError, TypeError, AttributeError):
            self.error = "unreadable chunk: " + _clip(payload.decode("utf-8", "replace"))
            return
        if new_tokens:
            if self.first_s is None:
                self.first_s = at_s
            self.last_s = at_s
            self._counted_tokens += new_tokens
        # Without token ids a chunk of several tokens was counted as one: the usage puts the sum right.
        self.tokens = max(self.tokens, self._counted_tokens, self._reported_tokens or 0)

    def _take_choice(self, choice: dict[str, Any]) -> int:
        """The new tokens in one choice. Empty text is a token as well: half a character, or a special token."""
        if choice.get("finish_reason"):
            self.done = True
        token_ids = choice.get("token_ids")
        return 1 if token_ids is None else len(token_ids)


def error_message(body: Any) -> str:
    """The first 200 characters of the message in an error object of the server, in any of its forms."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    message = inner.get("message", inner) if isinstance(inner, dict) else inner
    return _clip(message if isinstance(message, str) else json.dumps(message))


def http_error(status: int, body: bytes) -> str:
    """One line for an answer with another status than 200."""
    text = body.decode("utf-8", "replace")
    try:
        text = error_message(json.loads(text))
    except ValueError:
        text = _clip(text)
    return f"HTTP {status}: {text}" if text else f"HTTP {status}"


def _clip(text: str) -> str:
    return " ".join(text.split())[:MAX_MESSAGE_CHARS]
