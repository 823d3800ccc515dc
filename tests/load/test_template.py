"""A chunk that is taken by its shape says what it would say to the parser."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunetui.load.answer import Answer
from tunetui.load.template import learned


def event(payload: object) -> bytes:
    return f"data: {json.dumps(payload, separators=(',', ':'))}\n\n".encode()


def completion(text: str, ids: object, finish: str | None = None, usage: object = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None,
              "prompt_token_ids": None, "token_ids": ids}  # fmt: skip
    return event({"id": "cmpl-1", "model": "m", "choices": [choice], "usage": usage} | more)


def chat(text: str, ids: object, finish: str | None = None, usage: object = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish, "token_ids": ids}
    return event({"id": "chat-1", "model": "m", "choices": [choice], "usage": usage} | more)


@pytest.mark.parametrize("make", [completion, chat])
def test_a_plain_chunk_is_recognised(make: Any) -> None:
    template = learned(make(" a", [5]))
    assert template is not None
    assert template.tokens(make("b\nc\\", [77])) == 1
    assert template.tokens(make("", [1, 2, 345])) == 3


@pytest.mark.parametrize(
    "other",
    [
        completion("a", []),
        completion("a", None),
        completion("a", [1], "length"),
        completion("a", [1], usage={"completion_tokens": 3}),
        completion("a", [1], error="dead"),
        completion("a", [1]) * 2,
        completion("a", [1])[:-1],
        completion("a", [1])[1:],
        completion('","logprobs":null', [1]).replace(b'\\"', b'"'),
        b"data: [DONE]\n\n",
        b"",
    ],
)
def test_another_shape_is_left_to_the_parser(other: bytes) -> None:
    template = learned(completion(" a", [5]))
    assert template is not None
    assert template.tokens(other) == 0


@pytest.mark.parametrize(
    "odd", [completion("a", [1], "stop"), completion("a", [1], usage={"completion_tokens": 1}), b"data: [DONE]\n\n"]
)
def test_nothing_is_learned_from_what_ends_an_answer(odd: bytes) -> None:
    assert learned(odd) is None


chunks = st.builds(
    lambda make, text, ids, finish, usage, more: make(text, ids, finish, usage, **more),
    st.sampled_from([completion, chat]),
    st.text(max_size=8) | st.sampled_from(['"token_ids":[9]', "\n", '\\"', '","token_ids":[1', "]}"]),
    st.lists(st.integers(0, 200_000), max_size=3) | st.none(),
    st.sampled_from([None, None, None, "length"]),
    st.sampled_from([None, None, {"completion_tokens": 5}]),
    st.sampled_from([{}, {}, {"error": None}, {"error": {"message": "dead"}}]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(chunks, max_size=12), st.lists(st.integers(1, 400), max_size=4))
def test_any_stream_says_the_same_with_and_without_templates(events: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(events)
    pieces, at = [], 0
    for size in [*cuts, *map(len, events), len(stream)]:
        pieces.append(stream[at : at + size])
        at += size
    quick, slow = Answer(), Answer()
    slow._learning = 0
    for moment, piece in enumerate(pieces):
        assert quick.feed(piece, float(moment)) == slow.feed(piece, float(moment))
    for name in ("tokens", "output_tokens", "first_s", "last_s", "gaps_s", "done", "error"):
        assert getattr(quick, name) == getattr(slow, name)
