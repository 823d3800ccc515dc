"""A measurement as lines of text for a terminal of 80 columns.

It computes nothing: every figure comes from the measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunetui.drive.measure import Result
    from tunetui.drive.settings import Settings

WIDTH = 79
KINDS = ("mean", "median", "p90", "p95", "p99")
LABEL = 14


def report(settings: Settings, result: Result) -> Iterator[str]:
    """One measurement: counts, latencies, verdicts, and what marks it."""
    data, seen = result.as_data(settings), result.seen
    yield f"{'SIMULATED ' if settings.simulated else ''}{settings.model} at {settings.url}"
    yield f"{result.load}, {settings.workload}"
    yield ""
    yield row("requests", requests_line(data))
    yield row("throughput", throughput_line(data))
    yield ""
    yield f"{'ms':{LABEL}}" + "".join(f"{kind.replace('median', 'P50').replace('p', 'P', 1):>10}" for kind in KINDS)
    for label, name in (("TTFT", "ttft"), ("  from send", "ttft_from_send"), ("TPOT", "tpot"), ("ITL", "itl"),
                        ("E2EL", "e2el")):  # fmt: skip
        yield f"{label:{LABEL}}" + "".join(f"{figure(data[f'{kind}_{name}_ms']):>10}" for kind in KINDS)
    yield ""
    for name, one in data["objectives"].items():
        yield row(f"SLO {name.upper()}", objective_line(one, settings.slo.percentile))
    if seen.objectives:
        yield row("all met", f"{percent(data['attainment'])} of the requests")
        line = " (ON THE LINE)" if seen.on_the_line else ""
        yield row("verdict", f"{seen.verdict.value} on this load{line}; in general {data['general_verdict']}")
    for sentence in remarks(result, data):
        yield from wrap(sentence, WIDTH, subsequent_indent="  ")


def row(label: str, text: str) -> str:
    return f"{label:{LABEL}}{text}"


def requests_line(data: dict[str, Any]) -> str:
    parts = [f"{data['completed']} of {data['num_prompts']} in {data['duration']:.1f} s"]
    parts += [f"{data[name]} {name}" for name in ("failed", "cancelled", "retries") if data[name]]
    if data["left_out"]:
        parts.append(f"{data['left_out']} left out at the start")
    return ", ".join(parts)


def throughput_line(data: dict[str, Any]) -> str:
    text = f"{data['request_throughput']:.2f} req/s, {data['output_throughput']:,.0f} output tok/s"
    goodput = data["request_goodput"]
    return text if goodput is None else f"{text}, goodput {goodput:.2f} req/s"


def objective_line(one: dict[str, Any], percentile: int) -> str:
    text = f"P{percentile} <= {one['limit_ms']:g} ms: {one['verdict']}, met by {percent(one['attainment'])}"
    if one["general"] is None:
        return text
    low, high = one["general"]
    return f"{text}; in general {percent(low)} - {percent(high)}"


def remarks(result: Result, data: dict[str, Any]) -> Iterator[str]:
    """What must be known before the figures are believed, and what they show."""
    if result.interrupted:
        yield "interrupted: what was under way is left out"  # the verdict counts it as unknown
    if result.seen.overload:
        yield result.seen.overload
    for text, count in data["errors"].items():
        yield f"{count} failed: {text}"
    if data["one_token_answers"] and result.seen.objectives:
        yield f"of one token, so without a TPOT, and judged on the rest alone: {data['one_token_answers']} answers"
    for metric, words in data["two_modes"].items():
        yield f"{metric.upper()} has {words}"
    if result.by_length.finding:
        yield result.by_length.finding
    lateness = data["generator_lateness_p99_ms"]
    if lateness is not None:
        yield f"load generator late by at most {lateness:.1f} ms for 99 % of the requests"
    for mark in result.marks:
        yield f"SUSPECT: {mark}"


def comparison(settings: Settings, results: Sequence[Result]) -> Iterator[str]:
    """A table with a line for each load."""
    percentile = settings.slo.percentile
    yield f"{'SIMULATED ' if settings.simulated else ''}{settings.model} at {settings.url}, {settings.workload}"
    yield ""
    yield (
        f"{'req/s':>8}{f'P{percentile} TTFT':>10}{f'P{percentile} TPOT':>10}{'req/s':>9}{'tok/s':>9}{'goodput':>9}"
        f"{'met':>8}{'failed':>8}  verdict"
    )
    for result in results:
        data = result.as_data(settings)
        goodput = data["request_goodput"]
        marks = " SUSPECT" if result.marks else ""
        yield (
            f"{result.load.rate_rps:>8g}{figure(data[f'p{percentile}_ttft_ms']):>10}"
            f"{figure(data[f'p{percentile}_tpot_ms']):>10}{data['request_throughput']:>9.2f}"
            f"{data['output_throughput']:>9.0f}{'-' if goodput is None else f'{goodput:.2f}':>9}"
            f"{percent(data['attainment']):>8}{data['failed']:>8}  {data['verdict'] or '-'}{marks}"
        )
    for result in results:
        sentences = ["interrupted: what was under way is left out"] if result.interrupted else []
        sentences += [result.seen.overload] if result.seen.overload else []
        sentences += [f"{count} failed: {text}" for text, count in result.as_data(settings)["errors"].items()]
        for sentence in (*sentences, *result.marks):
            yield from wrap(f"{result.load.rate_rps:g} req/s: {sentence}", WIDTH, subsequent_indent="  ")


def figure(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return (
        f"{milliseconds:.0f}"
        if milliseconds >= 1000
        else f"{milliseconds:.1f}"
        if milliseconds >= 100
        else (f"{milliseconds:.2f}")
    )


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"
