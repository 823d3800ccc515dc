"""A scripted completions server on loopback: delays, gaps, chunking and faults, and a log of what it did and when.

It is no model: its answers are the tokens that its script asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Script:
    """How to answer one request. `tokens` None means as many as were asked for.

    Faults: "503", "reset" (after `fault_after` tokens), "truncate" (the HTTP message ends there), "hang", "error",
    "close" (after the request, before any byte), "garbage" (no HTTP at all).
    """

    first_delay_s: float = 0.0
    gap_s: float = 0.0
    tokens: int | None = None
    tokens_per_chunk: int = 1
    token_ids: bool = True
    usage: bool = True
    text: str = " a"
    newline: str = "\n"
    piece_bytes: int = 0  # cut what is written into pieces of this size
    empty_last: bool = False  # the finish reason comes in a chunk without a token
    close_after: bool = False  # close the connection once it has been answered, without saying so
    retry_after: int | None = None  # of a 503, in seconds
    fault: str = ""
    fault_after: int = 0


@dataclass(slots=True)
class Served:
    """What the server did with one request; times are `time.monotonic()`."""

    connection: int
    body: dict[str, Any]
    path: str
    headers: dict[str, str]
    received_s: float
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    finished: bool = False
    disconnected_s: float | None = None


@dataclass(slots=True)
class SseServer:
    """Answers each request as `script(body)` says. Use as an async context manager."""

    script: Callable[[dict[str, Any]], Script] = lambda body: Script()
    served: list[Served] = field(default_factory=list)
    connections: int = 0
    hold_reads: asyncio.Event | None = None  # while set to an unset event, nothing is read or answered
    most_open: int = 0
    _open: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> SseServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve_connection(self.connections, reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve_connection(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            if self.hold_reads is not None:
                await self.hold_reads.wait()
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            served = Served(number, body, lines[0].split()[1], headers, time.monotonic())
            self.served.append(served)
            script = self.script(body)
            self._open += 1
            self.most_open = max(self.most_open, self._open)
            answering = asyncio.ensure_future(self._answer(script, served, writer))
            leaving = asyncio.ensure_future(reader.read(1))  # a client sends nothing before the answer is whole
            try:
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    served.disconnected_s = time.monotonic()
                    return
                if not answering.result() or script.close_after:
                    return
            finally:
                self._open -= 1
                await _cancel(leaving)
                await _cancel(answering)

    async def _answer(self, script: Script, served: Served, writer: asyncio.StreamWriter) -> bool:
        """Answer; False when the connection is of no more use."""

        async def write(data: bytes) -> None:
            size = script.piece_bytes or len(data)
            for start in range(0, len(data), size):
                writer.write(data[start : start + size])
                if script.piece_bytes:
                    await asyncio.sleep(0)

        if script.fault == "close":
            return False
        if script.fault == "garbage":
            await write(b"this is no HTTP\r\n\r\n")
            return False
        if script.fault == "503":
            message = json.dumps({"error": {"message": "the engine is asleep" + "." * 500}}).encode()
            wait = b"" if script.retry_after is None else b"Retry-After: %d\r\n" % script.retry_after
            await write(b"HTTP/1.1 503 Busy\r\n%bContent-Length: %d\r\n\r\n%b" % (wait, len(message), message))
            return True
        await write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(script.first_delay_s)
        return await self._stream(script, served, writer, write)

    async def _stream(
        self, script: Script, served: Served, writer: asyncio.StreamWriter, write: Callable[[bytes], Awaitable[None]]
    ) -> bool:
        async def event(payload: object) -> None:
            text = payload if isinstance(payload, str) else json.dumps(payload)
            data = f"data: {text}{script.newline * 2}".encode()
            await write(b"%x\r\n%b\r\n" % (len(data), data))

        total = served.body["max_tokens"] if script.tokens is None else script.tokens
        while served.tokens < total:
            if script.fault and served.tokens >= script.fault_after:
                return await self._break(script.fault, event, writer)
            if served.tokens and script.gap_s:
                await asyncio.sleep(script.gap_s)
            count = min(script.tokens_per_chunk, total - served.tokens)
            served.tokens += count
            last = served.tokens >= total and not script.empty_last
            served.last_s = time.monotonic()
            served.first_s = served.first_s or served.last_s
            await event(_chunk(script, count, "length" if last else None))
        if script.empty_last:
            await asyncio.sleep(script.gap_s)
            await event(_chunk(script, 0, "length"))
        if script.usage:
            usage = {"prompt_tokens": len(served.body.get("prompt", ())), "completion_tokens": served.tokens}
            await event({"choices": [], "usage": usage})
        await event("[DONE]")
        await write(b"0\r\n\r\n")
        served.finished = True
        return True

    @staticmethod
    async def _break(fault: str, event: Callable[[object], Awaitable[None]], writer: asyncio.StreamWriter) -> bool:
        match fault:
            case "truncate":
                writer.write(b"0\r\n\r\n")
                return True
            case "cut":
                return False
            case "reset":
                await asyncio.sleep(0.02)
                writer.transport.get_extra_info("socket").setsockopt(1, 13, b"\x01\0\0\0\0\0\0\0")  # SO_LINGER: RST
                writer.transport.abort()
                return False
            case "error":
                await event({"error": {"message": "EngineCore died", "code": 500}})
            case "object":
                await event({"object": "error", "message": "out of blocks"})
            case "unreadable":
                await event("{not json")
        await asyncio.sleep(3600)
        return False


def _chunk(script: Script, count: int, finish_reason: str | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "text": script.text * count, "finish_reason": finish_reason}
    if script.token_ids:
        choice["token_ids"] = list(range(count))
    return {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": None}


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ConnectionError):
        await task


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Wait for a condition, looking every 2 ms. Raises TimeoutError after `limit_s`."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.002)
