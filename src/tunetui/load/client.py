"""Streamed POSTs over bare asyncio protocols, and the pool of kept-alive connections that carry them.

It decides no moment of sending and keeps no record of ended requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Protocol

import httptools

from tunetui.core.sample import Outcome
from tunetui.load.answer import Answer, http_error
from tunetui.load.endpoint import Endpoint, connect_error

MAX_ERROR_BYTES = 64 * 1024
RETRIED_STATUSES = (429, 502, 503, 504)
BACKOFF_S, MOST_BACKOFF_S = 0.5, 8.0  # before the first retry, twice as long before each further one; or Retry-After
MAX_WARM = 16  # connections that may be opened ahead of their requests at a time


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send. `scheduled_s` is None in a closed loop, where it is the moment of sending."""

    episode: int
    index: int
    scheduled_s: float | None
    prompt_tokens: int
    body: bytes


class Stream:
    """One request under way, then its result: `outcome`, `error` and `ended_s` are set when it ends."""

    __slots__ = (
        "answer", "backing_off", "client", "connecting", "connection", "deadline", "ended_s", "error", "outcome",
        "pooled", "request", "retries", "sent_s", "told_first", "told_tokens",
    )  # fmt: skip

    def __init__(self, request: Request, client: Client) -> None:
        self.request = request
        self.client = client
        self.answer = Answer()
        self.sent_s: float | None = None
        self.outcome: Outcome | None = None
        self.error = ""
        self.ended_s: float | None = None
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.backing_off: asyncio.TimerHandle | None = None  # before it is sent again
        self.retries = 0
        self.told_first = False  # what the report has said of it
        self.told_tokens = 0
        self.pooled = False  # on a connection that waited in the pool, and that may have been closed meanwhile

    def cancel(self) -> None:
        """End it as cancelled; closing the connection makes the server abort the request."""
        self.client.end(self, Outcome.CANCELLED, "", time.monotonic())


class Listener(Protocol):
    """Who is told what becomes of the streams of a client."""

    def stream_sent(self, stream: Stream) -> None: ...
    def stream_ended(self, stream: Stream) -> None: ...


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection that carries one stream at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._stream: Stream | None = None
        self._at_s = 0.0
        self._answered = False
        self._status = 0
        self._error_body = b""
        self._retry_after_s: float | None = None
        self._complete = False
        self._reusable = False
        self._frame_ended = False  # since the parser was last fed, and no other has begun
        self._between_frames = False  # the parser awaits the size of the next frame, and has seen none of it

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def post(self, stream: Stream, head: bytes) -> None:
        """Write the request of `stream`; its answer belongs to it until the message is complete."""
        assert self._transport is not None
        self._stream = stream
        self._answered = self._complete = self._between_frames = False
        self._status, self._error_body, self._retry_after_s = 0, b"", None
        body = stream.request.body
        self._transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))

    def abort(self) -> None:
        self._stream = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._at_s = at_s = time.monotonic()
        stream = self._stream
        if stream is None:  # nobody asked: the server says that it closes
            self.abort()
            self._client.forget(self)
            return
        # A whole frame of a chunked body would leave the parser as it is between two of them: it need not see it.
        if self._between_frames and stream.answer.took_frame(data, at_s):
            return
        self._answered = True
        self._frame_ended = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._client.end(stream, Outcome.FAILED, f"unreadable HTTP answer: {error}", at_s)
            return
        self._between_frames = self._frame_ended and data.endswith(b"\r\n")
        if self._complete:
            self._stream = None
            self._client.release(self, stream, self._reusable)
            self._settle(stream, at_s)
        elif stream.answer.error:
            self._client.end(stream, Outcome.FAILED, stream.answer.error, at_s)

    def connection_lost(self, exc: Exception | None) -> None:
        stream, self._stream = self._stream, None
        self._client.forget(self)
        if stream is None:
            return
        stream.connection = None
        now_s = time.monotonic()
        if not self._answered and stream.pooled:
            self._client.resend(stream)
        elif isinstance(exc, ssl.SSLError):
            self._client.fail(stream, f"TLS error: {exc.reason}", now_s)
        elif not self._status:
            self._client.fail(stream, "the connection was closed before an answer", now_s)
        elif exc is not None and not stream.answer.done:
            self._client.fail(stream, "connection reset during the answer", now_s)
        else:
            self._settle(stream, now_s)

    def _settle(self, stream: Stream, at_s: float) -> None:
        """The answer is over: judge it."""
        if self._status in RETRIED_STATUSES:
            self._client.fail(stream, http_error(self._status, self._error_body), at_s, self._retry_after_s)
            return
        failure = stream.answer.failure() if self._status == 200 else http_error(self._status, self._error_body)
        self._client.end(stream, Outcome.FAILED if failure else Outcome.OK, failure, at_s)

    # What the HTTP parser calls while it is fed.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after" and value.strip().isdigit():
            self._retry_after_s = float(value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._status = 0 if status < 200 else status

    def on_body(self, data: bytes) -> None:
        stream = self._stream
        if stream is None:
            return
        if self._status == 200:
            stream.answer.feed(data, self._at_s)
        elif len(self._error_body) < MAX_ERROR_BYTES:
            self._error_body += data

    def on_chunk_header(self) -> None:
        self._frame_ended = False

    def on_chunk_complete(self) -> None:
        self._frame_ended = True

    def on_message_complete(self) -> None:
        if self._status:  # else it was an interim answer (1xx)
            self._complete = True
            self._reusable = self._parser.should_keep_alive()


class Client:
    """Sends requests to one endpoint. A stream has `timeout_s` from the call of `send` to its last byte.

    With `retries` one that fails before its first token, for a reason that may pass, is sent again after a pause, with
    a `timeout_s` of its own: it stays one request, timed from its first schedule.
    """

    def __init__(self, target: Endpoint, timeout_s: float, listener: Listener, retries: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._target = target
        self._timeout_s = timeout_s
        self._retries = retries
        self._listener = listener
        self._idle: list[Connection] = []  # the last one in is the first one out: it is the least likely to be stale
        self._warming: set[asyncio.Task[None]] = set()

    def send(self, request: Request) -> Stream:
        """Send now: at once on an idle connection, else as soon as a new one stands."""
        stream = Stream(request, self)
        self._start(stream)
        return stream

    def _start(self, stream: Stream) -> None:
        stream.deadline = self._loop.call_later(self._timeout_s, self._time_out, stream)
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                stream.pooled = True
                self._post(stream, connection)
                return
        stream.connecting = self._loop.create_task(self._connect_and_post(stream))

    def warm(self, count: int) -> None:
        """Have `count` idle connections, so that the next requests need not wait for a handshake."""
        for _ in range(min(count - len(self._idle), MAX_WARM) - len(self._warming)):
            task = self._loop.create_task(self._connect_idle())
            self._warming.add(task)
            task.add_done_callback(self._warming.discard)

    def close(self) -> None:
        """Close the idle connections; streams under way are cancelled by their owner."""
        for task in self._warming:
            task.cancel()
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    # What connections and streams call.

    def release(self, connection: Connection, stream: Stream, reusable: bool) -> None:
        stream.connection = None
        if reusable and connection.usable:
            self._idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: Connection) -> None:
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def resend(self, stream: Stream) -> None:
        """The pooled connection was stale: once more on a fresh one, as the same request, timed from its first send."""
        stream.pooled = False
        stream.connecting = self._loop.create_task(self._connect_and_post(stream))

    def fail(self, stream: Stream, error: str, at_s: float, retry_after_s: float | None = None) -> None:
        """End it as failed, or send it again where that was asked for and it has shown no token yet."""
        if stream.outcome is not None:
            return
        if stream.retries >= self._retries or stream.answer.first_s is not None:
            self.end(stream, Outcome.FAILED, error, at_s)
            return
        self._let_go(stream)
        pause_s = BACKOFF_S * 2**stream.retries if retry_after_s is None else retry_after_s
        stream.retries += 1
        stream.answer, stream.pooled = Answer(), False
        stream.backing_off = self._loop.call_later(min(pause_s, MOST_BACKOFF_S), self._start, stream)

    def end(self, stream: Stream, outcome: Outcome, error: str, at_s: float) -> None:
        """End a stream once; a connection that it still holds is closed."""
        if stream.outcome is not None:
            return
        stream.outcome, stream.error, stream.ended_s = outcome, error, at_s
        self._let_go(stream)
        self._listener.stream_ended(stream)

    @staticmethod
    def _let_go(stream: Stream) -> None:
        """Stop its timers, and close the connection that it holds."""
        for waiting in (stream.deadline, stream.backing_off, stream.connecting):
            if waiting is not None:
                waiting.cancel()
        if stream.connection is not None:
            stream.connection.abort()
            stream.connection = None

    def _time_out(self, stream: Stream) -> None:
        if stream.answer.done and not stream.answer.failure():  # only the end of the HTTP message was owed
            self.end(stream, Outcome.OK, "", time.monotonic())
        else:
            self.fail(stream, f"timed out after {self._timeout_s:g} s", time.monotonic())

    def _post(self, stream: Stream, connection: Connection) -> None:
        stream.connection = connection
        at_s = time.monotonic()  # before the write: the server may read it before the call returns
        connection.post(stream, self._target.head)
        if stream.sent_s is None:
            stream.sent_s = at_s
            self._listener.stream_sent(stream)

    async def _connect(self) -> Connection:
        target = self._target
        _, connection = await self._loop.create_connection(
            lambda: Connection(self), target.host, target.port, ssl=target.tls
        )
        return connection

    async def _connect_and_post(self, stream: Stream) -> None:
        try:
            connection = await self._connect()
        except OSError as error:
            stream.connecting = None
            self.fail(stream, connect_error(error), time.monotonic())
            return
        stream.connecting = None
        if stream.outcome is not None:
            connection.abort()
        else:
            self._post(stream, connection)

    async def _connect_idle(self) -> None:
        with contextlib.suppress(OSError):  # the request itself will say so
            self._idle.append(await self._connect())
