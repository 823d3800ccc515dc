"""The load of a session: rate by key, pause, overload, and an attached server that is somebody else's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
from drive.sessions import Sessions, said, settings, until
from engine.fakes import Fakes, free_port

from tunetui.core.knobs import Knob
from tunetui.core.load import Load
from tunetui.core.session import Phase
from tunetui.core.slo import Verdict
from tunetui.drive.driver import Driver
from tunetui.drive.loop import LoadLoop


async def test_pause_stops_the_load_and_going_on_starts_a_new_episode(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    await until(lambda: driver.state.measurement and driver.state.measurement.judged)
    driver.toggle_pause()
    assert driver.state.measurement is None
    control = driver.engine.control
    assert control is not None
    await until(lambda: (now := control.in_force()) and not now.running)
    steps = await until(lambda: (now := control.in_force()) and now.steps)
    await until(lambda: driver.state.in_flight == 0)
    assert (now := control.in_force())
    assert now.steps - steps <= 2
    assert driver.state.paused
    driver.toggle_pause()
    await until(lambda: driver.state.measurement and driver.state.measurement.judged)


async def test_the_rate_by_key_gives_a_row_of_its_own(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    await until(lambda: len(driver.state.rows) == 1)
    driver.step_load(+1)
    assert driver.state.measurement is None
    assert driver.state.load == Load(rate_rps=55.0)
    await until(lambda: len(driver.state.rows) == 2)
    assert [row.load for row in driver.state.rows] == [Load(rate_rps=50.0), Load(rate_rps=55.0)]


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.WARMING])
async def test_a_load_changed_during_the_start_is_the_one_that_is_sent(sessions: Sessions, phase: Phase) -> None:
    driver = sessions.driver("--max-num-seqs", "8")
    emit = driver.on_change
    pressed = False

    def press() -> None:
        nonlocal pressed
        if driver.state.phase is phase and not pressed:
            pressed = True
            driver.step_load(+1)
        emit()

    driver.on_change = press
    await driver.start()
    assert (driver.state.phase, pressed) == (Phase.LIVE, True)
    row = await until(lambda: driver.state.rows and driver.state.rows[0])
    assert row.load == Load(rate_rps=55.0)


async def test_an_overloaded_point_fails_and_its_backlog_stays_bounded(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "1", load=Load(rate_rps=200.0), episode_requests=40)
    most, episodes = 0, set()

    def gone_on() -> bool:
        nonlocal most
        most = max(most, driver.loop.meter.in_flight)
        if driver.loop.meter.newest is not None:
            episodes.add(driver.loop.meter.newest)
        return len(episodes) >= 8

    await until(gone_on)
    assert most < 3 * 40
    (row,) = driver.state.rows
    assert row.measurement.verdict is Verdict.FAIL
    assert row.measurement.cancelled == 0


async def test_an_attached_server_gets_no_request_before_the_load_is_allowed(
    sessions: Sessions, tmp_path: Path
) -> None:
    fakes, port = Fakes(tmp_path), free_port()
    try:
        fakes.start("--port", str(port), "--model", "other/model")
        fakes.wait_for_log("Application startup complete")
        url = f"http://127.0.0.1:{port}"

        async def prompts() -> float:
            async with httpx.AsyncClient() as client:
                page = (await client.get(f"{url}/metrics")).text
            return sum(float(line.split()[-1]) for line in page.split("\n") if line.startswith("vllm:prompt_tokens"))

        driver = sessions.driver(url=url, model="", command=None)
        await driver.start()
        assert driver.state.phase is Phase.ATTACHED
        for key in (driver.toggle_pause, driver.toggle_pause, lambda: driver.step_load(+1)):
            key()
        driver.set_knob(Knob.SEQS, 4)
        driver.step_knob(Knob.SEQS, +1)
        driver.undo()
        assert said(driver, "attached: this server was not started by tunetui")
        driver.accept(confirm=True)
        assert said(driver, "nothing to accept")
        await until(lambda: driver.state.engine.kv_blocks)
        assert await prompts() == 0
        assert driver.loop.pid is None
        await driver.allow_load()
        await until(lambda: driver.state.rows)
        assert driver.state.rows[0].load == Load(rate_rps=55.0)
        assert await prompts() > 0
        fakes.started[0].stop(1.0)
        await until(lambda: said(driver, "no metrics from"))
    finally:
        for server in fakes.started:
            server.stop(0.0)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://[bad", "http://127.0.0.1:x"])
async def test_an_attach_that_fails_is_a_sentence(tmp_path: Path, url: str) -> None:
    driver = Driver(settings(tmp_path, url=url, model="", command=None), tmp_path)
    await driver.start()
    assert driver.state.phase is Phase.FAILED
    assert driver.state.failure[0]
    driver.confirm_restart()
    await driver.allow_load()
    assert driver.state.phase is Phase.FAILED
    await driver.close()


async def test_a_load_process_that_is_killed_is_started_again_and_said(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    first = driver.loop.pid
    assert driver.loop._generator is not None
    driver.loop._generator.kill()
    await until(lambda: said(driver, "the load process ended"))
    await until(lambda: driver.loop.pid not in (None, first))
    await until(lambda: driver.state.measurement and driver.state.measurement.judged)
    assert not said(driver, "failed")
    assert sum("load process" in notice.text for notice in driver.state.notices) == 1


@pytest.mark.parametrize("drains", [True, False])
async def test_a_load_process_that_hangs_is_noticed(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, drains: bool
) -> None:
    monkeypatch.setattr("tunetui.drive.loop.DRAIN_S", 0.5)
    monkeypatch.setattr("tunetui.drive.loop.SILENT_ROUNDS", 1000 if drains else 20)
    driver = await sessions.live("--max-num-seqs", "8")
    await until(lambda: driver.state.measurement)
    first = driver.loop.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    if drains:
        driver.set_knob(Knob.SEQS, 4)
    await until(lambda: said(driver, "did not answer" if drains else "reported nothing"))
    await until(lambda: driver.loop.pid not in (None, first) and driver.state.measurement)
    await until(lambda: driver.state.measurement and driver.state.measurement.judged)


async def test_episodes_wait_until_the_load_process_is_there(sessions: Sessions) -> None:
    loop = LoadLoop(settings(sessions.folder))
    await loop.begin()
    await loop.drain("all")
    await loop.go_on(0.0)
    assert loop.sending
    await loop.revive()  # nowhere to send to yet
    assert loop.pid is None
    await loop.close()


async def test_a_load_that_outgrows_its_process_gets_another(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunetui.drive.loop.processes_for", lambda rate, tokens: 1 if rate <= 50 else 2)
    driver = await sessions.live("--max-num-seqs", "8")
    await until(lambda: len(driver.state.rows) == 1)
    before = driver.loop.pid
    assert before is not None
    driver.step_load(+1)
    await until(lambda: len(driver.state.rows) == 2)
    assert driver.state.rows[1].load == Load(rate_rps=55.0)
    assert driver.state.rows[1].measurement.failed == 0
    assert driver.loop.processes == 2
    assert driver.loop.pid != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    driver.step_load(-1)
    await until(lambda: driver.state.measurement and driver.state.measurement.judged)
    assert driver.loop.processes == 2  # what is there is kept
