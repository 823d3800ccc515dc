"""A real vLLM without a screen: caches reset, generation paused, and sleep, while blocks are held; and `measure`.

Needs TUNETUI_TEST_VLLM; see the README.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tunetui.core.knobs import EngineFacts, Knob, Point
from tunetui.core.load import Load
from tunetui.core.slo import parse_slo
from tunetui.core.workload import Workload, parse_lengths
from tunetui.drive.engine import ManagedEngine
from tunetui.drive.settings import Settings
from tunetui.engine.command import VllmCommand, read_flags
from tunetui.engine.control import LiveControl
from tunetui.engine.metrics import EngineGauges
from tunetui.engine.process import pick_port
from tunetui.engine.server_api import ServerApi

VLLM = os.environ.get("TUNETUI_TEST_VLLM", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not VLLM, reason="TUNETUI_TEST_VLLM is not set: no real vLLM to test with"),
]
CEILING = Point(64, 4096, True, 512.0 * 2**20, True)


class Server:
    """A real vLLM with its control block, and its developer's HTTP calls."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.port = str(model), pick_port("127.0.0.1", 8650)
        flags = ("--enforce-eager", "--max-model-len", "2048", "--kv-cache-memory-bytes", "512M")
        settings = Settings(
            slo=parse_slo(["ttft:600"]), load=Load(rate_rps=1.0),
            workload=Workload(parse_lengths("16"), parse_lengths("8")),
            episode_requests=1, sessions_dir=folder, model=self.model, port=self.port, given=read_flags(flags),
            command=VllmCommand(tuple(shlex.split(VLLM)), "test"),
        )  # fmt: skip
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_SERVER_DEV_MODE": "1"}
        self.engine = ManagedEngine(settings, folder, environment, lambda event: None)

    def start(self) -> EngineFacts:
        """Start it at the ceiling. Raises EngineFailed, which `asyncio.run` hands on."""

        async def started() -> EngineFacts:
            try:
                return await self.engine.start(CEILING)
            finally:
                await self.engine.close_api()  # it belongs to this loop

        return asyncio.run(started())

    @property
    def control(self) -> LiveControl:
        assert self.engine.control is not None
        return self.engine.control

    def call(self, path: str, body: dict[str, Any] | None = None, get: bool = False) -> Any:
        data = None if get else json.dumps(body or {}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def complete(self, tokens: int = 8) -> int:
        """Ask for a completion; how many tokens came."""
        body = {"model": self.model, "prompt": "hello " * 40, "max_tokens": tokens, "ignore_eos": True}
        return int(self.call("/v1/completions", body)["usage"]["completion_tokens"])

    def held(self) -> int:
        state = self.control.in_force()
        assert state is not None
        assert not state.disabled, state.error
        return state.held_blocks


@pytest.fixture(scope="module")
def server(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, EngineFacts]]:
    server = Server(toy_model, tmp_path_factory.mktemp("server"))
    try:
        facts = server.start()
        # Half of the memory, so half of the blocks are held from the first request on.
        server.control.ask(Point(64, 4096, True, 256.0 * 2**20, True), facts)
        assert server.complete() == 8
        yield server, facts
    finally:
        assert server.engine.stop() == ()


def test_half_of_the_blocks_are_held_and_every_knob_is_live(server: tuple[Server, EngineFacts]) -> None:
    engine, facts = server
    assert facts.live
    assert facts.restart_reasons == {}
    assert engine.held() == facts.num_blocks // 2 > 0


@pytest.mark.parametrize("running", ["false", "true"])
def test_the_prefix_cache_is_reset_and_the_blocks_are_taken_again(
    server: tuple[Server, EngineFacts], running: str
) -> None:
    engine, facts = server
    assert engine.call(f"/reset_prefix_cache?reset_running_requests={running}")["success"] is True
    assert engine.complete() == 8
    assert engine.held() == facts.num_blocks // 2


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_generation_is_paused_and_resumed(server: tuple[Server, EngineFacts], mode: str) -> None:
    engine, facts = server
    assert engine.call(f"/pause?mode={mode}")["status"] == "paused"
    assert engine.call("/resume")["status"] == "resumed"
    assert engine.complete() == 8
    assert engine.held() == facts.num_blocks // 2


def test_it_sleeps_and_wakes(server: tuple[Server, EngineFacts]) -> None:
    engine, facts = server
    assert engine.call("/sleep?level=1")["status"] == "sleeping"
    assert engine.call("/wake_up")["status"] == "awake"
    assert engine.complete() == 8
    assert engine.held() == facts.num_blocks // 2


def test_a_step_while_idle_comes_with_the_next_request(server: tuple[Server, EngineFacts]) -> None:
    engine, facts = server
    before = engine.control.in_force()
    assert before is not None
    ask = engine.control.ask(Point(3, 777, True, 512.0 * 2**20, True, 256), facts)
    time.sleep(0.5)
    idle = engine.control.in_force()
    assert idle is not None
    assert (idle.step, idle.running) == (before.step, 0)  # no request, no step
    assert engine.complete() == 8
    now = engine.control.in_force()
    assert now is not None
    assert (now.step, now.max_num_seqs, now.max_num_batched_tokens) == (ask, 3, 777)
    assert (now.long_prefill_token_threshold, now.held_blocks, now.settled) == (256, 0, 1)
    assert Knob.THRESHOLD not in facts.restart_reasons


def measured(server: Server, *words: str) -> dict[str, Any]:
    """What `tunetui measure` says of it, with the server's own counters before and after as `counted`."""

    async def counters() -> EngineGauges:
        api = ServerApi(url)
        try:
            return await api.gauges()
        finally:
            await api.aclose()

    url = f"http://127.0.0.1:{server.port}"
    before = asyncio.run(counters())
    command = [sys.executable, "-m", "tunetui", "measure", "--url", url, "--json", "-", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    after = asyncio.run(counters())
    assert after.prompt_tokens_total is not None
    assert after.generation_tokens_total is not None
    counted = {
        "total_input_tokens": after.prompt_tokens_total - (before.prompt_tokens_total or 0),
        "total_output_tokens": after.generation_tokens_total - (before.generation_tokens_total or 0),
    }
    said: dict[str, Any] = json.loads(done.stdout)
    return said | {"counted": counted}


def test_measure_counts_what_the_server_counts(server: tuple[Server, EngineFacts]) -> None:
    said = measured(
        server[0], "--concurrency", "3", "--requests", "24", "--warmup", "0", "--prompt-tokens", "20-60",
        "--output-tokens", "5-20", "--slo", "ttft:60000", "tpot:60000",
    )  # fmt: skip
    assert (said["completed"], said["failed"], said["verdict"]) == (24, 0, "PASS")
    for name, count in said["counted"].items():
        assert said[name] == count, name
    assert 0 < said["median_tpot_ms"] <= said["p99_tpot_ms"]
    assert said["median_itl_ms"] == pytest.approx(said["median_tpot_ms"], rel=0.5)
    assert said["prefix_hit_rate"] == pytest.approx(0, abs=0.01)
    assert said["marks"] == []


def test_a_trace_with_shared_prefixes_hits_the_prefix_cache_as_often_as_it_says(
    server: tuple[Server, EngineFacts], tmp_path: Path
) -> None:
    trace = tmp_path / "shared.jsonl"
    rows = [
        {"timestamp": 400 * i, "input_length": 600, "output_length": 4, "hash_ids": [0, 1 + i]} for i in range(10)
    ]  # fmt: skip
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = measured(server[0], "--trace", str(trace), "--warmup", "0")
    assert said["completed"] == 10
    assert said["features"]["shared_prefix_share"] == pytest.approx(9 * 512 / 6000, abs=1e-4)
    assert said["prefix_hit_rate"] == pytest.approx(9 * 512 / 6000, abs=0.03)
