"""The event parser and the reading of answers: tables, and cuts at every byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.load.answer import Answer, http_error
from tunetui.load.sse import EventParser, EventTooLargeError

TABLE = {
    "one": (b"data: a\n\n", [b"a"]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "mixed line ends": (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
    "without a space": (b"data:a\n\n", [b"a"]),
    "only one space goes": (b"data:  a\n\n", [b" a"]),
    "multi-line data": (b"data: a\ndata: b\n\n", [b"a\nb"]),
    "comments and other fields": (b": ping\nevent: x\nid: 3\nretry: 5\ndata: a\n\n: bye\n\n", [b"a"]),
    "empty data": (b"data:\n\ndata: a\n\n", [b"a"]),
    "blank lines": (b"\n\n\r\ndata: a\n\n\n\n", [b"a"]),
    "unfinished": (b"data: a\n\ndata: b\n", [b"a"]),
    "carriage return inside": (b"data: a\rb\n\n", [b"a\rb"]),
    "utf-8": ("data: dé\u20ac\n\n".encode(), ["dé\u20ac".encode()]),
}


@pytest.mark.parametrize(("stream", "events"), TABLE.values(), ids=TABLE.keys())
def test_events_are_the_same_wherever_the_bytes_are_cut(stream: bytes, events: list[bytes]) -> None:
    assert EventParser().feed(stream) == events
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            parser = EventParser()
            parts = stream[:first], stream[first:second], stream[second:]
            assert [event for part in parts for event in parser.feed(part)] == events
    parser = EventParser()
    assert [event for i in range(len(stream)) for event in parser.feed(stream[i : i + 1])] == events


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=40).filter(lambda p: not set(b"\r\n") & set(p)), max_size=6),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    newline=st.sampled_from([b"\n", b"\r\n"]),
)
def test_any_payloads_come_back_from_any_pieces(payloads: list[bytes], sizes: list[int], newline: bytes) -> None:
    stream = b"".join(b"data: " + payload + newline * 2 for payload in payloads)
    parser, events, at, turn = EventParser(), [], 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        events += parser.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert events == payloads


@pytest.mark.parametrize(
    "pieces",
    [
        [b"x" * 40] * 3,
        [b"data: " + b"x" * 60 + b"\n"] * 2,
        [b"data:\n" * 200],
        [b"data: " + b"x" * 200 + b"\n\n"],
    ],
)
def test_an_endless_event_is_an_error_and_not_a_memory_leak(pieces: list[bytes]) -> None:
    parser = EventParser(max_bytes=100)
    for piece in pieces[:-1]:
        assert parser.feed(piece) == []
    with pytest.raises(EventTooLargeError, match="larger than 100 bytes"):
        parser.feed(pieces[-1])


def test_many_small_events_are_no_large_event() -> None:
    assert len(EventParser(max_bytes=100).feed(b"data: x\n\n" * 1000)) == 1000


def choice(token_ids: object = "absent", finish: str | None = None, text: str = "a") -> dict[str, object]:
    one: dict[str, object] = {"index": 0, "text": text, "finish_reason": finish}
    if token_ids != "absent":
        one["token_ids"] = token_ids
    return {"choices": [one], "usage": None}


def delta(finish: str | None = None, token_ids: object = None, **parts: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": finish, "token_ids": token_ids}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7}}
DONE = "[DONE]"
# events at 1 s, 2 s, ...; then first_s, last_s, output tokens, failure
ANSWERS = {
    "ids are counted": ([choice([1]), choice([2, 3], "length"), DONE], 1, 2, 3, ""),
    "an empty text is a token": ([choice(text=""), choice(text=""), DONE], 1, 2, 2, ""),
    "null ids count as one": ([choice(None), DONE], 1, 1, 1, ""),
    "no new token at the end": ([choice([1]), choice([], "stop", ""), DONE], 1, 1, 1, ""),
    "no token at the start": ([choice([]), choice([4], "stop")], 2, 2, 1, ""),
    "usage is no token but the count": ([choice(), choice(finish="length"), USAGE, DONE], 1, 2, 7, ""),
    "usage comes first": ([USAGE, choice(), DONE], 2, 2, 7, ""),
    "a finish reason is an end": ([choice([1], "length")], 1, 1, 1, ""),
    "neither end": ([choice([1]), USAGE], 1, 1, 7, "truncated stream"),
    "nothing at all": ([], None, None, 0, "truncated stream"),
    "no tokens": ([DONE], None, None, 0, "an answer without tokens"),
    "a null error is none": ([choice([1]) | {"error": None}, DONE], 1, 1, 1, ""),
    "a chat: the role is no token": ([delta(role="assistant", content=""), delta(content="a"), DONE], 2, 2, 1, ""),
    "a chat: its last chunk is none": ([delta(content="a"), delta("stop", content=""), USAGE, DONE], 1, 1, 7, ""),
    "a chat: reasoning is tokens": ([delta(reasoning="hm"), delta(reasoning_content="hm"), DONE], 1, 2, 2, ""),
    "a chat: so are tool calls": ([delta(tool_calls=[{"index": 0}]), DONE], 1, 1, 1, ""),
    "a chat: ids count before content": ([delta(content="", token_ids=[5, 6]), DONE], 1, 1, 2, ""),
    "an error": ([choice([1]), {"error": {"message": "dead"}}, DONE], 1, 1, 1, "dead"),
    "an error of the old form": ([{"object": "error", "message": "dead"}], None, None, 0, "dead"),
    "an error of text": ([{"error": "dead"}], None, None, 0, "dead"),
    "no JSON": ([choice([1]), "{"], 1, 1, 1, "unreadable chunk: {"),
    "no chunk": (["3"], None, None, 0, "unreadable chunk: 3"),
    "no choices": ([{"id": 3}], None, None, 0, 'unreadable chunk: {"id": 3}'),
}


@pytest.mark.parametrize(("events", "first_s", "last_s", "tokens", "failure"), ANSWERS.values(), ids=ANSWERS.keys())
def test_what_an_answer_says(
    events: list[object], first_s: float | None, last_s: float | None, tokens: int, failure: str
) -> None:
    answer, arrived = Answer(), 0
    for at_s, event in enumerate(events, 1):
        text = event if isinstance(event, str) else json.dumps(event)
        arrived += answer.feed(f"data: {text}\n\n".encode(), float(at_s))
    assert (answer.first_s, answer.last_s, answer.output_tokens, answer.failure()) == (first_s, last_s, tokens, failure)
    assert arrived == tokens


def test_an_answer_cut_at_any_byte_is_read_the_same_and_timed_by_the_last_piece_of_a_chunk() -> None:
    events = [choice([1]), choice([2], text="\u20ac"), choice([3], "length"), USAGE]
    stream = b"".join(b"data: " + json.dumps(e).encode() + b"\r\n\r\n" for e in events) + b"data: [DONE]\r\n\r\n"
    first_end = stream.index(b"\r\n\r\n") + 4
    for cut in range(len(stream)):
        answer = Answer()
        counts = answer.feed(stream[:cut], 1.0), answer.feed(stream[cut:], 2.0)
        assert sum(counts) == 7
        assert answer.failure() == ""
        assert answer.first_s == (1.0 if cut >= first_end else 2.0)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":{"message":"no such\\nmodel"}}', "HTTP 404: no such model"),
        (b'{"object":"error","message":"old"}', "HTTP 404: old"),
        (b'{"detail":"Not Found"}', 'HTTP 404: {"detail": "Not Found"}'),
        (b"<h1>gone</h1>", "HTTP 404: <h1>gone</h1>"),
        (b"", "HTTP 404"),
        (b"x" * 900, "HTTP 404: " + "x" * 200),
    ],
)
def test_an_http_error_is_one_short_line(body: bytes, text: str) -> None:
    assert http_error(404, body) == text


def test_gaps_are_shared_by_the_tokens_of_a_chunk() -> None:
    answer = Answer()
    for at_s, ids in ((1.0, [1]), (1.5, [2]), (1.6, []), (3.5, [3, 4]), (3.5, [5])):
        answer.feed(f"data: {json.dumps(choice(ids))}\n\n".encode(), at_s)
    assert answer.gaps_s == [0.5, 1.0, 1.0, 0.0]


def test_the_servers_count_of_the_prompt_is_kept() -> None:
    answer = Answer()
    assert answer.prompt_tokens is None
    answer.feed(f"data: {json.dumps(USAGE)}\n\n".encode(), 1.0)
    assert answer.prompt_tokens == 9


@given(st.binary(max_size=200))
def test_no_chunk_can_raise(payload: bytes) -> None:
    answer = Answer()
    answer.feed(b"data: " + payload + b"\n\n", 1.0)
    answer.feed(b'data: {"choices":[' + payload + b"]}\n\n", 2.0)
    assert answer.failure()
