"""The parent's side of the load process: commands as methods, and what it tells as typed events.

It sends no request itself and folds nothing into statistics.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import msgspec

from tunetui.core.workload import EpisodePlan, Material
from tunetui.load.events import Died, Event, read_event

READY_S = 30.0
STOP_S = 2.0
STDERR_LINES = 50
Cancel = Literal["unstarted", "all", "none"]  # of the requests in flight: those without a token, all or none
LEAD_S = 0.1  # an open loop starts this long after it is asked for, so that its first bodies are built in time
MAX_LINE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, what prompts are made of (ids for completions, words for chats), and how patient one is."""

    url: str
    model: str
    material: Material
    chat: bool = False
    timeout_s: float = 600.0
    retries: int = 0
    return_token_ids: bool = True


@dataclass(frozen=True, slots=True)
class Share:
    """Which requests of an episode a process sends: every `count`-th, from number `first` on; and when it starts."""

    first: int = 0
    count: int = 1
    base_s: float = 0.0

    def of(self, most: int) -> int:
        """This process's part of `most` things."""
        return len(range(self.first, most, self.count))


class GeneratorGoneError(RuntimeError):
    """The load process is not there to carry out a command; the message says how it ended."""


class LoadGenerator:
    """One load process. Call `start` first; `events` has one reader."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._pidfd: int | None = None
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._drains: deque[asyncio.Future[int]] = deque()
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._ready = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, target: Target) -> None:
        """Start the process and point it at `target`. The API key is taken from the environment (TUNETUI_API_KEY).

        Raises GeneratorGoneError if it does not come up.
        """
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "tunetui.load.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES, start_new_session=True,
        )  # fmt: skip
        with contextlib.suppress(AttributeError, OSError):  # no such call: `kill` goes by the pid alone
            self._pidfd = os.pidfd_open(process.pid)
        self._watching = asyncio.create_task(self._watch(process))
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait({waiting, self._watching}, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not self._ready.is_set():
            await self.stop()
            raise GeneratorGoneError("the load process did not start: " + " / ".join(list(self._stderr)[-3:]))
        await self.configure(target)

    async def configure(self, target: Target) -> None:
        """Point it at another server or model. Refused (an event) while requests are under way: drain first."""
        await self._command(op="configure", **asdict(target))

    async def episode(
        self,
        plan: EpisodePlan,
        *,
        episode_id: int,
        prompt_seed: Sequence[int],
        share: Share | None = None,
        max_in_flight: int | None = None,
    ) -> None:
        """Start `plan`, or this process's share of it, where the running episode's arrivals end, or now.

        It replaces one that still waits. Equal `prompt_seed` gives equal prompts; use a fresh one for every episode, or
        the prefix cache will answer. In an open loop what would exceed `max_in_flight` is dropped.
        """
        share = share or Share(base_s=time.monotonic() + LEAD_S)
        mine = slice(share.first, None, share.count)
        command: dict[str, Any] = {
            "id": episode_id, "prompt_tokens": plan.prompt_tokens[mine], "output_tokens": plan.output_tokens[mine],
            "prompt_seed": tuple(prompt_seed), "first_index": share.first, "stride": share.count,
            "block_tokens": plan.block_tokens, "blocks": plan.blocks[mine], "texts": plan.texts[mine],
        }  # fmt: skip
        if plan.load.concurrency is not None:
            command |= {"mode": "closed", "concurrency": share.of(plan.load.concurrency)}
        else:
            command |= {"mode": "open", "arrivals_s": plan.arrivals_s[mine], "span_s": plan.arrivals_s[-1]}
            command |= {"base_s": share.base_s, "max_in_flight": max_in_flight and share.of(max_in_flight)}
        await self._command(op="episode", **command)

    async def drain(self, cancel: Cancel) -> int:
        """Stop arrivals, drop the episodes and cancel streams; returns how many are still in flight."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._drains.append(answer)
        try:
            await self._command(op="drain", cancel=cancel)
        except GeneratorGoneError:
            answer.cancel()
            raise
        return await answer

    async def events(self) -> AsyncIterator[Event]:
        """Everything that the process tells, until it has ended; `Died` is the last if nobody had asked it to."""
        while (event := await self._events.get()) is not None:
            yield event

    async def stop(self) -> None:
        """Ask it to quit, and kill it if it has not within two seconds. May be called again."""
        self._stopping = True
        if self._process is None or self._watching is None:
            return
        with contextlib.suppress(GeneratorGoneError, TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._command(op="quit")
                await asyncio.wait({self._watching})
        if not self._watching.done():
            self.kill()
            await asyncio.wait({self._watching}, timeout=STOP_S)
        self._close_pidfd()

    def kill(self) -> None:
        """Kill the process at once; works without the event loop, and does nothing if it has ended."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            else:
                os.kill(self._process.pid, signal.SIGKILL)

    async def _command(self, **command: Any) -> None:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise GeneratorGoneError(self._how_it_ended())
        try:
            process.stdin.write(msgspec.json.encode(command) + b"\n")
            await process.stdin.drain()
        except (OSError, RuntimeError) as error:
            raise GeneratorGoneError(self._how_it_ended()) from error

    def _how_it_ended(self) -> str:
        if self._process is None:
            return "the load process has not been started"
        return f"the load process has ended (exit code {self._process.returncode})"

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Read the process until it has ended, then tell so."""
        try:
            await asyncio.gather(self._read_stdout(process), self._read_stderr(process))
        except (ValueError, LookupError, TypeError, msgspec.MsgspecError) as error:
            self._stderr.append(f"the load process wrote what cannot be read: {error!r}")
        finally:
            if process.returncode is None and not self._stopping:
                self.kill()  # it closed its output, or wrote what cannot be read: it is of no more use
            returncode = await process.wait()
            for answer in self._drains:
                if not answer.done():
                    answer.set_exception(GeneratorGoneError(self._how_it_ended()))
            self._drains.clear()
            if not self._stopping:
                self._events.put_nowait(Died(returncode, tuple(self._stderr)))
            self._events.put_nowait(None)

    async def _read_stdout(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._take(msgspec.json.decode(line))

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            self._stderr.append(line.decode("utf-8", "replace").rstrip())

    def _take(self, event: dict[str, Any]) -> None:
        if event["ev"] == "ready":
            self._ready.set()
        elif event["ev"] == "drained":
            answer = self._drains.popleft()
            if not answer.done():
                answer.set_result(event["in_flight"])
        else:
            self._events.put_nowait(read_event(event))

    def _close_pidfd(self) -> None:
        if self._pidfd is not None and self._process is not None and self._process.returncode is not None:
            os.close(self._pidfd)
            self._pidfd = None
