"""Logs of OpenAI requests: bodies of completions and chats, bare, wrapped with a time and a response, or as a batch.

It reads no conversations and no lengths without a request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from tunetui.core.trace import Messages
from tunetui.traces.columns import LeftOut, Row, text_tokens, token_count
from tunetui.traces.lengths import DEFAULT_OUTPUT_TOKENS, Record
from tunetui.traces.lines import BrokenLine
from tunetui.traces.texts import characters, clean, content_text, first_given, messages_of
from tunetui.traces.times import moment_s

OPENAI = "openai request log"
_BODY_KEYS = ("body", "request", "request_body", "requestBody")
_TIME_KEYS = (
    "timestamp", "time", "ts", "@timestamp", "created", "created_at", "start_time", "startTime", "date",
    "request.created", "response.created", "response.body.created", "response.created_at",
)  # fmt: skip
_PROMPT_KEYS = ("usage.prompt_tokens", "usage.input_tokens", "prompt_tokens", "input_tokens")
_OUTPUT_KEYS = ("usage.completion_tokens", "usage.output_tokens", "completion_tokens", "output_tokens")
_WHERE = ("", "response.", "response.body.", "response_body.", "body.")
_BODY_MARKS = frozenset({"model", "messages", "max_tokens", "max_completion_tokens", "temperature", "stream"})


class _Prompt(NamedTuple):
    text: str | Messages | None
    tokens: int | None  # None where it must be estimated


def is_request(record: Record) -> bool:
    """Whether the record is a request body (a prompt alone is not) or wraps one."""
    body = _body(record)
    return body is not None and ("messages" in body or "input" in body or _is_completion(body, record))


def _is_completion(body: Record, record: Record) -> bool:
    return "prompt" in body and (body is not record or bool(_BODY_MARKS & body.keys()))


def _body(record: Record) -> Record | None:
    for key in _BODY_KEYS:
        inner = record.get(key)
        if isinstance(inner, str) and inner.lstrip().startswith("{"):
            try:
                inner = json.loads(inner)
            except (ValueError, RecursionError):
                continue
        if isinstance(inner, Mapping):
            return inner
    return record if "messages" in record or "prompt" in record else None


def bodies(record: Record) -> list[Row]:
    """The rows of a request: one for each prompt in it."""
    body = _body(record)
    if body is None:
        raise BrokenLine("there is no request body with a prompt or messages")
    prompts = _prompts(body)
    time = first_given(record, *_TIME_KEYS)
    time_s = None if time is None else moment_s(time)
    counted = first_given(record, *(where + key for where in _WHERE for key in _PROMPT_KEYS))
    if len(prompts) > 1 or counted is None:
        lengths = [prompt.tokens for prompt in prompts]
    else:
        lengths = [token_count(counted, "prompt_tokens")]
    output, note = _output(record, body, len(prompts))
    return [
        Row(
            time_s, tokens or text_tokens(characters(prompt.text or "")), output,
            text=prompt.text, counted=tokens is not None, note=note,
        )
        for prompt, tokens in zip(prompts, lengths, strict=True)
    ]  # fmt: skip


def _prompts(body: Record) -> list[_Prompt]:
    if "messages" in body:
        messages = messages_of(body["messages"])
        if not messages:
            raise BrokenLine("messages has no message with a role")
        return [_Prompt(messages, None)]
    prompt = body.get("prompt", body.get("input"))
    if isinstance(prompt, list) and prompt and all(isinstance(part, str | list) for part in prompt):
        return [_one_prompt(part) for part in prompt]
    return [_one_prompt(prompt)]


def _one_prompt(prompt: object) -> _Prompt:
    if isinstance(prompt, str) and prompt:
        return _Prompt(clean(prompt), None)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return _Prompt(None, token_count(len(prompt), "prompt"))
    raise BrokenLine("prompt is missing" if not prompt else "prompt is neither text nor token ids")


def _output(record: Record, body: Record, prompts: int) -> tuple[int, str]:
    """The output tokens of each prompt, and what must be said of them."""
    used = first_given(record, *(where + key for where in _WHERE for key in _OUTPUT_KEYS))
    if used is not None:
        if used == 0 and not isinstance(used, bool):
            raise LeftOut("requests without an output token")
        return max(1, token_count(used, "completion_tokens") // prompts), ""
    if answer := _answer(record):
        return text_tokens(len(answer)), "output lengths estimated from the answer's text"
    most = first_given(body, "max_completion_tokens", "max_tokens", "max_output_tokens")
    if most is not None:
        return token_count(most, "max_tokens"), "output lengths taken from max_tokens, an upper bound"
    return DEFAULT_OUTPUT_TOKENS, f"requests without any output length, taken as {DEFAULT_OUTPUT_TOKENS} tokens"


def _answer(record: Record) -> str:
    choices = first_given(record, *(f"{where}choices" for where in _WHERE))
    first = choices[0] if isinstance(choices, list) and choices else None
    return content_text(first_given(first, "message.content", "text"))
