"""Request bodies: prompts of seeded token ids, as the JSON that vLLM's completions read.

It sends nothing and keeps no body.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np


class PromptBook:
    """Makes bodies for one model. `token_ids` are the valid ids that prompts are drawn from."""

    def __init__(self, model: str, token_ids: Sequence[int], return_token_ids: bool = True) -> None:
        if not token_ids:
            raise ValueError("no token ids to draw prompts from")
        # Ids are written once: a body of 4,000 tokens then takes well under a millisecond.
        self._words = [str(int(token_id)) for token_id in token_ids]
        self._head = '{"model":' + json.dumps(model) + ',"prompt":['
        self._tail = ',"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}'
        self._tail += ',"return_token_ids":true}' if return_token_ids else "}"

    def body(self, prompt_seed: Sequence[int], index: int, prompt_tokens: int, output_tokens: int) -> bytes:
        """The body of request `index`: the same seed and index give the same prompt, others a fresh one."""
        rng = np.random.default_rng([*prompt_seed, index])
        words = self._words
        prompt = ",".join([words[i] for i in rng.integers(0, len(words), prompt_tokens).tolist()])
        limits = f'],"max_tokens":{output_tokens},"min_tokens":{output_tokens}'
        return (self._head + prompt + limits + self._tail).encode()
