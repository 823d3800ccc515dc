"""Trials on the engine in virtual time: what they measure, what they cost, and what steps between points take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunetui.core.edge import Trial
from tunetui.core.episode import Episode, Measurement
from tunetui.core.knobs import Point
from tunetui.core.load import Load
from tunetui.core.slo import Verdict, parse_slo
from tunetui.core.trace import Trace
from tunetui.core.workload import Workload, parse_lengths, plan_episode
from tunetui.demo.engine import Engine
from tunetui.demo.machine import A100, MISTRAL_7B, Machine
from tunetui.demo.virtual import RING, VirtualLoad
from tunetui.drive.virtual_rig import VirtualRig, virtual_facts

MACHINE = Machine(A100, MISTRAL_7B)
WORKLOAD = Workload(parse_lengths("30-600"), parse_lengths("20-80"))
SLO = parse_slo(["ttft:600", "tpot:80"])
CEILING = Point(128, 4096, True, 0.92, True)
POINT = Point(64, 2048, True, 0.92, True)


def rig(point: Point = POINT, workload: Workload = WORKLOAD, start_s: float = 60.0) -> VirtualRig:
    return VirtualRig(MACHINE, CEILING, point, workload, SLO, start_s=start_s)


def trial(
    rate_rps: float = 10.0, point: Point = POINT, seed: int = 0, whole: bool = True, requests: int = 100
) -> Trial:
    return Trial(point, Load(rate_rps), requests, 10, seed, "", whole)


async def measure(rig: VirtualRig, trial: Trial) -> Measurement:
    return (await rig.measure(trial))[0].measurement


def on_a_fresh_engine(point: Point, asked: Trial) -> Measurement:
    """The same episode, all of it, on an engine that did nothing before."""
    blocks = MACHINE.num_blocks(CEILING.memory, CEILING.max_num_batched_tokens)
    engine = Engine(
        blocks, point.max_num_seqs, point.max_num_batched_tokens, point.chunked_prefill,
        point.long_prefill_token_threshold,
    )  # fmt: skip
    load = VirtualLoad(engine, MACHINE)
    plan = plan_episode(replace(WORKLOAD, seed=WORKLOAD.seed + asked.seed), asked.load, asked.cut, asked.requests)
    episode = Episode(1, plan, SLO)
    for report in load.reports(plan):
        for sample in report.samples:
            episode.add(sample)
    return episode.measure(load.now_s)


POINTS = [POINT, replace(POINT, max_num_seqs=8), replace(POINT, chunked_prefill=False, max_num_batched_tokens=4096),
          replace(POINT, long_prefill_token_threshold=128)]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("rate_rps", [2.0, 10.0])
async def test_a_trial_is_the_same_episode_that_a_fresh_engine_would_have(point: Point, rate_rps: float) -> None:
    one, asked = rig(), trial(rate_rps, point)
    await measure(one, trial(30.0, whole=False))  # whatever came before
    seen, alone = await measure(one, asked), on_a_fresh_engine(point, asked)
    assert (seen.counted, seen.judged, seen.failed) == (100, 100, 0)
    assert (seen.verdict, seen.attainment) == (alone.verdict, pytest.approx(alone.attainment, abs=0.02))
    assert seen.ttft_s == pytest.approx(alone.ttft_s, rel=0.1)
    assert seen.tpot_s == pytest.approx(alone.tpot_s, rel=0.1)
    assert seen.mean_e2el_s == pytest.approx(alone.mean_e2el_s, rel=0.1)


async def test_equal_trials_on_equal_rigs_are_equal_and_other_seeds_have_other_arrivals() -> None:
    first, second = [await measure(rig(), trial(seed=seed)) for seed in (0, 0)]
    other = await measure(rig(), trial(seed=1))
    assert first == second
    assert other.window_s != first.window_s
    assert other.counted == first.counted


async def test_the_steps_of_the_trial_and_no_others_come_with_it() -> None:
    one = rig()
    _, first = await one.measure(trial())
    began_s = one.elapsed_s - one.spent.starting_s
    _, second = await one.measure(trial(5.0))
    assert 0 < len(second) <= RING
    times_s = [step.time_s for step in second]
    assert times_s == sorted(times_s)
    assert began_s <= times_s[0]
    assert first[-1].time_s <= times_s[0]
    assert times_s[-1] <= one.elapsed_s - one.spent.starting_s
    assert all(step.running <= POINT.max_num_seqs and step.tokens <= POINT.max_num_batched_tokens for step in second)
    assert max(step.running for step in second) > 1


LIVE = [
    replace(POINT, max_num_seqs=128), replace(POINT, max_num_batched_tokens=4096), replace(POINT, memory=0.8),
    replace(POINT, chunked_prefill=False, max_num_batched_tokens=4096), replace(POINT, long_prefill_token_threshold=64),
]  # fmt: skip
RESTARTS = [
    replace(POINT, max_num_seqs=256), replace(POINT, max_num_batched_tokens=8192), replace(POINT, memory=0.94),
    replace(POINT, prefix_caching=False),
]  # fmt: skip


@pytest.mark.parametrize(("point", "starts"), [*((p, 1) for p in LIVE), *((p, 2) for p in RESTARTS), (POINT, 1)])
async def test_live_steps_cost_no_start_and_restarts_one(point: Point, starts: int) -> None:
    one = rig(start_s=33.0)
    await measure(one, trial(point=point, requests=30))
    assert one.point == point
    assert (one.spent.starts, one.spent.starting_s) == (starts, starts * 33.0)
    ceiling = one.facts.ceiling
    assert (point.max_num_seqs, point.memory) <= (ceiling.max_num_seqs, ceiling.memory)
    await measure(one, trial(requests=30))  # back below the ceiling
    assert one.spent.starts == starts + (not point.prefix_caching)


async def test_a_confirmation_is_a_start_with_exactly_the_flags_of_the_point() -> None:
    one = rig()
    await one.confirm(POINT)
    assert (one.point, one.facts.ceiling, one.spent.starts) == (POINT, POINT, 2)
    assert one.facts.num_blocks == virtual_facts(MACHINE, POINT).num_blocks


async def test_time_that_was_spent_adds_up() -> None:
    one = rig()
    warm_s = one.spent.serving_s
    assert one.elapsed_s == one.spent.total_s == 60.0 + warm_s > 60.0
    before_s = one.elapsed_s
    for rate_rps in (5.0, 10.0):
        seen = await measure(one, trial(rate_rps))
        assert one.elapsed_s >= before_s + seen.window_s
        before_s = one.elapsed_s
    assert one.spent.trials == 2
    assert one.spent.starting_s == 60.0
    assert one.elapsed_s == one.spent.starting_s + one.spent.serving_s
    assert one.mean_e2el_s > 0


async def test_a_point_that_vllm_would_refuse_is_refused_and_nothing_moves() -> None:
    one = rig()
    with pytest.raises(ValueError, match="lower max-num-seqs first"):
        await one.measure(trial(point=replace(POINT, max_num_batched_tokens=63)))
    assert one.point == POINT
    assert (one.spent.trials, one.spent.starts) == (0, 1)


@pytest.mark.parametrize(("rate_rps", "verdict"), [(5.0, Verdict.PASS), (60.0, Verdict.FAIL)])
async def test_a_trial_ends_with_its_verdict_unless_it_is_asked_to_go_on(rate_rps: float, verdict: Verdict) -> None:
    curtailed = await measure(early := rig(), trial(rate_rps, whole=False))
    whole = await measure(late := rig(), trial(rate_rps))
    assert curtailed.verdict is whole.verdict is verdict
    assert (curtailed.complete, whole.complete) == (False, True)
    assert early.elapsed_s < late.elapsed_s


async def test_an_overload_ends_a_trial_early_and_leaves_nothing_waiting_for_the_next() -> None:
    slow = replace(POINT, max_num_seqs=4)
    one = rig()
    calm = await measure(rig(), trial(2.0))
    seen, steps = await one.measure(trial(60.0, slow, whole=False, requests=2000))
    assert seen.measurement.verdict is Verdict.FAIL
    assert seen.measurement.judged < 200
    assert max(step.waiting for step in steps) > 10
    after, steps = await one.measure(trial(2.0))
    assert steps[0].waiting == 0
    assert after.measurement.ttft_s == pytest.approx(calm.ttft_s, rel=0.1)


async def test_memory_holds_blocks_and_gives_them_back() -> None:
    one = rig()
    _, plenty = await one.measure(trial(requests=30))
    _, less = await one.measure(trial(point=replace(POINT, memory=0.8), requests=30))
    _, again = await one.measure(trial(requests=30))
    held = one.facts.held_blocks(0.8)
    assert held
    free = [max(step.free_blocks + step.used_blocks for step in steps) for steps in (plenty, less, again)]
    assert free == [one.facts.num_blocks - 1, one.facts.num_blocks - 1 - held, one.facts.num_blocks - 1]


async def test_a_step_down_holds_the_budget_up_only_as_long_as_the_running_batch_needs_it() -> None:
    one, small = rig(), replace(POINT, max_num_seqs=8, max_num_batched_tokens=16)
    _, before = await one.measure(trial(60.0, whole=False, requests=400))
    _, after = await one.measure(trial(0.2, small, requests=20))
    assert before[-1].running > 32
    assert after[0].running > 16
    assert all(step.token_budget >= max(step.running, 16) for step in after if step.running > 8)
    drained = [step for step in after if step.time_s > next(s.time_s for s in after if s.running <= 8)]
    assert drained
    assert {step.token_budget for step in drained} == {16}


async def test_blocks_that_running_requests_have_at_a_step_down_are_held_when_these_have_ended() -> None:
    one = rig(workload=Workload(parse_lengths("100-200"), parse_lengths("300-400")))
    facts = one.facts
    blocks = facts.total_memory_bytes / facts.bytes_per_block  # of all the memory
    least = replace(POINT, memory=round(0.92 - (facts.most_held_blocks - 40) / blocks, 4))
    await one.measure(trial(60.0, whole=False, requests=400))
    _, after = await one.measure(trial(5.0, least, requests=5))
    held = [facts.num_blocks - 1 - step.used_blocks - step.free_blocks for step in after]
    assert held[0] < held[-1] == facts.held_blocks(least.memory)


async def test_the_prompts_of_a_trace_are_fresh_in_every_trial() -> None:
    blocks = tuple((i,) for i in range(100))  # no two share a prefix
    trace = Trace("t", (512,) * 100, (20,) * 100, block_tokens=512, blocks=blocks)
    one = rig(workload=replace(WORKLOAD, trace=trace))
    first, second = [await measure(one, trial(4.0, requests=80)) for _ in range(2)]
    assert second.ttft_s == pytest.approx(first.ttft_s, rel=0.1)
