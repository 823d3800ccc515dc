"""A session on the demo's server: the same driver, the same control block and the same diagnoses as with vLLM."""

from __future__ import annotations

import sys
import tomllib
from typing import Any

import pytest
from drive.sessions import Sessions, settled, until

from tunetui.core.knobs import Knob
from tunetui.core.load import Load
from tunetui.core.session import Phase
from tunetui.core.workload import Workload, parse_lengths
from tunetui.demo.profiles import PROFILES
from tunetui.drive.driver import Driver
from tunetui.engine.gpu import GpuReading

WORDS = (sys.executable, "-m", "tunetui.demo", "--profile", "7b-80gb")
CARD = GpuReading(0, "NVIDIA A100 80GB (simulated)", 80 * 2**30, 0, None)
CASE = ("--max-model-len", "4096", "--max-num-seqs", "16")


async def live(sessions: Sessions, *flags: str, **changed: Any) -> Driver:
    given = {"words": WORDS, "model": PROFILES["7b-80gb"].machine.model.name, "cards": (CARD,), "simulated": True}
    return await sessions.live(*CASE, *flags, env={"TUNETUI_DEMO_START_S": "0.2"}, **given | changed)


async def test_every_knob_is_live_and_does_what_it_says(sessions: Sessions) -> None:
    long = Workload(parse_lengths("600"), parse_lengths("40"))
    driver = await live(sessions, load=Load(concurrency=24), workload=long)
    control = driver.engine.control
    assert control is not None
    assert driver.state.simulated
    assert driver.state.hardware == "NVIDIA A100 80GB (simulated)"
    await until(lambda: driver.state.engine.running == 16)
    driver.set_knob(Knob.SEQS, 4)
    await settled(driver)
    now = control.in_force()
    assert now is not None
    assert now.max_num_seqs == 4
    assert now.running <= 4
    driver.set_knob(Knob.MEMORY, 0.5)
    await settled(driver)
    now = control.in_force()
    assert now is not None
    # 0.42 of 79.2 GiB, at 2 MiB a block.
    assert now.held_blocks == pytest.approx(0.42 * 79.2 * 1024 / 2, rel=0.01)
    driver.set_knob(Knob.CHUNKED, 0)
    await settled(driver)
    driver.set_knob(Knob.TOKENS, 4096)
    await settled(driver)
    now = control.in_force()
    assert now is not None
    assert (now.chunked_prefill, now.max_num_batched_tokens) == (0, 4096)
    assert await until(lambda: driver.state.rows and driver.state.rows[-1].point == driver.state.point)


async def test_the_streams_follow_the_slots_until_the_operator_says_otherwise(sessions: Sessions) -> None:
    driver = await live(sessions, load=Load(concurrency=16), follows_seqs=True)
    driver.set_knob(Knob.SEQS, 8)
    await settled(driver)
    assert driver.state.load == driver.loop.load == Load(concurrency=8)
    driver.set_load(Load(concurrency=5))
    driver.set_knob(Knob.SEQS, 12)
    await settled(driver)
    assert driver.state.load == Load(concurrency=5)


async def test_a_baseline_of_a_demo_says_that_it_is_simulated(sessions: Sessions) -> None:
    driver = await live(sessions, load=Load(concurrency=16))
    await until(lambda: driver.state.rows)
    driver.accept(confirm=False)
    path = await until(lambda: driver.state.baseline_path)
    with open(path, "rb") as file:
        baseline = tomllib.load(file)
    assert baseline["engine"] == {"name": "vllm", "version": "0.32.0+simulated", "simulated": True}
    assert baseline["hardware"]["name"].endswith("(simulated)")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--gpu-memory-utilization", "0.15"), "KV cache"),
        (("--max-model-len", "8192"), "max_model_len"),
        (("--gpu-memory-utilization", "1.0"), "memory"),
    ],
)
async def test_a_start_that_vllm_would_refuse_fails_and_is_diagnosed(
    sessions: Sessions, flags: tuple[str, ...], said: str
) -> None:
    driver = sessions.driver(
        *flags, env={"TUNETUI_DEMO_START_S": "0.05"}, words=WORDS, model="m", cards=(CARD,), ceiling_tokens=8192
    )
    await driver.start()
    assert driver.state.phase is Phase.FAILED
    assert said in " ".join(driver.state.failure)
