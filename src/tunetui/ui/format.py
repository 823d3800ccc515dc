"""How figures are written on the screen: one place for units, widths and words. It holds no colours and no widgets."""

from __future__ import annotations

from tunetui.core.knobs import EngineFacts, Knob, MemoryFlag, Point, format_memory, restart_reason

KNOB_LABELS = {
    Knob.SEQS: "max-num-seqs",
    Knob.TOKENS: "max-batched-tokens",
    Knob.CHUNKED: "chunked prefill",
    Knob.MEMORY: "gpu-memory-util",
    Knob.PREFIX: "prefix caching",
}


def ms(seconds: float | None, digits: int = 0) -> str:
    """`412 ms`, `12.34 s` from ten seconds on, `-` for nothing."""
    if seconds is None:
        return "-"
    if seconds >= 10:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:,.{digits}f} ms"


def bare_ms(seconds: float | None) -> str:
    """Milliseconds without the unit, for table cells."""
    return "-" if seconds is None else f"{seconds * 1000:,.0f}"


def clock(seconds: float) -> str:
    """`00:12:31`."""
    whole = int(max(seconds, 0))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def percent(share: float | None, digits: int = 0) -> str:
    return "-" if share is None else f"{share * 100:.{digits}f} %"


def knob_label(knob: Knob, facts: EngineFacts | None) -> str:
    if knob is Knob.MEMORY and facts is not None and facts.memory_flag is MemoryFlag.KV_BYTES:
        return "KV cache memory"
    return KNOB_LABELS[knob]


def knob_value(knob: Knob, point: Point, facts: EngineFacts | None) -> str:
    match knob:
        case Knob.MEMORY:
            return format_memory(point.memory, facts.memory_flag if facts else MemoryFlag.UTILIZATION)
        case Knob.CHUNKED | Knob.PREFIX:
            return "on" if point.value(knob) else "off"
        case _:
            return str(point.value(knob))


def knob_how(knob: Knob, point: Point, facts: EngineFacts | None, expected_s: float | None) -> str:
    """`live`, `live v` (down only), or `restart 35 s`."""
    if facts is None:
        return ""
    if restart_reason(knob, point, facts):
        return f"restart {expected_s:.0f} s" if expected_s else "restart"
    if knob is Knob.MEMORY:
        return "live v"
    return "live"
