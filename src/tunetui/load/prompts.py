"""Request bodies: prompts of seeded token ids or words, or the texts of a trace, as the JSON that vLLM reads.

It sends nothing and keeps no body.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunetui.core.workload import Material

BLOCK_STREAM = 1  # distinguishes the seeds of shared blocks from those of requests


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks: `tokens` of its own, or a text, or shared blocks of `block_tokens` each."""

    tokens: int
    output_tokens: int
    text: str | Sequence[Sequence[str]] | None = None
    blocks: Sequence[int] = ()
    block_tokens: int = 0


class PromptBook:
    """Makes bodies for one model, as completions or as chats."""

    def __init__(self, model: str, material: Material, chat: bool = False, return_token_ids: bool = True) -> None:
        self._chat = chat
        self._as_ids = bool(material.token_ids) and not chat
        # Ids are written once: a body of 4,000 tokens then takes well under a millisecond.
        self._words = [str(token_id) for token_id in material.token_ids] if self._as_ids else list(material.words)
        if not self._words:
            raise ValueError("nothing to make prompts of: no token ids, no words")
        self._tokens_per_word = 1.0 if self._as_ids else material.tokens_per_word
        self._head = '{"model":' + json.dumps(model) + (',"messages":' if chat else ',"prompt":')
        self._tail = ',"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}'
        self._tail += ',"return_token_ids":true}' if return_token_ids else "}"

    def body(self, prompt_seed: Sequence[int], index: int, prompt: Prompt) -> bytes:
        """The body of request `index`: the same seed and index give the same prompt, others a fresh one.

        Equal blocks give equal words under the same seed, whatever the request.
        """
        if prompt.text is not None:
            asked = json.dumps(self._given(prompt.text))
        else:
            words = self._drawn(prompt_seed, index, prompt)
            asked = "[" + ",".join(words) + "]" if self._as_ids else json.dumps(self._given(" ".join(words)))
        limits = f',"max_tokens":{prompt.output_tokens}'
        return (self._head + asked + limits + self._tail).encode()

    def _given(self, text: str | Sequence[Sequence[str]]) -> Any:
        """A text as this endpoint takes it: a chat of one turn, or a chat's turns as one text."""
        if self._chat:
            turns = [("user", text)] if isinstance(text, str) else text
            return [{"role": role, "content": content} for role, content in turns]
        return text if isinstance(text, str) else "\n\n".join(content for _, content in text)

    def _drawn(self, prompt_seed: Sequence[int], index: int, prompt: Prompt) -> list[str]:
        if not prompt.blocks:
            return self._some([*prompt_seed, index], prompt.tokens)
        words: list[str] = []
        left = prompt.tokens
        for block in prompt.blocks:
            # A block is drawn whole and then cut, so that a shorter last one still begins as the whole one does.
            words += self._some([*prompt_seed, block, BLOCK_STREAM], prompt.block_tokens, left)
            left -= prompt.block_tokens
        if left > 0:  # the trace names fewer blocks than the prompt is long
            words += self._some([*prompt_seed, index], left)
        return words

    def _some(self, seed: list[int], tokens: int, most: int | None = None) -> list[str]:
        """Words of `tokens` tokens, of which at most `most` are given."""
        # Not numpy's: the load process does without it, which spares a fifth of a second and 20 MB.
        drawn = random.Random(repr(seed)).choices(self._words, k=self._count(tokens))
        return drawn if most is None else drawn[: self._count(max(most, 0))]

    def _count(self, tokens: int) -> int:
        return tokens if self._as_ids else max(round(tokens / self._tokens_per_word), 1 if tokens else 0)
