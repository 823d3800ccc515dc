"""The shape of a stream's chunks, learned from one of them, so that the many alike need not be parsed.

It reads no other shape: what differs by a byte outside the text and the token ids is left to the parser.
"""

from __future__ import annotations

import re

# One event: up to the text, the text, from its end to the ids, the ids, the rest.
_SHAPE = re.compile(
    rb'(data: \{.*?"(?:text|content)":")(?:[^"\\]|\\.)*("[^\n]*"token_ids":\[)[0-9,]+(\][^\n]*\}\n\n)', re.S
)
MOST_BYTES = 4096  # of a chunk that is learned from: the others are few
_PLAIN = b'"finish_reason":null'


class Template:
    """Chunks of one stream that add tokens and nothing else."""

    __slots__ = ("_after", "_before", "_between", "_middle", "_rest", "_start")

    def __init__(self, before: bytes, between: bytes, after: bytes) -> None:
        self._before = before
        self._between = between
        self._after = after
        self._start, self._middle, self._rest = len(before), len(between), len(after)

    def tokens(self, data: bytes, begin: int = 0, end: int | None = None) -> int:
        """The tokens of the one chunk that `data` is from `begin` to `end`; 0 if it is anything else."""
        if end is None:
            end = len(data)
        if not (data.startswith(self._before, begin, end) and data.endswith(self._after, begin, end)):
            return 0
        text, ids_end = begin + self._start, end - self._rest
        text_end = data.rfind(self._between, text, ids_end)
        # A quote may end the text, a line's end the event: then something else stands between (or an escaped quote).
        if text_end < 0 or data.find(b'"', text, text_end) >= 0 or data.find(b"\n", text, text_end) >= 0:
            return 0
        ids = data[text_end + self._middle : ids_end]
        if ids.isdigit():
            return 1
        count = ids.count(b",") + 1
        return count if re.fullmatch(rb"\d+(?:,\d+)+", ids) else 0


def learned(data: bytes) -> Template | None:
    """The template of chunks like the one that `data` is, which was parsed and added tokens; None if it has none."""
    found = _SHAPE.fullmatch(data) if len(data) <= MOST_BYTES else None
    if found is None:
        return None
    before, between, after = found.groups()
    # What ends the answer, or counts it, is never like the others: the parser must see it.
    if _PLAIN not in between + after or b'"usage":{' in between + after or b'"error"' in before + between + after:
        return None
    return Template(before, between, after)
