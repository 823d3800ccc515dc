"""Which points a sweep looks at around the best one: one knob at a time, in the order of the tuning guide.

It ranks nothing and measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tunetui.core.knobs import EngineFacts, How, Knob, MemoryFlag, Point, plan_step

SEQS_STEP, SEQS_STEPS = 64, 8
LEAST_TOKENS = 512
THRESHOLDS = (512, 2048)
MOST_MEMORY = 0.95
SPARE_KV = 0.85  # of the KV blocks in use at most: more memory would give nothing
LONG_PROMPTS = 0.005  # share of prompts above four times the median from which on a prefill can block others
SHARED_PREFIXES = 0.02


class Stage(StrEnum):
    """The sweep's stages; the words are shown."""

    BASELINE = "baseline"
    SEQS = "max-num-seqs"
    PREFILL = "prefill: chunking and token budget"
    MEMORY = "memory and prefix caching"
    FINE = "max-num-seqs, fine"
    EDGE = "edge"
    CONFIRM = "confirm by restart"


@dataclass(frozen=True, slots=True)
class Around:
    """What is known at the best point that decides which others are worth a look. `features` are the workload's;
    `kv_used` the largest share of KV blocks in use, None: not known."""

    best: Point
    features: Mapping[str, float | int | str]
    kv_used: float | None = None
    preemptions: int = 0


def seqs_ladder(facts: EngineFacts) -> list[int]:
    """max-num-seqs from 128 in steps of 64 up to the ceiling (GUIDE); below a ceiling of 512 in steps of an eighth."""
    most = facts.ceiling.max_num_seqs
    step = min(SEQS_STEP, max(most // SEQS_STEPS, 1))
    return list(dict.fromkeys([*range(2 * step, most, step), most]))


def candidates(stage: Stage, around: Around, facts: EngineFacts, knobs: frozenset[Knob]) -> list[Point]:
    """Points to compare with the best one, those that vLLM would not start with left out; `knobs` may be moved."""
    found = dict.fromkeys(point for knob, point in _proposed(stage, around, facts, knobs) if knob in knobs)
    return [
        point for point in found if point != around.best and plan_step(around.best, point, facts).how is not How.REFUSED
    ]


def sides(best: Point, found: list[Point]) -> list[list[Point]]:
    """The candidates by what they move and which way, those that are nearest to the best one first."""
    ways: dict[tuple[object, ...], list[Point]] = {}
    for point in sorted(found, key=lambda p: abs(p.max_num_seqs - best.max_num_seqs)):
        less = point.max_num_seqs < best.max_num_seqs, point.max_num_batched_tokens < best.max_num_batched_tokens
        other = point.chunked_prefill, point.long_prefill_token_threshold > 0, point.memory, point.prefix_caching
        ways.setdefault((*less, *other), []).append(point)
    return list(ways.values())


def _proposed(stage: Stage, around: Around, facts: EngineFacts, knobs: frozenset[Knob]) -> Iterator[tuple[Knob, Point]]:
    best = around.best
    match stage:
        case Stage.SEQS:
            for seqs in seqs_ladder(facts):
                yield Knob.SEQS, with_seqs(best, seqs, facts)
        case Stage.FINE:
            step = max(min(SEQS_STEP, facts.ceiling.max_num_seqs // SEQS_STEPS) // 2, 1)
            for seqs in (best.max_num_seqs + step, best.max_num_seqs - step):
                if 1 <= seqs <= facts.ceiling.max_num_seqs:
                    yield Knob.SEQS, with_seqs(best, seqs, facts)
        case Stage.PREFILL:
            yield from _prefill(around, facts, knobs)
        case Stage.MEMORY:
            yield from _memory(around, facts)


def with_seqs(point: Point, seqs: int, facts: EngineFacts) -> Point:
    """`point` with so many sequences, and no smaller a token budget than they need."""
    floor = seqs * facts.tokens_per_decode + facts.least_prefill
    return replace(point, max_num_seqs=seqs, max_num_batched_tokens=max(point.max_num_batched_tokens, floor))


def _prefill(around: Around, facts: EngineFacts, knobs: frozenset[Knob]) -> Iterator[tuple[Knob, Point]]:
    best, whole = around.best, max(facts.whole_request, facts.max_model_len)
    chunked = best if Knob.CHUNKED not in knobs else replace(best, chunked_prefill=True)
    if not best.chunked_prefill:
        yield Knob.CHUNKED, chunked
    for tokens in token_budgets(best.max_num_seqs, facts):
        yield Knob.TOKENS, replace(chunked, max_num_batched_tokens=tokens)
    if chunked.chunked_prefill and float(around.features.get("long_prompt_share", 0.0)) >= LONG_PROMPTS:
        for threshold in THRESHOLDS:
            if (
                facts.least_threshold
                <= threshold
                < min(facts.max_model_len or math.inf, chunked.max_num_batched_tokens)
            ):
                yield Knob.THRESHOLD, replace(chunked, long_prefill_token_threshold=threshold)
    if best.chunked_prefill:
        tokens = max(best.max_num_batched_tokens, whole)
        yield (
            Knob.CHUNKED,
            replace(best, chunked_prefill=False, max_num_batched_tokens=tokens, long_prefill_token_threshold=0),
        )


def token_budgets(seqs: int, facts: EngineFacts) -> list[int]:
    """Token budgets by factors of two up to the ceiling, none below what the sequences need."""
    floor = max(seqs * facts.tokens_per_decode + facts.least_prefill, LEAST_TOKENS)
    most = facts.ceiling.max_num_batched_tokens
    found = [most]
    while found[-1] // 2 >= floor:
        found.append(found[-1] // 2)
    return found


def _memory(around: Around, facts: EngineFacts) -> Iterator[tuple[Knob, Point]]:
    best = around.best
    tight = around.preemptions > 0 or (around.kv_used is not None and around.kv_used > SPARE_KV)
    if tight and best.memory < facts.ceiling.memory:
        yield Knob.MEMORY, replace(best, memory=facts.ceiling.memory)
    if tight and facts.memory_flag is MemoryFlag.UTILIZATION and facts.ceiling.memory < MOST_MEMORY:
        yield Knob.MEMORY, replace(best, memory=MOST_MEMORY)
    if not best.prefix_caching and float(around.features.get("shared_prefix_share", 0.0)) >= SHARED_PREFIXES:
        yield Knob.PREFIX, replace(best, prefix_caching=True)
