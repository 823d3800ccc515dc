"""Access logs: JSON lines, name=value fields, and which of their fields are taken."""

from __future__ import annotations

import json

import pytest

from tunetui.core.trace import Trace
from tunetui.traces.access_log import parse_fields, read_access_log
from tunetui.traces.lines import TraceError

JSON = [
    {"ts": "2031-02-03T04:05:06Z", "path": "/v1/completions", "usage": {"prompt_tokens": 10, "completion_tokens": 4}},
    {"ts": "2031-02-03T04:05:06.5Z", "path": "/health"},
    {"ts": "2031-02-03T04:05:07Z", "path": "/v1/completions", "usage": {"prompt_tokens": 20, "completion_tokens": 0}},
    {"ts": "2031-02-03T04:05:08Z", "path": "/v1/completions", "usage": {"prompt_tokens": 30, "completion_tokens": 6}},
]
LOGFMT = """\
level=info time=2031-02-03T04:05:06Z msg="a request, prompt_tokens=7" prompt_tokens=10 completion_tokens=4
level=info time=2031-02-03T04:05:07Z msg="ready"
level=info time=2031-02-03T04:05:08.250Z prompt_tokens="30" completion_tokens=6
"""
COMBINED = """\
10.0.0.1 - - [03/Feb/2031:04:05:06 +0000] "POST /v1/completions HTTP/1.1" 200 512 "-" "x" in=10 out=4
10.0.0.1 - - [03/Feb/2031:04:05:07 +0000] "GET /health HTTP/1.1" 200 0 "-" "x" in=- out=-
10.0.0.1 - - [03/Feb/2031:06:05:08 +0200] "POST /v1/completions HTTP/1.1" 200 512 "-" "x" in=30 out=6
"""
WANTED = Trace("access log", (10, 30), (4, 6), arrivals_s=(0.0, 2.0))


def test_json_lines_with_the_usual_names() -> None:
    trace, reading = read_access_log(enumerate(map(json.dumps, JSON), 1))
    assert trace == WANTED
    assert reading.notes == ("lines without token counts left out: 1", "requests without an output token left out: 1")


def test_name_value_fields() -> None:
    trace, _ = read_access_log(enumerate(LOGFMT.splitlines(), 1))
    assert (trace.prompt_tokens, trace.output_tokens, trace.arrivals_s) == ((10, 30), (4, 6), (0.0, 2.25))


def test_a_combined_log_with_named_fields() -> None:
    trace, reading = read_access_log(enumerate(COMBINED.splitlines(), 1), parse_fields("prompt=in,output=out"))
    assert trace == WANTED
    assert reading.notes == ("lines without token counts left out: 1",)


def test_named_fields_of_json_may_be_paths_or_names_with_dots() -> None:
    record = {"at": {"ms": 1927858000000}, "a.b": 5, "x": {"y": {"z": 6}}, "prompt_tokens": 99}
    trace, _ = read_access_log([(1, json.dumps(record))], parse_fields("time=at.ms, prompt=a.b, output=x.y.z"))
    assert (trace.prompt_tokens, trace.output_tokens, trace.arrivals_s) == ((5,), (6,), (0.0,))


@pytest.mark.parametrize("text", ["", "prompt", "prompt=", "tokens=x", "time=a,,output=b"])
def test_fields_that_do_not_parse(text: str) -> None:
    with pytest.raises(TraceError, match=r"cannot read the field .*: write time=NAME,prompt=NAME,output=NAME"):
        parse_fields(text)


def test_a_log_without_counts_tells_the_names_it_has() -> None:
    lines = [(1, json.dumps({"ts": 1, "tokens": {"in\x1b": 4, "made": 5}})), (2, "hello")]
    with pytest.raises(
        TraceError, match=r"no line of the log has token counts \(its names: ts, tokens.in\?, tokens.made\)"
    ):
        read_access_log(lines)
    with pytest.raises(TraceError, match="no line of the log has token counts: name them"):
        read_access_log([(1, "hello")])


def test_bad_counts_are_broken_lines() -> None:
    good = json.dumps(JSON[0])
    bad = ['{"ts": 1, "prompt_tokens": "many", "completion_tokens": 5}', '{"ts": 1, "prom']
    _, reading = read_access_log(enumerate([*[good] * 250, *bad], 1))
    assert reading.first_broken == ("line 251: prompt is not a number", "line 252: not JSON")
    with pytest.raises(TraceError, match="2 of 3 lines cannot be read as access log"):
        read_access_log(enumerate([good, *bad], 1))
