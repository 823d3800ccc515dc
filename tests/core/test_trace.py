"""Making a recording fit a model, and taking the first requests of it."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.core.trace import FitCounts, Trace, fitted, taken

TRACE = Trace(
    format="made",
    prompt_tokens=(100, 900, 40, 10),
    output_tokens=(20, 200, 2000, 5),
    arrivals_s=(0.0, 1.5, 2.5, 4.0),
    block_tokens=64,
    blocks=((1, 2), tuple(range(15)), (7,), (9,)),
    texts=("a" * 400, (("system", "s" * 100), ("user", "u" * 3500)), "b" * 160, "c" * 40),
    conversations=(0, 1, 1, 2),
)


def test_what_fits_is_left_as_it_is() -> None:
    assert fitted(TRACE, 2040, "clip") == (TRACE, FitCounts())
    assert fitted(TRACE, 2040, "drop") == (TRACE, FitCounts())


def test_clipping_shortens_the_prompt_and_what_belongs_to_it() -> None:
    trace, counts = fitted(TRACE, 1000, "clip")
    assert counts == FitCounts(clipped=2)
    assert trace.prompt_tokens == (100, 800, 1, 10)
    assert trace.output_tokens == (20, 200, 999, 5)
    assert trace.blocks == ((1, 2), tuple(range(13)), (7,), (9,))
    assert (trace.arrivals_s, trace.conversations) == (TRACE.arrivals_s, TRACE.conversations)
    assert trace.texts is not None
    assert trace.texts[0] == "a" * 400
    assert trace.texts[1] == (("user", "u" * 3200),)
    assert trace.texts[2] == "b" * 4


def test_a_clipped_chat_keeps_its_last_messages() -> None:
    chat = (("system", "s" * 40), ("user", "q" * 200), ("assistant", "a" * 60), ("user", "r" * 100))
    trace, _ = fitted(Trace("made", (100,), (10,), texts=(chat,)), 60, "clip")
    assert trace.prompt_tokens == (50,)
    assert trace.texts == ((("assistant", "a" * 60), ("user", "r" * 100)),)


def test_dropping_leaves_requests_out_and_starts_the_clock_at_the_first_one_kept() -> None:
    trace, counts = fitted(TRACE, 1000, "drop")
    assert counts == FitCounts(dropped=2)
    assert (trace.prompt_tokens, trace.output_tokens) == ((100, 10), (20, 5))
    assert (trace.arrivals_s, trace.blocks, trace.conversations) == ((0.0, 4.0), ((1, 2), (9,)), (0, 2))
    late, _ = fitted(Trace("made", (90, 1, 1), (90, 1, 1), arrivals_s=(0.0, 2.0, 2.5)), 100, "drop")
    assert late.arrivals_s == (0.0, 0.5)


def test_dropping_everything_is_an_empty_recording() -> None:
    trace, counts = fitted(TRACE, 2, "drop")
    assert (trace.requests, trace.arrivals_s, counts) == (0, (), FitCounts(dropped=4))


def test_no_request_fits_a_model_of_one_token() -> None:
    with pytest.raises(ValueError, match="no request fits 1 tokens"):
        fitted(TRACE, 1, "clip")


def test_taking_the_first_requests() -> None:
    assert taken(TRACE, 9) is TRACE
    two = taken(TRACE, 2)
    for field in fields(Trace):
        whole, part = getattr(TRACE, field.name), getattr(two, field.name)
        assert part == (whole[:2] if isinstance(whole, tuple) else whole)
    assert taken(TRACE, 0).requests == taken(TRACE, -3).requests == 0


LENGTHS = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=40)


@given(LENGTHS, st.integers(2, 2500))
def test_clipped_requests_fit_and_fill_the_model(lengths: list[tuple[int, int]], most: int) -> None:
    prompts, outputs = zip(*lengths, strict=True)
    blocks = tuple(tuple(range(math.ceil(prompt / 16))) for prompt in prompts)
    trace, counts = fitted(Trace("made", prompts, outputs, block_tokens=16, blocks=blocks), most, "clip")
    assert trace.blocks is not None
    clipped = 0
    for index, (prompt, output) in enumerate(lengths):
        now, then = trace.prompt_tokens[index], trace.output_tokens[index]
        assert len(trace.blocks[index]) == math.ceil(now / 16)
        if prompt + output <= most:
            assert (now, then) == (prompt, output)
        else:
            clipped += 1
            assert now >= 1
            assert now + then == most
            assert then == min(output, most - 1)
    assert counts == FitCounts(clipped=clipped)
