"""Several load processes that act as one: each sends every n-th request of an episode, at the same moments.

It has the methods and events of one LoadGenerator; a load that one process can carry is carried by one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from tunetui.core.workload import EpisodePlan
from tunetui.load.events import Batch, Died, Event, Exhausted, Started
from tunetui.load.generator import LEAD_S, Cancel, LoadGenerator, Share, Target

TOKENS_PER_S = 15_000  # of one process, at which it takes less than half of a core
REQUESTS_PER_S = 500
STREAM_TOKENS_PER_S = 50  # a guess for a closed loop, whose rate nobody knows before


def processes_for(requests_per_s: float, tokens_per_s: float) -> int:
    """How many processes carry this much, on at most half of this process's cores."""
    needed = max(requests_per_s / REQUESTS_PER_S, tokens_per_s / TOKENS_PER_S)
    return max(1, min(-int(-needed // 1), len(os.sched_getaffinity(0)) // 2))


class Fleet:
    """`size` load processes. Call `start` first; `events` has one reader."""

    def __init__(self, size: int = 1) -> None:
        self._generators = [LoadGenerator() for _ in range(size)]
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._pumps: list[asyncio.Task[None]] = []
        self._batches: dict[int, Batch] = {}  # the newest of each process
        self._sending: dict[int, set[int]] = {}  # episode: the processes that have not sent all of their share
        self._started: set[int] = set()

    @property
    def pid(self) -> int | None:
        return self._generators[0].pid

    @property
    def size(self) -> int:
        return len(self._generators)

    async def start(self, target: Target) -> None:
        """Start the processes and point them at `target`. Raises GeneratorGoneError if one does not come up."""
        try:
            await asyncio.gather(*(generator.start(target) for generator in self._generators))
        except BaseException:
            await self.stop()
            raise
        self._pumps = [asyncio.create_task(self._pump(i)) for i in range(self.size)]

    async def configure(self, target: Target) -> None:
        for generator in self._generators:
            await generator.configure(target)

    async def episode(
        self, plan: EpisodePlan, *, episode_id: int, prompt_seed: Sequence[int], max_in_flight: int | None = None
    ) -> None:
        """As LoadGenerator.episode; where there are fewer streams or requests than processes, some get none."""
        count = min(self.size, plan.size, plan.load.concurrency or plan.size, max_in_flight or plan.size)
        base_s = time.monotonic() + LEAD_S
        self._sending[episode_id] = set(range(count))
        for i in range(count):
            await self._generators[i].episode(
                plan, episode_id=episode_id, prompt_seed=prompt_seed, share=Share(i, count, base_s),
                max_in_flight=max_in_flight,
            )  # fmt: skip

    async def drain(self, cancel: Cancel) -> int:
        self._sending.clear()
        return sum(await asyncio.gather(*(generator.drain(cancel) for generator in self._generators)))

    async def events(self) -> AsyncIterator[Event]:
        """As of one process: an episode starts once, is exhausted once, and batches count the streams of all."""
        while (event := await self._events.get()) is not None:
            yield event

    async def stop(self) -> None:
        await asyncio.gather(*(generator.stop() for generator in self._generators))

    def kill(self) -> None:
        for generator in self._generators:
            generator.kill()

    async def _pump(self, i: int) -> None:
        async for event in self._generators[i].events():
            if (merged := self._merged(i, event)) is not None:
                self._events.put_nowait(merged)
            if isinstance(event, Died):  # a part of the load is none
                self.kill()
        if all(pump.done() or pump is asyncio.current_task() for pump in self._pumps):
            self._events.put_nowait(None)

    def _merged(self, i: int, event: Event) -> Event | None:
        match event:
            case Started(episode=number):
                if number in self._started:
                    return None
                self._started.add(number)
            case Exhausted(episode=number):
                sending = self._sending.get(number, set())
                sending.discard(i)
                if sending:
                    return None
                self._sending.pop(number, None)
                self._started.discard(number)
            case Batch():
                self._batches[i] = event
                newest = self._batches.values()
                return replace(
                    event, in_flight=sum(b.in_flight for b in newest), awaiting=sum(b.awaiting for b in newest)
                )
        return event
