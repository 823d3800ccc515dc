"""The client against a scripted server: what each fault is called, the pool, and the moments it keeps."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from load.sse_server import Script, SseServer, until

from tunetui.core.sample import Outcome
from tunetui.core.workload import Material
from tunetui.load.client import Client, Request, Stream
from tunetui.load.endpoint import endpoint
from tunetui.load.prompts import Prompt, PromptBook


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.sent: list[Stream] = []
        self.ended: list[Stream] = []

    def stream_sent(self, stream: Stream) -> None:
        self.sent.append(stream)

    def stream_ended(self, stream: Stream) -> None:
        self.ended.append(stream)


BOOK = PromptBook("m", Material(tuple(range(100))))


def request(index: int = 0, output_tokens: int = 4) -> Request:
    return Request(1, index, None, 5, BOOK.body([3], index, Prompt(5, output_tokens)))


@pytest.fixture
async def server() -> AsyncIterator[SseServer]:
    async with SseServer() as server:
        yield server


@pytest.fixture
def heard() -> Heard:
    return Heard()


async def one(server: SseServer, heard: Heard, timeout_s: float = 5.0) -> Stream:
    client = Client(endpoint(server.url), timeout_s, heard)
    stream = client.send(request())
    await until(lambda: stream.outcome)
    client.close()
    return stream


async def test_a_stream_keeps_its_moments_and_its_tokens(server: SseServer, heard: Heard) -> None:
    server.script = lambda body: Script(first_delay_s=0.05, gap_s=0.02)
    stream = await one(server, heard)
    served, answer = server.served[0], stream.answer
    assert (stream.outcome, stream.error, answer.output_tokens, len(answer.gaps_s)) == (Outcome.OK, "", 4, 3)
    assert heard.sent == heard.ended == [stream]
    assert served.first_s is not None
    assert served.last_s is not None
    assert stream.sent_s == pytest.approx(served.received_s, abs=0.01)
    assert answer.first_s == pytest.approx(served.first_s, abs=0.01)
    assert answer.last_s == pytest.approx(served.last_s, abs=0.01)
    assert served.body | {"prompt": 0} == {
        "model": "m", "prompt": 0, "max_tokens": 4, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True}, "return_token_ids": True,
    }  # fmt: skip


@pytest.mark.parametrize("piece_bytes", [0, 1, 7])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
async def test_pieces_and_line_ends_do_not_matter(
    server: SseServer, heard: Heard, piece_bytes: int, newline: str
) -> None:
    server.script = lambda body: Script(piece_bytes=piece_bytes, newline=newline, text="\u20ac", empty_last=True)
    stream = await one(server, heard)
    assert (stream.outcome, stream.answer.output_tokens, stream.answer.tokens) == (Outcome.OK, 4, 4)


async def test_a_last_chunk_without_a_token_does_not_move_the_last_moment(server: SseServer, heard: Heard) -> None:
    server.script = lambda body: Script(gap_s=0.05, empty_last=True)
    stream = await one(server, heard)
    assert stream.answer.last_s == pytest.approx(server.served[0].last_s, abs=0.02)
    assert stream.ended_s is not None
    assert stream.answer.last_s is not None
    assert stream.ended_s - stream.answer.last_s > 0.03


FAULTS = {
    "503": ("503", 0, "HTTP 503: the engine is asleep" + "." * (200 - len("the engine is asleep"))),
    "error": ("error", 2, "EngineCore died"),
    "object": ("object", 2, "out of blocks"),
    "unreadable": ("unreadable", 1, "unreadable chunk: {not json"),
    "truncate": ("truncate", 2, "truncated stream"),
    "cut": ("cut", 2, "truncated stream"),
    "reset": ("reset", 2, "connection reset during the answer"),
    "close": ("close", 0, "the connection was closed before an answer"),
    "hang": ("hang", 2, "timed out after 0.3 s"),
    "hang at once": ("hang", 0, "timed out after 0.3 s"),
}


@pytest.mark.parametrize(("fault", "after", "error"), FAULTS.values(), ids=FAULTS.keys())
async def test_a_fault_is_a_failed_request_with_a_plain_reason(
    server: SseServer, heard: Heard, fault: str, after: int, error: str
) -> None:
    server.script = lambda body: Script(fault=fault, fault_after=after)
    stream = await one(server, heard, timeout_s=0.3 if fault == "hang" else 5.0)
    assert (stream.outcome, stream.error, stream.answer.tokens) == (Outcome.FAILED, error, after)
    assert (stream.answer.first_s is not None) == (after > 0)
    assert heard.ended == [stream]
    assert len(server.served) == 1


async def test_what_is_no_http_is_said_so(server: SseServer, heard: Heard) -> None:
    server.script = lambda body: Script(fault="garbage")
    stream = await one(server, heard)
    assert stream.outcome is Outcome.FAILED
    assert stream.error.startswith("unreadable HTTP answer")


async def test_a_refused_connection_was_never_sent(heard: Heard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    client = Client(endpoint(f"http://127.0.0.1:{port}"), 5, heard)
    stream = client.send(request())
    await until(lambda: stream.outcome)
    assert (stream.outcome, stream.error, stream.sent_s) == (Outcome.FAILED, "connection refused", None)


async def test_connections_are_used_again(server: SseServer, heard: Heard) -> None:
    client = Client(endpoint(server.url), 5, heard)
    for index in range(5):
        assert (await finish(client.send(request(index)))).outcome is Outcome.OK
    assert server.connections == 1
    server.script = lambda body: Script(fault="503")
    assert (await finish(client.send(request(6)))).outcome is Outcome.FAILED
    server.script = lambda body: Script()
    assert (await finish(client.send(request(7)))).outcome is Outcome.OK
    assert server.connections == 1
    client.close()


async def finish(stream: Stream) -> Stream:
    await until(lambda: stream.outcome)
    return stream


async def test_a_stale_connection_is_replaced_once_and_the_request_stays_one(server: SseServer, heard: Heard) -> None:
    client = Client(endpoint(server.url), 5, heard)
    await finish(client.send(request(0)))
    # The server reads the next request and closes without a byte, on the old connection alone.
    server.script = lambda body: Script(fault="close" if server.connections == 1 else "")
    stream = await finish(client.send(request(1)))
    assert (stream.outcome, server.connections, len(server.served)) == (Outcome.OK, 2, 3)
    assert server.served[1].body == server.served[2].body
    assert heard.sent.count(stream) == 1
    assert stream.sent_s == pytest.approx(server.served[1].received_s, abs=0.01)
    # On a fresh connection the same is a failure: it is tried once.
    server.script = lambda body: Script(fault="close")
    stream = await finish(client.send(request(2)))
    assert (stream.outcome, server.connections) == (Outcome.FAILED, 3)


async def test_a_connection_that_the_server_closed_in_the_pool_is_not_used(server: SseServer, heard: Heard) -> None:
    server.script = lambda body: Script(close_after=True)
    client = Client(endpoint(server.url), 5, heard)
    for index in range(3):
        assert (await finish(client.send(request(index)))).outcome is Outcome.OK
    assert len(server.served) <= 5


async def test_warm_connections_stand_before_the_request(server: SseServer, heard: Heard) -> None:
    client = Client(endpoint(server.url), 5, heard)
    client.warm(2)
    client.warm(2)
    await until(lambda: len(client._idle) == 2)
    await finish(client.send(request()))
    assert server.connections == 2
    client.close()


@pytest.mark.parametrize("after_first", [False, True])
async def test_a_cancelled_stream_is_closed_and_the_server_sees_it(
    server: SseServer, heard: Heard, after_first: bool
) -> None:
    server.script = lambda body: Script(fault="hang", fault_after=2 if after_first else 0)
    client = Client(endpoint(server.url), 5, heard)
    stream = client.send(request())
    await until(lambda: server.served and (stream.answer.first_s or not after_first))
    stream.cancel()
    stream.cancel()
    assert (stream.outcome, heard.ended) == (Outcome.CANCELLED, [stream])
    await until(lambda: server.served[0].disconnected_s)


async def test_a_stream_cancelled_while_it_connects_sends_nothing(server: SseServer, heard: Heard) -> None:
    client = Client(endpoint(server.url), 5, heard)
    stream = client.send(request())
    stream.cancel()
    await finish(client.send(request(1)))
    assert [len(server.served), stream.sent_s, stream.outcome] == [1, None, Outcome.CANCELLED]


async def test_the_path_and_the_key_are_sent(server: SseServer, heard: Heard) -> None:
    client = Client(endpoint(server.url + "/team/a/", "secret"), 5, heard)
    await finish(client.send(request()))
    assert server.served[0].path == "/team/a/v1/completions"
    assert server.served[0].headers["authorization"] == "Bearer secret"
    assert server.served[0].headers["host"] == server.url.removeprefix("http://")


async def test_a_body_without_length_ends_with_the_connection(heard: Heard) -> None:
    async def old_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        chunk = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + chunk)
        writer.close()

    server = await asyncio.start_server(old_server, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        stream = await finish(Client(endpoint(f"http://127.0.0.1:{port}"), 5, heard).send(request()))
    assert (stream.outcome, stream.answer.output_tokens) == (Outcome.OK, 1)


@pytest.mark.parametrize(("url", "key"), [("ftp://a", ""), ("127.0.0.1:8000", ""), ("http://a", "x\r\nY: z")])
def test_what_no_header_can_carry_is_refused(url: str, key: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        endpoint(url, key)


def test_https_and_defaults() -> None:
    target = endpoint("https://[::1]/x")
    assert (target.host, target.port, target.tls is not None) == ("::1", 443, True)
    assert b"POST /x/v1/completions HTTP/1.1\r\nHost: [::1]\r\n" in target.head


IDS = Material((7, 8, 9, *range(500, 900)))


def test_prompts_are_seeded() -> None:
    def prompt(seed: list[int], index: int) -> Any:
        return json.loads(PromptBook("m", IDS).body(seed, index, Prompt(64, 1)))["prompt"]

    assert prompt([1, 2], 5) == prompt([1, 2], 5)
    assert len({tuple(p) for p in (prompt([1, 2], 5), prompt([1, 2], 6), prompt([1, 3], 5), prompt([2, 2], 5))}) == 4
    assert set(prompt([1], 0)) <= {7, 8, 9, *range(500, 900)}


def test_no_ids_no_prompts() -> None:
    with pytest.raises(ValueError, match="nothing to make prompts of"):
        PromptBook("m", Material())


async def tried(
    server: SseServer, heard: Heard, retries: int, *faults: str, timeout_s: float = 5.0, retry_after: int | None = 0
) -> Stream:
    """One request to a server that breaks in these ways, one try after the other, and then answers."""
    left = list(faults)
    server.script = lambda body: Script(fault=left.pop(0) if left else "", retry_after=retry_after)
    client = Client(endpoint(server.url), timeout_s, heard, retries)
    stream = client.send(request())
    await until(lambda: stream.outcome)
    client.close()
    return stream


async def test_a_retried_request_is_one_request_timed_from_its_first_send(server: SseServer, heard: Heard) -> None:
    stream = await tried(server, heard, 3, "503", "503", retry_after=None)
    assert (stream.outcome, stream.error, stream.retries, len(server.served)) == (Outcome.OK, "", 2, 3)
    assert heard.sent == heard.ended == [stream]
    assert stream.sent_s == pytest.approx(server.served[0].received_s, abs=0.01)
    assert stream.answer.first_s is not None
    assert stream.answer.first_s - server.served[0].received_s > 1.4  # pauses of 0.5 s and 1 s


async def test_retries_end_and_the_last_error_stands(server: SseServer, heard: Heard) -> None:
    stream = await tried(server, heard, 1, "503", "503", "503")
    assert (stream.outcome, stream.retries, len(server.served)) == (Outcome.FAILED, 1, 2)
    assert stream.error.startswith("HTTP 503")
    assert heard.ended == [stream]


async def test_a_request_that_timed_out_comes_again(server: SseServer, heard: Heard) -> None:
    stream = await tried(server, heard, 1, "hang", timeout_s=0.3)
    assert (stream.outcome, stream.retries) == (Outcome.OK, 1)


async def test_what_has_shown_a_token_or_was_refused_for_good_is_not_sent_again(
    server: SseServer, heard: Heard
) -> None:
    server.script = lambda body: Script(fault="reset", fault_after=2)
    client = Client(endpoint(server.url), 5, heard, 3)
    stream = client.send(request())
    await until(lambda: stream.outcome)
    client.close()
    assert (stream.outcome, stream.retries, len(server.served)) == (Outcome.FAILED, 0, 1)


async def test_a_stream_cancelled_before_its_retry_is_not_sent_again(server: SseServer, heard: Heard) -> None:
    server.script = lambda body: Script(fault="503")
    client = Client(endpoint(server.url), 5, heard, 3)
    stream = client.send(request())
    await until(lambda: stream.retries)
    stream.cancel()
    await asyncio.sleep(0.7)  # longer than the pause
    client.close()
    assert (stream.outcome, len(server.served)) == (Outcome.CANCELLED, 1)
    assert heard.ended == [stream]
