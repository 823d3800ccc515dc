"""What each step would bring, as text: the lines beside a knob, and the page of all steps. It predicts nothing."""

from __future__ import annotations

from rich.text import Text

from tunetui.core.knobs import EngineFacts, Knob
from tunetui.core.outlook import Expected, Option
from tunetui.core.predictions import Range
from tunetui.core.session import Phase, Session
from tunetui.core.slo import Verdict
from tunetui.ui import format as fmt
from tunetui.ui.styles import DIM, VERDICT_STYLE, WARN

UP, DOWN, SWITCH = "\u2192", "\u2190", "\u2194"
ARROWS = {1: UP, -1: DOWN}
ROOMY = 100  # cells from which intervals stand beside the values
NARROW = 72  # ... and below which names are short
OFF_BY = "predictions here were "


def beside(state: Session, knob: Knob) -> list[str]:
    """What a step of `knob` would bring, two lines each way, upwards first; nothing where it was not predicted."""
    outlook, facts = state.outlook_here, state.facts
    if outlook is None or facts is None:
        return []
    if outlook.poor_words:
        return [outlook.poor_words]
    return [line for option, expected in outlook.of(knob) for line in _in_two_lines(_step(option, facts), expected)]


def _step(option: Option, facts: EngineFacts) -> str:
    """`→ 320`, `↔ off`."""
    arrow = SWITCH if option.knob in (Knob.CHUNKED, Knob.PREFIX) else ARROWS[option.direction]
    return f"{arrow} {fmt.knob_value(option.knob, option.point, facts)}"


def _in_two_lines(step: str, expected: Expected) -> list[str]:
    """`→ 320: 4,535 tok/s PASS` and `  TTFT 390-724, TPOT 49-91 ms`."""
    if expected.overload:
        return [f"{step}: overloaded"]
    verdict = "" if expected.verdict is Verdict.UNDECIDED else f" {expected.verdict.value}"
    latencies = (("TTFT", expected.ttft_s), ("TPOT", expected.tpot_s))
    known = ", ".join(f"{name} {_ms(value)}" for name, value in latencies if value is not None)
    head = f"{step}: {expected.throughput.value:,.0f} tok/s{verdict}{' ?' if expected.flags else ''}"
    return [head, f"  {known} ms"] if known else [head]


def _ms(value: Range) -> str:
    """`210-260`, with a decimal below ten milliseconds."""
    digits = 1 if value.high < 0.01 else 0
    return f"{value.low * 1000:,.{digits}f}-{value.high * 1000:,.{digits}f}"


def outlook(state: Session, width: int, _height: int) -> Text:
    """The page: every step with what is predicted of it, and how far predictions were off in this session."""
    found, facts = state.outlook_here, state.facts
    if found is None or facts is None:
        return Text("\n").join(Text(line, DIM) for line in fmt.wrapped(_why_nothing(state), width))
    lines = [Text(line, DIM) for line in fmt.wrapped(_what(state), width)]
    lines += [Text(), Text(_columns(width, _heads(state, width)), DIM)]
    if found.here is not None:
        lines.append(_row("here", "", found.here, width))
    knob: Knob | None = None
    for option, expected in found.steps:
        label = "" if option.knob is knob else fmt.knob_label(option.knob, facts.memory_flag, width >= NARROW)
        knob = option.knob
        lines.append(_row(label, _step(option, facts) + ("*" if option.restart else ""), expected, width))
    lines.append(Text())
    if any(option.restart for option, _ in found.steps):
        lines.append(Text("* takes a restart", DIM))
    said = found.poor_words or (OFF_BY + found.error_words if found.error_words else "")
    nothing = "no prediction has been compared with a measurement yet: the intervals are wide"
    lines += [Text(line, WARN if found.poor_words else DIM) for line in fmt.wrapped(said or nothing, width)]
    flags = dict.fromkeys(flag for _, expected in found.steps for flag in expected.flags)
    lines += [Text(line, DIM) for flag in flags for line in fmt.wrapped(f"? {flag}", width)]
    return Text("\n").join(lines)


def _why_nothing(state: Session) -> str:
    if state.facts is not None and not state.facts.live:
        return f"nothing is predicted here, for the engine's steps cannot be read: {state.facts.why_not_live}"
    if state.phase is Phase.ATTACHED:
        return "nothing is predicted of an attached server: its steps cannot be read"
    if state.progress is not None and state.progress.running:
        return "nothing is predicted while the sweep runs: it predicts by itself"
    return "nothing yet: predictions come a few seconds after the engine has worked at this point"


def _what(state: Session) -> str:
    return (
        f"one wide step of each knob under {state.load}: output tokens per second, P{state.slo.percentile} latencies "
        "in ms, each with its 90 % interval; PASS and FAIL where the intervals leave no doubt"
    )


def _heads(state: Session, width: int) -> tuple[str, ...]:
    percentile = f"P{state.slo.percentile} " if width >= NARROW else ""
    return "knob", "step", "tok/s", f"{percentile}TTFT", f"{percentile}TPOT", "verdict" if width >= NARROW else ""


def _widths(width: int) -> tuple[int, ...]:
    if width < NARROW:
        return 15, 7, 6, 8, 8, 4
    return (18, 12, 22, 20, 18, 10) if width >= ROOMY else (18, 10, 8, 12, 12, 9)


def _columns(width: int, cells: tuple[str, ...]) -> str:
    first, second, *rest = zip(cells, _widths(width), strict=True)
    left = f"{first[0]:<{first[1]}} {second[0]:<{second[1]}}"
    *figures, (verdict, _) = rest
    return " ".join([left, *(f"{cell:>{size}}" for cell, size in figures), f" {verdict}"])


def _row(label: str, step: str, expected: Expected, width: int) -> Text:
    wide = width >= ROOMY
    if expected.overload:
        cells = ("-", "-", "-")
        verdict, style = "OVERLOADED" if width >= NARROW else "FAIL", VERDICT_STYLE[Verdict.FAIL]
    else:
        cells = (_count(expected.throughput, wide), _latency(expected.ttft_s, wide), _latency(expected.tpot_s, wide))
        undecided = expected.verdict is Verdict.UNDECIDED
        verdict, style = ("" if undecided else expected.verdict.value), VERDICT_STYLE[expected.verdict]
    text = Text(_columns(width, (label, step, *cells, "")))
    text.append(verdict, style)
    return text.append(" ?" if expected.flags else "", WARN)


def _count(value: Range, wide: bool) -> str:
    return f"{value.value:,.0f} ({value.low:,.0f}-{value.high:,.0f})" if wide else f"{value.value:,.0f}"


def _latency(value: Range | None, wide: bool) -> str:
    if value is None:
        return "-"
    return f"{fmt.bare_ms(value.value, fmt.digits(value.high))} ({_ms(value)})" if wide else _ms(value)
