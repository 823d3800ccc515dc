"""A session's start, and steps of the knobs as an operator makes them: live, refused, by restart, undone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from drive.sessions import NO_HELLO, Sessions, said, settled, until, with_seqs

from tunetui.core.knobs import How, Knob
from tunetui.core.load import Load
from tunetui.core.session import Phase, StepState
from tunetui.core.slo import Verdict
from tunetui.core.workload import EpisodePlan
from tunetui.drive.driver import Driver
from tunetui.load.generator import LoadGenerator

Sent = list[tuple[EpisodePlan, tuple[int, ...]]]


@pytest.fixture
def episodes(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Every episode that is handed to the load process, with the seed of its prompts."""
    seen: Sent = []
    sends = LoadGenerator.episode

    async def episode(self: LoadGenerator, plan: EpisodePlan, **more: Any) -> None:
        seen.append((plan, tuple(more["prompt_seed"])))
        await sends(self, plan, **more)

    monkeypatch.setattr(LoadGenerator, "episode", episode)
    return seen


def limit_in_force(driver: Driver) -> int:
    assert driver.engine.control is not None
    now = driver.engine.control.in_force()
    assert now is not None
    return now.max_num_seqs


async def test_a_start_says_its_phases_and_is_at_the_point_that_was_given(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "16", "--max-num-batched-tokens", "1024", ceiling_seqs=64)
    state = driver.state
    assert [phase.label for phase in state.starting][:2] == ["starting python", "reading the model's config"]
    assert state.starting[-1].label == "ready"
    assert state.point is not None
    assert state.facts is not None
    assert (state.point.max_num_seqs, state.point.max_num_batched_tokens) == (16, 1024)
    assert state.facts.ceiling.max_num_seqs == 64
    assert "--scheduler-cls" in driver.engine.argv
    assert driver.engine.argv[driver.engine.argv.index("--max-num-seqs") + 1] == "64"
    assert limit_in_force(driver) == 16
    row = await until(lambda: driver.state.rows and driver.state.rows[0])
    assert row.point == state.point
    assert row.measurement.verdict is Verdict.PASS


async def test_a_threshold_that_vllm_sets_itself_is_the_point_that_is_shown(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8", env={"FAKE_VLLM_FAULT": "own_threshold:81"})
    assert driver.state.point is not None
    assert driver.state.point.long_prefill_token_threshold == 81
    assert driver.state.history == ()
    driver.set_knob(Knob.SEQS, 4)
    await settled(driver)
    assert driver.state.point.long_prefill_token_threshold == 81


async def test_a_memory_step_that_changes_nothing_is_refused_with_what_to_leave_out(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8", "--num-gpu-blocks-override", "512")
    before = driver.state.point
    driver.step_knob(Knob.MEMORY, -1)
    assert said(driver, "--num-gpu-blocks-override 512 sets the KV blocks whatever the memory: start without it")
    assert (driver.state.point, driver.state.restart) == (before, None)
    assert driver.state.facts is not None
    assert driver.state.facts.num_blocks == 512


async def test_the_logs_memory_figures_are_facts_and_a_step_of_the_share_is_live(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8", "--gpu-memory-utilization", "0.9")
    facts = driver.state.facts
    assert facts is not None
    assert facts.total_memory_bytes == 10 * 2**30
    assert facts.memory.weights_bytes == pytest.approx(0.55 * 2**30, abs=2)
    assert facts.memory.activations_bytes == pytest.approx(0.25 * 2**30, abs=2)
    assert facts.memory.kv_bytes == pytest.approx(8.0 * 2**30, rel=0.001)
    driver.set_knob(Knob.MEMORY, 0.8)
    await settled(driver)
    # 0.1 of 10 GiB in blocks of 2 MiB
    await until(lambda: driver.state.engine.held_blocks == 512)
    assert facts.capacity_blocks(0.8) == facts.num_blocks - 512


async def test_the_long_prefill_limit_is_stepped_and_taken_away_live(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    control = driver.engine.control
    assert control is not None
    for value, in_force in ((512, 512), (0, 0)):
        driver.set_knob(Knob.THRESHOLD, value)
        await settled(driver)
        now = control.in_force()
        assert now is not None
        assert now.long_prefill_token_threshold == in_force
        assert driver.state.point is not None
        assert driver.state.point.long_prefill_token_threshold == in_force


async def test_phases_are_said_even_where_something_else_reads_the_log_first(sessions: Sessions) -> None:
    driver = sessions.driver(env={"FAKE_VLLM_START_S": "0.4"})
    emit = driver.emit

    def nosy(event: Any) -> None:
        emit(event)
        driver.engine.read_log()

    driver.engine._emit = nosy
    await driver.start()
    assert {"loading weights", "allocating the KV cache", "ready"} <= {p.label for p in driver.state.starting}


async def test_a_step_is_accepted_within_a_second_and_settled_with_the_batch_inside_it(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "32", load=Load(concurrency=24), env={"FAKE_VLLM_SPEED": "0.5"})
    control = driver.engine.control
    assert control is not None
    await until(lambda: (now := control.in_force()) and now.running >= 20)
    before = driver.state.point
    driver.set_knob(Knob.SEQS, 4)
    assert driver.state.step_state is StepState.ASKED
    assert driver.state.measurement is None
    await settled(driver)
    state = driver.state
    assert state.step_asked_s is not None
    assert state.step_accepted_s is not None
    assert state.step_settled_s is not None
    assert 0 <= state.step_accepted_s - state.step_asked_s < 1.0
    assert state.step_settled_s >= state.step_accepted_s
    most = 0

    def measured() -> bool:
        nonlocal most
        now = control.in_force()
        most = max(most, now.running if now is not None else 0)
        return any(row.point == driver.state.point for row in driver.state.rows)

    await until(measured)
    assert most == 4
    assert state.marks == (state.step_settled_s,)
    assert state.history == (before,)


async def test_a_new_point_shows_nothing_of_the_backlog_of_the_point_before(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "1", load=Load(rate_rps=100.0), episode_requests=100)
    await until(lambda: driver.state.measurement and (driver.state.measurement.ttft_s or 0) > 0.3)
    before = driver.state.point
    driver.set_knob(Knob.SEQS, 32)
    await settled(driver)
    seen: list[float] = []

    def passed() -> bool:
        shown = driver.loop.measurement(time.monotonic())
        if shown is not None and shown.ttft_s is not None:
            seen.append(shown.ttft_s)
        return any(row.point != before for row in driver.state.rows)

    await until(passed)
    assert max(seen) < 0.15
    overloaded, slack = driver.state.rows
    assert (overloaded.point, overloaded.measurement.verdict) == (before, Verdict.FAIL)
    assert slack.measurement.verdict is Verdict.PASS
    assert slack.measurement.cancelled == 0


async def test_every_point_gets_the_same_episode_with_fresh_prompts(sessions: Sessions, episodes: Sent) -> None:
    driver = await sessions.live("--max-num-seqs", "16")
    episodes_before = len(episodes)
    await until(lambda: len(driver.state.rows) == 1)
    driver.set_knob(Knob.SEQS, 8)
    await until(lambda: len(driver.state.rows) == 2)
    counted = [plan for plan, _ in episodes[episodes_before - 1 :]]
    assert len(counted) >= 2
    assert {(plan.arrivals_s, plan.prompt_tokens, plan.output_tokens, plan.cut) for plan in counted} == {
        (counted[0].arrivals_s, counted[0].prompt_tokens, counted[0].output_tokens, counted[0].cut)
    }
    seeds = [seed for _, seed in episodes]
    assert len(set(seeds)) == len(seeds)
    assert driver.state.engine.prefix_hit_rate in (None, 0.0)


async def test_quick_keys_are_one_step_and_undo_takes_it_back(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    first = driver.state.point
    for _ in range(5):
        driver.step_knob(Knob.SEQS, +1, fine=True)
    await settled(driver)
    assert driver.state.point == with_seqs(driver, 48)
    assert driver.state.history == (first,)
    assert len(driver.state.marks) == 1
    driver.undo()
    await settled(driver)
    assert (driver.state.point, driver.state.history) == (first, ())
    driver.undo()
    assert said(driver, "nothing to undo")


async def test_the_row_of_an_undecided_point_is_kept_when_it_is_left(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8", load=Load(rate_rps=10.0), episode_requests=400)
    first = driver.state.point
    await until(lambda: driver.state.measurement and driver.state.measurement.judged)
    driver.set_knob(Knob.SEQS, 4)
    (row,) = driver.state.rows
    assert (row.point, row.measurement.verdict) == (first, Verdict.UNDECIDED)
    judged = row.measurement.judged
    driver.undo()
    await until(lambda: driver.state.measurement and driver.state.measurement.judged > judged)
    driver.toggle_pause()
    assert driver.state.rows[0].measurement.judged > judged


async def test_a_step_that_vllm_would_not_start_with_is_refused(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    before = driver.state.point
    driver.set_knob(Knob.TOKENS, 4)
    assert said(driver, "lower max-num-seqs first")
    assert (driver.state.point, driver.state.restart) == (before, None)


async def test_a_restart_is_offered_dropped_and_done_with_a_raised_ceiling(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8", ceiling_seqs=16)
    first, pid, api = driver.state.point, driver.engine.pid, driver.engine.api
    driver.set_knob(Knob.SEQS, 24)
    assert driver.state.restart is not None
    assert "above the 16" in driver.state.restart.reason
    driver.set_knob(Knob.TOKENS, 4096)  # goes on from the offered point
    assert driver.state.restart is not None
    assert driver.state.restart.target == with_seqs(driver, 24).with_value(Knob.TOKENS, 4096)
    driver.drop_restart()
    assert (driver.state.restart, driver.state.point) == (None, first)
    driver.confirm_restart()  # nothing is offered: nothing happens
    assert driver.state.phase is Phase.LIVE
    driver.set_knob(Knob.SEQS, 24)
    driver.confirm_restart()
    driver.confirm_restart()
    await until(lambda: driver.engine.pid != pid and driver.state.phase is Phase.LIVE)
    assert limit_in_force(driver) == 24
    assert driver.state.point == with_seqs(driver, 24)
    assert driver.state.facts is not None
    assert driver.state.facts.ceiling.max_num_seqs == 24
    assert api is not None
    assert api._client.is_closed
    await until(lambda: driver.state.measurement and driver.state.measurement.judged)


async def test_a_step_while_nothing_runs_is_idle_and_comes_into_force_with_the_next_request(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8")
    driver.toggle_pause()
    control = driver.engine.control
    assert control is not None
    await until(lambda: (now := control.in_force()) and not now.running and not now.waiting)
    driver.set_knob(Knob.SEQS, 4)
    await until(lambda: driver.state.step_state is StepState.IDLE)
    assert limit_in_force(driver) == 8
    driver.step_load(+1)  # a change of the load leaves the step where it is
    assert driver.state.step_state is StepState.IDLE
    driver.toggle_pause()
    await settled(driver)
    assert limit_in_force(driver) == 4
    await until(lambda: driver.state.rows)


async def test_a_change_of_the_load_does_not_lose_a_step_on_its_way(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "16", load=Load(concurrency=16), env={"FAKE_VLLM_SPEED": "0.3"})
    control = driver.engine.control
    assert control is not None
    await until(lambda: (now := control.in_force()) and now.running >= 12)
    driver.set_knob(Knob.SEQS, 2)
    driver.set_load(Load(concurrency=4))
    await settled(driver)
    await until(lambda: driver.state.measurement)
    now = control.in_force()
    assert now is not None
    assert now.running <= 2


@pytest.mark.parametrize(
    ("flags", "words", "reason"),
    [
        (("--max-num-seqs", "8"), NO_HELLO, "did not report in"),
        (("--max-num-seqs", "8", "--scheduler-cls", "mine.Scheduler"), None, "another scheduler class"),
    ],
)
async def test_without_live_control_the_knobs_restart_and_the_reason_is_said(
    sessions: Sessions, flags: tuple[str, ...], words: tuple[str, ...] | None, reason: str
) -> None:
    driver = await sessions.live(*flags, **({"words": words} if words else {}))
    facts, argv = driver.state.facts, driver.engine.argv
    assert facts is not None
    assert not facts.live
    assert reason in facts.why_not_live
    assert argv[argv.index("--max-num-seqs") + 1] == "8"  # the point itself, not the ceiling
    driver.set_knob(Knob.SEQS, 4)
    assert driver.state.restart is not None
    assert driver.state.restart.how is How.RESTART
    assert reason in driver.state.restart.reason
    driver.confirm_restart()
    await until(lambda: "4" in driver.engine.argv and driver.state.phase is Phase.LIVE)
    assert driver.engine.argv[driver.engine.argv.index("--max-num-seqs") + 1] == "4"
    assert driver.state.facts is not None
    assert reason in driver.state.facts.why_not_live
