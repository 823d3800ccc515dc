"""The model of step times: it finds the coefficients that made the steps, and says what they do not determine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunetui.core.step_model import FEWEST_STEPS, StepModel, StepModelFit, Term, fit
from tunetui.core.steps import EngineStep, Stop

BLOCK = 16
GPU = StepModel(0.012, 85e-6, 105, 12e-6, 80e-9)  # a 7B model on a large card


def ring(
    truth: StepModel,
    count: int = 1500,
    noise: float = 0.0,
    gaps: float = 0.0,
    most_sequences: int = 64,
    late: bool = False,
    seed: int = 0,
) -> list[EngineStep]:
    """`count` steps of a batch that wanders, prefills among them. `gaps`: the share of steps after which nothing came
    for a while. `late`: the time until the next call is that of the step before, as with asynchronous scheduling."""
    rng = np.random.default_rng(seed)
    steps: list[EngineStep] = []
    now_s, before_s, sequences, context = 0.0, 0.0, most_sequences // 2, 300.0
    for _ in range(count):
        sequences = int(np.clip(sequences + rng.integers(-3, 4), 1, most_sequences))
        context = float(np.clip(context + rng.normal(0, 15), 100, 900))
        blocks = round(sequences * context / BLOCK)
        prefill = int(rng.integers(16, 2000)) if rng.random() < 0.2 else 0
        tokens = sequences + prefill
        steps.append(EngineStep(now_s, sequences, 0, sequences, tokens, blocks, 9000, 0, Stop.NONE, 8192))
        took_s = truth.step_s(tokens, sequences, blocks * BLOCK) * float(np.exp(rng.normal(0, noise)))
        now_s += (before_s or took_s) if late else took_s
        before_s = took_s
        if rng.random() < gaps:
            now_s += float(rng.exponential(1.0))
    return steps


def close(found: StepModel, truth: StepModel, within: float) -> None:
    """Over the span of the steps the two say the same; coefficients may be traded where that changes nothing."""
    for tokens, sequences, kv_tokens in [(8, 8, 2_000), (60, 60, 20_000), (500, 40, 12_000), (1900, 60, 25_000)]:
        if tokens < found.low.tokens:
            continue
        said_s, true_s = found.step_s(tokens, sequences, kv_tokens), truth.step_s(tokens, sequences, kv_tokens)
        assert said_s == pytest.approx(true_s, rel=within), (tokens, sequences, kv_tokens, found)


def test_exact_steps_give_their_coefficients_back() -> None:
    found = fit(ring(GPU), BLOCK)
    assert found is not None
    assert found.base_s == pytest.approx(GPU.base_s, rel=0.01)
    assert found.per_token_s == pytest.approx(GPU.per_token_s, rel=0.01)
    assert found.free_tokens == pytest.approx(GPU.free_tokens, abs=5)
    assert found.per_kv_token_s == pytest.approx(GPU.per_kv_token_s, rel=0.1)
    assert found.per_sequence_s == pytest.approx(GPU.per_sequence_s, rel=0.3)
    assert (found.undetermined, found.error < 1e-3, found.explained > 0.999) == ((), True, True)


@given(
    base_s=st.floats(0.001, 0.05),
    per_token_s=st.floats(5e-6, 1e-3),
    free_tokens=st.floats(0, 400),
    per_sequence_s=st.floats(0, 3e-4),
    per_kv_token_s=st.floats(0, 5e-7),
    noise=st.floats(0, 0.15),
    gaps=st.floats(0, 0.08),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_noisy_steps_with_idle_gaps_give_the_times_back(
    base_s: float, per_token_s: float, free_tokens: float, per_sequence_s: float, per_kv_token_s: float,
    noise: float, gaps: float, seed: int,
) -> None:  # fmt: skip
    # Where computing takes over it takes as long as the reading that hid it, which is part of the base.
    truth = StepModel(base_s + per_token_s * free_tokens, per_token_s, free_tokens, per_sequence_s, per_kv_token_s)
    found = fit(ring(truth, noise=noise, gaps=gaps, seed=seed), BLOCK)
    assert found is not None
    close(found, truth, 0.03 + 0.8 * noise)
    assert found.error <= 0.02 + noise


@given(seed=st.integers(0, 10_000), count=st.integers(0, 300), stopped=st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_coefficient_is_ever_negative(seed: int, count: int, stopped: bool) -> None:
    rng = np.random.default_rng(seed)
    now_s, steps = 0.0, []
    for _ in range(count):
        requests = int(rng.integers(0, 50))
        tokens = requests + int(rng.integers(0, 3000)) * int(rng.random() < 0.3)
        blocks = int(rng.integers(0, 4000))
        steps.append(EngineStep(now_s, requests, 0, requests, tokens, blocks, 100, 0, Stop.NONE, 4096))
        now_s += 0.0 if stopped and rng.random() < 0.1 else float(rng.exponential(0.02))
    found = fit(steps, BLOCK)
    if found is None:
        assert count < 2000
        return
    coefficients = (
        found.base_s, found.per_token_s, found.per_sequence_s, found.per_kv_token_s, found.free_tokens,
    )  # fmt: skip
    assert all(np.isfinite(one) and one >= 0 for one in coefficients)
    assert found.step_s(0, 0, 0) >= 0


def test_too_few_steps_are_no_model() -> None:
    steps = ring(GPU, FEWEST_STEPS)  # the last has no time
    assert fit([], BLOCK) is None
    assert fit(steps, BLOCK) is None
    assert fit(ring(GPU, FEWEST_STEPS + 1), BLOCK) is not None
    with pytest.raises(ValueError, match="block"):
        StepModelFit(0)


def test_steps_that_are_all_alike_determine_the_base_alone() -> None:
    steps = [EngineStep(0.02 * i, 32, 0, 32, 32, 500, 500, 0, Stop.NONE, 2048) for i in range(100)]
    found = fit(steps, BLOCK)
    assert found is not None
    assert set(found.undetermined) == set(Term)
    assert found.step_s(32, 32, 8000) == pytest.approx(0.02)
    assert found.known(32, 32, 8000)
    assert not found.known(64, 64, 16000)


@pytest.mark.parametrize("per_sequence", [10, 40])
def test_what_moves_together_is_not_told_apart_but_is_not_lost(per_sequence: int) -> None:
    """Each sequence holds as many blocks: only their sum is known, and one of the terms carries it."""
    rng = np.random.default_rng(0)
    now_s, steps = 0.0, []
    for _ in range(1000):
        n = int(rng.integers(8, 64))
        steps.append(EngineStep(now_s, n, 0, n, n, n * per_sequence, 9000, 0, Stop.NONE, 2048))
        now_s += GPU.step_s(n, n, n * per_sequence * BLOCK) * float(np.exp(rng.normal(0, 0.02)))
    found = fit(steps, BLOCK)
    assert found is not None
    assert Term.SEQUENCES in found.undetermined
    for n in (10, 60):
        kv_tokens = n * per_sequence * BLOCK
        assert found.step_s(n, n, kv_tokens) == pytest.approx(GPU.step_s(n, n, kv_tokens), rel=0.02)


def test_times_of_the_step_before_are_noticed() -> None:
    found = fit(ring(GPU, late=True, noise=0.03), BLOCK)
    assert found is not None
    close(found, GPU, 0.05)


@pytest.mark.parametrize("tick", [1, 7, 100])
def test_steps_that_come_bit_by_bit_give_the_same_model(tick: int) -> None:
    steps = ring(GPU, noise=0.05, gaps=0.02)
    running = StepModelFit(BLOCK)
    for at in range(0, len(steps), tick):
        running.add(steps[at : at + tick])
    assert running.model() == fit(steps, BLOCK)
    assert running.taken <= len(steps) - 1


def test_points_that_were_left_are_still_known() -> None:
    running = StepModelFit(BLOCK)
    running.add(ring(GPU, 3000, 0.05, most_sequences=200))
    running.restart()
    running.add(ring(GPU, 6000, 0.05, most_sequences=8, seed=1))
    found = running.model()
    assert found is not None
    assert found.high.sequences > 120
    assert found.known(140, 140, 60_000)
    assert found.steps <= 8_192
    assert found.step_s(140, 140, 54_000) == pytest.approx(GPU.step_s(140, 140, 54_000), rel=0.05)


@pytest.mark.parametrize(
    ("tokens", "sequences", "kv_tokens", "known"),
    [(50, 50, 9_000, True), (150, 100, 30_000, True), (900, 450, 30_000, False), (64, 32, 10_000_000, False),
     (90_000, 32, 9_000, False)],
)  # fmt: skip
def test_steps_unlike_any_seen_are_called_so(tokens: int, sequences: int, kv_tokens: int, known: bool) -> None:
    found = fit(ring(GPU, noise=0.05), BLOCK)
    assert found is not None
    assert found.known(tokens, sequences, kv_tokens) is known


def test_a_gap_after_the_last_request_is_no_step() -> None:
    """One request at a time, a second apart, in an engine that else is idle: most steps are decodes of 10 ms, and the
    gaps are left out though there is one in twenty."""
    now_s, steps = 0.0, []
    for _ in range(60):
        steps.append(EngineStep(now_s, 1, 0, 1, 64, 4, 900, 0, Stop.NONE, 2048))
        now_s += 0.05
        for made in range(1, 20):
            steps.append(EngineStep(now_s, 1, 0, 1, 1, -(-(64 + made) // BLOCK), 900, 0, Stop.NONE, 2048))
            now_s += 0.01
        now_s += 1.0
    found = fit(steps, BLOCK)
    assert found is not None
    assert found.step_s(1, 1, 80) == pytest.approx(0.01, rel=0.05)
    assert found.step_s(64, 1, 64) == pytest.approx(0.05, rel=0.1)
    assert found.used == 1.0
