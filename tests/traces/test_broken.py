"""Files that are no recording, and lines that are no request: one sentence each, never a traceback."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tunetui.core.trace import Trace
from tunetui.traces.lines import TraceError
from tunetui.traces.reading import KNOWN, read_trace

GOOD = '{"timestamp": 5, "input_length": 6, "output_length": 7}'
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
STAMP = "2031-01-16 18:15:46.68"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf \n\n", "is empty"),
        (b"\x7fELF\x02\x01\x00\x00", "is a binary file"),
        ("TIMESTAMP".encode("utf-16"), "is a binary file"),
        (b"hello\nworld\n", "is in no format"),
        (b"a,b,c\n1,2,3\n", "is in no format"),
        (b'{"text": "x"}\n', "is in no format"),
        (b"[1, 2]", "is in no format"),
        (b"[[[[" * 100_000, "is in no format"),
        (gzip.compress(b""), "is empty"),
    ],
)
def test_no_recording(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    assert said in str(caught.value)
    assert str(caught.value).endswith(KNOWN)
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no file at .*nowhere: check the path"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="is a folder: give one of its files"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match=r"cannot read .*File name too long"):
        read_trace(tmp_path / ("n" * 4000))


def test_damaged_gzip(tmp_path: Path) -> None:
    file = tmp_path / "file"
    noise = random.Random(1).randbytes(200_000).hex()
    packed = gzip.compress("".join(f'{GOOD[:-1]}, "x": "{noise[i : i + 40]}"}}\n' for i in range(0, 9000, 9)).encode())
    for damaged in (packed[: len(packed) // 2], packed[:2000] + b"\xff" * 50 + packed[2050:], b"\x1f\x8b\x08"):
        file.write_bytes(damaged)
        with pytest.raises(TraceError, match="damaged gzip"):
            read_trace(file)


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        (GOOD, '{"timestamp": 5, "input_length": 6}', "output_length is missing"),
        (GOOD, '{"timestamp": 5, "input_length": 0, "output_length": 7}', "input_length is 0, below 1"),
        (GOOD, '{"timestamp": 5, "input_length": -6, "output_length": 7}', "input_length is -6, below 1"),
        (GOOD, '{"timestamp": 5, "input_length": NaN, "output_length": 7}', "input_length is not a whole number"),
        (GOOD, '{"timestamp": 5, "input_length": 1.5, "output_length": 7}', "input_length is not a whole number"),
        (GOOD, '{"timestamp": 5, "input_length": true, "output_length": 7}', "input_length is not a number"),
        (GOOD, '{"timestamp": 5, "input_length": 10000001, "output_length": 7}', "input_length is above 10000000"),
        (GOOD, '{"timestamp": 5, "input_length": 1e300, "output_length": 7}', "input_length is above 10000000"),
        (GOOD, '{"timestamp": 5, "input_length": %s, "output_length": 7}' % ("9" * 5000), "not JSON"),
        (GOOD, '{"timestamp": NaN, "input_length": 6, "output_length": 7}', "the time is not a number"),
        (GOOD, '{"timestamp": "x", "input_length": 6, "output_length": 7}', "timestamp is not a number"),
        (GOOD, '{"input_length": 6, "output_length": 7}', "the time is missing"),
        (GOOD, '{"timestamp": 5, "input_length": 6, "output_length": 7, "hash_ids": [1, 2]}', "hash_ids has 2 blocks"),
        (GOOD, '{"timestamp": 5, "input_length": 6, "output_length": 7, "hash_ids": ["a"]}', "hash_ids is not a list"),
        (GOOD, '{"timestamp": 5, "input_len', "not JSON"),
        (GOOD, "[" * 100_000, "not JSON"),
        (GOOD, "17", "not a JSON object"),
        (f"{STAMP},1,2", f"{STAMP},1", "2 fields where the header has 3"),
        (f"{STAMP},1,2", f"{STAMP},1,", "GeneratedTokens is missing"),
        (f"{STAMP},1,2", f"{STAMP},1,x", "GeneratedTokens is not a number"),
        (f"{STAMP},1,2", f"{STAMP},inf,2", "ContextTokens is not a whole number"),
        (f"{STAMP},1,2", "yesterday,1,2", "TIMESTAMP is not a time"),
        (f"{STAMP},1,2", ",1,2", "TIMESTAMP is not a time"),
        (f"{STAMP},1,2", "0001-01-01 00:00:00+23:00,1,2", "TIMESTAMP is before 1970"),
        ('{"prompt": "x"}', '{"prompt": ""}', "prompt is missing"),
        ('{"prompt": "x"}', '{"prompt": 4}', "prompt is not text"),
        ('{"model": "m", "prompt": "x"}', '{"model": "m"}', "there is no request body"),
        (
            '{"model": "m", "messages": [{"role": "user", "content": "x"}]}',
            '{"messages": []}',
            "messages has no message",
        ),
    ],
)
def test_a_broken_line_is_named_and_skipped(tmp_path: Path, good: str, bad: str, reason: str) -> None:
    file = tmp_path / "file"
    head = [HEADER] if good.startswith(STAMP) else []
    file.write_text("\n".join([*head, *[good] * 150, bad, *[good] * 49]))
    trace, reading = read_trace(file)
    assert trace.requests == 199
    assert (reading.lines, reading.broken) == (200, 1)
    assert reading.first_broken[0].startswith(f"line {151 + len(head)}: {reason}")


def test_the_first_few_broken_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("\n".join([*[GOOD] * 992, *["{}"] * 8]))
    _, reading = read_trace(file)
    assert (reading.broken, len(reading.first_broken)) == (8, 5)
    assert reading.first_broken[0] == "line 993: input_length is missing"


@pytest.mark.parametrize(("good", "bad", "fits"), [(99, 1, True), (98, 2, False), (50, 1, False), (989, 11, False)])
def test_more_than_one_in_a_hundred_broken_lines_stop(tmp_path: Path, good: int, bad: int, fits: bool) -> None:
    file = tmp_path / "file"
    file.write_text("\n".join([*[GOOD] * good, *["{}"] * bad]))
    if fits:
        assert read_trace(file)[1].broken == bad
        return
    said = rf"{bad} of {good + bad} lines .* more than 1 % \(line {good + 1}: input_length is missing\): repair"
    with pytest.raises(TraceError, match=said):
        read_trace(file)


def test_a_header_alone_holds_no_request(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(HEADER + "\n")
    with pytest.raises(TraceError, match="azure csv without a request in it: give another"):
        read_trace(file)
    file.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n1,m,5,0,5,x\n")
    with pytest.raises(TraceError, match=r"without a request in it \(failed requests .* left out: 1\)"):
        read_trace(file)


def test_what_stands_before_the_header_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("\n".join(["Azure, 2031", HEADER, *[f"{STAMP},1,2"] * 100]))
    assert read_trace(file)[1].first_broken == ("line 1: it stands before the header",)


def check(content: bytes) -> None:
    """Reading gives a sound recording or the one error, whatever the content."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            trace, reading = read_trace(file.name)
        except TraceError:
            return
    assert sound(trace)
    assert reading.broken <= 0.01 * reading.lines


def sound(trace: Trace) -> bool:
    columns = (trace.output_tokens, trace.arrivals_s, trace.blocks, trace.texts, trace.conversations)
    assert trace.requests > 0
    assert all(column is None or len(column) == trace.requests for column in columns)
    assert all(1 <= tokens <= 10_000_000 for tokens in (*trace.prompt_tokens, *trace.output_tokens))
    if trace.arrivals_s is not None:
        assert trace.arrivals_s[0] == 0.0
        assert list(trace.arrivals_s) == sorted(trace.arrivals_s)
    json.dumps(trace.texts, ensure_ascii=False).encode()  # can be sent
    return True


@given(st.binary(max_size=400))
@example(b'"a\rb"')
@example(b"[")
@example(b"[{")
@example(b"[{}]")
@example(b"[{},")
@example(b'[{"conversations": 5}]')
@example(b"\x1f\x8b")
def test_any_bytes(content: bytes) -> None:
    check(content)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["user", "{}", "1"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "from", "value", "usage", "text", "body"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    (
        "tunetui_trace", "block_tokens", "notes", "timestamp", "input_length", "output_length", "hash_ids", "prompt",
        "output_tokens", "model", "messages", "body", "request", "response", "usage", "conversations", "created",
        "choices", "max_tokens", "input",
    )
)  # fmt: skip
RECORDS = st.dictionaries(KEYS, JSON_VALUES, min_size=1, max_size=5)
GOOD_RECORDS = st.sampled_from(
    [
        json.loads(GOOD),
        {"model": "m", "messages": [{"role": "user", "content": "x"}]},
        {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]},
        {"prompt": "x"},
    ]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(GOOD_RECORDS, st.lists(RECORDS, max_size=2), st.booleans())
def test_any_records(good: dict[str, object], records: list[dict[str, object]], as_list: bool) -> None:
    whole = [good] * 200 + [good | record for record in records] + records
    if as_list:
        check(json.dumps(whole).encode())
    check("\n".join(json.dumps(record) for record in [*records, *whole]).encode())


@given(
    st.sampled_from([HEADER, "Timestamp,Request tokens,Response tokens"]),
    st.lists(st.lists(st.sampled_from(["1", "0", "", STAMP, "nan", "-1", '"', "1e999", "é"]), min_size=1, max_size=4)),
)
def test_any_table(header: str, rows: list[list[str]]) -> None:
    good = f"{STAMP},1,2"
    check("\n".join([header, *[good] * 300, *(",".join(row) for row in rows)]).encode())
