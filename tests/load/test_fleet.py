"""Several load processes are one: each request is sent once, at its moment, and the counts are of all."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from load.sse_server import Script, SseServer, until

from tunetui.core.load import Load
from tunetui.core.sample import Outcome, Sample
from tunetui.core.workload import EpisodePlan, Material, Workload, parse_lengths, plan_episode
from tunetui.load.events import Batch, Died, Event, Exhausted, Started
from tunetui.load.fleet import Fleet, processes_for
from tunetui.load.generator import Target


@pytest.fixture
async def server() -> AsyncIterator[SseServer]:
    async with SseServer() as server:
        yield server


@asynccontextmanager
async def running(server: SseServer, size: int) -> AsyncIterator[tuple[Fleet, list[Event]]]:
    fleet, events = Fleet(size), []
    await fleet.start(Target(server.url, "m", Material(tuple(range(1000)))))

    async def read() -> None:
        async for event in fleet.events():
            events.append(event)

    reading = asyncio.create_task(read())
    try:
        yield fleet, events
    finally:
        await fleet.stop()
        await asyncio.wait_for(reading, 5)


def samples(events: list[Event]) -> list[Sample]:
    return [sample for event in events if isinstance(event, Batch) for sample in event.samples]


def plan(load: Load, size: int, seed: int = 0) -> EpisodePlan:
    return plan_episode(Workload(parse_lengths("8-64"), parse_lengths("3"), seed), load, 0, size)


async def test_an_open_loop_is_sent_once_and_on_time_by_all(server: SseServer) -> None:
    asked = plan(Load(200.0), 100)
    async with running(server, 3) as (fleet, events):
        await fleet.episode(asked, episode_id=1, prompt_seed=[1])
        await fleet.episode(plan(Load(200.0), 50, seed=1), episode_id=2, prompt_seed=[2])
        await until(lambda: len(samples(events)) == 150)
        ended = samples(events)
    first = sorted((s for s in ended if s.episode == 1), key=lambda s: s.index)
    assert [s.index for s in first] == list(range(100))
    assert [s.prompt_tokens for s in first] == list(asked.prompt_tokens)
    starts = [event for event in events if isinstance(event, Started)]
    assert [event.episode for event in starts] == [1, 2]
    assert np.allclose([s.scheduled_s for s in first], np.array(asked.arrivals_s) + starts[0].base_s)
    # The second begins where the first ends, whichever process has its last request.
    assert starts[1].base_s == pytest.approx(starts[0].base_s + asked.arrivals_s[-1])
    assert [event.episode for event in events if isinstance(event, Exhausted)] == [1, 2]
    assert np.median([s.sent_s - s.scheduled_s for s in ended if s.sent_s is not None]) < 0.02


async def test_prompts_are_the_same_however_many_processes_send_them(server: SseServer) -> None:
    for size in (1, 3):
        async with running(server, size) as (fleet, events):
            await fleet.episode(plan(Load(200.0), 20), episode_id=1, prompt_seed=[5])
            await until(lambda events=events: len(samples(events)) == 20)
    prompts = [tuple(served.body["prompt"]) for served in server.served]
    assert sorted(prompts[:20]) == sorted(prompts[20:])


async def test_a_closed_loop_keeps_its_streams_between_them(server: SseServer) -> None:
    server.script = lambda body: Script(first_delay_s=0.05)
    async with running(server, 2) as (fleet, events):
        await fleet.episode(plan(Load(concurrency=5), 60), episode_id=1, prompt_seed=[1])
        await until(lambda: len(samples(events)) == 60)
        most = max(event.in_flight for event in events if isinstance(event, Batch))
    assert server.most_open == most == 5


async def test_fewer_streams_than_processes_are_sent_by_so_many(server: SseServer) -> None:
    async with running(server, 3) as (fleet, events):
        await fleet.episode(plan(Load(concurrency=1), 4), episode_id=1, prompt_seed=[1])
        await until(lambda: len(samples(events)) == 4)
    assert server.most_open == 1
    assert [event.episode for event in events if isinstance(event, Exhausted)] == [1]


async def test_a_drain_counts_and_cancels_in_all(server: SseServer) -> None:
    server.script = lambda body: Script(fault="hang", fault_after=0)
    async with running(server, 2) as (fleet, events):
        await fleet.episode(plan(Load(concurrency=6), 20), episode_id=1, prompt_seed=[1])
        await until(lambda: len(server.served) == 6)
        assert await fleet.drain("none") == 6
        assert await fleet.drain("all") == 0
        await until(lambda: len(samples(events)) == 6)
    assert {sample.outcome for sample in samples(events)} == {Outcome.CANCELLED}


async def test_when_one_process_dies_the_load_has_died(server: SseServer) -> None:
    async with running(server, 2) as (fleet, events):
        assert fleet.pid is not None
        os.kill(fleet.pid, signal.SIGKILL)
        await until(lambda: any(isinstance(event, Died) for event in events))
        assert next(event.returncode for event in events if isinstance(event, Died)) == -signal.SIGKILL


def test_a_light_load_takes_one_process_and_a_heavy_one_at_most_half_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert [processes_for(10, 2_000), processes_for(10, 40_000), processes_for(1_200, 0)] == [1, 3, 3]
    assert processes_for(1e6, 1e9) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert processes_for(1e6, 1e9) == 1
