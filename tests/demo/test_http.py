"""The demo's server as clients see it: streams, chats, usage, errors and metrics."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from tunetui.engine.metrics import parse_metrics

MODEL = "mistralai/Mistral-7B-Instruct-v0.3"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "tunetui.demo", "--profile", "7b-80gb", "--port", str(port)]
    server = subprocess.Popen(command, env={**os.environ, "TUNETUI_DEMO_START_S": "0.1"}, stdout=subprocess.DEVNULL)
    made, ends_s = f"http://127.0.0.1:{port}", time.monotonic() + 60
    while True:
        try:
            httpx.get(f"{made}/health")
            break
        except httpx.HTTPError:
            assert server.poll() is None
            assert time.monotonic() < ends_s
            time.sleep(0.05)
    yield made
    server.terminate()
    assert server.wait(20) == 0


def events(text: str) -> list[dict[str, object]]:
    lines = text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_completion_streams_its_tokens_and_the_usage(url: str) -> None:
    body = {"model": MODEL, "prompt": [11, 12, 13], "max_tokens": 5, "stream": True, "return_token_ids": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    *chunks, last = events(httpx.post(f"{url}/v1/completions", json=body).text)
    choices = [chunk["choices"][0] for chunk in chunks]  # type: ignore[index]
    assert [len(choice["token_ids"]) for choice in choices] == [1] * 5
    assert choices[0]["prompt_token_ids"] == [11, 12, 13]
    assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["length"]
    assert last["usage"] == {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}


def test_a_chat_streams_too(url: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "how are you"}], "max_completion_tokens": 3,
            "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    first, *chunks, last = events(httpx.post(f"{url}/v1/chat/completions", json=body).text)
    assert first["choices"][0]["delta"]["role"] == "assistant"  # type: ignore[index]
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == [" t"] * 3  # type: ignore[index]
    assert last["usage"]["prompt_tokens"] == 6  # type: ignore[index]


def test_an_answer_in_one_piece_and_errors(url: str) -> None:
    whole = httpx.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": "a b", "max_tokens": 2}).json()
    assert whole["usage"]["completion_tokens"] == 2
    for body, status in (({"model": "other", "prompt": "a"}, 404), ({"prompt": [1] * 5000, "max_tokens": 1}, 400)):
        refused = httpx.post(f"{url}/v1/completions", json=body)
        assert refused.status_code == status
        assert refused.json()["error"]["code"] == status
    assert httpx.get(f"{url}/version").json() == {"version": "0.32.0+simulated"}


def test_measure_sees_what_the_server_counts(url: str) -> None:
    before = parse_metrics(httpx.get(f"{url}/metrics").text)
    done = subprocess.run(
        [sys.executable, "-m", "tunetui", "measure", "--url", url, "--concurrency", "8", "--requests", "40", "--warmup",
         "0", "--prompt-tokens", "200", "--output-tokens", "20", "--json", "-"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    after = parse_metrics(httpx.get(f"{url}/metrics").text)
    assert before.generation_tokens_total is not None
    assert before.prompt_tokens_total is not None
    assert after.generation_tokens_total == before.generation_tokens_total + 40 * 20
    assert after.prompt_tokens_total == before.prompt_tokens_total + 40 * 200
    assert said["simulated"] is True
    assert (said["completed"], said["total_output_tokens"]) == (40, 800)
    assert (after.running, after.waiting, after.kv_usage) == (0, 0, 0.0)
