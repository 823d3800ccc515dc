"""The sweep and the edge search of a session on its own server: begun, taken over, gone on with, brought to an end."""

from __future__ import annotations

import asyncio

from drive.sessions import Sessions, said, settled, until, with_seqs

from tunetui.core.candidates import Stage
from tunetui.core.edge import Length
from tunetui.core.knobs import Knob
from tunetui.core.load import Load
from tunetui.core.session import Phase, Riding
from tunetui.core.slo import Verdict, parse_slo
from tunetui.core.tasks import CONFIRMATIONS
from tunetui.drive.live_rig import LiveRig

FLAGS = ("--max-num-seqs", "4", "--max-num-batched-tokens", "256")


async def test_the_load_rides_the_edge_from_point_to_point_until_f_ends_it(sessions: Sessions) -> None:
    driver = await sessions.live(*FLAGS, ceiling_seqs=4, slo=parse_slo(["ttft:100", "tpot:60"]))
    point = driver.state.point
    driver.find_edge()
    assert driver.autopilot.running
    capacity_rps = await until(lambda: driver.state.capacity_of(point), 240.0)
    await until(lambda: not driver.autopilot.running)
    assert driver.state.point == point
    assert driver.state.load.rate_rps == capacity_rps
    assert said(driver, f"this point holds {capacity_rps:.2f} req/s")
    assert driver.loop.trial is None
    row = await until(lambda: next((r for r in driver.state.rows if r.capacity_rps == capacity_rps), None))
    assert row.point == point
    driver.set_knob(Knob.SEQS, 1)
    slower = with_seqs(driver, 1)
    assert not driver.autopilot.running  # what ran makes way for the step, and goes on when it is there
    fewer_rps = await until(lambda: driver.state.capacity_of(slower), 240.0)
    await until(lambda: not driver.autopilot.running)
    assert fewer_rps < capacity_rps
    assert driver.state.riding == Riding(slower, fewer_rps, capacity_rps)
    assert said(driver, f"this point holds {capacity_rps:.2f} -> {fewer_rps:.2f} req/s")
    assert driver.state.load.rate_rps == fewer_rps
    driver.find_edge()
    assert driver.state.riding is None
    driver.undo()
    await settled(driver)
    assert driver.state.point == point
    driver.autopilot.follow()
    assert not driver.autopilot.running
    assert driver.state.load.rate_rps == fewer_rps


async def test_a_key_that_changes_the_load_ends_the_riding_and_a_step_does_not(sessions: Sessions) -> None:
    driver = await sessions.live(*FLAGS, ceiling_seqs=4, slo=parse_slo(["ttft:100", "tpot:60"]))
    driver.find_edge()
    await until(lambda: driver.state.progress and driver.state.progress.doing)
    driver.step_knob(Knob.SEQS, -1)
    assert driver.state.riding == Riding()
    await until(lambda: driver.autopilot.running)
    driver.step_load(1)
    assert driver.state.riding is None
    assert not driver.autopilot.running
    assert said(driver, "the edge is no longer looked for")
    driver.autopilot.follow()
    assert not driver.autopilot.running


async def test_a_key_takes_over_and_the_sweep_goes_on_where_it_stood_to_a_baseline(sessions: Sessions) -> None:
    driver = await sessions.live(*FLAGS, ceiling_seqs=8, slo=parse_slo(["ttft:100", "tpot:60"]))
    driver.sweep()
    await until(lambda: driver.state.progress and driver.state.progress.trials >= 1, 120.0)
    before = driver.state.progress
    assert before is not None
    driver.step_knob(Knob.SEQS, -1)
    assert not driver.autopilot.running
    assert said(driver, "you have taken over")
    seqs = driver.state.point.max_num_seqs if driver.state.point else 0
    await until(lambda: driver.state.progress and not driver.state.progress.running)
    driver.sweep()
    outcome = await until(lambda: driver.state.progress and driver.state.progress.outcome, 400.0)
    assert driver.state.progress is not None
    assert driver.state.progress.trials > before.trials
    assert Stage.BASELINE in driver.state.progress.done
    await until(lambda: driver.state.baseline_path)
    assert outcome.point is not None
    assert len(outcome.confirmed) == CONFIRMATIONS
    assert outcome.point.max_num_seqs >= seqs
    assert driver.state.phase is Phase.CONFIRMED
    assert driver.state.point == outcome.point
    assert any(row.confirmed and row.point == outcome.point for row in driver.state.rows)


async def test_a_sweep_that_ends_the_riding_is_not_undone_by_its_end(sessions: Sessions) -> None:
    driver = await sessions.live(*FLAGS, ceiling_seqs=4, slo=parse_slo(["ttft:100", "tpot:60"]))
    driver.find_edge()
    await until(lambda: driver.loop.trial)
    driver.sweep()
    await until(lambda: driver.state.progress and not driver.state.progress.edge_only)
    await until(lambda: driver.loop.trial)
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert driver.loop.trial is not None
        assert driver.state.progress is not None
        assert driver.state.progress.running
        assert driver.state.riding is None


async def test_without_a_goal_there_is_nothing_to_sweep(sessions: Sessions) -> None:
    driver = await sessions.live(*FLAGS, slo=parse_slo([]))
    driver.sweep()
    driver.find_edge()
    assert not driver.autopilot.running
    assert said(driver, "a sweep needs an SLO")


async def test_a_whole_trial_that_has_failed_early_still_comes_to_its_end(sessions: Sessions) -> None:
    driver = await sessions.live(*FLAGS, ceiling_seqs=4, slo=parse_slo(["ttft:20", "tpot:60"]))
    assert driver.state.point is not None
    length = Length(200)
    trial = length.trial(driver.state.point, Load(2000.0), "too much", whole=True)
    seen, steps = await LiveRig(driver).measure(trial)  # its backlog is far above what makes an episode start over
    assert seen.measurement.verdict is Verdict.FAIL
    assert seen.measurement.complete
    assert seen.measurement.counted == 200
    assert steps
