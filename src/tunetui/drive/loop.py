"""Keeps the load going: spawns the load process, warms up, hands it episode after episode, stops and starts it.

It knows no knobs; the driver says when an episode belongs to another point.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import replace
from statistics import fmean

from tunetui.core.edge import Trial
from tunetui.core.episode import Measurement
from tunetui.core.load import Load
from tunetui.core.slo import Verdict
from tunetui.core.workload import EpisodePlan, plan_episode, turnover
from tunetui.drive.meter import Meter
from tunetui.drive.settings import Settings
from tunetui.engine.server_api import ServerApi
from tunetui.load.events import Batch, Died, Event, Exhausted, Refused, Started
from tunetui.load.fleet import STREAM_TOKENS_PER_S, Fleet, processes_for
from tunetui.load.generator import Cancel, GeneratorGoneError, Target

WARM_UP_BATCH = 16
WARM_UP_TOKENS = 48  # of an answer: a longer one warms nothing more
WARM_UP_LIMIT_S = 90.0
DRAIN_S = 5.0  # a drain is answered in milliseconds
SILENT_ROUNDS = 20  # half seconds without a report, of which there are ten a second
START_ROUNDS = 60  # and the more of them while it starts


class LoadLoop:
    """The load of one session. `load` may be set between episodes; `died` says why the load process is gone."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.load: Load = settings.load
        self.trial: Trial | None = None
        self.episode_requests = settings.episode_requests
        self.meter = Meter(settings.slo)
        self.died = ""
        self._target: Target | None = None
        self._generator: Fleet | None = None
        self._pump: asyncio.Task[None] | None = None
        self._number = 0
        self._queued: int | None = None
        self._cuts: dict[Load, int] = {}
        self._mean_e2el_s = 0.0
        # Prompts are fresh in every session too, for an attached server's cache outlives us.
        self._salt = int.from_bytes(os.urandom(4), "little")
        self._lock = asyncio.Lock()
        self._sending = False
        self._heard = False
        self._silent = 0

    @property
    def sending(self) -> bool:
        """Whether episodes are being sent and counted: from `begin` to `hold`; not while warming up."""
        return self._sending

    @property
    def pid(self) -> int | None:
        """The load process."""
        return self._generator.pid if self._generator is not None else None

    @property
    def processes(self) -> int:
        """How many load processes there are."""
        return self._generator.size if self._generator is not None else 0

    # -- the load process -----------------------------------------------------------------------------------------

    async def point_at(self, url: str, model: str, api: ServerApi) -> None:
        """Have a load process that sends to `url`, with token ids that are valid there; drain before.

        Raises ApiError, and GeneratorGoneError where there is no load process to be had.
        """
        settings = self._settings
        material = await api.prompt_material(model, settings.workload.chat)
        self._target = target = Target(
            url, model, material, settings.workload.chat, settings.timeout_s, settings.retries
        )
        if self._generator is not None and not self.died:
            with suppress(GeneratorGoneError):
                await self._generator.configure(target)
                return
            self._lost("it ended")
        await self.revive()

    async def revive(self) -> None:
        """Start a load process where there is none. Nothing is sent by it until `begin`. Raises GeneratorGoneError."""
        async with self._lock:
            if self._target is not None and (self._generator is None or self.died):
                await self._start_processes(self._target)

    async def _start_processes(self, target: Target) -> None:
        """As many as the present load takes, in the place of those that there are. Raises GeneratorGoneError."""
        await self._end_process()
        self._silent = -START_ROUNDS
        self._generator = Fleet(self._processes())
        await self._generator.start(target)
        self.died = ""
        self._pump = asyncio.create_task(self._pumping(self._generator))

    async def _spread(self) -> None:
        """More processes, where the load has grown beyond what those that there are can carry."""
        if self._target is None or self._generator is None or self.died:
            return
        if self._processes() > self._generator.size:
            try:
                await self._start_processes(self._target)
            except GeneratorGoneError as error:
                self._lost(str(error))

    def _processes(self) -> int:
        """How many load processes the present load takes."""
        workload, load = self._settings.workload, self.load
        if load.concurrency is not None:
            return processes_for(0, load.concurrency * STREAM_TOKENS_PER_S)
        trace = workload.trace
        rate = load.mean_rps(trace.mean_rps if trace is not None else None) or 0.0
        return processes_for(rate, rate * workload.mean_output_tokens)

    async def _end_process(self) -> None:
        """End the load process that there is, and the reading of it."""
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._pump
        if self._generator is not None:
            await self._generator.stop()

    async def _pumping(self, generator: Fleet) -> None:
        try:
            async for event in generator.events():
                self._take(event)
        except Exception as error:  # figures that stand still must not look like figures
            self._lost(f"its report could not be read: {error!r}")

    def _take(self, event: Event) -> None:
        match event:
            case Started(episode=number):
                self.meter.started(number)
            case Exhausted(episode=number):
                self.meter.exhausted.add(number)
            case Batch():
                self._heard = True
                self.meter.took(event)
            case Refused(text=text):
                self.meter.last_error = text
            case Died(returncode=code, stderr_tail=tail):
                self._lost(tail[-1] if tail else f"exit code {code}")

    def _lost(self, why: str) -> None:
        """The load process is of no more use: nothing is in flight."""
        self.died = self.died or why
        self.meter.in_flight = self.meter.awaiting = 0
        if self._generator is not None:
            self._generator.kill()

    def check(self) -> None:
        """Called every half second: a load process that is there and reports nothing is hung, and is killed."""
        if self._generator is None or self.died:
            return
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        if self._silent >= SILENT_ROUNDS:
            self._lost(f"it reported nothing for {SILENT_ROUNDS / 2:g} s")

    async def close(self) -> None:
        await self._end_process()

    def kill(self) -> None:
        """End the load process; plain, for use after the event loop has ended."""
        if self._generator is not None:
            self._generator.kill()

    # -- warming up -----------------------------------------------------------------------------------------------

    @property
    def mean_e2el_s(self) -> float:
        """What the last warm-up lets expect; 0 before it."""
        return self._mean_e2el_s

    def most_streams(self, load: Load) -> int:
        return load.concurrency or WARM_UP_BATCH

    async def warm_up(self, max_num_seqs: int) -> None:
        """Batches of requests until one is no faster than the one before by 15 %: the engine is warm then.

        The mean E2EL that the last batch lets expect fixes the cut of the episodes to come.
        """
        streams = max(1, min(WARM_UP_BATCH, max_num_seqs))
        began_s, before_s = time.monotonic(), float("inf")
        while time.monotonic() - began_s < WARM_UP_LIMIT_S and not self.died:
            took_s = await self._one_batch(plan_episode(self._settings.workload, Load(concurrency=streams), 0, streams))
            if took_s > 0.85 * before_s:
                break
            before_s = min(before_s, took_s)
        self.meter.reset()
        self.meter.errors, self.meter.last_error = 0, ""

    async def _one_batch(self, plan: EpisodePlan) -> float:
        """The requests of `plan` with short answers; returns the seconds they took."""
        began_s = time.monotonic()
        self.meter.reset()
        await self._send(replace(plan, output_tokens=tuple(min(n, WARM_UP_TOKENS) for n in plan.output_tokens)))
        while not (done := self.meter.completed(time.monotonic())):
            if self.died or time.monotonic() - began_s > WARM_UP_LIMIT_S:
                break
            await asyncio.sleep(0.02)
        if done and done[-1].mean_e2el_s:
            longer = fmean(max(tokens - WARM_UP_TOKENS, 0) for tokens in plan.output_tokens)
            mean_tpot_s = self.meter.shown.mean_tpot_s if self.meter.shown is not None else 0.0
            self._mean_e2el_s = done[-1].mean_e2el_s + longer * mean_tpot_s
        return time.monotonic() - began_s

    # -- episodes -------------------------------------------------------------------------------------------------

    def plan(self) -> EpisodePlan:
        """The episode of the present load; its cut is fixed the first time this load is used. A trial says its own."""
        if (trial := self.trial) is not None:
            workload = replace(self._settings.workload, seed=self._settings.workload.seed + trial.seed)
            return plan_episode(workload, trial.load, trial.cut, trial.requests)
        counted = self.episode_requests
        cut = self._settings.cut
        if cut is None:
            cut = self._cuts.setdefault(self.load, turnover(self.load, self._mean_e2el_s, counted))
        return plan_episode(self._settings.workload, self.load, cut, counted)

    async def begin(self) -> None:
        """Start the episode now; whatever was under way no longer counts. Without a load process `revive` must follow,
        and `begin` again."""
        async with self._lock:
            self._sending = True
            await self._begin()

    async def _begin(self) -> None:
        self.meter.reset()
        await self._drain("unstarted")  # an episode that is still being sent would go on before this one
        await self._spread()
        if not self._sending:  # a step came meanwhile
            return
        self.meter.reset()
        await self._send(self.plan())

    def hold(self) -> None:
        """What is under way belongs to the point before: it no longer counts, and nothing follows until `begin`."""
        self._sending = False
        self.meter.reset()

    async def _send(self, plan: EpisodePlan) -> None:
        if self._generator is None or self.died:
            return
        self._number += 1
        self.meter.expect(self._number, plan)
        seed = (self._settings.workload.seed, self._salt, self._number)
        with suppress(GeneratorGoneError):  # `died` says so in a moment
            await self._generator.episode(
                plan, episode_id=self._number, prompt_seed=seed, max_in_flight=self._settings.max_in_flight
            )

    async def drain(self, cancel: Cancel) -> None:
        """Stop arrivals; cancel requests without a token ("unstarted"), all or none. A process that does not answer
        dies."""
        async with self._lock:
            await self._drain(cancel)

    async def _drain(self, cancel: Cancel) -> None:
        self._queued = None
        if self._generator is None or self.died:
            return
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._generator.drain(cancel)
        except GeneratorGoneError:  # it died meanwhile: nothing is in flight then
            pass
        except TimeoutError:
            self._lost(f"it did not answer within {DRAIN_S:g} s")

    async def go_on(self, now_s: float) -> None:
        """Called every tick: hand over the next episode, or start over where a backlog has built up.

        A backlog is cancelled once the verdict on an episode that has been sent is certain: it holds whatever comes.
        """
        newest = self.meter.newest
        if newest is None or not self._sending or self.died or self._lock.locked():
            return
        async with self._lock:  # at once, for it is free: a step that comes meanwhile waits for it, and then drains
            if not (self.load.open_loop and self.meter.awaiting > max(32, self.episode_requests // 4)):
                if self._queued != newest:
                    self._queued = newest
                    await self._send(self.plan())
                return
            shown = self.measurement(now_s)
            if self.trial is not None or shown is None or shown.episode not in self.meter.exhausted:
                return  # whoever asked for a trial says when it is over
            if shown.verdict is not Verdict.UNDECIDED or shown.complete:
                self.meter.reset()  # the cancelled requests are nobody's
                await self._begin()

    def measurement(self, now_s: float) -> Measurement | None:
        """The shown episode as it stands, or None where none is being counted."""
        return self.meter.measurement(now_s) if self._sending else None
