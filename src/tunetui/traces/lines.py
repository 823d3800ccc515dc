"""The bytes of a recording as numbered lines, or as the items of one JSON list, in bounded memory.

It knows no format of recordings.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 64 * 2**20  # bytes of one line or item: a prompt of more is none
_CHUNK = 2**20
_GZIP = b"\x1f\x8b"
_BETWEEN = re.compile(r"[\s,]*")
_LIST_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*[\]{]")


class TraceError(Exception):
    """A recording that cannot be used; the message is one sentence and a next step."""


class BrokenLine(ValueError):
    """A line that is no request; the message is the reason in a few words."""


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """The file's bytes, unpacked where they are gzip by content. Raises TraceError, also for what fails while read."""
    try:
        if path.is_dir():
            raise TraceError(f"{path} is a folder: give one of its files")
        with path.open("rb") as raw:
            if raw.peek(2)[:2] != _GZIP:
                yield raw
                return
            with gzip.open(raw) as unpacked:
                yield io.BufferedReader(unpacked)
    except FileNotFoundError:
        raise TraceError(f"no file at {path}: check the path") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise TraceError(f"{path} is a damaged gzip file: copy or download it again") from None
    except OSError as error:
        raise TraceError(
            f"cannot read {path} ({error.strerror or error}): check the path and its permissions"
        ) from None


def is_binary(stream: io.BufferedReader) -> bool:
    """Whether a NUL stands among the bytes that come next: no text has one (UTF-16 has, and is not read either)."""
    return b"\0" in stream.peek(4096)[:4096]


def is_json_list(stream: io.BufferedReader) -> bool:
    """Whether the bytes that come next open a JSON list of objects, or an empty one."""
    return _LIST_START.match(stream.peek(4096)) is not None


def numbered_lines(stream: io.BufferedReader) -> Iterator[tuple[int, str]]:
    """Each line that is not blank with its number from 1, without its end or a byte order mark.

    A line over LONGEST is given as its first LONGEST bytes; the rest is left out.
    """
    number = 0
    while line := stream.readline(LONGEST):
        number += 1
        if len(line) == LONGEST and not line.endswith(b"\n"):
            while (rest := stream.readline(_CHUNK)) and not rest.endswith(b"\n"):
                pass
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        text = line.decode("utf-8", "replace").strip()
        if text:
            yield number, text


def list_items(stream: io.BufferedReader) -> Iterator[tuple[int, object]]:
    """Each item of the JSON list that `stream` holds with its number from 1.

    Raises TraceError where the list is malformed or cut off: nothing after that place can be read.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    parse = json.JSONDecoder().raw_decode
    buffer, number, wanted, ended = decoder.decode(stream.read(_CHUNK)), 0, _CHUNK, False
    at = buffer.index("[") + 1
    while True:
        at = _past(_BETWEEN, buffer, at)
        if buffer[at : at + 1] == "]":
            return
        try:
            item, at = parse(buffer, at)
        except (ValueError, RecursionError):
            if ended or len(buffer) - at > LONGEST:
                raise TraceError(
                    f"item {number + 1} of the list is malformed or cut off: copy or download the file again"
                ) from None
            part = stream.read(wanted)
            wanted = min(wanted * 2, LONGEST)  # or a long item would be parsed from its start for each small part
            ended = not part
            buffer, at = buffer[at:] + decoder.decode(part, ended), 0
            continue
        number, wanted = number + 1, _CHUNK
        yield number, item


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def parsed(line: str) -> object:
    """The JSON value of a line. Raises BrokenLine."""
    if len(line) >= LONGEST // 4 and len(line.encode("utf-8", "replace")) >= LONGEST:
        raise BrokenLine(f"longer than {LONGEST // 2**20} MiB")
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        raise BrokenLine("not JSON") from None
    return value
