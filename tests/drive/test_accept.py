"""Accepting a point: what is saved, what was run for it, and what the operator is told."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from drive.sessions import WORDS, Sessions, said, settled, until
from engine.fakes import Fakes

from tunetui.core.baseline import Baseline
from tunetui.core.knobs import Knob, MemoryFlag, Point, knob_argv
from tunetui.core.load import Load
from tunetui.core.session import Phase
from tunetui.drive.driver import Driver
from tunetui.drive.hardware import hardware_name, memory_bytes
from tunetui.engine.gpu import GpuReading
from tunetui.store.baselines import read_baseline


async def saved(driver: Driver) -> Baseline:
    return read_baseline(Path(await until(lambda: driver.state.baseline_path)))


async def test_a_point_without_a_measurement_is_not_accepted(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8", load=Load(rate_rps=0.05))
    driver.accept(confirm=False)
    driver.accept(confirm=True)
    assert said(driver, "nothing has been measured at this point yet")
    assert (driver.state.phase, driver.state.baseline_path) == (Phase.LIVE, "")


async def test_an_accepted_point_is_saved_unconfirmed(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8", env={"HF_HOME": "/h", "VLLM_API_KEY": "hush"})
    await until(lambda: driver.state.rows)
    driver.accept(confirm=False)
    baseline = await saved(driver)
    assert baseline.result["confirmed"] is False
    assert baseline.knobs["max-num-seqs"] == 8
    assert "hush" not in str(baseline)
    assert baseline.launch["environment"]["HF_HOME"] == "/h"
    assert "VLLM_API_KEY" not in baseline.launch["environment"]
    assert driver.state.phase is Phase.LIVE


async def test_a_confirmed_point_ran_with_exactly_the_argv_that_is_saved(sessions: Sessions, tmp_path: Path) -> None:
    driver = await sessions.live("--max-num-seqs", "8", "--enforce-eager", ceiling_seqs=64)
    driver.set_knob(Knob.SEQS, 12)
    await settled(driver)
    await until(lambda: len(driver.state.rows) == 1)
    driver.accept(confirm=True)
    await until(lambda: driver.state.phase is Phase.CONFIRMING)
    driver.step_load(+1)
    driver.toggle_pause()
    driver.set_knob(Knob.SEQS, 4)
    assert (driver.state.load, driver.state.paused) == (Load(rate_rps=50.0), False)
    await until(lambda: driver.state.detail == "measuring the same episode")
    assert not any(row.confirmed for row in driver.state.rows)  # the warm-up is no measurement
    await until(lambda: driver.state.phase is Phase.CONFIRMED)
    baseline = await saved(driver)
    argv = baseline.launch["argv"]
    assert tuple(argv) == driver.engine.argv
    assert argv[: len(WORDS)] == list(WORDS)
    assert "--scheduler-cls" not in argv
    assert "--enforce-eager" in argv
    point = driver.state.point
    assert point is not None
    assert set(knob_argv(point, MemoryFlag.UTILIZATION)) <= set(argv)
    assert argv[argv.index("--max-num-seqs") + 1] == "12"
    assert baseline.result["confirmed"] is True
    assert baseline.result["live"]["requests"] == baseline.result["confirmation"]["requests"] == 20
    assert (baseline.hardware["name"], baseline.hardware["memory_bytes"]) == (
        hardware_name(driver.gpus),
        memory_bytes(driver.gpus),
    )
    (told,) = [n.text for n in driver.state.notices if n.text.startswith("confirmed ")]
    for words in ("confirmed PASS (live PASS)", "P95 TTFT", "P95 TPOT", "KV blocks 1536 (live 1536)"):
        assert words in told
    assert [row.confirmed for row in driver.state.rows] == [False, True]

    driver.set_knob(Knob.SEQS, 16)  # from here on it is a restart, and back to the ceiling that there was
    assert driver.state.restart is not None
    driver.confirm_restart()
    await until(lambda: driver.state.phase is Phase.LIVE)
    assert driver.state.facts is not None
    assert driver.state.facts.ceiling.max_num_seqs == 64

    await driver.close()
    assert await asyncio.to_thread(driver.stop_server) == ()
    fakes = Fakes(tmp_path)
    try:
        fakes.start(*argv[len(WORDS) :])
        fakes.wait_for_log("Application startup complete")
    finally:
        fakes.started[0].stop(0.0)


async def test_an_overloaded_point_can_be_confirmed(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "1", load=Load(rate_rps=200.0), episode_requests=60)
    await until(lambda: driver.state.rows)
    driver.accept(confirm=True)
    await until(lambda: driver.state.phase is Phase.CONFIRMED)
    assert said(driver, "confirmed FAIL (live FAIL)")
    assert (await saved(driver)).result["confirmation"]["requests"] == 60


async def test_a_pause_outlives_a_confirmation(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    await until(lambda: driver.state.rows)
    driver.toggle_pause()
    driver.accept(confirm=True)
    await until(lambda: driver.state.phase is Phase.CONFIRMED and not driver.loop.sending)
    await until(lambda: driver.state.in_flight == 0)


@pytest.mark.parametrize("detail", ["warming up", "measuring the same episode"])
async def test_a_server_that_dies_during_its_confirmation_is_a_failure(sessions: Sessions, detail: str) -> None:
    driver = await sessions.live("--max-num-seqs", "8", load=Load(rate_rps=10.0))
    await until(lambda: driver.state.measurement and driver.state.measurement.judged)
    driver.accept(confirm=True)
    pid = await until(
        lambda: driver.state.phase is Phase.CONFIRMING and driver.state.detail == detail and driver.engine.pid
    )
    os.kill(pid, signal.SIGKILL)
    await until(lambda: driver.state.phase is Phase.FAILED)
    await until(lambda: driver.engine.pid is None)
    assert driver.state.baseline_path == ""
    assert not any(row.confirmed for row in driver.state.rows)
    driver.confirm_restart()
    await until(lambda: driver.state.phase is Phase.LIVE)


def test_hardware_is_named_by_its_cards_or_its_processor(tmp_path: Path) -> None:
    card = GpuReading(0, "NVIDIA A100 80GB", 80 * 2**30, 0, None)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some  CPU @ 2.0GHz\nmodel name\t: Other\n")
    assert hardware_name((card, card), cpuinfo) == "2x NVIDIA A100 80GB"
    assert hardware_name((), cpuinfo) == "Some CPU @ 2.0GHz"
    assert hardware_name((), tmp_path / "none")
    assert memory_bytes((card,)) == 80 * 2**30
    assert memory_bytes(()) > 2**20


def test_the_knobs_of_an_argv_are_all_explicit() -> None:
    words = knob_argv(Point(8, 2048, False, 0.5, True), MemoryFlag.UTILIZATION)
    assert len([word for word in words if word.startswith("--")]) == len(Knob)
