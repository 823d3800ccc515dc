"""What goes wrong around a session: it is said, with a next step, and nothing is left running."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from typing import Any

import pytest
from drive.sessions import Sessions, offspring, said, settled, until, with_seqs

from tunetui.core.knobs import Knob
from tunetui.core.load import Load
from tunetui.core.session import Phase, StepState
from tunetui.drive.driver import Driver


@pytest.mark.parametrize(
    ("fault", "words"),
    [("crash_at_start", "fake crashes"), ("oom", "KV cache")],
)
async def test_a_start_that_fails_is_a_sentence_and_leaves_nothing(sessions: Sessions, fault: str, words: str) -> None:
    before = offspring()
    driver = sessions.driver(env={"FAKE_VLLM_FAULT": fault})
    await driver.start()
    assert driver.state.phase is Phase.FAILED
    assert len(driver.state.failure) >= 2
    assert words in " ".join(driver.state.failure)
    await until(lambda: not offspring() - before)
    driver.set_knob(Knob.SEQS, 4)
    driver.undo()
    driver.accept(confirm=True)
    driver.toggle_pause()
    assert driver.state.phase is Phase.FAILED


async def test_a_command_that_cannot_be_run_is_a_sentence(sessions: Sessions) -> None:
    driver = sessions.driver(words=("/nowhere/vllm", "serve"))
    await driver.start()
    assert driver.state.phase is Phase.FAILED
    assert "/nowhere/vllm" in driver.state.failure[0]


async def test_a_held_port_is_named_with_its_holder(sessions: Sessions) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        driver = sessions.driver(port=holder.getsockname()[1])
        await driver.start()
    assert driver.state.phase is Phase.FAILED
    assert "is held by pid" in driver.state.failure[0]
    driver.confirm_restart()
    await until(lambda: driver.state.phase is Phase.LIVE)


@pytest.mark.parametrize("load", [Load(rate_rps=50.0), Load(concurrency=8)])
async def test_a_server_that_crashes_under_load_is_diagnosed_and_enter_starts_it_again(
    sessions: Sessions, load: Load
) -> None:
    driver = await sessions.live("--max-num-seqs", "8", load=load, episode_requests=2000, ceiling_seqs=16)
    driver.set_knob(Knob.SEQS, 4)
    await settled(driver)
    await until(lambda: driver.state.measurement and driver.state.measurement.judged)
    pid = driver.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: driver.state.phase is Phase.FAILED)
    assert len(driver.state.failure) >= 2
    assert all(row.measurement.failed < 50 for row in driver.state.rows)
    await until(lambda: driver.engine.pid is None)
    await until(lambda: driver.loop.meter.in_flight == 0)
    driver.confirm_restart()
    await until(lambda: driver.state.phase is Phase.LIVE)
    assert driver.state.point == with_seqs(driver, 4)
    assert driver.engine.control is not None
    assert (now := driver.engine.control.in_force())
    assert now.max_num_seqs == 4
    await until(lambda: driver.state.measurement and driver.state.measurement.judged)
    assert driver.state.measurement is not None
    assert driver.state.measurement.failed == 0


async def test_a_server_that_crashes_while_a_step_settles_is_a_failure_not_a_loss_of_control(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await sessions.live("--max-num-seqs", "8", load=Load(concurrency=8))
    pid = driver.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    driver.set_knob(Knob.SEQS, 4)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: driver.state.phase is Phase.FAILED)
    await until(lambda: driver.engine.pid is None)
    assert not said(driver, "live control")


@pytest.mark.parametrize("stepping", [True, False])
async def test_live_control_that_switches_itself_off_is_said_and_the_point_is_what_is_in_force(
    sessions: Sessions, stepping: bool
) -> None:
    driver = await sessions.live("--max-num-seqs", "8", ceiling_seqs=32)
    control, facts = driver.engine.control, driver.state.facts
    assert control is not None
    assert facts is not None
    real = control.in_force

    def disabled() -> Any:
        now = real()
        return now and now._replace(disabled=1, error="RuntimeError('boom')")

    control.in_force = disabled  # type: ignore[method-assign]
    if stepping:
        driver.set_knob(Knob.SEQS, 4)
    await until(lambda: said(driver, "live control has stopped (RuntimeError('boom'))"))
    await until(lambda: driver.state.step_state is StepState.NONE)
    assert driver.state.point == facts.ceiling
    assert driver.state.restart is not None
    assert driver.state.restart.target.max_num_seqs == (4 if stepping else 8)
    row = await until(lambda: next((r for r in driver.state.rows if r.point == facts.ceiling), None))
    assert row.measurement.judged
    driver.confirm_restart()
    await until(lambda: driver.engine.control not in (None, control) and driver.state.phase is Phase.LIVE)
    assert driver.state.facts is not None
    assert driver.state.facts.live


async def test_a_block_that_cannot_be_read_is_said(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    control = driver.engine.control
    assert control is not None
    control._block.close()
    await until(lambda: said(driver, "live control has stopped"))
    assert driver.state.phase is Phase.LIVE
    assert driver.state.facts is not None
    assert "live control has stopped" in driver.state.facts.why_not_live


async def closed(sessions: Sessions, driver: Driver) -> None:
    await sessions.end(driver)
    await until(lambda: not offspring())


@pytest.mark.parametrize("fault", ["hang_start,ignore_term", "hang_start,grandchild"])
async def test_closing_during_the_start_leaves_nothing(sessions: Sessions, fault: str) -> None:
    driver = sessions.driver(env={"FAKE_VLLM_FAULT": fault}, grace_s=0.3)
    starting = asyncio.create_task(driver.start())
    await until(lambda: any("Using max model len" in line for line in driver.engine.log))
    assert not starting.done()
    await closed(sessions, driver)
    await starting


@pytest.mark.parametrize("as_soon_as", ["it is asked", "the command is known"])
async def test_closing_while_the_process_is_being_made_leaves_nothing(sessions: Sessions, as_soon_as: str) -> None:
    driver = sessions.driver()
    starting = asyncio.create_task(driver.start())
    await until(lambda: driver.engine._wanted if as_soon_as == "it is asked" else driver.engine.argv)
    await closed(sessions, driver)
    await starting
    assert driver.engine.pid is None


async def test_closing_while_it_warms_up_leaves_nothing(sessions: Sessions) -> None:
    driver = sessions.driver(env={"FAKE_VLLM_SPEED": "0.02"})
    starting = asyncio.create_task(driver.start())
    await until(lambda: driver.state.phase is Phase.WARMING)
    await closed(sessions, driver)
    await starting


async def test_closing_while_a_step_settles_leaves_nothing(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8", load=Load(concurrency=8), env={"FAKE_VLLM_SPEED": "0.1"})
    driver.set_knob(Knob.SEQS, 1)
    await until(lambda: driver.state.step_state in (StepState.ASKED, StepState.ACCEPTED))
    await closed(sessions, driver)


async def test_closing_during_a_confirmation_leaves_nothing(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    await until(lambda: driver.state.rows)
    driver.accept(confirm=True)
    await until(lambda: driver.state.phase is Phase.CONFIRMING and driver.engine.pid)
    await closed(sessions, driver)


async def test_a_server_that_is_left_runs_on_without_the_load(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    pid, folder = driver.engine.pid, driver.engine._run_folder
    assert pid is not None
    assert folder is not None
    await driver.close()
    driver.leave_server()
    try:
        assert driver.stop_server() == ()
        os.kill(pid, 0)
        assert (folder / "control.block").exists()
    finally:
        os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder)
