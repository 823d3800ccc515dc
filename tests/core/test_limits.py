"""What limits the engine: a table of step rings, each with the one word that holds, and the figures behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunetui.core.limits import Limit, find_limit
from tunetui.core.step_figures import Look, figures_of, figures_of_looks, shortest_decode_s
from tunetui.core.steps import EngineStep, Stop

SEQS = 64
BLOCKS = 1000


def ring(
    count: int = 200,
    running: int = 20,
    waiting: int = 0,
    step_s: float = 0.012,
    long_s: float = 0.0,
    long_every: int = 0,
    prefill: int = 1000,
    stop: Stop = Stop.NONE,
    stop_every: int = 1,
    used: int = 200,
    preempt_every: int = 0,
    tokens: int | None = None,
    budget: int = 8192,
) -> list[EngineStep]:
    """Steps that decode, every `long_every`th with a prefill that makes it take `long_s`."""
    steps, now_s, preemptions = [], 0.0, 0
    for n in range(count):
        long = long_every and n % long_every == 0
        preemptions += bool(preempt_every and n % preempt_every == 0)
        stopped = stop if n % stop_every == 0 else Stop.NONE
        steps.append(
            EngineStep(
                now_s, running, waiting if stopped is not Stop.NONE else 0, running,
                (tokens or running) + (prefill if long else 0), used, BLOCKS - used, preemptions, stopped, budget,
            )
        )  # fmt: skip
        now_s += long_s if long else step_s
    return steps


@pytest.mark.parametrize(
    ("steps", "base_s", "limit", "share"),
    [
        # nothing to do, and room
        (ring(), None, Limit.UNDERLOADED, 1.0),
        (ring(stop=Stop.SEQS, waiting=1, stop_every=20), None, Limit.UNDERLOADED, 0.95),
        # slots: others wait, or a closed loop has no other to wait
        (ring(running=SEQS, waiting=9, stop=Stop.SEQS), None, Limit.SEQ_CAP, 1.0),
        (ring(running=SEQS, waiting=9, stop=Stop.SEQS, stop_every=2), None, Limit.SEQ_CAP, 0.5),
        (ring(running=SEQS), None, Limit.SEQ_CAP, 1.0),
        (ring(running=SEQS - 2), None, Limit.SEQ_CAP, 1.0),
        # slots that are all taken say nothing where twice as many would serve no more
        (ring(running=SEQS, waiting=9, stop=Stop.SEQS, step_s=0.1), 0.01, Limit.BANDWIDTH, 1.0),
        (ring(running=SEQS, waiting=9, stop=Stop.SEQS, step_s=0.05), 0.01, Limit.SEQ_CAP, 1.0),
        # tokens of a step
        (ring(waiting=5, stop=Stop.TOKENS, tokens=512, budget=512), None, Limit.TOKEN_BUDGET, 1.0),
        # blocks: they stop admission, or running requests lose theirs, whatever the slots are
        (ring(waiting=5, stop=Stop.BLOCKS, used=990), None, Limit.KV_PRESSURE, 1.0),
        (ring(running=SEQS, waiting=5, stop=Stop.SEQS, used=999, preempt_every=20), None, Limit.KV_PRESSURE, 0.045),
        # prefill beside decodes: few steps, much of the time, on an engine that is busy
        (ring(step_s=0.02, long_s=0.4, long_every=20), 0.01, Limit.PREFILL_BLOCKING, 0.05),
        (ring(step_s=0.02, long_s=0.4, long_every=20, running=SEQS), 0.01, Limit.PREFILL_BLOCKING, 0.05),
        (ring(step_s=0.02, long_s=0.07, long_every=20), 0.01, Limit.UNDERLOADED, 1.0),
        # ... and where most steps carry some, computing is the limit
        (ring(step_s=0.02, long_s=0.2, long_every=2), 0.01, Limit.COMPUTE, 1.0),
        # a batch whose KV takes the time
        (ring(step_s=0.04), 0.01, Limit.BANDWIDTH, 1.0),
    ],
)  # fmt: skip
def test_one_word_for_each_ring(steps: list[EngineStep], base_s: float | None, limit: Limit, share: float) -> None:
    figures = figures_of(steps, SEQS, base_s=base_s)
    assert figures is not None
    found = find_limit(figures)
    assert (found.limit, round(found.share, 3)) == (limit, share)
    assert any(digit in found.sentence for digit in "0123456789")


@pytest.mark.parametrize("stop", [Stop.TOKENS, Stop.OTHER])  # vLLM's scheduler cannot tell what a whole prompt lacks
def test_a_prompt_at_the_head_that_must_fit_whole_is_prefill_blocking(stop: Stop) -> None:
    """The guide's case at 384 sequences: admission stops, and neither slots nor budget are the cause."""
    steps = ring(running=60, waiting=8, stop=stop, stop_every=3, tokens=330, budget=4096)
    figures = figures_of(steps, SEQS, chunked=False)
    assert figures is not None
    found = find_limit(figures)
    assert found.limit is Limit.PREFILL_BLOCKING
    assert found.share == pytest.approx(1 / 3, abs=0.01)
    assert figures.waits_for_head == pytest.approx(1.0)
    assert figures.stopped_by_tokens == 0
    # With chunking the head would have been taken in part: then the budget is the limit, or something unknown.
    chunked = figures_of(steps, SEQS, chunked=True)
    assert chunked is not None
    assert find_limit(chunked).limit is not Limit.PREFILL_BLOCKING


def test_a_client_that_is_late_leaves_nothing_to_say_of_the_engine() -> None:
    figures = figures_of(ring(running=SEQS, waiting=9, stop=Stop.SEQS), SEQS)
    assert figures is not None
    found = find_limit(figures, "the load generator was late: P99 30 ms, allowed 5 ms")
    assert (found.limit, found.sentence) == (
        Limit.CLIENT, "the load generator was late: P99 30 ms, allowed 5 ms"
    )  # fmt: skip


def test_the_sentence_has_the_numbers() -> None:
    figures = figures_of(ring(running=SEQS, waiting=13, stop=Stop.SEQS, stop_every=2), SEQS)
    assert figures is not None
    assert find_limit(figures).sentence == "requests wait for a slot on 50% of steps, 6 at a time"


def test_time_in_the_queue_is_told_apart_by_what_stopped_admission() -> None:
    steps = ring(count=100, waiting=2, stop=Stop.SEQS) + [
        replace(s, time_s=s.time_s + 1.2, waiting=6, stopped_by=Stop.BLOCKS) for s in ring(count=101)
    ]
    figures = figures_of(steps, SEQS)
    assert figures is not None
    assert figures.waits_for_seqs == pytest.approx(0.25, abs=0.01)
    assert figures.waits_for_blocks == pytest.approx(0.75, abs=0.01)
    assert figures.waiting_share == 1.0


def test_pauses_are_no_steps() -> None:
    """Two requests, then nothing for a second: the next step is all new."""
    one = [replace(s, running=1, requests=1, tokens=100 if n == 0 else 1) for n, s in enumerate(ring(count=20))]
    steps = [replace(s, time_s=s.time_s + gap) for gap in (0.0, 1.2, 2.4) for s in one]
    figures = figures_of(steps, SEQS)
    assert figures is not None
    assert figures.mean_step_s == pytest.approx(0.012)
    assert figures.pauses > 0
    assert find_limit(figures).limit is Limit.UNDERLOADED


def test_a_fitted_model_gives_the_time_of_an_empty_step() -> None:
    class Model:
        def step_s(self, tokens: float, sequences: float, kv_tokens: float) -> float:
            return 0.002 + 0.0001 * tokens

    steps = ring(step_s=0.02)
    plain, fitted = figures_of(steps, SEQS), figures_of(steps, SEQS, model=Model())
    assert plain is not None
    assert fitted is not None
    assert (plain.grows, fitted.grows) == (pytest.approx(0.0), pytest.approx(1 - 0.0021 / 0.02))
    assert fitted.gain(2.0) == pytest.approx(2 / 1.895)
    assert plain.slowdown(2.0) == pytest.approx(1.0)


def test_too_few_steps_say_nothing() -> None:
    assert figures_of([], SEQS) is None
    assert figures_of(ring(count=1), SEQS) is None
    assert shortest_decode_s(ring(count=3)) is None
    assert shortest_decode_s(ring(count=50)) == pytest.approx(0.012)


@pytest.mark.parametrize(
    ("looks", "slots", "limit"),
    [
        ([Look(20, 0, 0.2, 0)] * 10, 64, Limit.UNDERLOADED),
        ([Look(64, 5, 0.4, 0)] * 10, 64, Limit.SEQ_CAP),
        ([Look(64, 0, 0.4, 0)] * 10, 64, Limit.SEQ_CAP),
        ([Look(64, 5, 0.4, 0)] * 10, None, Limit.SEQ_CAP),  # an attached server: a plateau with others waiting
        ([Look(64, 0, 0.4, 0)] * 10, None, Limit.UNDERLOADED),
        ([Look(50, 5, 0.99, 0)] * 10, 64, Limit.KV_PRESSURE),
        ([Look(50, 0, 0.9, n) for n in range(10)], 64, Limit.KV_PRESSURE),
    ],
)
def test_looks_at_the_metrics_tell_less(looks: list[Look], slots: int | None, limit: Limit) -> None:
    figures = figures_of_looks(looks, slots)
    assert figures is not None
    found = find_limit(figures)
    assert found.limit is limit
    assert "steps" not in found.sentence


@pytest.mark.parametrize("stop", [Stop.TOKENS, Stop.OTHER])
def test_a_step_that_is_nearly_full_is_short_of_tokens_even_where_prompts_must_fit_whole(stop: Stop) -> None:
    figures = figures_of(ring(running=60, waiting=8, stop=stop, tokens=3900, budget=4096), SEQS, chunked=False)
    assert figures is not None
    assert find_limit(figures).limit is Limit.TOKEN_BUDGET
    assert (figures.head_blocked, figures.waits_for_tokens) == (0.0, pytest.approx(1.0))
