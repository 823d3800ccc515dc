"""The fake server behaves as vLLM where the tests of other rooms rely on it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine.fakes import Fakes, fake_argv, fake_env, free_port, wait_until
from tunetui_live.block import ENVIRONMENT_KEY, STOP_SEQS, ControlBlock, Targets

from tunetui.engine.diagnose import diagnose
from tunetui.engine.logs import Phase, Phases, facts_from_log
from tunetui.engine.server_api import ServerApi

LIVE = Path(__file__).parents[2] / "src/tunetui/live"


def launch(fakes: Fakes, *flags: str, **env: str) -> str:
    port = free_port()
    fakes.start("--port", str(port), "--model", "m", *flags, **env)
    fakes.wait_for_log("Application startup complete")
    return f"http://127.0.0.1:{port}"


def body(prompt: int, most: int, first: int = 20, **more: Any) -> dict[str, Any]:
    tokens = list(range(first, first + prompt))
    return {"model": "m", "prompt": tokens, "max_tokens": most, "ignore_eos": True, **more}


async def test_a_stream_has_every_token_then_usage_then_done(fakes: Fakes) -> None:
    url = launch(fakes)
    options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    async with httpx.AsyncClient() as client:
        events = []
        async with client.stream("POST", f"{url}/v1/completions", json=body(40, 5, **options)) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            events = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
        assert events.pop() == "[DONE]"
        *chunks, last = map(json.loads, events)
        assert last["choices"] == []
        assert last["usage"] == {"prompt_tokens": 40, "total_tokens": 45, "completion_tokens": 5}
        assert [len(chunk["choices"][0]["token_ids"]) for chunk in chunks] == [1] * 5
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
        whole = (await client.post(f"{url}/v1/completions", json=body(40, 5))).json()  # same connection, no stream
        assert whole["usage"]["completion_tokens"] == 5
        too_long = await client.post(f"{url}/v1/completions", json=body(2000, 100))
        assert too_long.status_code == 400
        assert "maximum context length" in too_long.json()["error"]["message"]


async def run_load(url: str, count: int, prompt: int, most: int) -> float:
    """Seconds that `count` simultaneous completions take."""
    began_s = asyncio.get_running_loop().time()
    async with httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=None)) as client:
        answers = await asyncio.gather(
            *(client.post(f"{url}/v1/completions", json=body(prompt, most, 20 + 9 * i)) for i in range(count))
        )
    assert all(answer.json()["usage"]["completion_tokens"] == most for answer in answers)
    return asyncio.get_running_loop().time() - began_s


async def test_the_admission_limit_makes_requests_wait(fakes: Fakes) -> None:
    url = launch(fakes, "--max-num-seqs", "2", FAKE_VLLM_SPEED="0.5")
    load = asyncio.create_task(run_load(url, 12, 16, 30))
    api, seen = ServerApi(url), []
    while not load.done():
        gauges = await api.gauges()
        seen.append((gauges.running or 0, gauges.waiting or 0))
        await asyncio.sleep(0.01)
    assert max(running for running, _ in seen) == 2
    assert max(waiting for _, waiting in seen) >= 8
    assert await load > 6 * 30 * 0.004  # six rounds of thirty steps


async def test_after_an_idle_time_a_step_takes_as_long_as_before(fakes: Fakes) -> None:
    url = launch(fakes, FAKE_VLLM_SPEED="0.05")
    await asyncio.sleep(0.1)
    assert await run_load(url, 1, 16, 2) > 2 * 0.043


async def test_blocks_run_out_and_requests_are_preempted_and_still_finish(fakes: Fakes) -> None:
    # 41 blocks of 16 tokens, and 8 requests of up to 128 tokens.
    url = launch(fakes, "--kv-cache-memory-bytes", str(42 * 2**21), "--max-model-len", "256", FAKE_VLLM_SPEED="4")
    await run_load(url, 8, 64, 64)
    gauges = await ServerApi(url).gauges()
    assert gauges.num_gpu_blocks == 42
    assert (gauges.preemptions_total or 0) > 0
    assert (gauges.running, gauges.waiting, gauges.kv_usage) == (0, 0, 0.0)
    assert gauges.generation_tokens_total == 8 * 64


async def test_the_same_prompt_again_hits_the_prefix_cache_unless_it_is_off(fakes: Fakes) -> None:
    for flag, hits in (("--enable-prefix-caching", 48), ("--no-enable-prefix-caching", 0)):
        url = launch(fakes, flag)
        async with httpx.AsyncClient() as client:
            for _ in range(2):
                await client.post(f"{url}/v1/completions", json=body(64, 2))
        assert (await ServerApi(url).gauges()).prefix_hits_total == hits
        fakes.started[-1].stop(5.0)
        fakes.log.unlink()


async def test_a_client_that_leaves_aborts_its_request(fakes: Fakes) -> None:
    url = launch(fakes, FAKE_VLLM_SPEED="0.2")
    api = ServerApi(url)
    async with (
        httpx.AsyncClient() as client,
        client.stream("POST", f"{url}/v1/completions", json=body(16, 2000, stream=True)) as answer,
    ):
        lines = answer.aiter_lines()  # kept: a generator that is collected closes the answer
        await anext(lines)
        assert (await api.gauges()).running == 1
    async with asyncio.timeout(10):
        while (await api.gauges()).running:
            await asyncio.sleep(0.01)


async def test_the_control_block_is_obeyed(fakes: Fakes, tmp_path: Path) -> None:
    path = tmp_path / "control.block"
    block = ControlBlock.create(str(path))
    env = {"PYTHONPATH": str(LIVE), ENVIRONMENT_KEY: str(path), "FAKE_VLLM_SPEED": "0.5"}
    url = launch(fakes, "--max-num-seqs", "8", "--scheduler-cls", "tunetui_live.scheduler.make_scheduler", **env)
    hello = block.hello()
    assert hello is not None
    assert (hello.max_num_seqs, hello.block_size, hello.version) == (8, 16, "0.32.0")
    assert hello.chunked_restart == ""
    load = asyncio.create_task(run_load(url, 16, 32, 60))
    async with asyncio.timeout(15):
        while not (state := block.in_force()) or state.running < 8:
            await asyncio.sleep(0.005)
        block.ask(Targets(1, 2, 100, 1, 0, 3000))
        while not (state := block.in_force()) or state.step != 1 or not state.settled:
            await asyncio.sleep(0.005)
    assert (state.max_num_seqs, state.max_num_batched_tokens, state.held_blocks) == (2, 100, 3000)
    assert state.running <= 2
    await load
    _, records = block.records(0)
    assert any(record.stopped_by == STOP_SEQS for record in records)
    assert all(record.scheduled_tokens <= record.token_budget for record in records)
    gauges = await ServerApi(url).gauges()
    assert gauges.kv_usage == pytest.approx(3000 / (hello.num_blocks - 1))


def test_an_unknown_flag_ends_the_start_like_vllm(tmp_path: Path) -> None:
    ended = subprocess.run(fake_argv("serve", "m", "--bogus", "3"), capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert diagnose(ended.stderr.splitlines(), 2).sentence == "this vLLM does not know --bogus 3"


@pytest.mark.parametrize(
    ("fault", "flags", "says"),
    [
        ("crash_at_start", [], "not known here"),
        ("crash_in_weights", [], "not known here"),
        ("oom", [], "no memory was left for the KV cache"),
        ("", ["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "32 is below max-num-seqs 64"),
        ("", ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "512"], "512 is below the model length 2048"),
        ("", ["--kv-cache-memory-bytes", str(11 * 2**21)], "160 tokens fit"),
    ],
)
def test_failed_starts_are_diagnosed(fault: str, flags: list[str], says: str) -> None:
    ended = subprocess.run(fake_argv(*flags), env=fake_env(fault), capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    found = diagnose((ended.stdout + ended.stderr).splitlines(), 1)
    assert says in found.sentence
    assert found.evidence
    assert "Engine core initialization failed" not in found.evidence[-1]


def test_its_log_shows_the_phases_of_a_start(fakes: Fakes) -> None:
    launch(fakes, "--kv-cache-memory-bytes", str(257 * 2**21))
    phases = Phases.begin(0.0)
    for line in fakes.log_text().splitlines():
        phases = phases.fold(line, 1.0)
    seen = [phase for phase, _ in phases.marks]
    assert seen == [p for p in Phase if p is not Phase.COMPILE]
    facts = facts_from_log(fakes.log_text().splitlines())
    assert (facts.version, facts.kv_tokens, facts.max_model_len) == ("0.32.0", 4096, 2048)
    os.kill(fakes.started[0].pid, 15)
    wait_until(lambda: fakes.started[0].poll() == 0)
