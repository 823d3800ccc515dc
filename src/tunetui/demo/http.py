"""vLLM's HTTP as far as tunetui speaks it: health, models, version, tokenize, metrics, completions and chats, streamed.

It runs no engine: it hands each request to a backend and writes the tokens as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import zlib
from collections.abc import Callable
from typing import Any, Protocol

VOCABULARY = 32_000
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found"}


class Backend(Protocol):
    """An engine in real time."""

    def submit(
        self, prompt: list[int], max_tokens: int, emit: Callable[[int | None], None], is_gone: Callable[[], bool]
    ) -> None:
        """Take a request; `emit` gets each token id as it is made, then None at the end. `is_gone`: nobody waits."""

    def metrics(self) -> str:
        """The Prometheus page."""


class BadRequest(Exception):
    """Answered with a status and vLLM's error body."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def tokenize(text: str, special: bool) -> list[int]:
    """A word or a mark is a token; ids below 10 are special, 1 begins a prompt."""
    words = re.findall(r"\w+|[^\w\s]", text)
    return [1] * special + [10 + zlib.crc32(word.encode()) % (VOCABULARY - 10) for word in words]


class Server:
    """HTTP/1.1 with keep-alive over asyncio streams; one request at a time on each connection."""

    def __init__(self, backend: Backend, name: str, root: str, max_model_len: int, version: str) -> None:
        self.backend, self.name, self.root, self.limit, self.version = backend, name, root, max_model_len, version
        self.number = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it is closed."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                try:
                    await self._answer(method, path.partition("?")[0], json.loads(body or b"{}"), reader, writer)
                except (BadRequest, ValueError, KeyError) as error:
                    status = error.status if isinstance(error, BadRequest) else 400
                    said = {"error": {"message": str(error), "type": "BadRequestError", "code": status}}
                    _send(writer, json.dumps(said), status=status)
                await writer.drain()
                if headers.get("connection") == "close":
                    break
        writer.close()

    async def _answer(
        self, method: str, path: str, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if method == "POST" and body.get("model", self.name) != self.name:
            raise BadRequest(404, f"The model `{body['model']}` does not exist.")
        match (method, path):
            case ("GET", "/health"):
                _send(writer, "", "text/plain")
            case ("GET", "/version"):
                _send(writer, json.dumps({"version": self.version}))
            case ("GET", "/metrics"):
                _send(writer, self.backend.metrics(), "text/plain; version=0.0.4")
            case ("GET", "/v1/models"):
                card = {"id": self.name, "object": "model", "owned_by": "vllm", "root": self.root,
                        "max_model_len": self.limit}  # fmt: skip
                _send(writer, json.dumps({"object": "list", "data": [card]}))
            case ("POST", "/tokenize"):
                tokens = tokenize(body["prompt"], body.get("add_special_tokens", True))
                _send(writer, json.dumps({"count": len(tokens), "max_model_len": self.limit, "tokens": tokens}))
            case ("POST", "/v1/completions"):
                prompt = body["prompt"]
                ids = prompt if isinstance(prompt, list) else tokenize(prompt, True)
                await self._complete(body, ids, False, reader, writer)
            case ("POST", "/v1/chat/completions"):
                text = " ".join(f"{message['role']} : {message['content']}" for message in body["messages"])
                await self._complete(body, tokenize(text, True), True, reader, writer)
            case _:
                raise BadRequest(404, "Not Found")

    async def _complete(
        self,
        body: dict[str, Any],
        prompt: list[int],
        chat: bool,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        most = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        if not prompt or len(prompt) + most > self.limit:
            asked = len(prompt) + most
            raise BadRequest(400, f"This model's maximum context length is {self.limit} tokens, not {asked}.")
        self.number += 1
        answer = Answer(self.number, self.name, body, prompt, most, chat, writer)
        self.backend.submit(prompt, most, answer.emit, lambda: reader.at_eof() or writer.is_closing())
        if answer.streams:
            answer.begin()
        await answer.over
        if not answer.streams:
            _send(writer, answer.whole())


class Answer:
    """The events of one answer, written as they come."""

    def __init__(
        self, number: int, model: str, body: dict[str, Any], prompt: list[int], most: int, chat: bool, writer: Any
    ) -> None:
        self.prompt, self.most, self.chat, self.writer = prompt, most, chat, writer
        self.streams = bool(body.get("stream"))
        self.wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.wants_ids = bool(body.get("return_token_ids"))
        self.tokens: list[int] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        kind = ("chat.completion" if chat else "text_completion") + (".chunk" if chat and self.streams else "")
        self._shape = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{number}", "object": kind,
                       "created": int(time.time()), "model": model}  # fmt: skip
        self._plain: tuple[bytes, bytes] | None = None  # around the id of a token like most: it has three digits

    def begin(self) -> None:
        """The head of a stream; a chat's first event has a role and no token."""
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                          b"Transfer-Encoding: chunked\r\n\r\n")  # fmt: skip
        if self.chat:
            choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            self.writer.write(_frame(json.dumps(self._shaped([choice], None))))

    def emit(self, token: int | None) -> None:
        """A token, or None at the end."""
        if token is not None:
            self.tokens.append(token)
        if self.streams and not self.writer.is_closing():
            self._write(token)
        if token is None and not self.over.done():
            self.over.set_result(None)

    def _write(self, token: int | None) -> None:
        if token is None:
            tail = [json.dumps(self._shaped([], self._usage()))] * self.wants_usage + ["[DONE]"]
            self.writer.write(b"".join(_frame(text) for text in tail) + b"0\r\n\r\n")
            return
        plain = 1 < len(self.tokens) < self.most and 100 <= token < 1000
        if plain and self._plain is not None:
            before, after = self._plain
            self.writer.write(b"%b%d%b" % (before, token, after))
            return
        frame = _frame(json.dumps(self._shaped([self._choice(token)], None)))
        if plain and self.wants_ids:
            before, _, after = frame.rpartition(b"[%d]" % token)
            self._plain = before + b"[", b"]" + after
        self.writer.write(frame)

    def _choice(self, token: int) -> dict[str, Any]:
        text: dict[str, Any] = {"delta": {"content": " t"}} if self.chat else {"text": " t", "stop_reason": None}
        choice = {"index": 0, **text, "logprobs": None,
                  "finish_reason": "length" if len(self.tokens) >= self.most else None}  # fmt: skip
        if self.wants_ids:
            choice["prompt_token_ids"] = self.prompt if len(self.tokens) == 1 and not self.chat else None
            choice["token_ids"] = [token]
        return choice

    def whole(self) -> str:
        """The answer in one piece."""
        text = " t" * len(self.tokens)
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": "length", "token_ids": self.tokens}
        return json.dumps(self._shaped([choice], self._usage()))

    def _usage(self) -> dict[str, int]:
        prompt, made = len(self.prompt), len(self.tokens)
        return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}

    def _shaped(self, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> dict[str, Any]:
        return {**self._shape, "choices": choices, "usage": usage}


def _send(writer: asyncio.StreamWriter, text: str, kind: str = "application/json", status: int = 200) -> None:
    data = text.encode()
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


def _frame(text: str) -> bytes:
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)
