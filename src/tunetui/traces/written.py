"""Our own recordings as text: Mooncake's lines, and before them a header where something must be marked.

It decides on no file name and opens nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tunetui.core.trace import Trace
from tunetui.traces.lengths import MOONCAKE_BLOCK_TOKENS
from tunetui.traces.reading import HEADER


def recording_lines(trace: Trace, notes: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a recording: {"timestamp": ms, "input_length": ..., "output_length": ..., "hash_ids": [...]}.

    A recording of counted lengths in blocks of 512 tokens, of which nothing must be said, is a Mooncake trace as it
    is; any other has a header line that `read_trace` understands. Texts are never written.
    """
    odd_blocks = trace.blocks is not None and trace.block_tokens != MOONCAKE_BLOCK_TOKENS
    if notes or odd_blocks or trace.lengths_only or not trace.counted:
        header = {HEADER: 1, "lengths_only": trace.lengths_only, "counted": trace.counted, "notes": list(notes)}
        yield json.dumps(header | ({"block_tokens": trace.block_tokens} if trace.blocks is not None else {})) + "\n"
    for index in range(trace.requests):
        line: dict[str, object] = {}
        if trace.arrivals_s is not None:
            line["timestamp"] = _milliseconds(trace.arrivals_s[index])
        line |= {"input_length": trace.prompt_tokens[index], "output_length": trace.output_tokens[index]}
        if trace.blocks is not None:
            line["hash_ids"] = list(trace.blocks[index])
        yield json.dumps(line) + "\n"


def _milliseconds(seconds: float) -> float | int:
    value = round(seconds * 1000, 3)
    return int(value) if value == int(value) else value
