"""A scripted OpenAI server in a process of its own: vLLM's streams with seeded delays, and a log of the true moments.

It is no model and has no faults; sse_server.py has the odd streams.

    python tests/load/scripted_server.py --port 0 --log FILE --ttft-ms 200 --tpot-ms 20

It prints its port, and writes the log on SIGTERM: one JSON object a request, moments of `time.monotonic()`, each taken
right before the system call that wrote those bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

import uvloop
from scripted_chunks import Chunks, json_answer, metrics_answer, prompt_tokens_of

TICK_S = 0.001
MISSING = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Stream:
    """One answer under way, and its line of the log."""

    __slots__ = ("chunks", "connection", "due_s", "gap_s", "left", "record", "written")

    def __init__(self, connection: Connection, chunks: Chunks, gap_s: float, record: dict[str, Any]) -> None:
        self.connection: Connection | None = connection
        self.chunks = chunks
        self.gap_s = gap_s
        self.record = record
        self.left: int = record["asked_tokens"]
        self.written = 0
        self.due_s = 0.0


class Wheel:
    """Streams by the tick in which their next token is due; one timer serves them all while there are any."""

    def __init__(self, write: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._write = write
        self._ticks: dict[int, list[Stream]] = {}
        self._next = 0
        self._armed = False

    def add(self, stream: Stream) -> None:
        tick = int(stream.due_s / TICK_S) + 1
        if not self._armed:
            self._next = int(time.monotonic() / TICK_S)
            self._arm()
        tick = max(tick, self._next)
        due = self._ticks.get(tick)
        if due is None:
            self._ticks[tick] = [stream]
        else:
            due.append(stream)

    def _arm(self) -> None:
        self._armed = True
        self._loop.call_later(max(0.0, self._next * TICK_S - time.monotonic()), self._turn)

    def _turn(self) -> None:
        now = int(time.monotonic() / TICK_S)
        while self._next <= now:
            due = self._ticks.pop(self._next, None)
            self._next += 1
            if due is not None:
                for stream in due:
                    self._write(stream)
        if self._ticks:
            self._arm()
        else:
            self._armed = False


class Server:
    """What all connections share: the script, the slots, the wheel and the log."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.random = random.Random(options.seed)
        self.wheel = Wheel(self.write_token)
        self.log: list[dict[str, Any]] = []
        self.waiting: deque[Stream] = deque()
        self.running = 0
        self.finished = 0
        self.tokens = 0
        self.prompt_tokens = 0

    def jittered(self, mean: float, jitter: float) -> float:
        return mean * (1 + jitter * (2 * self.random.random() - 1))

    def answer(self, connection: Connection, chat: bool, body: dict[str, Any], received_s: float) -> Stream:
        prompt_tokens = prompt_tokens_of(body)
        asked = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        record = {
            "index": len(self.log), "id": connection.request_id, "received_s": received_s, "first_s": None,
            "last_s": None, "asked_tokens": asked, "tokens": 0, "prompt_tokens": prompt_tokens, "late_s": 0.0,
            "ended": "",
        }  # fmt: skip
        self.log.append(record)
        self.prompt_tokens += prompt_tokens
        chunks = Chunks(self.options.model, chat, body, prompt_tokens, record["index"])
        gap_s = self.jittered(self.options.tpot_ms / 1e3, self.options.stream_jitter)
        stream = Stream(connection, chunks, gap_s, record)
        if self.options.slots and self.running >= self.options.slots:
            self.waiting.append(stream)
        else:
            self.serve(stream, received_s)
        return stream

    def serve(self, stream: Stream, from_s: float) -> None:
        self.running += 1
        stream.due_s = from_s + self.jittered(self.options.ttft_ms / 1e3, self.options.ttft_jitter)
        self.wheel.add(stream)

    def write_token(self, stream: Stream) -> None:
        connection = stream.connection
        if connection is None:
            return
        record, chunks = stream.record, stream.chunks
        stream.left -= 1
        now_s = time.monotonic()
        if not stream.written:
            if chunks.role:
                connection.write(chunks.role)
            record["first_s"] = now_s = time.monotonic()
            connection.write(chunks.first if stream.left else chunks.only)
        else:
            connection.write(chunks.frames[stream.written & 15] if stream.left else chunks.last)
        record["late_s"] = max(record["late_s"], now_s - stream.due_s)
        stream.written += 1
        self.tokens += 1
        if stream.left:
            stream.due_s += self.jittered(stream.gap_s, self.options.tpot_jitter)
            self.wheel.add(stream)
        else:
            record["last_s"] = now_s
            for piece in chunks.end(stream.written):
                connection.write(piece)
            connection.stream = None
            self.finished += 1
            self.leave(stream, "done")

    def leave(self, stream: Stream, how: str) -> None:
        """The stream is over: note it, and give its slot to the one that has waited longest."""
        stream.connection = None
        stream.record["tokens"] = stream.written
        stream.record["ended"] = how
        if stream in self.waiting:
            self.waiting.remove(stream)
            return
        self.running -= 1
        if self.waiting:
            self.serve(self.waiting.popleft(), time.monotonic())

    def get(self, path: bytes) -> bytes:
        match path:
            case b"/v1/models":
                model = {"id": self.options.model, "object": "model", "max_model_len": self.options.max_model_len}
                return json_answer({"object": "list", "data": [model]})
            case b"/health":
                return json_answer("")
            case b"/version":
                return json_answer({"version": "0.32.0"})
            case b"/metrics":
                return metrics_answer(self.options.model, self.metrics())
        return MISSING

    def metrics(self) -> dict[str, float]:
        return {
            "num_requests_running": self.running,
            "num_requests_waiting": len(self.waiting),
            "kv_cache_usage_perc": min(1.0, self.running / 512),
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.tokens,
            "request_success_total": self.finished,
            "prefix_cache_queries_total": self.prompt_tokens,
            "prefix_cache_hits_total": 0,
            "num_preemptions_total": 0,
        }

    def write_log(self) -> None:
        for record in self.log:
            record["ended"] = record["ended"] or "stopped"
        Path(self.options.log).write_text("".join(json.dumps(record) + "\n" for record in self.log))


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection; a client sends its next request when it has the whole answer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._data = b""
        self.stream: Stream | None = None
        self.request_id = ""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        pseudo = transport.get_extra_info("socket")
        pseudo.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fd = pseudo.fileno()

    def write(self, data: bytes) -> None:
        """Write at once (uvloop would wait for the end of its turn), through the transport if the client is slow."""
        if self._transport.is_closing():
            return
        if not self._transport.get_write_buffer_size():
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                pass
            except OSError:
                self._transport.abort()
                return
        if data:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
        size = int(headers.get(b"content-length", 0))
        if len(rest) < size:
            return
        received_s = time.monotonic()
        self._data = rest[size:]
        self.request_id = headers.get(b"x-request-id", b"").decode()
        self._take(lines[0].split()[0], lines[0].split()[1].partition(b"?")[0], rest[:size], received_s)

    def _take(self, method: bytes, path: bytes, content: bytes, received_s: float) -> None:
        if method == b"GET":
            self.write(self._server.get(path))
        elif path in (b"/v1/completions", b"/v1/chat/completions"):
            self.write(STREAM_HEAD)
            body = json.loads(content)
            self.stream = self._server.answer(self, path.endswith(b"chat/completions"), body, received_s)
        elif path == b"/tokenize":
            count = prompt_tokens_of(json.loads(content))
            tokens = [100 + index * 37 % 20_000 for index in range(count)]
            answer = {"count": count, "max_model_len": self._server.options.max_model_len, "tokens": tokens}
            self.write(json_answer(answer))
        else:
            self.write(MISSING)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.stream is not None:
            self._server.leave(self.stream, "disconnected")
            self.stream = None


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", required=True)
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--max-model-len", type=int, default=32_768)
    parser.add_argument("--ttft-ms", type=float, default=200.0)
    parser.add_argument("--tpot-ms", type=float, default=20.0)
    parser.add_argument("--ttft-jitter", type=float, default=0.1, help="+- this share of the mean, uniform")
    parser.add_argument("--stream-jitter", type=float, default=0.05, help="the same for the mean TPOT of a stream")
    parser.add_argument("--tpot-jitter", type=float, default=0.2, help="and for each gap of a stream around that")
    parser.add_argument("--slots", type=int, default=0, help="streams served at a time (others wait); 0: all")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


async def serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    server = Server(options)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", options.port, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    with contextlib.suppress(OSError):  # on a busy machine the truth should be late last of all
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    gc.collect()
    gc.freeze()
    gc.disable()
    await ended.wait()
    server.write_log()


if __name__ == "__main__":
    uvloop.run(serve(read_options()))
