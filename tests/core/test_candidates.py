"""Which points a sweep proposes around any best one: what vLLM would start, in the guide's order and steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tunetui.core.candidates import Around, Stage, candidates, seqs_ladder, token_budgets, with_seqs
from tunetui.core.knobs import EngineFacts, How, Knob, MemoryFlag, Point, plan_step, start_refusal

BEST = Point(256, 8192, True, 0.92, True)
FACTS = EngineFacts(
    version="0.32.0", model="m", ceiling=Point(512, 8192, True, 0.92, True), max_model_len=4096, whole_request=4096,
    live=True, num_blocks=4000, block_size=16, blocks_per_max_request=256, bytes_per_block=8 * 2**20,
    least_threshold=16, total_memory_bytes=80 * 2**30,
)  # fmt: skip
LONG = {"long_prompt_share": 0.025}
SHARED = {"shared_prefix_share": 0.3}
ALL = frozenset(Knob)


@st.composite
def facts(draw: st.DrawFn) -> EngineFacts:
    length = draw(st.sampled_from([256, 2048, 4096, 16384]))
    per_decode, least_prefill = draw(st.sampled_from([(1, 0), (4, 0), (1, 16)]))
    seqs, flag = draw(st.integers(1, 1024)), draw(st.sampled_from(list(MemoryFlag)))
    memory = 4000.0 * FACTS.bytes_per_block if flag is MemoryFlag.KV_BYTES else draw(st.sampled_from([0.85, 0.97]))
    tokens = draw(st.integers(seqs * per_decode + least_prefill, 65536))
    ceiling = Point(seqs, tokens, True, memory, True)
    return replace(
        FACTS, ceiling=ceiling, max_model_len=length, whole_request=length + draw(st.sampled_from([0, 8])),
        tokens_per_decode=per_decode, least_prefill=least_prefill, blocks_per_max_request=length // 16,
        least_threshold=draw(st.sampled_from([1, 16, 784])), live=draw(st.booleans()),
        memory_flag=flag,
    )  # fmt: skip


@st.composite
def arounds(draw: st.DrawFn, facts: EngineFacts) -> Around:
    """A best point that vLLM would start on this engine, and what is known there."""
    ceiling, chunked = facts.ceiling, draw(st.booleans())
    seqs = draw(st.integers(1, ceiling.max_num_seqs))
    floor = seqs * facts.tokens_per_decode + facts.least_prefill if chunked else facts.whole_request
    tokens = draw(st.integers(floor, max(floor, ceiling.max_num_batched_tokens)))
    threshold = draw(st.sampled_from([0, 784])) if chunked else 0
    memory = ceiling.memory * draw(st.sampled_from([0.98, 1.0]))
    point = Point(seqs, tokens, chunked, memory, draw(st.booleans()), threshold)
    assume(not start_refusal(point, facts))
    features = draw(st.sampled_from([{}, LONG, SHARED, LONG | SHARED]))
    return Around(point, features, draw(st.sampled_from([None, 0.5, 0.99])), draw(st.sampled_from([0, 7])))


STAGES, KNOBS = (
    st.sampled_from([Stage.SEQS, Stage.PREFILL, Stage.MEMORY, Stage.FINE]),
    st.frozensets(st.sampled_from(list(Knob))),
)


@settings(deadline=None)
@given(data=st.data(), facts=facts(), stage=STAGES, knobs=KNOBS)
def test_no_candidate_is_refused_or_the_best_itself_or_proposed_twice(
    data: st.DataObject, facts: EngineFacts, stage: Stage, knobs: frozenset[Knob]
) -> None:
    around = data.draw(arounds(facts))
    found = candidates(stage, around, facts, knobs)
    assert len(found) == len(set(found))
    assert around.best not in found
    assert not [p for p in found if plan_step(around.best, p, facts).how is How.REFUSED]
    whole = max(facts.whole_request, facts.max_model_len)
    assert all(p.max_num_batched_tokens >= whole for p in found if not p.chunked_prefill)
    assert all(p.max_num_seqs <= facts.ceiling.max_num_seqs for p in found)


# A token budget moves with other knobs where vLLM would not start without: up to what more sequences or a whole request
# need. A threshold goes where chunking does.
ALONG = {Knob.SEQS: {Knob.TOKENS}, Knob.CHUNKED: {Knob.TOKENS, Knob.THRESHOLD}}


@pytest.mark.parametrize(
    "knob",
    list(Knob),
)
def test_only_the_knob_that_was_asked_for_is_moved(knob: Knob) -> None:
    bests = (
        replace(BEST, memory=0.9, prefix_caching=False),
        replace(BEST, chunked_prefill=False),
        replace(BEST, max_num_batched_tokens=256, long_prefill_token_threshold=128),
    )
    moved: set[Knob] = set()
    for best in bests:
        for stage in Stage:
            for point in candidates(stage, Around(best, LONG | SHARED, 0.99), FACTS, frozenset({knob})):
                moved |= {other for other in Knob if point.value(other) != best.value(other)}
                assert point.max_num_batched_tokens >= best.max_num_batched_tokens or knob is Knob.TOKENS
    assert knob in moved
    assert moved <= {knob} | ALONG.get(knob, set())


@pytest.mark.parametrize(
    ("ceiling", "ladder"),
    [
        (512, [128, 192, 256, 320, 384, 448, 512]),
        (1024, [*range(128, 1024, 64), 1024]),
        (600, [128, 192, 256, 320, 384, 448, 512, 576, 600]),
        (256, [64, 96, 128, 160, 192, 224, 256]),
        (64, [16, 24, 32, 40, 48, 56, 64]),
        (10, [2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (2, [2]),
        (1, [1]),
    ],
)
def test_sequences_rise_from_128_in_steps_of_64_and_of_an_eighth_below_512(ceiling: int, ladder: list[int]) -> None:
    facts = replace(FACTS, ceiling=replace(FACTS.ceiling, max_num_seqs=ceiling))
    assert seqs_ladder(facts) == ladder
    best = replace(BEST, max_num_seqs=1, max_num_batched_tokens=8192)
    found = candidates(Stage.SEQS, Around(best, {}), facts, ALL)
    assert sorted(p.max_num_seqs for p in found) == [seqs for seqs in ladder if seqs != 1]
    assert {replace(p, max_num_seqs=1) for p in found} <= {best}


@pytest.mark.parametrize(
    ("ceiling", "best", "fine"),
    [(512, 256, [288, 224]), (512, 512, [480]), (512, 16, [48]), (64, 32, [36, 28]), (4, 1, [2]), (1, 1, [])],
)
def test_fine_steps_are_half_a_step_up_and_down_within_the_ceiling(ceiling: int, best: int, fine: list[int]) -> None:
    facts = replace(FACTS, ceiling=replace(FACTS.ceiling, max_num_seqs=ceiling))
    found = candidates(Stage.FINE, Around(replace(BEST, max_num_seqs=best), {}), facts, ALL)
    assert [p.max_num_seqs for p in found] == fine


def test_more_sequences_take_the_token_budget_they_need_and_fewer_leave_it() -> None:
    facts = replace(FACTS, tokens_per_decode=4, least_prefill=16)
    assert with_seqs(replace(BEST, max_num_batched_tokens=1040), 512, facts).max_num_batched_tokens == 2064
    assert with_seqs(BEST, 64, facts) == replace(BEST, max_num_seqs=64)


@pytest.mark.parametrize(
    ("seqs", "per_decode", "budgets"),
    [
        (256, 1, [8192, 4096, 2048, 1024, 512]),
        (512, 1, [8192, 4096, 2048, 1024, 512]),
        (513, 1, [8192, 4096, 2048, 1024]),
        (512, 4, [8192, 4096, 2048]),
    ],
)
def test_token_budgets_halve_down_to_what_the_sequences_need(seqs: int, per_decode: int, budgets: list[int]) -> None:
    assert token_budgets(seqs, replace(FACTS, tokens_per_decode=per_decode)) == budgets


def test_an_unchunked_point_is_chunked_first_and_only_then_has_smaller_budgets() -> None:
    best = replace(BEST, chunked_prefill=False, max_num_batched_tokens=4096)
    found = candidates(Stage.PREFILL, Around(best, {}), FACTS, ALL)
    assert found[0] == replace(best, chunked_prefill=True)
    assert [p.max_num_batched_tokens for p in found[1:]] == [8192, 2048, 1024, 512]
    assert all(p.chunked_prefill for p in found)


def test_chunking_goes_off_last_with_a_budget_for_a_whole_request_and_no_threshold() -> None:
    best = replace(BEST, max_num_batched_tokens=1024, long_prefill_token_threshold=512)
    found = candidates(Stage.PREFILL, Around(best, LONG), replace(FACTS, whole_request=4100), ALL)
    assert found[-1] == replace(
        best, chunked_prefill=False, max_num_batched_tokens=4100, long_prefill_token_threshold=0
    )


@pytest.mark.parametrize(
    ("features", "facts", "best", "thresholds"),
    [
        ({}, FACTS, BEST, []),
        ({"long_prompt_share": 0.004}, FACTS, BEST, []),
        (LONG, FACTS, BEST, [512, 2048]),
        (LONG, FACTS, replace(BEST, max_num_batched_tokens=2048), [512]),
        (LONG, replace(FACTS, max_model_len=2048), BEST, [512]),
        (LONG, replace(FACTS, least_threshold=784), BEST, [2048]),
        pytest.param(
            LONG,
            replace(FACTS, max_model_len=0, whole_request=0),
            BEST,
            [512, 2048],
        ),
    ],
)
def test_thresholds_are_tried_with_long_prompts_only_and_where_they_would_cut_one(
    features: dict[str, float | int | str], facts: EngineFacts, best: Point, thresholds: list[int]
) -> None:
    found = candidates(Stage.PREFILL, Around(best, features), facts, frozenset({Knob.THRESHOLD}))
    assert [p.long_prefill_token_threshold for p in found] == thresholds


@pytest.mark.parametrize(
    ("kv_used", "preemptions", "memory", "ceiling", "tried"),
    [
        (None, 0, 0.85, 0.92, []),
        (0.8, 0, 0.85, 0.92, []),
        (0.9, 0, 0.85, 0.92, [0.92, 0.95]),
        (None, 1, 0.85, 0.92, [0.92, 0.95]),
        (0.9, 0, 0.92, 0.92, [0.95]),
        (0.9, 0, 0.97, 0.97, []),
    ],
)
def test_more_memory_is_tried_only_where_the_kv_cache_is_tight(
    kv_used: float | None, preemptions: int, memory: float, ceiling: float, tried: list[float]
) -> None:
    around = Around(replace(BEST, memory=memory), {}, kv_used, preemptions)
    found = candidates(Stage.MEMORY, around, replace(FACTS, ceiling=replace(FACTS.ceiling, memory=ceiling)), ALL)
    assert [p.memory for p in found] == tried


def test_a_kv_size_in_bytes_is_raised_to_the_ceiling_and_no_further() -> None:
    ceiling = replace(FACTS.ceiling, memory=2.0**35)
    facts = replace(FACTS, memory_flag=MemoryFlag.KV_BYTES, ceiling=ceiling)
    found = candidates(Stage.MEMORY, Around(replace(BEST, memory=2.0**34), {}, 0.99), facts, ALL)
    assert [p.memory for p in found] == [2.0**35]


@pytest.mark.parametrize(
    ("caching", "features", "tried"), [(True, SHARED, 0), (False, {}, 0), (False, SHARED, 1), (False, LONG, 0)]
)
def test_prefix_caching_is_tried_where_it_is_off_and_prefixes_are_shared(
    caching: bool, features: dict[str, float | int | str], tried: int
) -> None:
    found = candidates(Stage.MEMORY, Around(replace(BEST, prefix_caching=caching), features), FACTS, ALL)
    assert [p.prefix_caching for p in found] == [True] * tried


@pytest.mark.parametrize("stage", [Stage.BASELINE, Stage.EDGE, Stage.CONFIRM])
def test_other_stages_propose_nothing(stage: Stage) -> None:
    assert candidates(stage, Around(BEST, LONG | SHARED, 1.0, 1), FACTS, ALL) == []
