"""`tunetui workload`: what a recording holds, as a page of text or as JSON.

It sends nothing, and makes no recording (`record` does).
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunetui.cli.options import USAGE, Parser, Refused

if TYPE_CHECKING:
    from tunetui.core.features import Histogram
    from tunetui.core.trace import Trace
    from tunetui.traces.columns import Reading

WIDTH = 79  # of a line: an 80-column terminal breaks none
_RATE_BINS = 60
_BAR = 40
_LEAST_GAP_S = 1e-4  # shorter gaps are at once, for a recording of milliseconds or microseconds
_BLOCKS, _SPARKS = " ▏▎▍▌▋▊▉█", "▁▂▃▄▅▆▇█"
_ASCII_SPARKS = "_.:-=+*#"

EPILOG = """\
formats, recognised by content (gzip is unpacked): Azure LLM CSV, BurstGPT CSV, Mooncake JSONL, ShareGPT JSON,
vLLM custom JSONL, OpenAI request logs (JSONL), and what tunetui record writes.

exit codes: 0 done, 2 the file or an option cannot be used.
"""


def parser() -> argparse.ArgumentParser:
    """The options, as `--help` shows them. Parsing raises Refused."""
    made = Parser(
        prog="tunetui workload",
        description="Show what a recorded workload is like: rate, burstiness, lengths, shared prefixes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("file", metavar="FILE", help="the recording")
    made.add_argument("--json", metavar="FILE", help="write the same as JSON; - prints that alone")
    made.add_argument("--max-model-len", type=int, metavar="N", help="make the requests fit a model of N tokens first")
    made.add_argument("--fit", choices=("clip", "drop"), help="what to do with those that do not fit (default clip)")
    return made


def main(words: list[str]) -> int:
    """Show the recording that `words` name; returns the exit code. Raises Refused."""
    from tunetui.traces.lines import TraceError
    from tunetui.traces.reading import read_trace

    options = parser().parse_args(words)
    if options.fit and options.max_model_len is None:
        raise Refused("--fit needs --max-model-len N, the length that the requests are to fit", USAGE)
    if options.json and _is_same(options.json, options.file):
        raise Refused("--json would overwrite the recording itself: give another file", USAGE)
    try:
        trace, reading = read_trace(options.file)
    except TraceError as error:
        raise Refused(str(error), USAGE) from None
    trace, fit = _fitted(trace, options.max_model_len, options.fit or "clip")
    data = as_data(trace, reading, fit)
    if options.json:
        _write(options.json, json.dumps(data, indent=2) + "\n")
    if options.json != "-":
        plain = not _speaks_utf8(sys.stdout.encoding)
        _write("-", "\n".join(page(options.file, trace, reading, data, plain)) + "\n")
    return 0


def _fitted(trace: Trace, max_model_len: int | None, policy: Any) -> tuple[Trace, dict[str, int | str] | None]:
    from tunetui.core.trace import fitted

    if max_model_len is None:
        return trace, None
    if max_model_len < 2:
        raise Refused(f"--max-model-len {max_model_len} fits no request: give 2 or more", USAGE)
    trace, counts = fitted(trace, max_model_len, policy)
    if not trace.requests:
        raise Refused(f"no request fits {max_model_len} tokens: raise --max-model-len, or clip with --fit clip", USAGE)
    return trace, {"max_model_len": max_model_len, "clipped": counts.clipped, "dropped": counts.dropped}


def as_data(trace: Trace, reading: Reading, fit: dict[str, int | str] | None = None) -> dict[str, Any]:
    """What the page says, as plain values. A feature that the recording cannot tell is not among them."""
    from tunetui.core.features import features_of, log_histogram, rates_over_time

    features = features_of(
        trace.prompt_tokens, trace.output_tokens, trace.arrivals_s, trace.blocks, trace.block_tokens,
        trace.conversations,
    )  # fmt: skip
    if trace.conversations is None:
        features.pop("turns_per_conversation")
        if trace.blocks is None:
            features.pop("shared_prefix_share")
    if trace.lengths_only:
        features.pop("length_correlation", None)
    histograms: dict[str, Any] = {
        "prompt_tokens": _plain(log_histogram(trace.prompt_tokens)),
        "output_tokens": _plain(log_histogram(trace.output_tokens)),
    }
    if trace.arrivals_s is not None and trace.requests > 1:
        gaps = [later - earlier for earlier, later in zip(trace.arrivals_s, trace.arrivals_s[1:], strict=False)]
        histograms["gaps_s"] = _plain(log_histogram(gaps, _LEAST_GAP_S))
        bin_s, rates = rates_over_time(trace.arrivals_s, _RATE_BINS)
        histograms["rate_rps"] = {"bin_s": bin_s, "values": list(rates)}
    return {
        "format": reading.format,
        "requests": trace.requests,
        "counted": trace.counted,
        "lengths_only": trace.lengths_only,
        "features": features,
        "histograms": histograms,
        "broken": {"lines": reading.broken, "of": reading.lines, "first": list(reading.first_broken)},
        "out_of_order": reading.out_of_order,
        "notes": list(reading.notes),
        "fit": fit,
    }


def _plain(histogram: Histogram) -> dict[str, Any]:
    return {"edges": list(histogram.edges), "counts": list(histogram.counts), "below": histogram.below}


def page(file: str, trace: Trace, reading: Reading, data: dict[str, Any], plain: bool) -> Iterator[str]:
    """The lines of the page, none wider than WIDTH but for a path; `plain` keeps them ASCII."""
    yield f"{_visible(file)}: {data['format']}, {trace.requests} requests" + (
        f" over {_duration(trace.arrivals_s[-1])}" if trace.arrivals_s else ", without times"
    )
    said = (*reading.said(), *_said(data))
    yield from (line for sentence in said for line in _wrapped(_visible(sentence)))
    yield ""
    yield from _table(data["features"], trace)
    histograms = data["histograms"]
    for name, title in (("prompt_tokens", "prompt tokens"), ("output_tokens", "output tokens"), ("gaps_s", "gaps, s")):
        if name in histograms:
            yield from ("", title)
            yield from _bars(histograms[name], plain)
    if histograms.get("rate_rps", {}).get("values"):
        yield from _rate_line(histograms["rate_rps"], plain)


def _said(data: dict[str, Any]) -> Iterator[str]:
    """What was changed or is not known, a sentence each."""
    fit = data["fit"]
    if not data["counted"]:
        yield "lengths are estimates from the texts, 4 characters a token, where none are given"
    if data["lengths_only"]:
        yield "lengths only: their order and correlation are not of the original"
    gaps = data["histograms"].get("gaps_s")
    if gaps and gaps["below"] > sum(gaps["counts"]):
        share = gaps["below"] / (gaps["below"] + sum(gaps["counts"]))
        yield (
            f"{share:.0%} of the requests have the time of the one before: the recording's clock is coarse, or they "
            "come in batches, and so would a replay"
        )
    if fit:
        done = "dropped" if fit["dropped"] else "clipped"
        yield f"requests that did not fit {fit['max_model_len']} tokens, {done}: {fit['clipped'] + fit['dropped']}"


def _table(features: dict[str, Any], trace: Trace) -> Iterator[str]:
    yield f"{'':16}{'mean':>10}{'P50':>10}{'P95':>10}{'max':>10}"
    for name in ("prompt_tokens", "output_tokens"):
        values = (features[f"{name}_{kind}"] for kind in ("mean", "p50", "p95", "max"))
        yield f"{name.replace('_', ' '):16}" + "".join(f"{value:>10.10g}" for value in values)
    yield ""
    unknown = "not in the recording"
    correlation = unknown if trace.lengths_only else "none: lengths of one kind are all equal"
    rows = (
        ("request rate", "rate_rps", "{:g} requests/s", unknown),
        ("burstiness", "burstiness", "{:g} (1 is Poisson, below it bursty)", unknown),
        ("correlation", "length_correlation", "{:g} of prompt and output lengths", correlation),
        ("long prompts", "long_prompt_share", "{:.2%} above 4 times the median", unknown),
        ("shared prefixes", "shared_prefix_share", "{:.1%} of the prompt tokens", unknown),
        ("turns", "turns_per_conversation", "{:g} a conversation", unknown),
    )
    for label, key, form, otherwise in rows:
        yield f"{label:16}  {form.format(features[key]) if key in features else otherwise}"


def _bars(histogram: dict[str, Any], plain: bool) -> Iterator[str]:
    """A bar a bucket, the longest _BAR wide; what lies below the first edge comes first."""
    edges, counts = histogram["edges"], histogram["counts"]
    rows = [(f"{low:.10g} - {high:.10g}", count) for low, high, count in zip(edges, edges[1:], counts, strict=False)]
    if histogram["below"]:
        rows.insert(0, (f"below {_LEAST_GAP_S:g}", histogram["below"]))
    most, total = max(count for _, count in rows), sum(count for _, count in rows)
    for label, count in rows:
        yield f"{label:>17} {_bar(count / most, plain)} {count:>9} {count / total:>6.1%}"


def _bar(share: float, plain: bool) -> str:
    """A bar of _BAR cells; anything above 0 is seen."""
    if plain:
        return ("#" * max(round(share * _BAR), share > 0)).ljust(_BAR)
    eighths = max(round(share * _BAR * 8), share > 0)
    return ("█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()).ljust(_BAR)


def _rate_line(rates: dict[str, Any], plain: bool) -> Iterator[str]:
    values, marks = rates["values"], _ASCII_SPARKS if plain else _SPARKS
    most = max(values)
    line = "".join(" " if not v else marks[min(int(v / most * len(marks)), len(marks) - 1)] for v in values)
    yield from ("", f"requests/s, each mark {_duration(rates['bin_s'])}; the highest is {most:.3g}", f"|{line}|")


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"


def _wrapped(sentence: str) -> list[str]:
    import textwrap

    return textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _visible(text: str) -> str:
    """Text of a file with its control characters made visible: it goes to a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _is_same(target: str, file: str) -> bool:
    try:
        return os.path.samefile(target, file)
    except (OSError, ValueError):
        return False


def _speaks_utf8(encoding: str | None) -> bool:
    try:
        return codecs.lookup(encoding or "ascii").name == "utf-8"
    except LookupError:
        return False


def _write(target: str, text: str) -> None:
    """Print, or write the file. Raises Refused where it cannot be written."""
    try:
        if target == "-":
            encoding = sys.stdout.encoding or "ascii"
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
            sys.stdout.flush()
            return
        Path(target).write_text(text, encoding="utf-8")
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush at exit fails again
    except OSError as error:
        raise Refused(f"cannot write {target} ({error.strerror}): give another --json FILE", USAGE) from None
