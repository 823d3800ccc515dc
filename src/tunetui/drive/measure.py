"""One measurement without a screen: warm up, send one long episode, watch it to its end.

It starts no server, steps no knob and prints nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tunetui.core import summary
from tunetui.core.episode import Episode, Measurement
from tunetui.core.lengths import ByLength
from tunetui.core.load import Load
from tunetui.core.point_statistics import Distribution, Statement
from tunetui.core.session import EngineView
from tunetui.core.slo import Metric
from tunetui.core.workload import features
from tunetui.drive.loop import LoadLoop
from tunetui.drive.observe import EngineObserver
from tunetui.drive.settings import Settings
from tunetui.engine.metrics import MetricsError
from tunetui.engine.server_api import ApiError, ServerApi

TICK_S, FAST_TICK_S = 0.5, 0.05  # the second while it is being ended
LOOK_S = 2.0  # between looks at the server's metrics, which cost it time too
HIT_RATE_MARGIN = 0.02  # a prefix hit rate this much above the workload's own marks the measurement
IDLE_WAIT_S = 60.0


class MeasureError(Exception):
    """The measurement could not be carried out; the message is one sentence."""


class NothingDueError(Exception):
    """No request was due in the time asked for; the message is one sentence."""


class InterruptedMeasurement(Exception):
    """It was ended before any request had been sent."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a measurement stands, for whoever shows it. `what` is empty while the episode runs."""

    what: str
    judged: int
    total: int
    in_flight: int
    errors: int


@dataclass(frozen=True, slots=True)
class Result:
    """What one measurement saw. `interrupted`: it was ended before its time, and says what it had."""

    load: Load
    episode: Episode
    seen: Measurement
    statement: Statement
    distributions: tuple[Distribution, ...]
    by_length: ByLength
    utilization: float | None
    prefix_hit_rate: float | None
    marks: tuple[str, ...]
    base_s: float
    date: float
    interrupted: bool = False

    @property
    def answered(self) -> int:
        """How many requests ended well."""
        return self.seen.judged - self.seen.failed

    def as_data(self, settings: Settings) -> dict[str, Any]:
        """The measurement as JSON holds it."""
        load = self.load
        return {
            "date": time.strftime("%Y%m%d-%H%M%S", time.localtime(self.date)),
            "backend": "vllm",
            "endpoint_type": "openai-chat" if settings.workload.chat else "openai",
            "model_id": settings.model,
            **({"simulated": True} if settings.simulated else {}),
            "request_rate": load.rate_rps if load.rate_rps is not None else "trace" if load.speed else "inf",
            "burstiness": load.burstiness,
            "max_concurrency": load.concurrency,
            "load": str(load),
            "workload": str(settings.workload),
            "seed": settings.workload.seed,
            **summary.figures(self.episode, self.seen, settings.slo),
            **summary.judgement(self.seen, self.statement, settings.slo),
            "prefix_hit_rate": self.prefix_hit_rate,
            "utilization_at_most": self.utilization,
            "two_modes": {d.metric.value: d.modes.words for d in self.distributions if d.modes is not None},
            "blocked_short_prompts": self.by_length.finding,
            "marks": list(self.marks),
            "interrupted": self.interrupted,
            "features": features(self.episode.plan),
        }


class Measuring:
    """Measures one server, once or at several loads. Close it with `close`."""

    def __init__(self, settings: Settings, api: ServerApi, show: Callable[[Progress], None]) -> None:
        self._settings = settings
        self._api = api
        self._show = show
        self._loop = LoadLoop(settings)
        self._observer = EngineObserver()
        self._view = EngineView()
        self._next_look_s = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    def interrupt(self) -> None:
        """End the measurement under way with what it has."""
        self._stop.set()

    async def start(self, warm: bool) -> None:
        """Have a load process, and the engine warm.

        Raises ApiError, GeneratorGoneError, MeasureError or InterruptedMeasurement.
        """
        await self._loop.point_at(self._settings.url, self._settings.model, self._api)
        if warm:
            self._show(Progress("warming up", 0, 0, 0, 0))
            await self._unless_stopped(self._loop.warm_up(self._loop.most_streams(self._loop.load)))
            self._raise_if_gone()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work`; an interrupt ends it at once. Raises InterruptedMeasurement."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not working.done():
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
            raise InterruptedMeasurement
        await working

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await self._loop.close()

    async def measure(self, load: Load, requests: int, seconds: float | None = None) -> Result:
        """One episode of `load`: `requests` to their end, or what `seconds` of arrivals hold.

        Raises MeasureError, NothingDueError or InterruptedMeasurement.

        What the load before left behind is cancelled, and the server given time to become idle.
        """
        loop, meter = self._loop, self._loop.meter
        loop.load, loop.episode_requests = load, requests
        await loop.drain("all")
        await self._unless_stopped(self._wait_until_idle())
        await self._unless_stopped(self._observer.mark(self._api))
        date, ends_s = time.time(), time.monotonic() + (seconds if seconds is not None else float("inf"))
        await loop.begin()
        stopped_s: float | None = None
        while (episode := meter.shown) is None or episode.ended_s is None:
            await self._tick()
            if self._stop.is_set() or (stopped_s is None and time.monotonic() >= ends_s):
                await loop.drain("all" if self._stop.is_set() else "none")
                stopped_s = stopped_s or time.monotonic()
            if stopped_s is not None and meter.heard_s > stopped_s and not meter.in_flight:
                break
        await self._end_look()
        if episode is None or not episode.requests.known:
            if self._stop.is_set():
                raise InterruptedMeasurement
            raise NothingDueError(f"no request was due within {seconds or 0:g} s: raise --seconds or the rate")
        episode.close_at(episode.requests.known, cut_short=self._stop.is_set())  # no more were sent
        result = self._result(load, episode, date)
        loop.hold()
        return result

    async def _tick(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), TICK_S)
            await asyncio.sleep(FAST_TICK_S)
        self._raise_if_gone()
        loop, meter = self._loop, self._loop.meter
        if time.monotonic() >= self._next_look_s and (self._looking is None or self._looking.done()):
            # Beside the load: a server that is slow to answer this holds up nothing.
            self._next_look_s = time.monotonic() + LOOK_S
            self._looking = asyncio.create_task(self._look_while_it_runs())
        shown = meter.shown
        ended, total = (shown.requests.ended, shown.plan.size) if shown is not None else (0, loop.episode_requests)
        self._show(Progress("", ended, total, meter.in_flight, meter.errors))

    async def _end_look(self) -> None:
        """A last look, for which a server that does not answer is not waited for."""
        if self._looking is not None and not self._looking.done():
            self._looking.cancel()
        elif not self._observer.unanswered and not self._stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look(), LOOK_S)

    async def _look(self) -> None:
        self._view = await self._observer.view(self._view, self._api, None, None)

    async def _look_while_it_runs(self) -> None:
        """Ask the server how busy it is. Not after the end: an idle engine would make it look less busy than it was."""
        await self._look()
        if not self._observer.unanswered:
            self._loop.meter.utilization.add(self._view.running, self._view.kv_usage)

    def _raise_if_gone(self) -> None:
        self._loop.check()
        if self._loop.died:
            raise MeasureError(f"the load process ended: {self._loop.died}")

    async def _wait_until_idle(self) -> None:
        """Until nothing runs or waits, as far as the server says; a minute at most."""
        deadline_s = time.monotonic() + IDLE_WAIT_S
        while time.monotonic() < deadline_s and not self._stop.is_set():
            try:
                gauges = await self._api.gauges()
            except (ApiError, MetricsError):
                return
            if not gauges.running and not gauges.waiting:
                return
            self._show(Progress("waiting until the server is idle", 0, 0, gauges.running or 0, 0))
            await asyncio.sleep(TICK_S)

    def _result(self, load: Load, episode: Episode, date: float) -> Result:
        meter = self._loop.meter
        seen = meter.measurement(time.monotonic())
        assert seen is not None
        utilization = meter.utilization.mean if load.open_loop and not self._observer.unanswered else None
        shared = float(features(episode.plan).get("shared_prefix_share", 0))
        hit_rate = self._view.prefix_hit_rate
        marks = [seen.suspect] if seen.suspect else []
        if hit_rate is not None and hit_rate > shared + HIT_RATE_MARGIN:
            marks.append(
                f"the prefix cache answered {hit_rate:.0%} of the prompt tokens, the workload shares {shared:.0%}"
            )
        scheduled = episode.requests.scheduled_s
        return Result(
            load=load,
            episode=episode,
            seen=seen,
            statement=meter.statistics.look(utilization),
            distributions=tuple(meter.statistics.distribution(metric) for metric in (Metric.TTFT, Metric.TPOT)),
            by_length=meter.statistics.by_length(),
            utilization=utilization,
            prefix_hit_rate=hit_rate,
            marks=tuple(marks),
            base_s=float(scheduled[0]),
            date=date,
            interrupted=self._stop.is_set(),
        )
