"""Requests out of an access log with token counts: JSON lines, or lines with name=value fields.

It knows the usual names of the fields and takes others; it opens no file and reads no vLLM log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from tunetui.core.trace import Trace
from tunetui.traces.columns import Columns, LeftOut, Reading, Row, token_count
from tunetui.traces.lines import BrokenLine, TraceError, parsed
from tunetui.traces.texts import first_given
from tunetui.traces.times import moment_s

FIELDS: dict[str, tuple[str, ...]] = {
    "time": (
        "ts", "time", "timestamp", "@timestamp", "time_iso8601", "time_local", "datetime", "created", "created_at",
        "start_time", "startTime", "date",
    ),
    "prompt": (
        "usage.prompt_tokens", "prompt_tokens", "usage.input_tokens", "input_tokens", "response.usage.prompt_tokens",
        "response.body.usage.prompt_tokens", "response.usage.input_tokens", "tokens.prompt", "tokens.input",
        "input_length", "num_prompt_tokens", "gen_ai.usage.input_tokens", "promptTokens", "inputTokens",
    ),
    "output": (
        "usage.completion_tokens", "completion_tokens", "usage.output_tokens", "output_tokens",
        "response.usage.completion_tokens", "response.body.usage.completion_tokens", "response.usage.output_tokens",
        "tokens.completion", "tokens.output", "output_length", "num_generation_tokens", "generation_tokens",
        "gen_ai.usage.output_tokens", "completionTokens", "outputTokens",
    ),
}  # fmt: skip
_PAIR = re.compile(r'([\w.@-]+)=("(?:[^"\\]|\\.)*"|[^\s,;]+)')
_CLF_TIME = re.compile(r"\[(\d{1,2}/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]")
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_SHOWN_NAMES = 12


def parse_fields(text: str) -> dict[str, tuple[str, ...]]:
    """Read `time=ts,prompt=usage.prompt_tokens,output=usage.completion_tokens`; what is not named is guessed.

    Raises TraceError naming what is wrong.
    """
    fields = dict(FIELDS)
    for part in text.split(","):
        name, _, path = part.strip().partition("=")
        if name not in FIELDS or not path.strip():
            raise TraceError(
                f"cannot read the field {part.strip()!r}: write time=NAME,prompt=NAME,output=NAME with names of the log"
            )
        fields[name] = (path.strip(),)
    return fields


def read_access_log(
    lines: Iterable[tuple[int, str]], fields: Mapping[str, tuple[str, ...]] = FIELDS
) -> tuple[Trace, Reading]:
    """The requests in numbered lines. A line without both token counts is no request, and counted as left out.

    Raises TraceError, with the names that the log has where none of its lines is a request.
    """
    columns = Columns("access log")
    seen: list[str] = []
    found = False
    for number, line in lines:
        try:
            record = _record(line)
            seen = seen or [_visible(name) for name in islice(_names(record), _SHOWN_NAMES)]
            columns.add(_row(record, fields))
            found = True
        except LeftOut as what:
            columns.left_out(what)
        except BrokenLine as reason:
            found = True
            columns.broken(number, reason)
    names = f" (its names: {', '.join(seen)})" if seen else ""
    if not found:
        raise TraceError(f"no line of the log has token counts{names}: name them with --fields prompt=NAME,output=NAME")
    trace, reading = columns.finish()
    if trace.arrivals_s is None and fields["time"] != FIELDS["time"]:
        raise TraceError(
            f"no line of the log has the time {fields['time'][0]!r}{names}: name it with --fields time=NAME"
        )
    return trace, reading


def _row(record: Mapping[str, object], fields: Mapping[str, tuple[str, ...]]) -> Row:
    prompt, output = first_given(record, *fields["prompt"]), first_given(record, *fields["output"])
    if prompt in (None, "", "-") or output in (None, "", "-"):
        raise LeftOut("lines without token counts")
    if output in (0, "0") and not isinstance(output, bool):
        raise LeftOut("requests without an output token")
    time = first_given(record, *fields["time"])
    return Row(None if time is None else moment_s(time), token_count(prompt, "prompt"), token_count(output, "output"))


def _record(line: str) -> Mapping[str, object]:
    """The fields of a line. Raises LeftOut for one that has none."""
    if line.startswith("{"):
        value = parsed(line)
        if isinstance(value, Mapping):
            return value
    pairs: dict[str, object] = {name: value.strip('"') for name, value in _PAIR.findall(line)}
    if not pairs:
        raise LeftOut("lines without token counts")
    stamp = _CLF_TIME.search(line)
    iso = _ISO_TIME.match(line)
    if stamp or iso:
        pairs.setdefault("time", stamp[1] if stamp else iso[0] if iso else "")
    return pairs


def _visible(name: str) -> str:
    """A name as it can be shown: short, and without what would steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in name[:60])


def _names(record: Mapping[str, object], before: str = "") -> Iterator[str]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"
