"""Predictions of the steps from the present point, in a session on the demo; and functions in another process."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from drive.sessions import Sessions, offspring, settled, until
from drive.test_demo import live

from tunetui.core.knobs import Knob
from tunetui.core.load import Load
from tunetui.core.workload import Workload, parse_lengths
from tunetui.drive.elsewhere import ElsewhereError, elsewhere


async def test_every_step_is_predicted_and_the_predictions_are_compared_with_what_is_measured(
    sessions: Sessions,
) -> None:
    short = Workload(parse_lengths("200"), parse_lengths("20"))
    driver = await live(sessions, load=Load(concurrency=12), workload=short, episode_requests=60)
    outlook = await until(lambda: driver.state.outlook_here)
    assert outlook.here.point == driver.state.point
    by_knob = {knob: outlook.of(knob) for knob in Knob}
    assert [o.point.max_num_seqs for o, _ in by_knob[Knob.SEQS]] == [32, 8]
    assert all(expected.throughput.value > 0 for _, expected in outlook.steps if not expected.overload)
    fewer = dict((o.direction, e) for o, e in by_knob[Knob.SEQS])[-1]
    assert fewer.ttft_s.value > outlook.here.ttft_s.value  # 12 streams wait for 8 slots
    await until(lambda: driver.state.outlook_here and driver.state.outlook_here.error_words)
    driver.set_knob(Knob.SEQS, 8)
    await settled(driver)
    there = await until(lambda: driver.state.outlook_here)
    assert there.here.point.max_num_seqs == 8
    row = await until(lambda: next((r for r in driver.state.rows if r.point == driver.state.point), None))
    assert row.measurement.output_tokens_per_s == pytest.approx(fewer.throughput.value, rel=0.5)


async def test_what_is_given_up_leaves_no_process(sessions: Sessions) -> None:
    driver = await live(sessions, load=Load(concurrency=12), episode_requests=60)
    before = offspring()
    for seqs in (8, 12, 6, 10):
        driver.set_knob(Knob.SEQS, seqs)
        await asyncio.sleep(0.3)
    await until(lambda: driver.state.outlook_here)
    await until(lambda: not offspring() - before)


async def test_a_function_runs_elsewhere() -> None:
    pid = await elsewhere(os.getpid)
    assert pid != os.getpid()
    assert await elsewhere(divmod, 17, 5) == (3, 2)


async def test_a_function_that_raises_says_so_in_one_sentence() -> None:
    with pytest.raises(ElsewhereError, match=r"helper process ended with 1: ZeroDivisionError"):
        await elsewhere(divmod, 1, 0)


async def test_a_call_that_is_cancelled_ends_its_process() -> None:
    before = offspring()
    call = asyncio.create_task(elsewhere(time.sleep, 600.0))
    (pid,) = await until(lambda: offspring() - before)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not Path(f"/proc/{pid}").exists()
