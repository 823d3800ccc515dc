"""ShareGPT's conversations: every answered turn is a request with the messages up to it.

It reads no request logs (`bodies` does).
"""

from __future__ import annotations

from tunetui.core.trace import Messages
from tunetui.traces.columns import LeftOut, Row, text_tokens
from tunetui.traces.lengths import ParseRecord, Record
from tunetui.traces.lines import BrokenLine
from tunetui.traces.texts import characters, messages_of

SHAREGPT = "sharegpt json"
_LISTS = ("conversations", "conversation", "items")
_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bing": "assistant", "bard": "assistant", "model": "assistant", "system": "system",
}  # fmt: skip


def is_conversation(record: Record) -> bool:
    """Whether the record is one conversation of {"from": ..., "value": ...} turns (or none at all)."""
    turns = next((record[key] for key in _LISTS if isinstance(record.get(key), list)), None)
    return turns is not None and (not turns or (isinstance(turns, list) and _is_turn(turns[0])))


def _is_turn(turn: object) -> bool:
    return isinstance(turn, dict) and ("from" in turn or "role" in turn) and ("value" in turn or "content" in turn)


def conversations() -> ParseRecord:
    """What makes the rows of a conversation; it numbers them in the order of the file."""
    seen = 0

    def parse(record: Record) -> list[Row]:
        nonlocal seen
        turns = next((record[key] for key in _LISTS if isinstance(record.get(key), list)), None)
        if turns is None:
            raise BrokenLine("conversations is missing")
        rows = _rows(messages_of(turns, "from", "value") or messages_of(turns), seen)
        if not rows:
            raise LeftOut("conversations without an answered question")
        seen += 1
        return rows

    return parse


def _rows(turns: Messages, conversation: int) -> list[Row]:
    rows = []
    so_far: list[tuple[str, str]] = []
    for speaker, text in turns:
        role = _ROLES.get(speaker.casefold(), speaker)
        asked = bool(so_far) and so_far[-1][0] == "user"
        if role == "assistant" and asked and text and so_far[-1][1]:
            prompt = tuple(so_far)
            rows.append(
                Row(
                    None, text_tokens(characters(prompt)), text_tokens(len(text)), text=prompt,
                    conversation=conversation, counted=False,
                )
            )  # fmt: skip
        if asked or role != "assistant":  # an answer to nothing opens some conversations: no server would take it
            so_far.append((role, text))
    return rows
