"""Frames that the HTTP parser does not see: an answer says the same with and without them, wherever it is cut."""

import asyncio
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load.test_client import Heard, request
from load.test_template import chunks, completion

from tunetui.load.client import Client, Connection, Stream
from tunetui.load.endpoint import endpoint

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST, DONE, END = completion("z", [7], "length"), b"data: [DONE]\n\n", b"0\r\n\r\n"
PLAIN = [completion(text, [number]) for number, text in enumerate((" a", "b", "", "c" * 20, " a", "d"))]
SEEN = ("tokens", "output_tokens", "prompt_tokens", "first_s", "last_s", "gaps_s", "done", "error")


def frame(body: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(body), extension, body)


class Wire:
    """A transport that leads nowhere."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


async def fed(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch, learn: bool = True) -> tuple[Any, int]:
    """What one connection makes of the pieces, each a second after the one before; and how many the parser saw."""
    seen = 0

    class Parser:
        def __init__(self, protocol: Connection) -> None:
            self._parser = httptools.HttpResponseParser(protocol)

        def feed_data(self, data: bytes) -> None:
            nonlocal seen
            seen += 1
            self._parser.feed_data(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._parser, name)

    class Clock:
        now_s = 0.0

        def monotonic(self) -> float:
            return self.now_s

    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr("tunetui.load.client.httptools", type("Module", (), {
            "HttpResponseParser": Parser, "HttpParserError": httptools.HttpParserError}))  # fmt: skip
        patch.setattr("tunetui.load.client.time", clock)
        client = Client(endpoint("http://127.0.0.1:1"), 5.0, Heard())
        connection, stream = Connection(client), Stream(request(), client)
        connection.connection_made(Wire())  # type: ignore[arg-type]
        stream.connection = connection
        connection.post(stream, b"")
        if not learn:
            stream.answer._learning = 0
        for piece in pieces:
            clock.now_s += 1
            if piece and stream.outcome is None:
                connection.data_received(piece)
        connection.connection_lost(None)
    said = [getattr(stream.answer, name) for name in SEEN]
    return (said, stream.outcome, stream.error, stream.ended_s, connection in client._idle), seen


async def agrees(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await fed(pieces, monkeypatch))[0] == (await fed(pieces, monkeypatch, learn=False))[0]


async def test_plain_frames_pass_by_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [HEAD, *map(frame, [*PLAIN, LAST, DONE]), END]
    said, seen = await fed(pieces, monkeypatch)
    assert seen == 6  # the head, two to learn from, and the last three
    assert said == (await fed(pieces, monkeypatch, learn=False))[0]
    assert said[0][0] == 7


async def test_a_frame_may_be_cut_at_each_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = frame(PLAIN[3])
    for at in range(len(cut)):
        middle = [cut[:at], cut[at:]]
        await agrees([HEAD, *map(frame, PLAIN[:3]), *middle, *map(frame, [*PLAIN[4:], LAST, DONE]), END], monkeypatch)


PLAIN_FRAME = frame(PLAIN[5])


@pytest.mark.parametrize(
    "odd",
    [
        frame(PLAIN_FRAME[:-2]),  # what looks like a frame is the content of one
        b"%x\r\n" % len(PLAIN_FRAME * 2),  # and here only a size line stands before two of them
        b"1",
        b"1\r",
        b"\r\n",
        b"g\r\n\r\n",
        b"0\r\n",
        b"0\r\nx-trailer: 1\r\n",
        END,
        b"0" + PLAIN_FRAME,
        PLAIN_FRAME.replace(PLAIN_FRAME[:2], b"+" + PLAIN_FRAME[:2], 1),
        PLAIN_FRAME.replace(PLAIN_FRAME[:2], b"ff", 1),
        frame(PLAIN[5], b";a=b"),
        frame(PLAIN[5], b";a="),
        PLAIN_FRAME[:-2] + b"ab",
        PLAIN_FRAME * 2,
        frame(PLAIN[5] + b"data: "),
        frame(b": ping\n\n"),
        frame(b"data: x\n\n"),
        frame(PLAIN[5][:30]),
        frame(completion("z", [7], error={"message": "dead"})),
    ],
)
async def test_after_something_odd_all_is_as_the_parser_has_it(odd: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for after in ([PLAIN_FRAME], [PLAIN_FRAME, PLAIN_FRAME, frame(LAST), frame(DONE), END]):
        await agrees([HEAD, *map(frame, PLAIN[:3]), odd, *after], monkeypatch)


@settings(max_examples=200, deadline=None)
@given(st.lists(chunks, max_size=12), st.lists(st.integers(1, 400), max_size=4), st.booleans())
def test_any_answer_says_the_same_with_and_without_the_parser(events: list[bytes], cuts: list[int], ends: bool) -> None:
    frames = [HEAD, *map(frame, [*PLAIN[:2], *events, LAST, DONE]), END if ends else b""]
    whole = b"".join(frames)
    pieces, at = [], 0
    for size in [len(HEAD), len(frames[1]), len(frames[2]), *cuts, *map(len, frames[3:]), len(whole)]:
        pieces.append(whole[at : at + size])
        at += size
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(agrees(pieces, patch))
        asyncio.run(agrees(frames, patch))
