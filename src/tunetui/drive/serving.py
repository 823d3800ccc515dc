"""Gets a server to where the load can begin: starts it at a point or attaches to it, points the load at it, warms up.

It steps no knob, begins no episode and handles no failure: the driver does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tunetui.core import events
from tunetui.core.ceilings import MOST_STARTS, Lowering, Shortage, ShortageKind, next_ceiling, within
from tunetui.core.knobs import EngineFacts, Knob, Point, start_ceiling
from tunetui.core.load import Load
from tunetui.core.session import Notice, Phase
from tunetui.drive.engine import EngineFailed, ManagedEngine
from tunetui.drive.loop import LoadLoop
from tunetui.drive.settings import Settings, ceiling_of, first_point, least_ceiling
from tunetui.engine.gpu import GpuReading
from tunetui.engine.server_api import ApiError, ServerApi

AS_DEPLOYED = "this server was started as it will be deployed, without live control"
ATTACHED = "attached: this server was not started by tunetui, so its knobs cannot be changed from here"


class Serving:
    """The server of a session, managed or attached, and the load loop that is pointed at it."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        environment: Mapping[str, str],
        emit: Callable[[events.Event], None],
    ) -> None:
        self._settings = settings
        self._emit = emit
        self.engine = ManagedEngine(settings, folder, environment, emit)
        self.loop = LoadLoop(settings)
        self._attached: ServerApi | None = None
        self._ceiling = ceiling_of(settings, ())
        self._why_not_live = settings.given.parallel
        self._has_been_live = False
        self._ask = 0

    def first_point(self, gpus: tuple[GpuReading, ...]) -> Point:
        """Where the session starts on a machine with these cards; its ceilings follow from them too."""
        self.engine.gpus = gpus
        self._ceiling = ceiling_of(self._settings, gpus)
        return first_point(self._settings, self._ceiling, gpus)

    @property
    def api(self) -> ServerApi | None:
        """The client of the server's API, or None where no server runs."""
        return self._attached if self._settings.attached else self.engine.api

    @property
    def ask(self) -> int:
        """The number of the last point that was asked for live."""
        return self._ask

    def write_targets(self, point: Point, facts: EngineFacts) -> None:
        """Ask the scheduler class for `point`, where there is one."""
        if self.engine.control is not None:
            self._ask = self.engine.control.ask(point, facts)

    async def start(self, point: Point, phase: Phase) -> None:
        """End the server before, start one that is at `point`, warm it up, and leave the load stopped.

        Until a server has been live, a start for which memory does not do goes on with lower ceilings, and `point` is
        brought within the one that starts.

        `phase` STARTING: with live control where there can be; CONFIRMING: with exactly the flags of `point`.
        Raises EngineFailed, ApiError and GeneratorGoneError.
        """
        self._emit(events.StartBegan(time.monotonic(), phase, point, self.engine.start_s))
        await self.loop.drain("all")
        await self.stop()
        if phase is Phase.CONFIRMING:
            facts = await self.engine.start(point, AS_DEPLOYED)
        else:
            facts, point = await self._start_live(point)
        self._emit(events.EngineReady(facts, self.engine.start_s, point))
        assert self.engine.api is not None
        await self.loop.point_at(self.engine.url, facts.model, self.engine.api)
        self._emit(events.PhaseChanged(phase if phase is Phase.CONFIRMING else Phase.WARMING, "warming up"))
        await self.loop.warm_up(point.max_num_seqs)
        self.engine.raise_if_dead()

    async def _start_live(self, point: Point) -> tuple[EngineFacts, Point]:
        """Start with the ceiling as the flags and go to `point`; without live control, start with `point` itself.

        Returns the point that the server is at: a ceiling that had to be lowered may be below `point`.
        """
        if self._why_not_live:
            return await self.engine.start(point, self._why_not_live), point
        facts = await self._start_below(start_ceiling(point, self._ceiling))
        point = within(point, facts.ceiling)
        if facts.live:
            self._ceiling, self._has_been_live = facts.ceiling, True
            if Knob.THRESHOLD in facts.restart_reasons and point.chunked_prefill:
                point = replace(point, long_prefill_token_threshold=facts.ceiling.long_prefill_token_threshold)
            self.write_targets(point, facts)
            return facts, point
        self._why_not_live = facts.why_not_live
        self._say(f"no live control ({facts.why_not_live}): every step is a restart", "warning")
        return (facts if facts.ceiling == point else await self.engine.start(point, self._why_not_live)), point

    async def _start_below(self, ceiling: Point) -> EngineFacts:
        """Start with `ceiling`, and where memory does not do for it with lower and lower ones. Raises EngineFailed.

        Only until a server has been live: a ceiling that was raised by a step is the operator's, and so is its failure.
        """
        least = least_ceiling(self._settings, ceiling, self.engine.gpus)
        for _ in range(MOST_STARTS - 1):
            try:
                return await self.engine.start(ceiling)
            except EngineFailed as failure:
                lower = self._lower(ceiling, least, failure.shortage)
                if failure.shortage is None or lower is None:
                    raise
                lowering = Lowering(ceiling, lower, failure.shortage, self._settings.memory_flag)
            self._emit(events.CeilingLowered(time.monotonic(), lowering))
            ceiling = lower
        return await self.engine.start(ceiling)

    def _lower(self, ceiling: Point, least: Point, shortage: Shortage | None) -> Point | None:
        """The next ceiling, or None where none would help: a KV cache of a given size grows by no lower flag."""
        given = self._settings.given
        if shortage is None or self._has_been_live:
            return None
        if shortage.kind is ShortageKind.KV_CACHE and (given.kv_cache_bytes is not None or given.blocks_override):
            return None
        return next_ceiling(ceiling, least, shortage)

    async def attach(self) -> None:
        """Look at the server of the URL; nothing but control calls is sent. Raises ApiError."""
        url = self._settings.url
        try:
            self._attached = ServerApi(url, os.environ.get("TUNETUI_API_KEY"))
        except Exception as error:  # httpx and the standard library refuse a URL in several ways
            raise ApiError(f"cannot attach to {url}: {error}") from error
        models = await self._attached.models()
        version = await self._attached.version() or ""
        if not models:
            raise ApiError(f"{url}/v1/models lists no model: check the address")
        facts = EngineFacts(
            version=version,
            model=models[0].id,
            ceiling=Point(0, 0, True, 0.0, True),
            max_model_len=models[0].max_model_len or 0,
            why_not_live=ATTACHED,
        )
        self._emit(events.EngineReady(facts))
        self._emit(events.PhaseChanged(Phase.ATTACHED))

    async def load_attached(self, model: str, load: Load, paused: bool) -> None:
        """The operator has confirmed: point the load at the attached server, and warm up. Raises as `start`."""
        if self._attached is not None:
            await self.loop.point_at(self._settings.url, model, self._attached)
            self._emit(events.LoadChanged(load, paused, True))
            await self.loop.warm_up(self.loop.most_streams(load))

    async def stop(self) -> None:
        """End the managed server, if one runs; what would not end is said."""
        left = await self.engine.stop_async()
        if left:
            self._say(f"these processes of the server would not end: {', '.join(map(str, left))}", "error")

    async def close(self) -> None:
        """End the load process and the clients; the server is left to `engine.stop` or `engine.detach`."""
        await self.loop.close()
        await self.engine.close_api()
        if self._attached is not None:
            await self._attached.aclose()

    def _say(self, text: str, severity: str) -> None:
        self._emit(Notice(time.monotonic(), severity, text))
