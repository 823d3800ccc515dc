"""Minimal streaming clients over several HTTP libraries, alike in all but the library: SSE cut, json.loads, moments.

They draw no load and judge nothing; a client is `async with make(url) as send`, and `send(body)` one whole request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

Send = Callable[[bytes], Awaitable["Seen"]]
PATH = "/v1/completions"
HEADERS = {"Content-Type": "application/json"}


class Seen:
    """What one request saw. `feed` takes body bytes as they arrive."""

    __slots__ = ("_rest", "first_s", "last_s", "sent_s", "tokens")

    def __init__(self) -> None:
        self.sent_s = time.monotonic()
        self.first_s = self.last_s = 0.0
        self.tokens = 0
        self._rest = b""

    def feed(self, data: bytes, at_s: float) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            payload = event[6:]
            if payload == b"[DONE]":
                continue
            chunk = json.loads(payload)
            if chunk["choices"]:
                if not self.tokens:
                    self.first_s = at_s
                self.last_s = at_s
                self.tokens += 1


@contextlib.asynccontextmanager
async def with_httpx(url: str) -> AsyncIterator[Send]:
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits) as client:

        async def send(body: bytes) -> Seen:
            seen = Seen()
            async with client.stream("POST", url + PATH, content=body, headers=HEADERS) as answer:
                async for data in answer.aiter_raw():
                    seen.feed(data, time.monotonic())
            return seen

        yield send


@contextlib.asynccontextmanager
async def with_aiohttp(url: str) -> AsyncIterator[Send]:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as session:

        async def send(body: bytes) -> Seen:
            seen = Seen()
            async with session.post(url + PATH, data=body, headers=HEADERS) as answer:
                async for data in answer.content.iter_any():
                    seen.feed(data, time.monotonic())
            return seen

        yield send


class _Bare(asyncio.Protocol):
    """A kept-alive connection; what differs is how the bytes of the answer are read."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("closed"))

    def post(self, host: str, body: bytes) -> asyncio.Future[None]:
        self.ended = self.loop.create_future()
        self.seen = Seen()
        self.begin(host, body)
        return self.ended


class Httptools(_Bare):
    def __init__(self) -> None:
        import httptools

        super().__init__()
        self.parser = httptools.HttpResponseParser(self)

    def begin(self, host: str, body: bytes) -> None:
        head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        self.transport.write(head.encode() + b"\r\n\r\n" + body)

    def data_received(self, data: bytes) -> None:
        self.at_s = time.monotonic()
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.seen.feed(data, self.at_s)

    def on_message_complete(self) -> None:
        self.ended.set_result(None)


class H11(_Bare):
    def begin(self, host: str, body: bytes) -> None:
        import h11

        if not hasattr(self, "http"):
            self.http = h11.Connection(h11.CLIENT)
        headers = [("Host", host), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        request = self.http.send(h11.Request(method="POST", target=PATH, headers=headers))
        self.transport.write(request + self.http.send(h11.Data(data=body)))
        self.http.send(h11.EndOfMessage())

    def data_received(self, data: bytes) -> None:
        import h11

        at_s = time.monotonic()
        self.http.receive_data(data)
        while (event := self.http.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Data):
                self.seen.feed(event.data, at_s)
            elif isinstance(event, h11.EndOfMessage):
                self.http.start_next_cycle()
                self.ended.set_result(None)
                return


def _bare(kind: type[_Bare]) -> Callable[[str], contextlib.AbstractAsyncContextManager[Send]]:
    @contextlib.asynccontextmanager
    async def with_bare(url: str) -> AsyncIterator[Send]:
        parts = urlsplit(url)
        idle: list[_Bare] = []
        loop = asyncio.get_running_loop()

        async def send(body: bytes) -> Seen:
            if idle:
                connection = idle.pop()
            else:
                _, connection = await loop.create_connection(kind, parts.hostname, parts.port)
            await connection.post(parts.netloc, body)
            idle.append(connection)
            return connection.seen

        yield send

    return with_bare


CLIENTS = {
    "httpx": (with_httpx, False),
    "aiohttp": (with_aiohttp, False),
    "aiohttp+uvloop": (with_aiohttp, True),
    "h11+uvloop": (_bare(H11), True),
    "httptools": (_bare(Httptools), False),
    "httptools+uvloop": (_bare(Httptools), True),
}
