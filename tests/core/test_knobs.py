"""Every limit of the table of knobs, as a table."""

from dataclasses import replace
from typing import Any

import pytest

from tunetui.core.knobs import (
    EngineFacts,
    How,
    Knob,
    MemoryFlag,
    Point,
    knob_argv,
    parse_value,
    plan_step,
    start_ceiling,
    stepped,
)

GIB = 2**30
CEILING = Point(512, 8192, True, 0.92, True)
FACTS = EngineFacts(
    version="0.32.0",
    model="m",
    ceiling=CEILING,
    max_model_len=4096,
    live=True,
    num_blocks=4000,
    block_size=16,
    blocks_per_max_request=256,
    bytes_per_block=8 * 2**20,
    least_threshold=16,
    total_memory_bytes=80 * GIB,
)
HERE = Point(256, 4096, True, 0.92, True)


@pytest.mark.parametrize(
    ("target", "how", "reason"),
    [
        (replace(HERE, max_num_seqs=8), How.LIVE, ""),
        (replace(HERE, max_num_seqs=512), How.LIVE, ""),
        (replace(HERE, max_num_seqs=513), How.RESTART, "above the 512"),
        (replace(HERE, max_num_seqs=0), How.REFUSED, "at least 1"),
        (replace(HERE, max_num_batched_tokens=255), How.REFUSED, "lower max-num-seqs first"),
        (replace(HERE, max_num_batched_tokens=8193), How.RESTART, "above the 8192"),
        (replace(HERE, chunked_prefill=False), How.LIVE, ""),
        (replace(HERE, chunked_prefill=False, max_num_batched_tokens=4095), How.REFUSED, "model length 4096"),
        (replace(HERE, memory=0.90), How.LIVE, ""),
        (replace(HERE, memory=0.93), How.RESTART, "above the 0.92"),
        (replace(HERE, memory=1.01), How.REFUSED, "at most 1"),
        (replace(HERE, memory=0.55), How.REFUSED, "would never fit"),
        (replace(HERE, prefix_caching=False), How.RESTART, "sets it at start"),
    ],
)
def test_steps(target: Point, how: How, reason: str) -> None:
    step = plan_step(HERE, target, FACTS)
    assert step.how is how, step
    assert reason in step.reason


def test_speculative_tokens_raise_the_floor_of_the_budget() -> None:
    facts = replace(FACTS, tokens_per_decode=5)
    assert plan_step(HERE, replace(HERE, max_num_batched_tokens=1279), facts).how is How.REFUSED
    assert plan_step(HERE, replace(HERE, max_num_batched_tokens=1280), facts).how is How.LIVE


def test_without_live_control_every_knob_is_a_restart_and_says_why() -> None:
    facts = replace(FACTS, live=False, why_not_live="attached")
    for knob in Knob:
        target = stepped(HERE, knob, +1 if knob is Knob.THRESHOLD else -1, True, facts)
        step = plan_step(HERE, target, facts)
        assert (step.how, step.reason) == (How.RESTART, "attached")


def test_a_knob_that_changes_nothing_is_refused_with_the_reason_and_the_others_are_live() -> None:
    facts = replace(FACTS, fixed={Knob.MEMORY: "start without it"})
    for target in (replace(HERE, memory=0.90), replace(HERE, memory=0.95), replace(HERE, memory=0.90, max_num_seqs=8)):
        step = plan_step(HERE, target, facts)
        assert (step.how, step.reason) == (How.REFUSED, "start without it")
    assert plan_step(HERE, replace(HERE, max_num_seqs=8), facts).how is How.LIVE
    assert plan_step(HERE, replace(HERE, memory=0.90), replace(facts, live=False)).how is How.REFUSED


def test_a_fixed_chunked_prefill_and_a_memory_reason_are_restarts() -> None:
    facts = replace(FACTS, restart_reasons={Knob.CHUNKED: "fixed at start"})
    assert plan_step(HERE, replace(HERE, chunked_prefill=False), facts).how is How.RESTART
    facts = replace(FACTS, restart_reasons={Knob.MEMORY: "pipeline parallelism"})
    assert plan_step(HERE, replace(HERE, memory=0.9), facts).reason == "pipeline parallelism"
    assert plan_step(HERE, replace(HERE, memory=0.9), replace(FACTS, total_memory_bytes=0)).how is How.RESTART


def test_utilization_maps_to_blocks_linearly() -> None:
    # 0.02 of 80 GiB at 8 MiB a block is 204.8 blocks.
    assert FACTS.held_blocks(0.92) == 0
    assert FACTS.held_blocks(0.90) == 205
    assert FACTS.capacity_blocks(0.90) == 4000 - 205
    assert FACTS.most_held_blocks == 4000 - 1 - 256


def test_explicit_kv_size_maps_to_blocks_by_division() -> None:
    facts = replace(
        FACTS,
        memory_flag=MemoryFlag.KV_BYTES,
        ceiling=replace(CEILING, memory=4000.0 * 8 * 2**20),
        total_memory_bytes=0,
    )
    here = replace(HERE, memory=facts.ceiling.memory)
    assert facts.held_blocks(here.memory / 2) == 2000
    assert plan_step(here, replace(here, memory=here.memory / 2), facts).how is How.LIVE
    assert stepped(here, Knob.MEMORY, -1, False, facts).memory == here.memory - 400 * 8 * 2**20


@pytest.mark.parametrize(
    ("value", "direction", "fine", "expected"),
    [
        (256, 1, False, 320), (256, -1, False, 192), (250, 1, False, 256), (250, -1, False, 192),
        (64, -1, False, 32), (32, -1, False, 16), (1, -1, False, 1), (32, 1, False, 64), (48, 1, False, 64),
        (64, -1, True, 56), (8, -1, True, 7), (1, -1, True, 1), (7, 1, True, 8), (60, 1, True, 64), (60, -1, True, 56),
    ],
)  # fmt: skip
def test_sequences_step(value: int, direction: int, fine: bool, expected: int) -> None:
    point = stepped(replace(HERE, max_num_seqs=value), Knob.SEQS, direction, fine, FACTS)
    assert point.max_num_seqs == expected


def test_memory_steps_do_not_drift() -> None:
    point = HERE
    for _ in range(7):
        point = stepped(point, Knob.MEMORY, -1, True, FACTS)
    assert point.memory == 0.85


def test_start_ceiling_is_raised_only_where_it_must() -> None:
    target = Point(640, 2048, False, 0.95, False)
    assert start_ceiling(target, CEILING) == Point(640, 8192, True, 0.95, False)


def test_every_knob_is_explicit_in_the_argv() -> None:
    assert knob_argv(Point(8, 2048, False, 0.9, True), MemoryFlag.UTILIZATION) == [
        "--max-num-seqs", "8", "--max-num-batched-tokens", "2048", "--no-enable-chunked-prefill",
        "--long-prefill-token-threshold", "0", "--gpu-memory-utilization", "0.9", "--enable-prefix-caching",
    ]  # fmt: skip
    assert knob_argv(HERE.with_value(Knob.MEMORY, 12345678901.0), MemoryFlag.KV_BYTES)[7:9] == [
        "--kv-cache-memory-bytes",
        "12345678901",
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"long_prefill_token_threshold": 15}, "below 16"),
        ({"long_prefill_token_threshold": 16}, ""),
        ({"long_prefill_token_threshold": FACTS.max_model_len}, ""),
        ({"long_prefill_token_threshold": FACTS.max_model_len + 1}, "cannot be above the model length"),
        ({"long_prefill_token_threshold": 64, "chunked_prefill": False}, "set it to 0 first"),
    ],
)
def test_the_limits_of_the_long_prefill_threshold(change: dict[str, Any], why: str) -> None:
    step = plan_step(HERE, replace(HERE, **change), FACTS)
    assert (step.how, why in step.reason) == (How.REFUSED if why else How.LIVE, True)


def test_steps_of_the_long_prefill_threshold_go_by_a_grid_and_end_at_no_limit() -> None:
    def go(value: int, direction: int, fine: bool = False) -> int:
        point = replace(HERE, long_prefill_token_threshold=value)
        return stepped(point, Knob.THRESHOLD, direction, fine, FACTS).long_prefill_token_threshold

    assert [go(0, +1), go(512, +1), go(700, +1), go(700, -1), go(512, -1), go(0, -1)] == [512, 1024, 1024, 512, 0, 0]
    assert [go(0, +1, True), go(64, -1, True), go(100, -1, True)] == [64, 0, 64]


def test_without_chunked_prefill_a_step_holds_a_whole_request_and_its_drafts() -> None:
    facts = replace(FACTS, whole_request=FACTS.max_model_len + 3)
    off = replace(HERE, chunked_prefill=False)
    step = plan_step(off, replace(off, max_num_batched_tokens=FACTS.max_model_len + 2), facts)
    assert (step.how, "3 tokens of drafts" in step.reason) == (How.REFUSED, True)
    assert plan_step(off, replace(off, max_num_batched_tokens=FACTS.max_model_len + 3), facts).how is How.LIVE


def test_a_model_that_takes_its_tokens_in_one_piece_has_a_least_budget() -> None:
    facts = replace(FACTS, least_prefill=512)
    step = plan_step(HERE, replace(HERE, max_num_batched_tokens=519, max_num_seqs=8), facts)
    assert (step.how, "8 sequences and a prefill need" in step.reason) == (How.REFUSED, True)
    assert plan_step(HERE, replace(HERE, max_num_batched_tokens=520, max_num_seqs=8), facts).how is How.LIVE


@pytest.mark.parametrize(
    ("knob", "text"),
    [
        (Knob.THRESHOLD, "-1"),
        (Knob.THRESHOLD, "0.5"),
        (Knob.MEMORY, "nan"),
        (Knob.SEQS, "inf"),
        (Knob.SEQS, "1.5"),
        (Knob.SEQS, "0"),
        (Knob.CHUNKED, "2"),
        (Knob.SEQS, "1.2.3"),
    ],
)
def test_typed_values_that_make_no_sense(knob: Knob, text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_value(knob, text)
