"""How figures are written on the screen: one place for units, widths and words. It holds no colours and no widgets."""

from __future__ import annotations

from tunetui.core.knobs import EngineFacts, Knob, MemoryFlag, Point, format_memory, restart_reason
from tunetui.core.workload import Load

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


def bare_ms(seconds: float | None, digits: int = 0) -> str:
    """Milliseconds without the unit, for table cells."""
    return "-" if seconds is None else f"{seconds * 1000:,.{digits}f}"


def clock(seconds: float) -> str:
    """`00:12:31`."""
    whole = int(max(seconds, 0))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def percent(share: float | None, digits: int = 0) -> str:
    return "-" if share is None else f"{share * 100:.{digits}f} %"


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


def load(value: Load, wide: bool) -> str:
    """`load 14 rps poisson`, or in few cells `14 rps`."""
    return f"load {value}" if wide else str(value).removesuffix(" poisson").removesuffix(" closed loop")


def knob_how(knob: Knob, point: Point, facts: EngineFacts | None, expected_s: float | None) -> str:
    """`live`, `live v` (down only), or `restart 35 s`."""
    if facts is None:
        return ""
    if restart_reason(knob, point, facts):
        return f"restart {expected_s:.0f} s" if expected_s else "restart"
    if knob is Knob.MEMORY:
        return "live v"
    return "live"
