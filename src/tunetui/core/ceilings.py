"""The ladder of lower ceilings: what a server is started with next where its start ended for want of memory.

It starts nothing and knows no message of vLLM's: `engine.diagnose` names the shortage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import floor

from tunetui.core.knobs import MemoryFlag, Point, format_memory

MOST_STARTS = 6
"""Starts in all, the first ceiling's included: each takes most of a minute."""


class ShortageKind(Enum):
    """What a start was short of memory for; the value is said to the operator."""

    UTILIZATION = "less memory is free than it asks for"
    SAMPLER = "out of memory in the sampler's warm-up"
    KV_CACHE = "no memory left for the KV cache"
    OTHER = "out of memory"


@dataclass(frozen=True, slots=True)
class Shortage:
    """A start that ended for want of memory; `free_share` is what the device had free (0 to 1), where that was said."""

    kind: ShortageKind
    free_share: float | None = None


@dataclass(frozen=True, slots=True)
class Lowering:
    """One rung of the ladder: the ceiling that did not start, why, and the one that is tried in its place."""

    failed: Point
    ceiling: Point
    shortage: Shortage
    memory_flag: MemoryFlag

    @property
    def sentence(self) -> str:
        """What did not start, why, and what is tried now."""
        old, new = self.failed, self.ceiling
        changed = []
        if new.max_num_seqs != old.max_num_seqs:
            changed.append(f"{new.max_num_seqs} sequences")
        if new.max_num_batched_tokens != old.max_num_batched_tokens:
            changed.append(f"{new.max_num_batched_tokens} tokens")
        if new.memory != old.memory:
            changed.append(format_memory(new.memory, self.memory_flag))
        return (
            f"the ceiling of {old.max_num_seqs} sequences and {old.max_num_batched_tokens} tokens at "
            f"{format_memory(old.memory, self.memory_flag)} did not start ({self.shortage.kind.value}): "
            f"trying {' and '.join(changed)}"
        )


def next_ceiling(failed: Point, least: Point, shortage: Shortage) -> Point | None:
    """The ceiling to try after `failed`, or None where no lower one would help.

    `least` is the least of each knob: what the operator gave, or what a session is of no use below. A shortage is met
    by lowering what causes it, and nothing else. Each rung is below the one before, so the ladder ends.
    """
    match shortage.kind:
        case ShortageKind.UTILIZATION:
            return _less_memory(failed, least, shortage.free_share)
        case ShortageKind.SAMPLER:
            return _fewer_seqs(failed, least)
        case ShortageKind.KV_CACHE:
            return _fewer_tokens(failed, least) or _fewer_seqs(failed, least)
        case ShortageKind.OTHER:
            return _fewer_tokens(failed, least) or _fewer_seqs(failed, least) or _less_memory(failed, least, None)


def within(point: Point, ceiling: Point) -> Point:
    """`point` with no limit above `ceiling`'s."""
    return replace(
        point,
        max_num_seqs=min(point.max_num_seqs, ceiling.max_num_seqs),
        max_num_batched_tokens=min(point.max_num_batched_tokens, ceiling.max_num_batched_tokens),
        memory=min(point.memory, ceiling.memory),
    )


def _fewer_tokens(failed: Point, least: Point) -> Point | None:
    """Half of the tokens of a step; each sequence decodes one, so never fewer than those."""
    tokens = failed.max_num_batched_tokens
    fewer = max(tokens // 2, least.max_num_batched_tokens, failed.max_num_seqs)
    return replace(failed, max_num_batched_tokens=fewer) if fewer < tokens else None


def _fewer_seqs(failed: Point, least: Point) -> Point | None:
    fewer = max(failed.max_num_seqs // 2, least.max_num_seqs)
    return replace(failed, max_num_seqs=fewer) if fewer < failed.max_num_seqs else None


def _less_memory(failed: Point, least: Point, free_share: float | None) -> Point | None:
    """The utilization that fits into what is free, in hundredths; else the next multiple of 0.05 below."""
    # The figures that vLLM says are rounded: what is free may be a little less.
    fits = 1.0 if free_share is None else floor((free_share - 0.0005) * 100) / 100
    next_rung = floor((failed.memory - 0.0001) * 20) / 20
    less = fits if fits < failed.memory else max(next_rung, least.memory)
    return replace(failed, memory=less) if least.memory <= less < failed.memory else None
