"""One managed vLLM server from its start to its end: phases, facts, live control and the way out.

It sends no load and decides no points.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tunetui.core.ceilings import Shortage
from tunetui.core.events import Event, StartReached
from tunetui.core.knobs import EngineFacts, Knob, Point
from tunetui.drive.hardware import cards_name
from tunetui.drive.settings import Settings
from tunetui.engine import command as commands
from tunetui.engine.control import LiveControl, facts_from_hello, lay_out
from tunetui.engine.diagnose import diagnose
from tunetui.engine.gpu import GpuReading
from tunetui.engine.logs import LogFollower, Phase, clean, facts_from_log, phase_of
from tunetui.engine.process import ServerProcess, ServerStartError, holder_of_port, port_is_free
from tunetui.engine.server_api import ApiError, ServerApi

POLL_S = 0.1
LOG_LINES = 5000


class EngineFailed(Exception):
    """The server could not be started or has died: `lines` are the sentence, the next step and the evidence;
    `shortage` where it was for want of memory."""

    def __init__(self, *lines: str, shortage: Shortage | None = None) -> None:
        super().__init__(lines[0])
        self.lines = lines
        self.shortage = shortage


class ManagedEngine:
    """The server of this session. At most one runs at a time; `stop` is plain and may be called after the loop."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        environment: Mapping[str, str],
        emit: Callable[[Event], None],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self.gpus: tuple[GpuReading, ...] = ()
        self._environment = environment
        self._emit = emit
        self._run_folder: Path | None = None
        self._process: ServerProcess | None = None
        self._follower: LogFollower | None = None
        self._starts = 0
        self._began_s: float | None = None
        self._reached: Phase | None = None
        self._changing = threading.Lock()
        self._wanted = False
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.log_path = folder / "server.log"
        self.control: LiveControl | None = None
        self.api: ServerApi | None = None
        self.argv: tuple[str, ...] = ()
        self.start_s: float | None = None

    @property
    def url(self) -> str:
        host = self._settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._settings.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self, point: Point, why_not_live: str = "") -> EngineFacts:
        """Start a server with every knob of `point` as its flag and wait until it answers.

        With live control, unless `why_not_live` says why there can be none. Raises EngineFailed with a diagnosis;
        nothing is left running then. When it is cancelled, `stop` must follow: ending a server takes seconds that a
        closing event loop does not have.
        """
        await self.stop_async()
        refusal = await asyncio.to_thread(port_refusal, self._settings.host, self._settings.port)
        if refusal:
            raise EngineFailed(refusal)
        self._began_s, self._reached, self._follower = time.monotonic(), None, None
        self.log.clear()
        self._emit(StartReached(Phase.STARTING.label, 0.0))  # before anybody can read a line of the log
        try:
            self._wanted = True
            await asyncio.to_thread(self._spawn, point, live=not why_not_live)
            await self._until_serving()
            facts = await self._facts(point, why_not_live)
        except Exception as error:
            await self.stop_async()
            if isinstance(error, ApiError | OSError):
                raise EngineFailed(f"the server could not be started: {error}") from error
            raise
        self.start_s = time.monotonic() - self._began_s
        self._began_s = None
        return facts

    def _spawn(self, point: Point, live: bool) -> None:
        """Start the process; it blocks for as long as a Python takes to start. Nothing, where a stop came first."""
        with self._changing:
            if self._wanted:
                self._spawn_wanted(point, live)

    def _spawn_wanted(self, point: Point, live: bool) -> None:
        settings = self._settings
        assert settings.command is not None
        self._run_folder = Path(tempfile.mkdtemp(prefix="tunetui-"))
        files = lay_out(self._run_folder) if live else None
        self.control = LiveControl(files) if files else None
        self.argv = commands.serve_argv(
            settings.command, settings.model, settings.host, settings.port, point, settings.memory_flag,
            settings.given.rest, live,
        )  # fmt: skip
        environment = commands.server_environment(
            self._environment, files.python_path if files else None, files.block if files else None
        )
        self._starts += 1
        self.log_path = self._folder / ("server.log" if self._starts == 1 else f"server-{self._starts}.log")
        try:
            self._process = ServerProcess.start(
                self.argv, environment, self.log_path, cwd=Path.cwd(), grace_s=settings.grace_s
            )
        except ServerStartError as error:
            raise EngineFailed(str(error)) from None
        self._follower = LogFollower(self.log_path)
        self.api = ServerApi(self.url, os.environ.get("TUNETUI_API_KEY"))

    def read_log(self) -> list[str]:
        """The new lines of the server's log, made safe for a terminal; they are kept in `log` too."""
        lines = [clean(line) for line in self._follower.read()] if self._follower is not None else []
        self.log.extend(lines)
        if self._began_s is not None:
            self._note_phases(lines, time.monotonic() - self._began_s)
        return lines

    def _note_phases(self, lines: list[str], elapsed_s: float) -> None:
        """Say how far a start has come: here, for whoever reads the log first is the one who finds it."""
        for line in lines:
            phase = phase_of(line)
            if phase is not None and (self._reached is None or phase > self._reached):
                self._reached = phase
                self._emit(StartReached(phase.label, elapsed_s))

    async def _until_serving(self) -> None:
        api = self.api
        assert api is not None
        while True:
            self.read_log()
            self.raise_if_dead()
            if await api.healthy():
                self.raise_if_dead()
                self.read_log()
                return
            await asyncio.sleep(POLL_S)

    @property
    def ended(self) -> bool:
        """Whether the server has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def raise_if_dead(self) -> None:
        """Raises EngineFailed with the diagnosis where the server has ended by itself."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return
        self.read_log()
        found = diagnose(list(self.log), code)
        raise EngineFailed(found.sentence, found.next_step, *found.evidence, shortage=found.shortage)

    async def _facts(self, point: Point, why_not_live: str) -> EngineFacts:
        assert self.api is not None
        settings = self._settings
        models = await self.api.models()
        if not models:
            raise EngineFailed(f"{self.url}/v1/models lists no model: see {self.log_path}")
        version = await self.api.version() or ""
        seen = facts_from_log(list(self.log))
        # The log's total is what vLLM takes the share of: a driver also counts what it keeps for itself.
        total = seen.total_memory_bytes or min((g.memory_total_bytes for g in self.gpus), default=0)
        memory, fixed = seen.memory_parts(settings.given.several_cards), fixed_knobs(settings)
        hardware = cards_name(self.gpus)
        hello = self.control.hello() if self.control is not None else None
        if hello is not None:
            facts = facts_from_hello(hello, models[0].id, point, settings.memory_flag, total, hardware)
            return replace(facts, memory=memory, fixed=fixed)
        blocks = 0
        with suppress(ApiError):  # statistics can be switched off
            blocks = (await self.api.gauges()).num_gpu_blocks or 0
        lost = f" ({self.control.lost})" if self.control is not None and self.control.lost else ""
        return EngineFacts(
            version=version,
            model=models[0].id,
            ceiling=point,
            memory_flag=settings.memory_flag,
            max_model_len=models[0].max_model_len or seen.max_model_len or 0,
            why_not_live=why_not_live or f"the scheduler class did not report in{lost}: see the server's log",
            num_blocks=blocks,
            total_memory_bytes=total,
            memory=memory,
            fixed=fixed,
            hardware=hardware,
        )

    def stop(self) -> tuple[int, ...]:
        """End the server and everything it started. Returns the pids that are still there: none, if all is well.

        From any thread; a second call waits for the first.
        """
        with self._changing:
            self._wanted = False
            left: tuple[int, ...] = ()
            if self._process is not None:
                left = self._process.stop(self._settings.grace_s)
            self._clear()
            if self._run_folder is not None:
                shutil.rmtree(self._run_folder, ignore_errors=True)
                self._run_folder = None
            return left

    async def stop_async(self) -> tuple[int, ...]:
        """`stop` in a thread; the client of the server's API is closed too."""
        left = await asyncio.to_thread(self.stop)
        await self.close_api()
        return left

    async def close_api(self) -> None:
        """Close the client of the server's API. `stop` cannot, for it knows no event loop."""
        api, self.api = self.api, None
        if api is not None:
            await api.aclose()

    def drop_control(self) -> None:
        """Live control is lost: read its block no more."""
        if self.control is not None:
            self.control.close()
            self.control = None

    def detach(self) -> None:
        """Leave the server running; its control block stays where it is."""
        with self._changing:
            if self._process is not None:
                self._process.detach()
            self._run_folder = None  # the server's from now on
            self._clear()

    def _clear(self) -> None:
        self._process = None
        self._began_s = None
        self.drop_control()


def fixed_knobs(settings: Settings) -> dict[Knob, str]:
    """The knobs that the operator's own flags make useless, and why."""
    blocks = settings.given.blocks_override
    why = f"--num-gpu-blocks-override {blocks} sets the KV blocks whatever the memory: start without it to tune memory"
    return {Knob.MEMORY: why} if blocks else {}


def port_refusal(host: str, port: int) -> str:
    """Why a server cannot listen there, in one sentence with the next step, or an empty string."""
    if port_is_free(host, port):
        return ""
    try:
        socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return f"{host!r} is no address of this machine: give another with --host"
    holder = holder_of_port(host, port)
    if holder is None:
        return f"cannot listen on {host}:{port}: give another with --host or --port"
    by = holder.name if holder.pid is None else f"pid {holder.pid} ({holder.name})"
    return f"port {port} is held by {by}: stop it, or give another with --port"
