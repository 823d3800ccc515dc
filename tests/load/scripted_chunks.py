"""The bytes of answers as vLLM 0.32 writes them; those of a stream are rendered before its first token is due.

It keeps no time and writes nothing.
"""

from __future__ import annotations

import json
import time
from typing import Any

TEXTS = (" a", " the", "ing", " of", ",", " model", " to", ".", " in", " serving", "s", " and", " is", " 1", "\n", "ed")
CREATED = int(time.time())
FINGERPRINT = "vllm-0.32.0-00000000"


def prompt_tokens_of(body: dict[str, Any]) -> int:
    """Tokens of the prompt: ids as they are, text by its words."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    if prompt is not None:
        return len(str(prompt).split())
    return sum(len(str(message.get("content", "")).split()) for message in body.get("messages", ()))


def json_answer(value: object) -> bytes:
    return _whole("application/json", json.dumps(value))


def metrics_answer(model: str, values: dict[str, float]) -> bytes:
    lines = []
    for name, value in values.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# TYPE vllm:{name} {kind}", f'vllm:{name}{{engine="0",model_name="{model}"}} {float(value)}']
    return _whole("text/plain; version=0.0.4", "\n".join(lines) + "\n")


def _whole(content_type: str, text: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(text.encode())}\r\n\r\n"
    return (head + text).encode()


class Chunks:
    """Whole HTTP chunks: `role` (chat only), `first`, then any of the 16 `frames`, `last`, `end`; `only` is both."""

    __slots__ = ("_body", "_chat", "_id", "_model", "_prompt_tokens", "first", "frames", "last", "only", "role")

    def __init__(self, model: str, chat: bool, body: dict[str, Any], prompt_tokens: int, index: int) -> None:
        self._model = model
        self._chat = chat
        self._body = body
        self._prompt_tokens = prompt_tokens
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{index + 0xAE5BC5DB136E5683 & (1 << 64) - 1:016x}"
        ids = bool(body.get("return_token_ids"))
        prompt = body.get("prompt") if ids else None
        self.role = self._role() if chat else b""
        self.frames = [self._frame(text, [number + 100] if ids else None) for number, text in enumerate(TEXTS)]
        self.first = self._frame(" a", [100] if ids else None, prompt) if prompt else self.frames[0]
        self.last = self._frame(" z", [99] if ids else None, None, "length")
        self.only = self._frame(" z", [99] if ids else None, prompt, "length")

    def end(self, tokens: int) -> list[bytes]:
        """What follows the last token, one piece a write: usage where it was asked for, DONE, the end of the answer."""
        pieces = []
        if (self._body.get("stream_options") or {}).get("include_usage"):
            counts = {"prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens + tokens}
            usage = self._head() | {"choices": [], "usage": counts | {"completion_tokens": tokens}}
            usage["system_fingerprint"] = FINGERPRINT
            pieces.append(_http(f"data: {_dump(usage)}\n\n".encode()))
        return [*pieces, _http(b"data: [DONE]\n\n"), b"0\r\n\r\n"]

    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {"id": self._id, "object": kind, "created": CREATED, "model": self._model}

    def _role(self) -> bytes:
        choice = {
            "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None,
        }  # fmt: skip
        chunk = self._head() | {"choices": [choice], "prompt_token_ids": None, "prompt_text": None}
        return _http(f"data: {_dump(chunk)}\n\n".encode())

    def _frame(
        self, text: str, ids: list[int] | None, prompt: list[int] | None = None, finish_reason: str | None = None
    ) -> bytes:
        choice: dict[str, Any]
        if self._chat:
            choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish_reason}
            choice |= ({"stop_reason": None} if finish_reason else {}) | {"token_ids": ids}
        else:
            choice = {
                "index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None,
                "prompt_token_ids": prompt, "token_ids": ids,
            }  # fmt: skip
        return _http(f"data: {_dump(self._head() | {'choices': [choice]})}\n\n".encode())


def _http(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
