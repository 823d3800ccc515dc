"""One managed vLLM server from its start to its end: phases, facts, live control and the way out.

It sends no load and decides no points.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.session import Event, StartReached
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
    """The server could not be started or has died: `lines` are the sentence, the next step and the evidence."""

    def __init__(self, *lines: str) -> None:
        super().__init__(lines[0])
        self.lines = lines


class ManagedEngine:
    """The server of this session. At most one runs at a time; `stop` is plain and may be called after the loop."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        gpus: tuple[GpuReading, ...],
        environment: Mapping[str, str],
        emit: Callable[[Event], None],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._gpus = gpus
        self._environment = environment
        self._emit = emit
        self._run_folder: Path | None = None
        self._process: ServerProcess | None = None
        self._follower: LogFollower | None = None
        self._starts = 0
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.log_path = folder / "server.log"
        self.control: LiveControl | None = None
        self.api: ServerApi | None = None
        self.argv: tuple[str, ...] = ()
        self.start_s: float | None = None

    @property
    def url(self) -> str:
        return f"http://{self._settings.host}:{self._settings.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self, point: Point, live: bool) -> EngineFacts:
        """Start a server with every knob of `point` as its flag and wait until it answers.

        Raises EngineFailed with a diagnosis; nothing is left running then.
        """
        began_s = time.monotonic()
        self._refuse_busy_port()
        try:
            self._spawn(point, live)
            await self._until_serving(began_s)
            facts = await self._facts(point, live)
        except BaseException:
            await asyncio.to_thread(self.stop)
            raise
        self.start_s = time.monotonic() - began_s
        return facts

    def _refuse_busy_port(self) -> None:
        host, port = self._settings.host, self._settings.port
        if not port_is_free(host, port):
            holder = holder_of_port(host, port)
            by = f" by pid {holder.pid} ({holder.name})" if holder else ""
            raise EngineFailed(f"port {port} is held{by}: give another with --port")

    def _spawn(self, point: Point, live: bool) -> None:
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
        self.log.clear()
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
        return lines

    async def _until_serving(self, began_s: float) -> None:
        assert self.api is not None
        reached: Phase | None = None
        self._emit(StartReached(Phase.STARTING.label, 0.0))
        while True:
            for line in self.read_log():
                phase = phase_of(line)
                if phase is not None and (reached is None or phase > reached):
                    reached = phase
                    self._emit(StartReached(phase.label, time.monotonic() - began_s))
            self.raise_if_dead()
            if await self.api.healthy():
                self.raise_if_dead()
                return
            await asyncio.sleep(POLL_S)

    def raise_if_dead(self) -> None:
        """Raises EngineFailed with the diagnosis where the server has ended by itself."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return
        self.read_log()
        found = diagnose(list(self.log), code)
        raise EngineFailed(found.sentence, found.next_step, *found.evidence)

    async def _facts(self, point: Point, live: bool) -> EngineFacts:
        assert self.api is not None
        settings = self._settings
        try:
            models = await self.api.models()
            version = await self.api.version() or ""
        except ApiError as error:
            raise EngineFailed(str(error)) from None
        seen = facts_from_log(list(self.log))
        total = min((g.memory_total_bytes for g in self._gpus), default=0) or seen.total_memory_bytes or 0
        hardware = hardware_name(self._gpus)
        hello = self.control.hello() if self.control is not None else None
        if hello is not None:
            return facts_from_hello(hello, models[0].id, point, settings.memory_flag, total, hardware)
        blocks = (await self.api.gauges()).num_gpu_blocks or 0
        why = "the scheduler class did not report in: see the server's log"
        return EngineFacts(
            version=version,
            model=models[0].id,
            ceiling=point,
            memory_flag=settings.memory_flag,
            max_model_len=models[0].max_model_len or seen.max_model_len or 0,
            why_not_live=why if live else "this server was started as it will be deployed, without live control",
            num_blocks=blocks,
            total_memory_bytes=total,
            hardware=hardware,
        )

    def stop(self) -> tuple[int, ...]:
        """End the server and everything it started. Returns the pids that are still there: none, if all is well."""
        left: tuple[int, ...] = ()
        if self._process is not None:
            left = self._process.stop(self._settings.grace_s)
        self._clear()
        if self._run_folder is not None:
            shutil.rmtree(self._run_folder, ignore_errors=True)
            self._run_folder = None
        return left

    def detach(self) -> None:
        """Leave the server running; its control block stays where it is."""
        if self._process is not None:
            self._process.detach()
        self._clear()

    def _clear(self) -> None:
        self._process = None
        if self.control is not None:
            self.control.close()
            self.control = None


def hardware_name(gpus: tuple[GpuReading, ...]) -> str:
    """The cards in a few words: `2x NVIDIA A100 80GB`, or `CPU`."""
    if not gpus:
        return "CPU"
    return gpus[0].name if len(gpus) == 1 else f"{len(gpus)}x {gpus[0].name}"
