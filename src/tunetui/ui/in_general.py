"""What holds in general as text: the interval of each objective, a chart of how it closed, and why none is given yet.

It computes no interval (the core does), and has no word on the episode but how its verdict differs.
"""

from __future__ import annotations

from rich.text import Text

from tunetui.core.general import LEAST_EFFECTIVE, Interval, LatencyInterval
from tunetui.core.point_statistics import Closing, General, Statement
from tunetui.core.session import Session
from tunetui.core.slo import Slo
from tunetui.ui import format as fmt
from tunetui.ui.fit import fitted, part
from tunetui.ui.panels import nothing_yet, overload, verdict_text
from tunetui.ui.plot import Band, build_band
from tunetui.ui.rows import CONSOLE
from tunetui.ui.styles import BAD, DIM, WARN

LEAST_CHART, MOST_CHART = 7, 20  # rows
DIFFERENCE = (
    "An episode's verdict is exact, and about its requests alone: every point gets the same ones, so points compare.",
    "In general is about all requests that such a load brings: UNDECIDED while the target lies inside the interval.",
)


def in_general(state: Session, width: int, height: int) -> Text:
    """The statement, its chart in the rows that are left, and what it is about."""
    if state.point_view is None:
        return Text(nothing_yet(state), DIM).append("\n\n").append_text(_lines(DIFFERENCE, width, DIM))
    statement = state.point_view.statement
    said = _said(state, statement, width)
    about = _lines(DIFFERENCE, width, DIM)
    lines = [said]
    if statement.closing:
        rows = height - said.plain.count("\n") - about.plain.count("\n") - 5
        lines += [Text(), *_chart(state.slo, statement, width, min(max(rows, LEAST_CHART), MOST_CHART))]
    return Text("\n").join([*lines, Text(), about])


def _lines(sentences: tuple[str, ...], width: int, style: str = "") -> Text:
    wrapped = [line for sentence in sentences for line in fmt.wrapped(sentence, width)]
    return Text("\n").join(Text(line, style) for line in wrapped)


def _said(state: Session, statement: Statement, width: int) -> Text:
    lines = []
    if overloaded := overload(state):
        lines.append(_lines((f"FAIL on this load, {overloaded}: no long-run share exists.",), width, BAD))
    if reason := unsaid(state, statement):
        lines.append(_lines((reason,), width, WARN))
        return Text("\n").join(lines)
    lines += [line for one in statement.general for line in _objective(one, state.slo, width)]
    if len(statement.general) > 1:
        lines.append(Text.assemble(("all objectives in general: ", "bold"), verdict_text(statement.verdict)))
    return Text("\n").join(lines)


def unsaid(state: Session, statement: Statement) -> str:
    """Why nothing is said in general yet, or an empty string."""
    if not state.slo.objectives:
        return "nothing to state in general: there is no objective (give one with --slo, as in ttft:600)."
    if any(one.interval is not None for one in statement.general):
        return ""
    if not state.load.open_loop:
        return (
            "nothing is said in general of a closed loop: its streams wait for answers, so it has no queue to be "
            "judged by. Give it a request rate (--rate) instead of a concurrency."
        )
    if statement.utilization is None:
        return (
            "nothing can be said in general: no metrics from the server, and without how busy it is the requests "
            "cannot be weighed."
        )
    if statement.utilization >= 1:
        return (
            "nothing is said in general of an engine that was full all the time: no attainment holds in the long run "
            "where waiting never ends. Lower the load, or raise what limits the engine."
        )
    return (
        f"nothing can be said in general yet: the {statement.requests:,} requests so far are worth fewer than "
        f"{LEAST_EFFECTIVE} independent ones. Neighbouring requests queue together (the busier the engine, the more of "
        f"them tell as much as one), so near saturation this takes tens of thousands."
    )


def _objective(one: General, slo: Slo, width: int) -> list[Text]:
    """`in general TTFT is met by 94.8-98.1 % (of 12,400 requests, worth 380 independent ones): PASS`, and its P95."""
    label, interval = one.metric.label, one.interval
    if interval is None:
        return [_lines((f"in general {label}: too few requests yet",), width, DIM)]
    sentence = Text.assemble(f"in general {label} is met by ", (fmt.interval(interval.low, interval.high), "bold"))
    sentence.append(f" {_worth(interval)}: ").append_text(verdict_text(interval.verdict))
    objective = slo.objective(one.metric)
    limit = f" (SLO {objective.limit_s * 1000:g})" if objective else ""
    lines = _wrapped(sentence, width)
    if one.percentile is not None:
        lines += [Text(f"  {line}", DIM) for line in fmt.wrapped(_percentile(one.percentile, slo, limit), width - 2)]
    return lines


def _wrapped(text: Text, width: int) -> list[Text]:
    lines = list(text.wrap(CONSOLE, width))
    for line in lines:
        line.rstrip()
    return lines


def _worth(interval: Interval) -> str:
    return f"(of {interval.requests:,} requests, worth {int(interval.effective_requests):,} independent ones)"


def _percentile(seen: LatencyInterval, slo: Slo, limit: str) -> str:
    name, low = f"its long-run P{slo.percentile}", fmt.ms(seen.low_s, fmt.digits(seen.low_s))
    if seen.high_s is None:
        return f"{name} is at least {low}{limit}; no upper bound yet"
    return f"{name} is {low} to {fmt.ms(seen.high_s, fmt.digits(seen.low_s))}{limit}"


def _chart(slo: Slo, statement: Statement, width: int, rows: int) -> list[Text]:
    parts = [part(9, "how the interval closed", "bold"), part(8, f"target {slo.percentile} %", BAD)]
    parts.append(part(1, "% met of the objective met least, against requests", DIM))
    caption = fitted(parts, Text(), width)
    drawn = Text.from_ansi(build_band(band_of(statement.closing, slo), width, rows))
    return [caption, *list(drawn.split("\n"))[:rows]]


def band_of(closing: tuple[Closing, ...], slo: Slo) -> Band:
    """The chart's series, in percent."""
    return Band(
        requests=tuple(look.requests for look in closing),
        low=tuple(look.low * 100 for look in closing),
        high=tuple(look.high * 100 for look in closing),
        target=float(slo.percentile),
    )
