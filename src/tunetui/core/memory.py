"""Where the memory of a card goes: the parts that vLLM names at its start, and what a setting of the knob leaves of it.

It is for display: the number of blocks to hold comes from the engine's own figures (`EngineFacts.capacity_blocks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunetui.core.knobs import EngineFacts


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """What the start-up log says of one device's memory, in bytes; None where it says nothing. vLLM logs GiB with two
    decimals. `worker_bytes` is everything but the KV cache, of CPU builds, which do not name its parts. `per_card`:
    several cards share the model, and these are the figures of one of them."""

    total_bytes: int | None = None
    weights_bytes: int | None = None
    activations_bytes: int | None = None
    non_torch_bytes: int | None = None
    graphs_bytes: int | None = None
    worker_bytes: int | None = None
    kv_bytes: int | None = None
    per_card: bool = False


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """One setting of a utilization knob: what it asks for and what of that becomes KV cache, in bytes and blocks."""

    total_bytes: int
    asked_bytes: int
    kv_bytes: int | None
    blocks: int | None


def share_at(utilization: float, facts: EngineFacts) -> MemoryShare | None:
    """What `utilization` gives, or None where the size of the memory is not known."""
    total = facts.total_memory_bytes
    if not total:
        return None
    blocks = facts.capacity_blocks(utilization)
    kv_bytes = None if blocks is None else blocks * facts.bytes_per_block
    if kv_bytes is None and facts.memory.kv_bytes is not None:
        kv_bytes = facts.memory.kv_bytes + round((utilization - facts.ceiling.memory) * total)
        blocks = facts.num_blocks or None if utilization == facts.ceiling.memory else None
    return MemoryShare(total, round(utilization * total), kv_bytes, blocks)


def rest_bytes(facts: EngineFacts) -> int | None:
    """What is left of the start's share beside the parts that are named: activations, where vLLM does not log them
    (GPUs, 0.11 to 0.27). None where they are logged, or weights or KV cache are not."""
    parts = facts.memory
    if parts.activations_bytes is not None or parts.weights_bytes is None or parts.kv_bytes is None:
        return None
    named = parts.weights_bytes + (parts.non_torch_bytes or 0) + parts.kv_bytes
    rest = round(facts.ceiling.memory * facts.total_memory_bytes) - named
    return rest if rest > 0 else None
