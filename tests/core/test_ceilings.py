"""The ladder of lower ceilings, as tables: which rung follows which, for each shortage, and where it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.core.ceilings import Lowering, Shortage, ShortageKind, next_ceiling, within
from tunetui.core.knobs import MemoryFlag, Point

TOP = Point(512, 8192, True, 0.92, True)
LEAST = Point(32, 2048, True, 0.5, True)
FREE, SAMPLER, CACHE, OTHER = ShortageKind.UTILIZATION, ShortageKind.SAMPLER, ShortageKind.KV_CACHE, ShortageKind.OTHER
Rung = tuple[int, int, float]


def rungs(kind: ShortageKind, top: Point = TOP, least: Point = LEAST, free_share: float | None = None) -> list[Rung]:
    """Every ceiling below `top` that the same shortage leads to."""
    found: list[Rung] = []
    ceiling: Point | None = top
    while (ceiling := next_ceiling(ceiling, least, Shortage(kind, free_share))) is not None:
        found.append((ceiling.max_num_seqs, ceiling.max_num_batched_tokens, ceiling.memory))
    return found


@pytest.mark.parametrize(
    ("kind", "top", "least", "expected"),
    [
        (FREE, TOP, replace(LEAST, memory=0.8), [(512, 8192, 0.90), (512, 8192, 0.85), (512, 8192, 0.80)]),
        (FREE, replace(TOP, memory=0.4), replace(LEAST, memory=0.32), [(512, 8192, 0.35), (512, 8192, 0.32)]),
        (FREE, TOP, replace(LEAST, memory=0.92), []),
        (SAMPLER, TOP, LEAST, [(256, 8192, 0.92), (128, 8192, 0.92), (64, 8192, 0.92), (32, 8192, 0.92)]),
        (SAMPLER, TOP, replace(LEAST, max_num_seqs=200), [(256, 8192, 0.92), (200, 8192, 0.92)]),
        (SAMPLER, TOP, replace(LEAST, max_num_seqs=512), []),
        (CACHE, TOP, replace(LEAST, max_num_seqs=128),
         [(512, 4096, 0.92), (512, 2048, 0.92), (256, 2048, 0.92), (128, 2048, 0.92)]),
        # Tokens stop at what a prompt without chunks needs, and at the sequences.
        (CACHE, TOP, Point(256, 6000, True, 0.5, True), [(512, 6000, 0.92), (256, 6000, 0.92)]),
        (CACHE, Point(512, 700, True, 0.9, True), Point(256, 64, True, 0.9, True),
         [(512, 512, 0.9), (256, 512, 0.9), (256, 256, 0.9)]),
        (OTHER, replace(TOP, max_num_seqs=64), replace(LEAST, memory=0.85),
         [(64, 4096, 0.92), (64, 2048, 0.92), (32, 2048, 0.92), (32, 2048, 0.90), (32, 2048, 0.85)]),
        (OTHER, TOP, TOP, []),
    ],
)  # fmt: skip
def test_rungs(kind: ShortageKind, top: Point, least: Point, expected: list[Rung]) -> None:
    assert rungs(kind, top, least) == expected


@pytest.mark.parametrize(
    ("free_share", "memory"),
    [
        (60.0 / 79.15, 0.75),  # straight below what is free
        (0.8502, 0.84),  # what is said is rounded: not the very edge
        (0.9199, 0.91),
        (0.9205, 0.90),  # it should have started: the next rung
        (0.505, 0.50),
        (0.30, None),  # the operator's least is more than is free
        (0.0, None),
    ],
)
def test_the_utilization_goes_straight_to_the_share_that_is_free(free_share: float, memory: float | None) -> None:
    lower = next_ceiling(TOP, LEAST, Shortage(FREE, free_share))
    assert lower == (None if memory is None else replace(TOP, memory=memory))


def test_a_kv_size_in_bytes_is_the_operators_and_is_never_lowered() -> None:
    top = replace(TOP, memory=2.0**31)
    least = replace(LEAST, memory=2.0**31)
    assert rungs(FREE, top, least) == []
    assert next_ceiling(top, least, Shortage(FREE, 0.4)) is None
    assert {memory for _, _, memory in rungs(OTHER, top, least)} == {2.0**31}


@given(
    st.sampled_from(ShortageKind), st.integers(1, 2048), st.integers(0, 40_000), st.integers(1, 100),
    st.integers(1, 2048), st.integers(1, 40_000), st.integers(1, 100), st.none() | st.floats(0, 1),
)  # fmt: skip
def test_every_rung_is_lower_than_the_one_before_and_inside_what_the_operator_gave(
    kind: ShortageKind, seqs: int, more: int, share: int, least_seqs: int, least_tokens: int, least_share: int,
    free_share: float | None,
) -> None:  # fmt: skip
    top = Point(seqs, seqs + more, True, share / 100, True)
    least = Point(
        min(least_seqs, seqs), min(least_tokens, seqs + more), True, min(least_share, share) / 100, True
    )  # fmt: skip
    before = (top.max_num_seqs, top.max_num_batched_tokens, top.memory)
    found = rungs(kind, top, least, free_share)
    for rung in found:
        assert all(new <= old for new, old in zip(rung, before, strict=True))
        assert rung != before
        assert rung[1] >= rung[0]
        assert rung >= (least.max_num_seqs, 0, 0)
        assert rung[1] >= least.max_num_batched_tokens
        assert rung[2] >= least.memory
        before = rung


def test_a_point_is_brought_within_its_ceiling_and_no_further() -> None:
    assert within(Point(256, 8192, False, 0.92, True, 64), Point(128, 4096, True, 0.95, True)) == Point(
        128, 4096, False, 0.92, True, 64
    )


@pytest.mark.parametrize(
    ("ceiling", "kind", "words"),
    [
        (replace(TOP, max_num_batched_tokens=4096), CACHE,
         "the ceiling of 512 sequences and 8192 tokens at 0.92 did not start (no memory left for the KV cache): "
         "trying 4096 tokens"),
        (Point(256, 4096, True, 0.85, True), OTHER,
         "the ceiling of 512 sequences and 8192 tokens at 0.92 did not start (out of memory): "
         "trying 256 sequences and 4096 tokens and 0.85"),
    ],
)  # fmt: skip
def test_each_rung_is_said(ceiling: Point, kind: ShortageKind, words: str) -> None:
    assert Lowering(TOP, ceiling, Shortage(kind), MemoryFlag.UTILIZATION).sentence == words
