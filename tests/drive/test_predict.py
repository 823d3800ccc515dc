"""Points predicted before they are tried: by a model fitted at one point, against the machine that made the steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.load import Load
from tunetui.core.predictions import Predicted, PredictionErrors
from tunetui.core.slo import Slo, Verdict, parse_slo
from tunetui.core.step_model import StepModel, StepModelFit
from tunetui.core.workload import Workload, parse_lengths, plan_episode
from tunetui.demo.case import WORKLOAD as CASE
from tunetui.demo.engine import Step
from tunetui.demo.machine import A10, A100, GIB, MISTRAL_7B, Machine
from tunetui.demo.virtual import StepTimes, VirtualLoad
from tunetui.drive.predict import learned, predict
from tunetui.drive.predict_capacity import predict_capacity, virtual_capacity
from tunetui.drive.virtual_episode import VirtualRun, engine_at, virtual_episode

MACHINE = Machine(A100, MISTRAL_7B)
CHAT = Workload(parse_lengths("64-512"), parse_lengths("32-256"))
SLO = parse_slo(["ttft:600", "tpot:60"])
START = Point(256, 4096, True, 0.92, True)
POINTS = (
    replace(START, max_num_seqs=64), replace(START, max_num_seqs=128), replace(START, max_num_seqs=384),
    replace(START, chunked_prefill=False), replace(START, max_num_batched_tokens=1024),
    replace(START, long_prefill_token_threshold=256),
)  # fmt: skip
CUT, COUNTED = 100, 400


def facts_of(machine: Machine = MACHINE) -> EngineFacts:
    return EngineFacts(
        "simulated", machine.model.name, START, max_model_len=4096, num_blocks=machine.num_blocks(0.92, 4096),
        block_size=16, blocks_per_max_request=256, bytes_per_block=machine.bytes_per_block,
        total_memory_bytes=int(machine.card.memory_gib * GIB),
    )  # fmt: skip


class Noisy:
    """A machine whose steps vary by 5 %."""

    def __init__(self, machine: Machine, seed: int = 0) -> None:
        self._machine, self._rng = machine, np.random.default_rng(seed)

    def step_s(self, step: Step) -> float:
        return self._machine.step_s(step) * float(np.exp(self._rng.normal(0, 0.05)))


def fitted_at(point: Point, workload: Workload, load: Load, times: StepTimes, facts: EngineFacts) -> StepModel:
    """The model of one episode at `point`."""
    virtual = VirtualLoad(engine_at(facts, point, workload), times)
    fit = StepModelFit(facts.block_size)
    for _ in virtual.reports(plan_episode(workload, load, CUT, COUNTED), 1, 1.0):
        fit.add(list(virtual.ring))
        virtual.ring.clear()
    found = fit.model()
    assert found is not None
    return found


def measured(
    machine: Machine, point: Point, workload: Workload, load: Load, slo: Slo = SLO, facts: EngineFacts | None = None
) -> VirtualRun:
    return virtual_episode(
        lambda _: Noisy(machine, 9), facts or facts_of(machine), point, workload, load, slo, CUT, COUNTED
    )


@pytest.mark.parametrize(
    ("machine", "workload", "load", "ttft_within"),
    [(MACHINE, CHAT, Load(14.0), 0.15), (Machine(A10, MISTRAL_7B), CHAT, Load(3.0), 0.15),
     (MACHINE, CASE, Load(20.0), 0.15), (MACHINE, CASE, Load(concurrency=256), 0.10)],
)  # fmt: skip
def test_a_model_fitted_at_one_point_predicts_the_others(
    machine: Machine, workload: Workload, load: Load, ttft_within: float
) -> None:
    model = fitted_at(START, workload, load, Noisy(machine), facts_of(machine))
    for point in POINTS:
        said = predict(model, facts_of(machine), point, workload, load, SLO, CUT, COUNTED)
        seen = measured(machine, point, workload, load).measurement
        print(point, said.measurement.ttft_s, seen.ttft_s, said.measurement.tpot_s, seen.tpot_s)
        assert bool(said.overload) == bool(seen.overload)
        if seen.overload:
            assert said.verdict(SLO) is Verdict.FAIL
            continue
        assert said.measurement.output_tokens_per_s == pytest.approx(seen.output_tokens_per_s, rel=0.05)
        assert said.measurement.tpot_s == pytest.approx(seen.tpot_s, rel=0.05)
        assert said.measurement.ttft_s == pytest.approx(seen.ttft_s, rel=ttft_within)
        assert said.measurement.complete
        assert said.ttft_s is not None
        assert seen.ttft_s in said.ttft_s


@pytest.mark.parametrize("start", [64, 128, 256, 384])
def test_a_closed_loop_at_any_size_of_the_batch_tells_the_case_with_and_without_chunks(start: int) -> None:
    facts = facts_of()
    at = replace(START, max_num_seqs=start)
    model = fitted_at(at, CASE, Load(concurrency=start), Noisy(MACHINE), facts)
    for seqs, chunked in [(64, True), (64, False), (256, True), (256, False), (384, True)]:
        point, load = replace(START, max_num_seqs=seqs, chunked_prefill=chunked), Load(concurrency=seqs)
        said = predict(model, facts, point, CASE, load, SLO, CUT, COUNTED)
        seen = measured(MACHINE, point, CASE, load).measurement
        print(start, seqs, chunked, said.measurement.tpot_s, seen.tpot_s, said.extrapolated)
        assert said.measurement.output_tokens_per_s == pytest.approx(seen.output_tokens_per_s, rel=0.08)
        assert said.measurement.tpot_s == pytest.approx(seen.tpot_s, rel=0.08)
        # Beyond twice the sequences that it was fitted to, it says so.
        assert (said.extrapolated > 0.1) == (seqs > 2 * start)
        assert said.trusted != (said.extrapolated > 0.1)


def test_the_same_steps_without_noise_give_the_same_figures_as_the_machine() -> None:
    truth = StepModel(0.012, 85e-6, 105, 12e-6, 80e-9)
    said = predict(truth, facts_of(), START, CHAT, Load(14.0), SLO, CUT, COUNTED)
    again = predict(truth, facts_of(), START, CHAT, Load(14.0), SLO, CUT, COUNTED)
    other = predict(truth, facts_of(), START, CHAT, Load(14.0), SLO, CUT, COUNTED, seed=5)
    assert said == again
    assert said.measurement != other.measurement
    assert said.verdict(SLO) is Verdict.PASS


def test_an_overload_is_called_so_and_soon() -> None:
    model = StepModel(0.012, 85e-6, 105, 12e-6, 80e-9)
    said = predict(model, facts_of(), START, CHAT, Load(60.0), SLO, CUT, 20_000)
    assert "wait for their first token" in said.overload
    assert said.verdict(SLO) is Verdict.FAIL
    assert said.steps < 5_000


@pytest.mark.parametrize(("most_steps", "words"), [(500, "cut short"), (150_000, "")])
def test_a_run_ends_after_the_most_steps_and_says_so(most_steps: int, words: str) -> None:
    model = StepModel(0.012, 85e-6, 105, 12e-6, 80e-9)
    said = predict(model, facts_of(), START, CHAT, Load(8.0), SLO, CUT, COUNTED, most_steps=most_steps)
    assert any("cut short" in flag for flag in said.flags) is bool(words)
    assert said.measurement.complete is not bool(words)


def test_a_request_that_never_fits_ends_it_at_once() -> None:
    model = StepModel(0.012, 85e-6, 105, 12e-6, 80e-9)
    small = replace(facts_of(), num_blocks=20, total_memory_bytes=0)
    said = predict(model, small, START, CHAT, Load(8.0), SLO, CUT, COUNTED)
    assert (said.steps, said.verdict(SLO)) == (0, Verdict.FAIL)
    assert "does not fit" in said.overload


def test_without_a_known_size_of_the_cache_everything_fits() -> None:
    engine = engine_at(EngineFacts("", "m", START), START, CHAT)
    assert engine.pool.num_blocks > 256 * (512 + 256) // 16
    blocks = facts_of().capacity_blocks(0.5)
    assert blocks is not None
    assert engine_at(facts_of(), replace(START, memory=0.5), CHAT).pool.num_blocks == blocks
    assert engine_at(replace(facts_of(), block_size=32), START, CHAT).pool.num_blocks == 2 * facts_of().num_blocks


def test_what_was_wrong_is_learned_and_told() -> None:
    """An engine that takes twice as long as its model: the correction comes, and until then it is said."""
    model = StepModel(0.012, 85e-6, 105, 12e-6, 80e-9)
    slow = Machine(A100, replace(MISTRAL_7B, parameters_b=14.5))
    errors = PredictionErrors()
    for _ in range(3):
        said = predict(model, facts_of(), START, CHAT, Load(5.0), SLO, CUT, COUNTED, errors)
        seen = measured(slow, START, CHAT, Load(5.0), facts=facts_of())
        errors = learned(errors, said, seen.measurement)
    assert errors.is_poor(Predicted.TPOT)
    said = predict(model, facts_of(), START, CHAT, Load(5.0), SLO, CUT, COUNTED, errors)
    assert any("predictions of TPOT were off by" in flag for flag in said.flags)
    assert not said.trusted
    assert said.tpot_s is not None
    assert said.measurement.tpot_s is not None
    assert said.tpot_s.value > 1.3 * said.measurement.tpot_s
    assert learned(errors, said, replace(seen.measurement, overload="overloaded")) == errors


@pytest.mark.parametrize("ttft_ms", [40, 400, 4000])
def test_the_verdict_needs_the_whole_interval(ttft_ms: int) -> None:
    model = StepModel(0.012, 85e-6, 105, 12e-6, 80e-9)
    slo = parse_slo([f"ttft:{ttft_ms}"])
    said = predict(model, facts_of(), START, CHAT, Load(14.0), slo, CUT, COUNTED)
    assert said.ttft_s is not None
    assert said.verdict(slo) is (Verdict.FAIL if ttft_ms == 40 else Verdict.PASS)
    near = parse_slo([f"ttft:{said.ttft_s.value * 1100:g}"])
    assert said.verdict(near) is Verdict.UNDECIDED
    assert said.verdict(Slo(())) is Verdict.UNDECIDED


# -- capacity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seqs", [64, 256])
def test_the_capacity_is_that_of_the_machine(seqs: int) -> None:
    point = replace(START, max_num_seqs=seqs)
    model = fitted_at(START, CHAT, Load(18.0), Noisy(MACHINE), facts_of())
    found = predict_capacity(model, facts_of(), point, CHAT, Load(1.0), SLO)
    truth = virtual_capacity(lambda _: MACHINE, facts_of(), point, CHAT, Load(1.0), SLO)
    assert found.modelled_rps == pytest.approx(truth.rate_rps, rel=0.04)
    assert truth.rate_rps in found.rps
    assert found.exact
    assert found.episodes < 16


@pytest.mark.parametrize(("slo", "above_rps", "exact"), [("ttft:600", 60.0, False), ("ttft:5", 0.0, True)])
def test_a_search_ends_early_below_what_matters_and_where_no_rate_holds(
    slo: str, above_rps: float, exact: bool
) -> None:
    model = StepModel(0.012, 85e-6, 105, 12e-6, 80e-9)
    found = predict_capacity(model, facts_of(), START, CHAT, Load(1.0), parse_slo([slo]), above_rps=above_rps)
    assert found.exact is exact
    assert (found.modelled_rps == 0) is (slo == "ttft:5")
    assert found.episodes < 14
