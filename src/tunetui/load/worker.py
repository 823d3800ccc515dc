"""The load process: commands on stdin and events on stdout, one JSON object a line (`python -m tunetui.load.worker`).

It decides nothing by itself: when stdin ends, so does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from tunetui.core.workload import Material
from tunetui.load.client import Client
from tunetui.load.endpoint import endpoint
from tunetui.load.prompts import PromptBook
from tunetui.load.report import Report
from tunetui.load.schedule import Episode, Schedule

BATCH_S = 0.1
FLUSH_S = 0.3  # how long the last lines may take to leave before the process ends
MAX_LINE_BYTES = 64 * 1024 * 1024
KEY_VARIABLE = "TUNETUI_API_KEY"


class Output(asyncio.BaseProtocol):
    """Lines to the parent; never waits for it. `closed` is called when the parent reads no more."""

    def __init__(self, closed: Callable[[], None]) -> None:
        self._closed = closed
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed()

    @property
    def pending_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def emit(self, event: dict[str, Any]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(msgspec.json.encode(event) + b"\n")


class Worker:
    """Carries out commands, and sends a batch ten times a second."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._quit = asyncio.Event()
        self._output = Output(self._quit.set)
        self._report = Report(self._output.emit)
        self._schedule = Schedule(self._report)

    async def run(self, stdin_fd: int, stdout_fd: int) -> None:
        """Serve until stdin ends or says quit."""
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        stdin = os.fdopen(stdin_fd, "rb", 0)
        await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
        await self._loop.connect_write_pipe(lambda: self._output, os.fdopen(stdout_fd, "wb", 0))
        self._output.emit({"ev": "ready", "pid": os.getpid()})
        self._beat(time.monotonic())
        commands = self._loop.create_task(self._read_commands(reader))
        await self._quit.wait()
        commands.cancel()
        self._schedule.drain("all")
        self._emit_batch()
        deadline_s = time.monotonic() + FLUSH_S
        while self._output.pending_bytes and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)

    def _beat(self, due_s: float) -> None:
        # While the parent does not read, rows gather here and leave in one batch later: lines would pile up.
        if not self._output.pending_bytes:
            self._emit_batch()
        due_s = max(due_s + BATCH_S, time.monotonic())
        self._loop.call_later(due_s - time.monotonic(), self._beat, due_s)

    def _emit_batch(self) -> None:
        self._output.emit(self._report.take_batch(time.monotonic(), self._schedule.active))

    async def _read_commands(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                try:
                    self._obey(json.loads(line))
                except (ValueError, TypeError, AttributeError) as error:
                    self._report.emit({"ev": "error", "text": str(error)})
                except KeyError as error:
                    self._report.emit({"ev": "error", "text": f"the command lacks {error}"})
        except ValueError:
            self._report.emit({"ev": "error", "text": f"a command is longer than {MAX_LINE_BYTES} bytes"})
        finally:
            self._quit.set()

    def _obey(self, command: dict[str, Any]) -> None:
        match command.get("op"):
            case "configure":
                self._configure(command)
            case "episode":
                self._schedule.start(read_episode(command))
            case "drain":
                in_flight = self._schedule.drain(command["cancel"])
                self._emit_batch()  # so that the cancelled ones are known before the answer
                self._report.emit({"ev": "drained", "in_flight": in_flight})
            case "quit":
                self._quit.set()
            case other:
                raise ValueError(f"unknown command {other!r}")

    def _configure(self, command: dict[str, Any]) -> None:
        chat = bool(command["chat"])
        target = endpoint(command["url"], os.environ.get(KEY_VARIABLE, "").strip(), chat)
        prompts = PromptBook(command["model"], Material(**command["material"]), chat, command["return_token_ids"])
        client = Client(target, float(command["timeout_s"]), self._schedule, int(command["retries"]))
        self._schedule.configure(client, prompts)
        gc.collect()
        gc.freeze()  # the words of the prompt book live as long as the process: no collection need look at them


def read_episode(command: dict[str, Any]) -> Episode:
    """The episode in an `episode` command. Raises ValueError or KeyError naming what is wrong."""
    mode = command["mode"]
    if mode not in ("open", "closed"):
        raise ValueError(f"unknown mode {mode!r}: write open or closed")
    cap = command.get("max_in_flight")
    return Episode(
        id=int(command["id"]),
        prompt_tokens=tuple(command["prompt_tokens"]),
        output_tokens=tuple(command["output_tokens"]),
        prompt_seed=tuple(command["prompt_seed"]),
        base_s=float(command.get("base_s", 0.0)),
        arrivals_s=tuple(command["arrivals_s"]) if mode == "open" else (),
        span_s=float(command.get("span_s", 0.0)),
        concurrency=int(command["concurrency"]) if mode == "closed" else None,
        first_index=int(command.get("first_index", 0)),
        stride=int(command.get("stride", 1)),
        max_in_flight=None if cap is None else int(cap),
        block_tokens=int(command.get("block_tokens", 0)),
        blocks=tuple(command.get("blocks", ())),
        texts=tuple(command.get("texts", ())),
    )


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: it takes less than half the CPU time for each token."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def main() -> NoReturn:
    """Run the load process on stdin and stdout, and end it."""
    for ignored in (signal.SIGINT, signal.SIGHUP):  # the parent decides when to stop
        signal.signal(ignored, signal.SIG_IGN)
    with contextlib.suppress(OSError, ValueError):  # every stream is an open file
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    stdout_fd = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not land between the events

    async def serve() -> NoReturn:
        await Worker().run(0, stdout_fd)
        os._exit(0)  # without waiting for name look-ups and handshakes under way, which can take minutes

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
    raise AssertionError("serving ends the process")


if __name__ == "__main__":
    main()
