"""The coach on a live session: the limit from the ring or from /metrics, an advice that is taken, what came of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drive.sessions import NO_HELLO, Sessions, said, settled, until
from drive.test_demo import live

from tunetui.core.coach import Coach
from tunetui.core.knobs import Knob
from tunetui.core.limits import Limit
from tunetui.core.load import Load
from tunetui.core.slo import parse_slo
from tunetui.core.workload import Workload, parse_lengths
from tunetui.drive.driver import Driver

EASY = parse_slo(["ttft:60000", "tpot:1000"])
SHORT = Workload(parse_lengths("64-128"), parse_lengths("24-48"))


async def waiting_for_slots(sessions: Sessions, **changed: Any) -> Driver:
    """A demo with few slots and many streams, which meets its SLO all the same."""
    given = {"load": Load(concurrency=24), "slo": EASY, "workload": SHORT, "episode_requests": 40} | changed
    driver = await live(sessions, "--max-num-seqs", "4", **given)
    driver.set_knob(Knob.SEQS, 4)
    await until(lambda: coach(driver).advice)
    return driver


def coach(driver: Driver) -> Coach:
    return driver.state.coach


async def test_an_advice_is_taken_with_one_call_and_judged_at_the_new_point(sessions: Sessions) -> None:
    driver = await waiting_for_slots(sessions)
    finding, advice, first = coach(driver).finding, coach(driver).advice, driver.state.point
    assert finding is not None
    assert advice is not None
    assert (finding.limit, finding.share > 0.8, finding.figures.exact) == (Limit.SEQ_CAP, True, True)
    assert (advice.rule, advice.change) == ("more sequences", "max-num-seqs 8")
    driver.apply_advice()
    assert coach(driver).applied is not None
    await settled(driver)
    assert driver.state.point == (first and replace(first, max_num_seqs=8))
    await until(lambda: coach(driver).outcome)
    assert coach(driver).outcome.startswith("max-num-seqs 4 -> 8: TTFT ")
    assert coach(driver).outcome.endswith("as expected")
    assert said(driver, coach(driver).outcome)
    assert said(driver, "limit SEQ CAP: requests wait for a slot on")
    assert said(driver, "advice: requests wait for a slot on")
    assert sum(notice.text.startswith("advice: ") for notice in driver.state.notices) <= 3


async def test_an_operator_who_steps_elsewhere_is_not_told_of_the_advice(sessions: Sessions) -> None:
    driver = await waiting_for_slots(sessions)
    driver.apply_advice()
    driver.set_knob(Knob.SEQS, 16)
    await settled(driver)
    assert coach(driver).applied is None
    await until(lambda: coach(driver).finding)
    assert coach(driver).outcome == ""


async def test_without_advice_the_key_does_nothing(sessions: Sessions) -> None:
    driver = await live(sessions, slo=EASY, workload=SHORT, load=Load(rate_rps=5.0), episode_requests=20)
    await until(lambda: coach(driver).seen and coach(driver).finding)
    assert coach(driver).finding is not None
    assert coach(driver).finding.limit is Limit.UNDERLOADED  # type: ignore[union-attr]
    assert coach(driver).advice is None
    before = driver.state.point
    driver.apply_advice()
    assert (driver.state.point, coach(driver).applied) == (before, None)


async def test_without_a_ring_the_limit_comes_from_the_metrics_and_a_step_is_a_restart(sessions: Sessions) -> None:
    driver = await sessions.live(
        "--max-num-seqs", "4", words=NO_HELLO, load=Load(concurrency=24), slo=EASY, episode_requests=40
    )  # fmt: skip
    await until(lambda: coach(driver).advice)
    finding, advice = coach(driver).finding, coach(driver).advice
    assert finding is not None
    assert advice is not None
    assert (finding.limit, finding.figures.exact) == (Limit.SEQ_CAP, False)
    assert "looks" in finding.sentence
    assert advice.restart
    driver.apply_advice()
    assert driver.state.restart is not None
    assert driver.state.restart.target == advice.target
    driver.confirm_restart()
    await until(lambda: coach(driver).outcome)
    assert coach(driver).outcome.startswith("max-num-seqs 4 -> 8: ")
