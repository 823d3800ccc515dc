"""Keeps the load going: spawns the load process, warms up, hands it episode after episode, stops and starts it.

It knows no knobs; the driver says when an episode belongs to another point.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import Literal

from tunetui.core.episode import Measurement
from tunetui.core.slo import Verdict
from tunetui.core.workload import EpisodePlan, Load, plan_episode, turnover
from tunetui.drive.meter import Meter
from tunetui.drive.settings import Settings
from tunetui.engine.server_api import ServerApi
from tunetui.load.events import Batch, Died, Exhausted, Refused, Started
from tunetui.load.generator import GeneratorGoneError, LoadGenerator

WARM_UP_BATCH = 16
WARM_UP_LIMIT_S = 90.0


class LoadLoop:
    """The load of one session. `load` may be set between episodes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.load: Load = settings.load
        self.meter = Meter(settings.slo)
        self.died = ""
        self._generator: LoadGenerator | None = None
        self._pump: asyncio.Task[None] | None = None
        self._number = 0
        self._queued: int | None = None
        self._cuts: dict[Load, int] = {}
        self._mean_e2el_s = 0.0
        # Prompts are fresh in every session too, for an attached server's cache outlives us.
        self._salt = int.from_bytes(os.urandom(4), "little")
        self._lock = asyncio.Lock()
        self._sending = False

    async def point_at(self, url: str, model: str, api: ServerApi) -> None:
        """Have a load process that sends to `url`, with token ids that are valid there. Raises ApiError."""
        token_ids = await api.prompt_token_ids(model)
        if self._generator is not None and not self.died:
            await self._generator.configure(url=url, model=model, token_ids=token_ids)
            return
        self.died = ""
        self.meter.reset()
        self._generator = LoadGenerator()
        await self._generator.start(url=url, model=model, token_ids=token_ids)
        self._pump = asyncio.create_task(self._pumping(self._generator))

    async def _pumping(self, generator: LoadGenerator) -> None:
        async for event in generator.events():
            match event:
                case Started(episode=number):
                    self.meter.started(number)
                case Exhausted(episode=number):
                    self.meter.exhausted.add(number)
                case Batch():
                    self.meter.took(event)
                case Refused(text=text):
                    self.meter.last_error = text
                case Died(returncode=code, stderr_tail=tail):
                    self.died = tail[-1] if tail else f"exit code {code}"

    def most_streams(self, load: Load) -> int:
        return load.concurrency or WARM_UP_BATCH

    async def warm_up(self, max_num_seqs: int) -> None:
        """Batches of requests until one is no faster than the one before by 15 %: the engine is warm then.

        The mean E2EL of the last batch fixes the cut of the episodes to come.
        """
        streams = max(1, min(WARM_UP_BATCH, max_num_seqs))
        began_s, before_s = time.monotonic(), float("inf")
        while time.monotonic() - began_s < WARM_UP_LIMIT_S and not self.died:
            plan = plan_episode(self._settings.workload, Load(concurrency=streams), 0, streams)
            took_s = await self._one_batch(plan)
            if took_s > 0.85 * before_s:
                break
            before_s = min(before_s, took_s)
        self.meter.errors, self.meter.last_error = 0, ""

    async def _one_batch(self, plan: EpisodePlan) -> float:
        began_s = time.monotonic()
        self.meter.reset()
        await self._send(plan)
        while not (done := self.meter.completed(time.monotonic())):
            if self.died or time.monotonic() - began_s > WARM_UP_LIMIT_S:
                break
            await asyncio.sleep(0.02)
        if done and done[-1].mean_e2el_s:
            self._mean_e2el_s = done[-1].mean_e2el_s
        return time.monotonic() - began_s

    def plan(self) -> EpisodePlan:
        """The episode of the present load; its cut is fixed the first time this load is used."""
        counted = self._settings.episode_requests
        cut = self._cuts.setdefault(self.load, turnover(self.load, self._mean_e2el_s, counted))
        return plan_episode(self._settings.workload, self.load, cut, counted)

    async def begin(self) -> None:
        """Start the episode now; whatever was under way no longer counts."""
        async with self._lock:
            self.meter.reset()
            self._queued, self._sending = None, True
            await self._send(self.plan())

    def hold(self) -> None:
        """What is under way belongs to the point before: it no longer counts, and nothing follows until `begin`."""
        self._sending = False
        self.meter.reset()

    async def _send(self, plan: EpisodePlan) -> int:
        assert self._generator is not None
        self._number += 1
        self.meter.expect(self._number, plan)
        await self._generator.episode(
            plan, episode_id=self._number, prompt_seed=(self._settings.workload.seed, self._salt, self._number)
        )
        return self._number

    async def drain(self, cancel: Literal["unstarted", "all"]) -> None:
        """Stop arrivals; cancel requests without a token ("unstarted") or all."""
        async with self._lock:
            self._queued = None
            if self._generator is not None and not self.died:
                with suppress(GeneratorGoneError):  # it died meanwhile: nothing is in flight then
                    await self._generator.drain(cancel)

    async def go_on(self, now_s: float) -> None:
        """Called every tick: queue the next episode, or start over where a backlog has built up."""
        newest = self.meter.newest
        if newest is None or not self._sending or self.died or self._lock.locked():
            return
        crowded = self.load.open_loop and self.meter.awaiting > max(32, self._settings.episode_requests // 4)
        if newest not in self.meter.exhausted:
            if self._queued != newest and not crowded:
                async with self._lock:
                    await self._send(self.plan())
                    self._queued = newest
            return
        measurement = self.measurement(now_s)
        if self._queued != newest and measurement is not None:
            decided = measurement.verdict is not Verdict.UNDECIDED or measurement.complete
            if decided or not crowded:
                await self.drain("unstarted")
                await self.begin()

    def measurement(self, now_s: float) -> Measurement | None:
        """The shown episode as it stands, or None where none has begun."""
        shown = self.meter.shown
        return shown.measure(now_s) if shown is not None else None

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._pump
        if self._generator is not None:
            await self._generator.stop()

    def kill(self) -> None:
        """End the load process; plain, for use after the event loop has ended."""
        if self._generator is not None:
            self._generator.kill()
