"""How figures are written on the screen: one place for units, widths and words. It holds no colours and no widgets."""

from __future__ import annotations

import math
import textwrap

from tunetui.core.ceilings import Lowering
from tunetui.core.knobs import EngineFacts, Knob, MemoryFlag, Point, format_memory, restart_reason
from tunetui.core.load import Load
from tunetui.core.memory import rest_bytes, share_at

KNOB_LABELS = {
    Knob.SEQS: "max-num-seqs",
    Knob.TOKENS: "max-batched-tokens",
    Knob.CHUNKED: "chunked prefill",
    Knob.THRESHOLD: "long-prefill limit",
    Knob.MEMORY: "gpu-memory-util",
    Knob.PREFIX: "prefix caching",
}
SHORT_LABELS = {Knob.THRESHOLD: "long-prefill", Knob.TOKENS: "batched-tokens", Knob.MEMORY: "gpu-memory-util"}


def ms(seconds: float | None, digits: int = 0) -> str:
    """`412 ms`, `12.34 s` from ten seconds on, `-` for nothing."""
    if seconds is None:
        return "-"
    if seconds >= 10:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:,.{digits}f} ms"


def digits(seconds: float) -> int:
    """Decimals that milliseconds of this size are worth."""
    return 1 if seconds < 0.1 else 0


def bare_ms(seconds: float | None, digits: int = 0) -> str:
    """Milliseconds without the unit, for table cells."""
    return "-" if seconds is None else f"{seconds * 1000:,.{digits}f}"


def clock(seconds: float) -> str:
    """`00:12:31`."""
    whole = int(max(seconds, 0))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def percent(share: float | None, digits: int = 0) -> str:
    return "-" if share is None else f"{share * 100:.{digits}f} %"


def interval(low: float, high: float) -> str:
    """`94.8-98.1 %`, rounded outwards: it never says more than is known."""
    return f"{math.floor(low * 1000 + 1e-6) / 10:.1f}-{math.ceil(high * 1000 - 1e-6) / 10:.1f} %"


def wrapped(text: str, width: int) -> list[str]:
    """`text` in lines of `width` cells; a range like `16-127` or a hyphened word stays whole."""
    return textwrap.wrap(text, max(width, 10), break_on_hyphens=False)


def memory_flag(point: Point | None, facts: EngineFacts | None) -> MemoryFlag:
    """What the memory knob steps; before the engine said so, a value above 1 can only be bytes."""
    if facts is not None:
        return facts.memory_flag
    return MemoryFlag.KV_BYTES if point is not None and point.memory > 1 else MemoryFlag.UTILIZATION


def knob_label(knob: Knob, flag: MemoryFlag, wide: bool = True) -> str:
    if knob is Knob.MEMORY and flag is MemoryFlag.KV_BYTES:
        return "KV cache memory"
    return KNOB_LABELS[knob] if wide else SHORT_LABELS.get(knob, KNOB_LABELS[knob])


def knob_value(knob: Knob, point: Point, facts: EngineFacts | None) -> str:
    match knob:
        case Knob.MEMORY:
            return format_memory(point.memory, memory_flag(point, facts))
        case Knob.CHUNKED | Knob.PREFIX:
            return "on" if point.value(knob) else "off"
        case Knob.THRESHOLD:
            return str(point.value(knob) or "none")
        case _:
            return str(point.value(knob))


def chunking(point: Point) -> str:
    """Chunked prefill in one table cell: `off`, `on`, or with a long-prefill limit `\u2264512`."""
    if not point.chunked_prefill:
        return "off"
    return f"\u2264{point.long_prefill_token_threshold}" if point.long_prefill_token_threshold else "on"


def load(value: Load, wide: bool) -> str:
    """`load 14 rps poisson`, or in few cells `14 rps`."""
    return f"load {value}" if wide else str(value).removesuffix(" poisson").removesuffix(" closed loop")


def knob_how(knob: Knob, point: Point, facts: EngineFacts | None, expected_s: float | None) -> str:
    """`live`, `live v` (down only), `restart 35 s`, or `fixed`."""
    if facts is None:
        return ""
    if knob in facts.fixed:
        return "fixed"
    if restart_reason(knob, point, facts):
        return f"restart {expected_s:.0f} s" if expected_s else "restart"
    if knob is Knob.MEMORY:
        return "live v"
    return "live"


def knob_why(knob: Knob, point: Point, facts: EngineFacts) -> str:
    """Why a knob is not live here, or an empty string."""
    if reason := facts.fixed.get(knob):
        return f"fixed: {reason}"
    reason = restart_reason(knob, point, facts)
    return f"restart: {reason}" if reason else ""


def gib(size_bytes: int) -> str:
    """GiB without the unit, with three digits: `79.2`, `1.20`."""
    size = size_bytes / 2**30
    return f"{size:.1f}" if size >= 9.995 else f"{size:.2f}"


def memory_map(point: Point, facts: EngineFacts) -> str:
    """What the memory knob's value gives: `0.90 of 79.2 GiB = 71.3: KV 57.5 (3,680 blocks), weights 12.6`, or
    `256 MiB = 128 blocks of 2 MiB`. Unknown parts are left out; empty where nothing is known."""
    if facts.memory_flag is MemoryFlag.KV_BYTES:
        blocks = facts.capacity_blocks(point.memory)
        size = f"{facts.bytes_per_block / 2**20:.3g} MiB"
        return f"{format_memory(point.memory, facts.memory_flag)} = {blocks:,} blocks of {size}" if blocks else ""
    share = share_at(point.memory, facts)
    if share is None:
        return ""
    parts, named = facts.memory, []
    if share.kv_bytes is not None:
        named.append(f"KV {gib(share.kv_bytes)}" + (f" ({share.blocks:,} blocks)" if share.blocks else ""))
    for name, size_bytes in (
        ("weights", parts.weights_bytes),
        ("activations", parts.activations_bytes),
        ("graphs", parts.graphs_bytes),
        ("non-torch", parts.non_torch_bytes),
        ("worker", parts.worker_bytes),
        ("the rest", rest_bytes(facts)),
    ):
        if size_bytes is not None:
            named.append(f"{name} {gib(size_bytes)}")
    asked = f"{point.memory:.2f} of {gib(share.total_bytes)} GiB = {gib(share.asked_bytes)}"
    return ": ".join(filter(None, (asked, ", ".join(named)))) + (" (per card)" if parts.per_card else "")


def ceiling(point: Point, flag: MemoryFlag) -> str:
    """A ceiling in few cells: `512/8192/0.92`."""
    return f"{point.max_num_seqs}/{point.max_num_batched_tokens}/{format_memory(point.memory, flag)}"


def ceilings_tried(lowered: tuple[Lowering, ...]) -> str:
    """Every ceiling that a start has tried, the last one included."""
    tried = [ceiling(each.failed, each.memory_flag) for each in lowered]
    return ", ".join([*tried, ceiling(lowered[-1].ceiling, lowered[-1].memory_flag)])
