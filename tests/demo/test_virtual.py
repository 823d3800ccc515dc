"""Episodes in virtual time: queueing laws, and the case of the tuning guide."""

from __future__ import annotations

import numpy as np
import pytest

from tunetui.core.load import Load
from tunetui.core.sample import Outcome, Sample
from tunetui.core.workload import EpisodePlan, Workload, parse_lengths, plan_episode
from tunetui.demo import case
from tunetui.demo.engine import Engine
from tunetui.demo.machine import A10, A100, H100, LLAMA_70B, MISTRAL_7B, Machine
from tunetui.demo.virtual import VirtualLoad


def plan(load: Load, prompt: str, output: str, size: int, seed: int = 0) -> EpisodePlan:
    return plan_episode(Workload(parse_lengths(prompt), parse_lengths(output), seed), load, 0, size)


@pytest.mark.parametrize("machine", [Machine(A10, MISTRAL_7B), Machine(A100, MISTRAL_7B), Machine(H100, LLAMA_70B, 4)])
@pytest.mark.parametrize("seed", range(4))
def test_littles_law_holds_and_no_time_passes_unworked(machine: Machine, seed: int) -> None:
    rng = np.random.default_rng(seed)
    engine = Engine(machine.num_blocks(0.92, 4096), int(rng.integers(4, 200)), 4096)
    load = VirtualLoad(engine, machine)
    asked = plan(Load(float(rng.uniform(0.5, 6.0))), "20-800", "10-200", 400, seed)
    in_system_s = 0.0
    samples = load.run(asked)
    assert len(samples) == 400
    # Mean number in the system = throughput x mean time in it, counted a second way: over the moments.
    moments = sorted([(s.scheduled_s, 1) for s in samples] + [(s.ended_s, -1) for s in samples])
    now_s, inside = moments[0][0], 0
    for at_s, change in moments:
        in_system_s += inside * (at_s - now_s)
        now_s, inside = at_s, inside + change
    assert in_system_s == pytest.approx(sum(s.ended_s - s.scheduled_s for s in samples))
    # Whenever a request is inside, the engine works.
    starts_s = np.array([s.scheduled_s for s in samples])
    ends_s = np.array([s.ended_s for s in samples])
    order = np.argsort(starts_s)
    covered_s, until_s = 0.0, 0.0
    for i in order:
        covered_s += max(ends_s[i] - max(starts_s[i], until_s), 0.0)
        until_s = max(until_s, ends_s[i])
    assert load.busy_s == pytest.approx(covered_s, rel=1e-9)
    assert all(
        s.first_s is not None and s.last_s is not None and s.scheduled_s < s.first_s <= s.last_s for s in samples
    )


def test_equal_plans_give_equal_samples() -> None:
    def samples() -> list[Sample]:
        machine = Machine(A100, MISTRAL_7B)
        load = VirtualLoad(Engine(5000, 64, 2048), machine)
        return load.run(plan(Load(5.0), "20-800", "10-200", 200))

    assert samples() == samples()


def test_a_request_that_times_out_is_sent_again_and_at_last_fails() -> None:
    machine = Machine(A10, MISTRAL_7B)
    load = VirtualLoad(Engine(4000, 2, 2048), machine, timeout_s=4.0, retries=1)
    samples = load.run(plan(Load(8.0), "100", "60", 14))
    failed = [s for s in samples if s.outcome is Outcome.FAILED]
    assert len(samples) == 14
    assert failed
    assert all(s.error == "timed out after 4 s" and s.retries == 1 for s in failed)
    assert any(s.retries == 1 and s.outcome is Outcome.OK for s in samples)
    assert load.engine.pool.free == 3999


def test_the_case_has_the_guides_verdicts_and_its_order_of_throughputs() -> None:
    assert case.WORKLOAD.longest <= case.MACHINE.model.max_model_len
    low, high, chunked = (case.walk(point, requests=10_000) for point in case.POINTS)
    print(low, high, chunked, sep="\n")
    assert (low.ttft_met, low.tpot_met) == (True, True)
    assert not high.ttft_met
    assert high.kv_used < 0.6  # memory is not the cause
    assert (chunked.ttft_met, chunked.tpot_met) == (True, True)
    assert low.tokens_per_s < chunked.tokens_per_s < high.tokens_per_s
    # Not the size of the batch but the scheduling: as many sequences fail without chunking.
    assert not case.walk(case.Point(320, False, 4096), requests=10_000).ttft_met


def test_past_the_knee_more_throughput_brings_fewer_answers() -> None:
    before, beyond = (
        case.walk(point, 10_000, timeout_s=case.PATIENCE_S, retries=case.RETRIES) for point in case.PAST_THE_KNEE
    )
    print(before, beyond, sep="\n")
    assert 1.0 < beyond.tokens_per_s / before.tokens_per_s < 1.1
    assert beyond.ttft_s > 1.5 * before.ttft_s
    assert beyond.retried > 0.03 > before.retried
    assert beyond.answered_tokens_per_s < 0.95 * before.answered_tokens_per_s
