"""The load process as its parent sees it, against a scripted server: moments, episodes, drains and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from load.sse_server import Script, SseServer, until

from tunetui.core.load import Load
from tunetui.core.sample import Outcome, Sample
from tunetui.core.workload import EpisodePlan, Material
from tunetui.load.events import Batch, Died, Event, Exhausted, First, Refused, Sent, Started
from tunetui.load.generator import GeneratorGoneError, LoadGenerator, Target


class Parent:
    """A generator, and all that it has told."""

    def __init__(self) -> None:
        self.generator = LoadGenerator()
        self.events: list[Event] = []
        self.closed = False

    async def read(self) -> None:
        async for event in self.generator.events():
            self.events.append(event)
        self.closed = True

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def batches(self) -> list[Batch]:
        return self.of(Batch)

    @property
    def samples(self) -> list[Sample]:
        return [sample for batch in self.batches for sample in batch.samples]

    @property
    def sent(self) -> list[Sent]:
        return [sent for batch in self.batches for sent in batch.sent]

    @property
    def firsts(self) -> list[First]:
        return [first for batch in self.batches for first in batch.firsts]


@asynccontextmanager
async def running(server: SseServer, **options: Any) -> AsyncIterator[Parent]:
    parent = Parent()
    await parent.generator.start(Target(server.url, "m", Material(tuple(range(1000))), **options))
    reading = asyncio.create_task(parent.read())
    try:
        yield parent
    finally:
        await parent.generator.stop()
        await asyncio.wait_for(reading, 5)


@pytest.fixture
async def server() -> AsyncIterator[SseServer]:
    async with SseServer() as server:
        yield server


def open_plan(arrivals_s: list[float], prompt: int = 8, output: int = 4) -> EpisodePlan:
    size = len(arrivals_s)
    return EpisodePlan(Load(rate_rps=1), 0, size, tuple(arrivals_s), (prompt,) * size, (output,) * size)


def closed_plan(size: int, concurrency: int, prompt: int = 8, output: int = 4) -> EpisodePlan:
    return EpisodePlan(Load(concurrency=concurrency), 0, size, (), (prompt,) * size, (output,) * size)


async def test_arrivals_are_on_time_and_ttft_agrees_with_the_server(server: SseServer) -> None:
    server.script = lambda body: Script(first_delay_s=0.02, gap_s=0.01)
    arrivals_s = np.cumsum(np.random.default_rng(1).exponential(1 / 100, 200)).tolist()
    async with running(server) as parent:
        await parent.generator.episode(open_plan(arrivals_s, prompt=200, output=5), episode_id=7, prompt_seed=[3, 7])
        await until(lambda: len(parent.samples) == 200)
        [started] = parent.of(Started)
        assert started.episode == 7
        assert parent.of(Exhausted) == [Exhausted(7)]
    samples = sorted(parent.samples, key=lambda sample: sample.index)
    assert [sample.scheduled_s for sample in samples] == pytest.approx([started.base_s + a for a in arrivals_s])
    assert all(s.outcome is Outcome.OK and s.output_tokens == 5 and s.prompt_tokens == 200 for s in samples)
    assert sum(batch.tokens for batch in parent.batches) == 1000
    assert len(parent.sent) == len(parent.firsts) == 200
    lateness_ms = 1000 * np.array([sample.lateness_s for sample in samples])
    assert lateness_ms.min() >= 0
    assert np.percentile(lateness_ms, 95) < 5
    # The server logs what it did, in the order in which the requests came.
    by_prompt = {tuple(served.body["prompt"]): served for served in server.served}
    assert len(by_prompt) == 200
    truth_s = sorted(served.first_s - served.received_s for served in server.served if served.first_s)
    seen_s = [sample.ttft_s for sample in samples if sample.ttft_s is not None]
    print("lateness ms P50/P95/P99", np.percentile(lateness_ms, [50, 95, 99]).round(3))
    print("TTFT P95 ms: server", 1000 * np.percentile(truth_s, 95), "seen", 1000 * np.percentile(seen_s, 95))
    assert np.percentile(seen_s, 95) - np.percentile(truth_s, 95) < 0.008
    assert np.percentile(seen_s, 95) >= np.percentile(truth_s, 95) - 0.001


async def test_heartbeats_come_when_nothing_happens(server: SseServer) -> None:
    async with running(server) as parent:
        await until(lambda: len(parent.batches) >= 6)
    gaps_s = np.diff([batch.t_s for batch in parent.batches[:6]])
    assert 0.08 < np.median(gaps_s) < 0.15
    assert parent.closed
    assert parent.of(Died) == []


async def test_ttft_counts_from_the_schedule_when_the_server_accepts_slowly(server: SseServer) -> None:
    server.hold_reads = asyncio.Event()
    async with running(server) as parent:
        await parent.generator.episode(open_plan([0.0, 0.05, 0.1]), episode_id=1, prompt_seed=[1])
        await until(lambda: len(parent.sent) == 3)
        await until(lambda: time.monotonic() > parent.sent[0].scheduled_s + 0.4)
        server.hold_reads.set()
        await until(lambda: len(parent.samples) == 3)
        [started] = parent.of(Started)
    for sample in parent.samples:
        assert sample.ttft_s is not None
        assert sample.first_s is not None
        assert sample.ttft_s == pytest.approx(sample.first_s - started.base_s - (0.0, 0.05, 0.1)[sample.index])
        assert sample.ttft_s > 0.29


async def test_a_closed_loop_keeps_exactly_its_streams(server: SseServer) -> None:
    server.script = lambda body: Script(first_delay_s=0.01, gap_s=0.005)
    async with running(server) as parent:
        await parent.generator.episode(closed_plan(80, concurrency=8), episode_id=1, prompt_seed=[1])
        await until(lambda: len(parent.samples) == 80)
    assert server.most_open == 8
    assert server.connections == 8
    starts_s = np.sort([sample.sent_s for sample in parent.samples])
    ends_s = np.sort([sample.ended_s for sample in parent.samples])
    # The first 8 leave at once; then each end makes room for exactly one more, which leaves right away.
    assert starts_s[7] < ends_s[0]
    idle_s = starts_s[8:] - ends_s[:-8]
    assert idle_s.min() >= 0
    assert np.median(idle_s) < 0.005
    assert all(sample.scheduled_s == sample.sent_s for sample in parent.samples)


async def test_a_queued_closed_episode_goes_on_with_its_own_number_of_streams(server: SseServer) -> None:
    server.script = lambda body: Script(first_delay_s=0.02)
    async with running(server) as parent:
        await parent.generator.episode(closed_plan(12, concurrency=2), episode_id=1, prompt_seed=[1])
        await parent.generator.episode(closed_plan(24, concurrency=6), episode_id=2, prompt_seed=[2])
        await until(lambda: len(parent.samples) == 36)
        assert [event.episode for event in parent.of(Started)] == [1, 2]
    assert server.most_open == 6
    assert parent.of(Started)[1].base_s == pytest.approx(max(s.sent_s for s in parent.sent if s.episode == 1), abs=0.01)


async def test_a_queued_episode_follows_without_a_gap_and_the_last_queued_one_counts(server: SseServer) -> None:
    async with running(server) as parent:
        for episode_id in (1, 2, 3):  # 2 waits, then 3 takes its place
            await parent.generator.episode(
                open_plan([0.1, 0.2, 0.3], prompt=500), episode_id=episode_id, prompt_seed=[episode_id]
            )
        await until(lambda: len(parent.samples) == 6)
    first, second = parent.of(Started)
    assert (first.episode, second.episode) == (1, 3)
    assert second.base_s == pytest.approx(first.base_s + 0.3)
    assert max(s.sent_s - s.scheduled_s for s in parent.sent) < 0.02
    kinds = [(type(e), e.episode) for e in parent.events if isinstance(e, Started | Exhausted)]
    assert kinds == [(Started, 1), (Exhausted, 1), (Started, 3), (Exhausted, 3)]


async def test_equal_seeds_give_equal_prompts_and_others_fresh_ones(server: SseServer) -> None:
    async with running(server) as parent:
        for episode_id, seed in enumerate(([5, 1], [5, 1], [5, 2])):
            await parent.generator.episode(closed_plan(3, 1, prompt=30), episode_id=episode_id, prompt_seed=seed)
            await until(lambda: parent.of(Started) and parent.of(Started)[-1].episode == episode_id)  # noqa: B023
            await until(lambda: len(parent.of(Exhausted)) == len(parent.of(Started)) == len(parent.samples) / 3)
    prompts = [tuple(served.body["prompt"]) for served in server.served]
    assert prompts[0:3] == prompts[3:6]
    assert len(set(prompts)) == 6


async def test_a_drain_cancels_only_what_has_no_token(server: SseServer) -> None:
    # Odd requests answer at once and then hang, even ones never answer.
    server.script = lambda body: Script(fault="hang", fault_after=1 if body["max_tokens"] == 9 else 0)
    plan = EpisodePlan(Load(rate_rps=1), 0, 6, (0.0, 0.01, 0.02, 0.03, 0.04, 60.0), (8,) * 6, (3, 9, 3, 9, 3, 9))
    async with running(server) as parent:
        await parent.generator.episode(plan, episode_id=1, prompt_seed=[1])
        await parent.generator.episode(plan, episode_id=2, prompt_seed=[2])
        await until(lambda: len(parent.sent) == 5 and len(parent.firsts) == 2 and len(server.served) == 5)
        await until(lambda: (parent.batches[-1].in_flight, parent.batches[-1].awaiting) == (5, 3))
        assert await parent.generator.drain("unstarted") == 2
        await until(lambda: len(parent.samples) == 3)
        assert {(s.index, s.outcome, s.first_s) for s in parent.samples} == {
            (index, Outcome.CANCELLED, None) for index in (0, 2, 4)
        }
        await until(lambda: sum(s.disconnected_s is not None for s in server.served) == 3)
        assert {s.body["max_tokens"] for s in server.served if s.disconnected_s is None} == {9}
        assert await parent.generator.drain("none") == 2
        assert await parent.generator.drain("all") == 0
        await until(lambda: len(parent.samples) == 5)
        await until(lambda: all(s.disconnected_s is not None for s in server.served))
        # The dropped episodes do not come back, and a new one starts now.
        server.script = lambda body: Script()
        await parent.generator.episode(closed_plan(2, 1), episode_id=3, prompt_seed=[3])
        await until(lambda: len(parent.samples) == 7)
        assert [event.episode for event in parent.of(Started)] == [1, 3]


async def test_failures_are_samples_too(server: SseServer) -> None:
    server.script = lambda body: Script(fault="503")
    async with running(server) as parent:
        await parent.generator.episode(closed_plan(2, 1), episode_id=1, prompt_seed=[1])
        await until(lambda: len(parent.samples) == 2)
    assert parent.samples[0].outcome is Outcome.FAILED
    assert parent.samples[0].error.startswith("HTTP 503: the engine is asleep")


async def test_a_command_that_cannot_be_carried_out_is_answered(server: SseServer) -> None:
    async with running(server) as parent:
        await parent.generator.episode(open_plan([1.0, 0.5]), episode_id=4, prompt_seed=[1])
        await parent.generator._command(op="dance")
        await parent.generator._command(op="episode")
        await parent.generator.configure(Target("nowhere", "m", Material((1,))))
        await parent.generator.configure(Target(server.url, "m", Material()))
        await until(lambda: len(parent.of(Refused)) == 5)
        texts = [event.text for event in parent.of(Refused)]
        await parent.generator.episode(closed_plan(1, 1), episode_id=5, prompt_seed=[1])
        await until(lambda: len(parent.samples) == 1)
    for text, word in zip(texts, ["rising order", "dance", "mode", "nowhere", "no token ids"], strict=True):
        assert word in text


async def test_a_killed_process_is_told_with_what_it_wrote(server: SseServer) -> None:
    async with running(server) as parent:
        await until(lambda: parent.batches)
        parent.generator.kill()
        await until(lambda: parent.closed)
        parent.generator.kill()
        with pytest.raises(GeneratorGoneError):
            await parent.generator.drain("all")
        with pytest.raises(GeneratorGoneError):
            await parent.generator.episode(closed_plan(1, 1), episode_id=1, prompt_seed=[1])
    [died] = parent.of(Died)
    assert (died.returncode, parent.events[-1]) == (-signal.SIGKILL, died)


async def test_a_drain_that_the_process_cannot_answer_is_an_error(server: SseServer) -> None:
    async with running(server) as parent:
        assert parent.generator.pid is not None
        os.kill(parent.generator.pid, signal.SIGSTOP)
        draining = asyncio.create_task(parent.generator.drain("all"))
        await until(lambda: parent.generator._drains)
        parent.generator.kill()
        with pytest.raises(GeneratorGoneError):
            await draining


async def test_stop_ends_a_process_that_hangs(server: SseServer) -> None:
    async with running(server) as parent:
        assert parent.generator.pid is not None
        os.kill(parent.generator.pid, signal.SIGSTOP)
        before_s = time.monotonic()
        await parent.generator.stop()
        assert 1.5 < time.monotonic() - before_s < 4
    assert parent.of(Died) == []
    assert parent.closed


async def test_what_exceeds_the_cap_is_dropped_and_is_a_failure(server: SseServer) -> None:
    server.script = lambda body: Script(first_delay_s=0.5)
    async with running(server) as parent:
        plan = open_plan([0.0, 0.01, 0.02, 0.03, 0.8])
        await parent.generator.episode(plan, episode_id=1, prompt_seed=[1], max_in_flight=2)
        await until(lambda: len(parent.samples) == 5)
    ended = {sample.index: sample for sample in parent.samples}
    assert [ended[i].outcome for i in range(5)] == [Outcome.OK] * 2 + [Outcome.FAILED] * 2 + [Outcome.OK]
    assert ended[2].error == "dropped: 2 requests were in flight"
    assert ended[2].sent_s is None
    assert len(server.served) == 3


async def test_prompts_share_the_blocks_of_the_plan_and_texts_are_sent(server: SseServer) -> None:
    plan = replace(open_plan([0.0, 0.01], prompt=32), block_tokens=16, blocks=((1, 2), (1, 3)))
    async with running(server) as parent:
        await parent.generator.episode(plan, episode_id=1, prompt_seed=[1])
        await until(lambda: len(parent.samples) == 2)
        texts = replace(open_plan([0.0, 0.01]), texts=("why?", (("system", "be brief"), ("user", "how?"))))
        await parent.generator.episode(texts, episode_id=2, prompt_seed=[1])
        await until(lambda: len(parent.samples) == 4)
    first, second, text, turns = (served.body["prompt"] for served in server.served)
    assert first[:16] == second[:16]
    assert first[16:] != second[16:]
    assert (text, turns) == ("why?", "be brief\n\nhow?")


async def test_a_chat_is_posted_to_its_own_address(server: SseServer) -> None:
    async with running(server, chat=True) as parent:
        await until(lambda: parent.batches)
        material = Material(words=("one", "two"), tokens_per_word=1.0)
        await parent.generator.configure(Target(server.url, "m", material, chat=True))
        await parent.generator.episode(open_plan([0.0], prompt=6), episode_id=1, prompt_seed=[1])
        await until(lambda: parent.samples)
    assert server.served[0].path == "/v1/chat/completions"
    assert len(server.served[0].body["messages"][0]["content"].split()) == 6
    assert parent.samples[0].outcome is Outcome.OK


@pytest.mark.parametrize("end", ["eof", "quit"])
def test_the_process_ends_with_its_parent_whatever_is_in_flight(end: str) -> None:
    hanging = subprocess.Popen(
        [sys.executable, "-c", "import socket,time\ns=socket.create_server(('127.0.0.1',0))\n"
         "print(s.getsockname()[1],flush=True)\ntime.sleep(60)"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-m", "tunetui.load.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert hanging.stdout is not None
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        url = f"http://127.0.0.1:{hanging.stdout.readline().strip()}"
        episode = {"op": "episode", "id": 1, "mode": "closed", "concurrency": 4, "prompt_seed": [1]}
        for command in (
            {"op": "configure", **asdict(Target(url, "m", Material((1, 2))))},
            episode | {"prompt_tokens": [4] * 9, "output_tokens": [4] * 9},
        ):
            child.stdin.write(json.dumps(command) + "\n")
        child.stdin.flush()
        assert any(json.loads(child.stdout.readline()).get("in_flight") == 4 for _ in range(50))
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGHUP)
        json.loads(child.stdout.readline())
        assert json.loads(child.stdout.readline())["in_flight"] == 4
        before_s = time.monotonic()
        if end == "eof":
            child.stdin.close()
        else:
            child.stdin.write('{"op":"quit"}\n')
            child.stdin.flush()
        rows = [row for line in child.stdout for row in json.loads(line)["samples"]]
        assert child.wait(5) == 0
        assert time.monotonic() - before_s < 1
        assert [row[8] for row in rows] == ["cancelled"] * 4
    finally:
        for process in (child, hanging):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
