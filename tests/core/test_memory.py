"""Where the memory goes, at the start's setting and at others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.memory import MemoryParts, rest_bytes, share_at

GIB = 2**30
FACTS = EngineFacts(
    version="0.32.0", model="m", ceiling=Point(512, 8192, True, 0.90, True), live=True, num_blocks=3680,
    bytes_per_block=16 * 2**20, total_memory_bytes=80 * GIB,
    memory=MemoryParts(weights_bytes=12 * GIB, kv_bytes=round(57.5 * GIB)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("utilization", "asked", "kv", "blocks"),
    [(0.90, 72.0, 57.5, 3680), (0.80, 64.0, 49.5, 3168), (0.95, 76.0, 61.5, 3936)],
)
def test_a_step_of_the_share_moves_the_kv_cache_by_as_much(
    utilization: float, asked: float, kv: float, blocks: int
) -> None:
    share = share_at(utilization, FACTS)
    assert share is not None
    assert share.asked_bytes == pytest.approx(asked * GIB)
    assert share.kv_bytes == pytest.approx(kv * GIB)
    assert share.blocks == blocks


def test_without_live_control_the_logs_kv_cache_is_moved_and_only_counted_blocks_are_given() -> None:
    facts = replace(FACTS, bytes_per_block=0)
    here, lower = share_at(0.90, facts), share_at(0.80, facts)
    assert here is not None
    assert lower is not None
    assert (here.kv_bytes, here.blocks) == (round(57.5 * GIB), 3680)
    assert (lower.kv_bytes, lower.blocks) == (pytest.approx(49.5 * GIB), None)
    silent = share_at(0.90, replace(facts, memory=MemoryParts()))
    assert silent is not None
    assert (silent.kv_bytes, silent.blocks) == (None, None)
    assert share_at(0.90, replace(FACTS, total_memory_bytes=0)) is None


@pytest.mark.parametrize(
    ("changes", "rest"),
    [
        ({}, 72 - 57.5 - 12),
        ({"non_torch_bytes": GIB}, 72 - 57.5 - 13),
        ({"activations_bytes": GIB}, None),
        ({"weights_bytes": None}, None),
        ({"weights_bytes": 20 * GIB}, None),  # rounded figures that do not add up
    ],
)
def test_the_rest_stands_for_activations_that_are_not_logged(changes: dict[str, int], rest: float | None) -> None:
    found = rest_bytes(replace(FACTS, memory=replace(FACTS.memory, **changes)))
    assert found == (None if rest is None else pytest.approx(rest * GIB))
