"""Reads a recording in any format that is known here, recognised by its content.

It makes no recording and looks at no server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from tunetui.core.trace import Trace
from tunetui.traces.bodies import OPENAI, bodies, is_request
from tunetui.traces.columns import Columns, LeftOut, Reading, Row
from tunetui.traces.conversations import SHAREGPT, conversations, is_conversation
from tunetui.traces.lengths import (
    CUSTOM,
    MOONCAKE,
    MOONCAKE_BLOCK_TOKENS,
    RECORDED,
    ParseRecord,
    Record,
    custom,
    mooncake,
)
from tunetui.traces.lines import (
    BrokenLine,
    TraceError,
    is_binary,
    is_json_list,
    list_items,
    numbered_lines,
    opened,
    parsed,
)
from tunetui.traces.tables import ParseLine, table_reader

HEADER = "tunetui_trace"  # the key that marks the first line of a recording of ours
KNOWN = (
    "Azure LLM CSV, BurstGPT CSV, Mooncake JSONL, ShareGPT JSON, vLLM custom JSONL, OpenAI request logs (JSONL), "
    "and what tunetui record writes"
)
_LOOKED_AT = 20  # lines or items in which the format must show itself


@dataclass(frozen=True, slots=True)
class _Format:
    """How to read the rest: what makes rows of a line's value, and what holds for the recording as a whole."""

    name: str
    rows: Callable[[object], Iterable[Row]]
    keeps: tuple[str, ...] = ()
    skipped: int = 0  # the number of the header line
    block_tokens: int = 0
    counted: bool = True
    lengths_only: bool = False
    notes: tuple[str, ...] = ()


def read_trace(path: Path | str) -> tuple[Trace, Reading]:
    """The requests in the file at `path` (gzip is unpacked), in the order of arrival, and what reading it was like.

    Lines are streamed; only the columns are kept. Up to 1 % broken lines are skipped and reported in the Reading.
    Raises TraceError, one sentence with a next step: no such file, no format that is known, no requests, or more
    broken lines than that.
    """
    path = Path(path)
    with opened(path) as stream:
        if is_binary(stream):
            raise _unknown(path, "is a binary file")
        if is_json_list(stream):
            return _gathered(path, list_items(stream), "item", lambda item: item)
        return _gathered(path, numbered_lines(stream), "line", lambda line: parsed(str(line)))


def _unknown(path: Path, what: str) -> TraceError:
    return TraceError(f"{path} {what}: give a recording in one of these formats: {KNOWN}")


def _gathered(
    path: Path, places: Iterator[tuple[int, object]], place: str, value_of: Callable[[object], object]
) -> tuple[Trace, Reading]:
    head = list(islice(places, _LOOKED_AT))
    if not head:
        raise _unknown(path, "is empty")
    form = _recognised(head, value_of)
    if form is None:
        raise _unknown(path, "is in no format that tunetui knows")
    columns = Columns(form.name, place, form.keeps)
    rows, add = form.rows, columns.add
    for number, value in chain(head, places):
        if number <= form.skipped:
            if number < form.skipped:
                columns.broken(number, "it stands before the header")
            continue
        try:
            for row in rows(value):
                add(row)
        except LeftOut as left_out:
            columns.left_out(left_out)
        except BrokenLine as error:
            columns.broken(number, error)
    return columns.finish(form.block_tokens, form.notes, form.counted, form.lengths_only)


def _recognised(head: Iterable[tuple[int, object]], value_of: Callable[[object], object]) -> _Format | None:
    """The format of the first line or item that shows one; a broken one shows none."""
    for number, value in head:
        if isinstance(value, str) and (table := table_reader(value)):
            return _Format(table[0], _table_rows(table[1]), skipped=number)
        try:
            record = _object(value_of(value))
        except BrokenLine:
            continue
        if HEADER in record:
            return _recorded(record, number, value_of)
        if found := _named(record):
            name, parse, keeps, block_tokens = found
            return _Format(name, _rows(value_of, parse), keeps, block_tokens=block_tokens)
    return None


def _named(record: Record) -> tuple[str, ParseRecord, tuple[str, ...], int] | None:
    """The format that has such a record: its name, what makes its rows, what they keep, and the size of a block."""
    if "input_length" in record or "output_length" in record:
        return MOONCAKE, mooncake(MOONCAKE_BLOCK_TOKENS), ("blocks",), MOONCAKE_BLOCK_TOKENS
    if is_conversation(record):
        return SHAREGPT, conversations(), ("texts", "conversations"), 0
    if is_request(record):
        return OPENAI, bodies, ("texts",), 0
    if "prompt" in record:
        return CUSTOM, custom, ("texts",), 0
    return None


def _table_rows(parse: ParseLine) -> Callable[[object], Iterable[Row]]:
    return lambda line: (parse(str(line)),)


def _rows(value_of: Callable[[object], object], parse: ParseRecord) -> Callable[[object], Iterable[Row]]:
    return lambda value: parse(_object(value_of(value)))


def _object(value: object) -> Record:
    if not isinstance(value, Mapping):
        raise BrokenLine("not a JSON object")
    return value


def _recorded(header: Record, number: int, value_of: Callable[[object], object]) -> _Format:
    """A recording of ours, as its header marks it; a mark that is not understood is as if it were not there."""
    given, notes = header.get("block_tokens"), header.get("notes")
    block_tokens = given if type(given) is int and given >= 1 else MOONCAKE_BLOCK_TOKENS
    return _Format(
        RECORDED,
        _rows(value_of, mooncake(block_tokens)),
        ("blocks",),
        skipped=number,
        block_tokens=block_tokens,
        counted=header.get("counted") is not False,
        lengths_only=header.get("lengths_only") is True,
        notes=tuple(str(note) for note in notes) if isinstance(notes, list) else (),
    )
