"""A recorded workload: requests in the order of their arrival, as plain columns.

It reads no file (the readers of `traces` do) and plans no load (`workload` does).
"""

from __future__ import annotations

from dataclasses import dataclass

Messages = tuple[tuple[str, str], ...]  # (role, content) of each turn up to the one that is to be answered


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests of a recording. Every column that is not None has one entry a request.

    `arrivals_s`: offsets from the first arrival, in rising order; None where the recording has no times.
    `blocks`: for each prompt, ids of its blocks of `block_tokens` tokens, the last one not always full: equal ids are
    equal tokens, so prompts that begin with the same ids share a prefix.
    `texts`: the prompt itself, or the messages of a chat.
    `counted`: whether the lengths are tokens as the recording counted them; else estimates from the texts.
    `lengths_only`: drawn from histograms: neither order nor correlation of the lengths means anything.
    """

    format: str
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    arrivals_s: tuple[float, ...] | None = None
    block_tokens: int = 0
    blocks: tuple[tuple[int, ...], ...] | None = None
    texts: tuple[str | Messages, ...] | None = None
    conversations: tuple[int, ...] | None = None  # equal numbers are turns of one conversation
    counted: bool = True
    lengths_only: bool = False

    @property
    def requests(self) -> int:
        return len(self.prompt_tokens)
