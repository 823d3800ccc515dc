"""What the body of one streamed answer has said so far: tokens and their moments, the end, or an error.

It reads no clock and no socket: the arrival time of the bytes is an argument.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tunetui.load.sse import EventParser, EventTooLargeError
from tunetui.load.template import Template, learned

MAX_MESSAGE_CHARS = 200
CHUNKS_TO_LEARN_FROM = 8  # after the first, which can hold what no other does


class Delta(msgspec.Struct):
    """What a chunk of a chat adds; a first one may hold a role and no content."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content or self.tool_calls)


class Choice(msgspec.Struct):
    """The part of a choice that matters here; the text of a completion does not, it may be empty."""

    finish_reason: str | None = None
    token_ids: list[int] | None = None
    delta: Delta | None = None

    @property
    def tokens(self) -> int:
        """New tokens. Empty text is one as well (half a character, a special token); an empty chat delta is none."""
        if self.token_ids is not None:
            return len(self.token_ids)
        return 1 if self.delta is None or self.delta else 0


class Usage(msgspec.Struct):
    """The server's own count."""

    completion_tokens: int
    prompt_tokens: int | None = None


class Chunk(msgspec.Struct):
    """One event of a stream of completions or of a chat."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None


_decode = msgspec.json.Decoder(Chunk).decode


class Answer:
    """The state of one answer. `first_s` and `last_s` are the arrivals of the first and last chunk with a token.

    `gaps_s` are the inter-token latencies: one for each token after the first chunk, those of a chunk being equal.
    """

    __slots__ = (
        "_counted_tokens", "_events", "_learning", "_reported_tokens", "_template", "done", "error", "first_s",
        "gaps_s", "last_s", "prompt_tokens", "tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self._events = EventParser()
        self._template: Template | None = None
        self._learning = CHUNKS_TO_LEARN_FROM
        self._reported_tokens: int | None = None
        self._counted_tokens = 0
        self.prompt_tokens: int | None = None  # as the server counts them
        self.tokens = 0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.gaps_s: list[float] = []
        self.done = False
        self.error = ""

    def feed(self, data: bytes, at_s: float) -> int:
        """Take body bytes that arrived at `at_s`; returns the output tokens they add.

        An error in them is kept in `error`, and nothing after it is read.
        """
        if self.error:
            return 0
        at_boundary = not self._events.held_bytes
        if self._template is not None and at_boundary and (count := self._template.tokens(data)):
            self._arrived(count, at_s)
            return count
        before = self.tokens
        try:
            for payload in self._events.feed(data):
                self._take(payload, at_s)
                if self.error:
                    break
        except EventTooLargeError as error:
            self.error = str(error)
        if self._learning and before and at_boundary and self.tokens > before:
            self._learning -= 1
            self._template = learned(data) or self._template
        return self.tokens - before

    def took_frame(self, data: bytes, at_s: float) -> bool:
        """Take `data` if it is a whole frame of the chunked transfer coding that holds one plain chunk and no more.

        The frame must follow a whole one. Anything else is left: it must go through an HTTP parser to `feed`.
        """
        template = self._template
        if template is None or self.error or self._events.held_bytes:
            return False
        size_end, end = data.find(b"\r\n"), len(data) - 2
        if data[:size_end] != b"%x" % (end - size_end - 2) or data[end:] != b"\r\n":
            return False
        count = template.tokens(data, size_end + 2, end)
        if count:
            self._arrived(count, at_s)
        return count > 0

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer: the server's usage where it came and counts any, else those counted in the chunks."""
        return self._reported_tokens or self._counted_tokens

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies; none where the server counts other tokens than were seen, in chunks without ids."""
        return self.gaps_s if self.output_tokens == self._counted_tokens else []

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
            chunk = _decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # an error object of an odd form is still the server's word
            self.error = _odd_chunk(payload)
            return
        if chunk.error is not None or chunk.object == "error":
            self.error = _odd_chunk(payload)
            return
        if chunk.choices is None:
            self.error = _unreadable(payload)
            return
        tokens = 0
        for choice in chunk.choices:
            if choice.finish_reason:
                self.done = True
            tokens += choice.tokens
        if tokens:
            self._arrived(tokens, at_s)
        if chunk.usage is not None:
            self._reported_tokens = chunk.usage.completion_tokens
            self.prompt_tokens = chunk.usage.prompt_tokens
            # Without token ids a chunk of several tokens was counted as one: the usage puts the sum right.
            self.tokens = max(self.tokens, self._reported_tokens)

    def _arrived(self, tokens: int, at_s: float) -> None:
        """A chunk with tokens."""
        if self.last_s is None:
            self.first_s = at_s
        elif tokens == 1:
            self.gaps_s.append(at_s - self.last_s)
        else:
            self.gaps_s.extend([(at_s - self.last_s) / tokens] * tokens)
        self.last_s = at_s
        self._counted_tokens += tokens
        if self._counted_tokens > self.tokens:
            self.tokens = self._counted_tokens


def _odd_chunk(payload: bytes) -> str:
    """The server's error message in a chunk that is no part of an answer, or the chunk itself."""
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError):
        return _unreadable(payload)
    is_error = isinstance(body, dict) and (body.get("error") is not None or body.get("object") == "error")
    return error_message(body) if is_error else _unreadable(payload)


def _unreadable(payload: bytes) -> str:
    return "unreadable chunk: " + _clip(payload.decode("utf-8", "replace"))


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
