"""The JSON lines that hold lengths or one prompt: Mooncake's traces, our own, and vLLM's custom benchmark data.

Sources: github.com/kvcache-ai/Mooncake (FAST'25 traces) and vLLM's benchmarks/datasets (CustomDataset). It reads no
request bodies and no conversations (`bodies` and `conversations` do).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tunetui.traces.columns import Row, text_tokens, token_count
from tunetui.traces.lines import BrokenLine
from tunetui.traces.texts import clean, first_given

MOONCAKE, RECORDED, CUSTOM = "mooncake jsonl", "tunetui recording", "vllm custom jsonl"
MOONCAKE_BLOCK_TOKENS = 512
DEFAULT_OUTPUT_TOKENS = 256  # what vllm bench serve takes where the data have none (--custom-output-len)
_MOST_ID = 2**63 - 1

Record = Mapping[str, object]
ParseRecord = Callable[[Record], list[Row]]


def mooncake(block_tokens: int) -> ParseRecord:
    """What makes a row of a line with timestamp (ms), input_length, output_length and, where known, hash_ids."""

    def parse(record: Record) -> list[Row]:
        prompt = token_count(record.get("input_length"), "input_length")
        output = token_count(record.get("output_length"), "output_length")
        return [Row(_milliseconds(record.get("timestamp")), prompt, output, _blocks(record, prompt, block_tokens))]

    return parse


def custom(record: Record) -> list[Row]:
    """The row of a line {"prompt": ..., "output_tokens": ...}."""
    prompt = record.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise BrokenLine("prompt is missing" if not prompt else "prompt is not text")
    output = first_given(record, "output_tokens", "expected_output_len")
    if output is None:
        return [
            _estimated(
                prompt, DEFAULT_OUTPUT_TOKENS, f"prompts without output_tokens, taken as {DEFAULT_OUTPUT_TOKENS}"
            )
        ]
    return [_estimated(prompt, token_count(output, "output_tokens"))]


def _estimated(prompt: str, output: int, note: str = "") -> Row:
    return Row(None, text_tokens(len(prompt)), output, text=clean(prompt), counted=False, note=note)


def _milliseconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenLine("timestamp is not a number")
    try:
        return value / 1000
    except OverflowError:
        raise BrokenLine("timestamp is not a number") from None


def _blocks(record: Record, prompt: int, block_tokens: int) -> tuple[int, ...] | None:
    ids = record.get("hash_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(one) is int and abs(one) <= _MOST_ID for one in ids):
        raise BrokenLine("hash_ids is not a list of whole numbers")
    wanted = math.ceil(prompt / block_tokens)
    if len(ids) != wanted:
        raise BrokenLine(f"hash_ids has {len(ids)} blocks where {prompt} tokens fill {wanted} of {block_tokens}")
    return tuple(ids)
