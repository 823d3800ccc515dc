"""The control API against the fake server, and its one-sentence errors against odd answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from engine.fakes import Fakes, free_port

from tunetui.engine.server_api import ApiError, ModelCard, ServerApi


@pytest.fixture
async def api(fakes: Fakes) -> AsyncIterator[ServerApi]:
    port = free_port()
    fakes.start("--port", str(port), "--model", "org/m", "--max-model-len", "512", "--max-num-seqs", "8")
    fakes.wait_for_log("Application startup complete")
    made = ServerApi(f"http://127.0.0.1:{port}/v1/")
    yield made
    await made.aclose()


async def test_against_a_server(api: ServerApi) -> None:
    assert await api.healthy()
    assert await api.models() == [ModelCard("org/m", 512)]
    assert await api.version() == "0.32.0"
    gauges = await api.gauges()
    assert (gauges.running, gauges.waiting, gauges.block_size, gauges.enable_prefix_caching) == (0, 0, 16, True)
    plain = await api.tokenize("org/m", "one two")
    assert await api.tokenize("org/m", "one two", special_tokens=True) == [1, *plain]


async def test_prompt_token_ids_are_many_distinct_and_ordinary(api: ServerApi) -> None:
    ids = await api.prompt_token_ids("org/m")
    assert len(ids) == len(set(ids)) > 200
    assert min(ids) >= 10
    with pytest.raises(ApiError, match="does not know the model"):
        await api.prompt_token_ids("org/other")


async def test_nothing_there() -> None:
    api = ServerApi(f"http://127.0.0.1:{free_port()}")
    assert not await api.healthy()
    for call in (api.models, api.version, api.gauges):
        with pytest.raises(ApiError, match=r"nothing answers at .*: check that the server runs"):
            await call()


def answering(answer: Callable[[httpx.Request], httpx.Response], api_key: str | None = None) -> ServerApi:
    return ServerApi("http://server:8000", api_key, transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("status", "text", "says"),
    [
        (401, "", "refused the key .*: give the server's API key"),
        (404, "", "does not exist"),
        (500, "", "answered HTTP 500: see the server's log"),
        (200, "<html>", "something else than vLLM"),
        (200, "[]", "something else than vLLM"),
        (200, '{"data": [1]}', "something else than vLLM"),
    ],
)
async def test_odd_answers(status: int, text: str, says: str) -> None:
    api = answering(lambda _: httpx.Response(status, text=text))
    with pytest.raises(ApiError, match=says):
        await api.models()
    with pytest.raises(ApiError):
        await api.prompt_token_ids("m")


async def test_a_server_without_version_or_metrics() -> None:
    api = answering(lambda _: httpx.Response(404))
    assert await api.version() is None
    assert not await api.healthy()
    with pytest.raises(ApiError, match="metrics"):
        await api.gauges()
    with pytest.raises(ApiError, match="nothing of vLLM"):
        await answering(lambda _: httpx.Response(200, text="python_info 1.0")).gauges()


async def test_a_silent_server_and_a_broken_answer() -> None:
    def slow(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("")

    def broken(_: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("peer closed connection")

    with pytest.raises(ApiError, match=r"gave no answer in 5 s"):
        await answering(slow).models()
    with pytest.raises(ApiError, match="peer closed connection"):
        await answering(broken).models()
    assert not await answering(slow).healthy()


async def test_the_key_is_sent_and_special_ids_are_left_out() -> None:
    def server(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        special = b'"add_special_tokens":true' in request.content
        return httpx.Response(200, json={"tokens": [2, 5, 6, 3] if special else [5, 6, -1]})

    assert await answering(server, "secret").prompt_token_ids("m") == (5, 6)
