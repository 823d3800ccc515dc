"""Requests out of a vLLM server's log: what --enable-log-requests and --enable-log-outputs write, 0.10 to 0.32.

It follows vLLM's request logger (entrypoints/logger.py, since 0.24 entrypoints/serve/utils/request_logger.py) and
opens no file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tunetui.core.trace import Trace
from tunetui.traces.columns import Columns, LeftOut, Reading, Row, text_tokens, token_count
from tunetui.traces.lines import BrokenLine, TraceError
from tunetui.traces.times import iso_s

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WORDS = ("Received request ", "Generated response ", " details: prompt: ")
_KIND = r"(Received request|Request|Generated response) (.*)"
_LINE = re.compile(r"(?:INFO|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) \[[^\]]*\] " + _KIND)
_MESSAGE = re.compile(_KIND)
_RECEIVED = re.compile(r"(\S+): (?:prompt|params): ")
_DETAILS = re.compile(r"(\S+) details: prompt: ")
_GENERATED = re.compile(r"(\S+)( \(streaming (?:delta|complete)\))?(?: details)?: output")
_COUNT = re.compile(r"'<streaming_complete: (\d+) tokens>'")  # in place of the text where vLLM did not keep it
_LIMIT = re.compile(r"[(, ]max_tokens=(\d+|None)(?:, min_tokens=|[,)])")
_IDS = re.compile(r"(\[[\d, ]*\]|None)")
_BACK = timedelta(days=180)  # a date so much earlier than the line before is of the next year


@dataclass(slots=True)
class _Request:
    """What the log says of one request; None where it says nothing."""

    number: int
    time_s: float
    prompt_ids: int | None = None
    prompt_chars: int | None = None
    limit: int | None = None
    output_ids: int = 0
    output_chars: int = 0
    streamed: bool = False  # the ids were logged part by part: vLLM leaves out the parts without text


class VllmLog:
    """Takes the lines of a log in order. `year` is that of the first line: vLLM writes dates without one."""

    def __init__(self, year: int) -> None:
        self._year = year
        self._last: datetime | None = None
        self._requests: list[_Request] = []
        self._by_id: dict[str, _Request] = {}
        self._details: dict[str, tuple[int | None, int | None]] = {}
        self._other = 0  # requests for embeddings and the like
        self._broken: list[tuple[int, str]] = []
        self._number = 0

    def take(self, number: int, line: str) -> None:
        """One line and its number; what is no line about a request is passed over."""
        self._number = number
        if not any(words in line for words in _WORDS):
            return
        try:
            self._take(_COLOUR.sub("", line).strip())
        except BrokenLine as reason:
            self._broken.append((number, str(reason)))

    def _take(self, line: str) -> None:
        if line.startswith("{"):
            time_s, found = _json_line(line)
        elif found := _LINE.search(line):
            time_s = self._moment(found)
        if not found:
            return
        kind, text = found.groups()[-2:]
        if kind == "Received request":
            self._received(text, time_s)
        elif kind == "Generated response":
            self._generated(text)
        elif details := _DETAILS.match(text):
            self._details[details[1]] = _prompt(text, "prompt_token_ids: ")

    def _moment(self, found: re.Match[str]) -> float:
        month, day, hour, minute, second = map(int, found.groups()[:5])
        try:
            moment = datetime(self._year, month, day, hour, minute, second, tzinfo=UTC)
            if self._last is not None and self._last - moment > _BACK:
                self._year += 1
                moment = moment.replace(year=self._year)
        except ValueError:
            raise BrokenLine("the date does not exist") from None
        self._last = moment
        return moment.timestamp()

    def _received(self, text: str, time_s: float) -> None:
        found = _RECEIVED.match(text)
        if not found:
            raise BrokenLine("a request without params")
        ids, chars = self._details.pop(found[1], (None, None))
        params = text.rfind("params: ")
        if "SamplingParams(" not in text[params:] and "BeamSearchParams(" not in text[params:]:
            self._other += 1
            return
        if "prompt_token_ids: " in text:
            ids, chars = _prompt(text, "params: ")
        limit = _LIMIT.search(text, params)
        most = None if limit is None or limit[1] == "None" else int(limit[1])
        request = _Request(self._number, time_s, ids, chars, most)
        self._requests.append(request)
        self._by_id[found[1]] = request

    def _generated(self, text: str) -> None:
        found = _GENERATED.match(text)
        request = found and (self._by_id.get(found[1]) or self._by_id.get(f"{found[1]}-0"))
        if not found or not request:
            return  # it came before the log begins
        ids = _ids(text, "output_token_ids: ")
        delta = (found[2] or "").endswith("delta)")
        if ids is not None and not (found[2] or "").endswith("complete)"):
            request.output_ids += ids
        start, end = text.find("output: "), max(text.rfind(", output_token_ids: "), text.rfind(", finish_reason: "))
        request.streamed |= delta
        if count := _COUNT.match(text, start + len("output: ")):
            request.output_ids, request.streamed = int(count[1]), False
        elif not delta and 0 <= start < end:
            request.output_chars += max(0, end - start - len("output: ''"))

    def finish(self, fill: Callable[[int], Sequence[int]] | None = None) -> tuple[Trace, Reading]:
        """The recording. `fill` gives so many prompt lengths for the requests of which the log has none.

        Raises TraceError: no requests, or no lengths and no `fill`.
        """
        if not self._requests:
            raise TraceError(
                "the log has no request in it: start vLLM with --enable-log-requests (and --enable-log-outputs for "
                "output lengths)"
            )
        bare = [request for request in self._requests if request.prompt_ids is None and not request.prompt_chars]
        if fill is None and len(bare) == len(self._requests):
            raise TraceError(
                f"the log has {len(bare)} requests without prompt lengths: start vLLM with VLLM_LOGGING_LEVEL=DEBUG, "
                "record with --url, or give --prompt-tokens to draw them"
            )
        drawn = dict(zip((request.number for request in bare), fill(len(bare)) if fill else (), strict=False))
        columns, notes = Columns("vllm log"), self._notes(len(drawn))
        for number, reason in self._broken:
            columns.broken(number, reason)
        for request, time_s in zip(self._requests, _spread([one.time_s for one in self._requests]), strict=True):
            try:
                columns.add(_row(request, time_s, drawn.get(request.number)))
            except LeftOut as what:
                columns.left_out(what)
            except BrokenLine as reason:
                columns.broken(request.number, reason)
        return columns.finish(notes=notes, lengths_only=bool(drawn))

    def _notes(self, drawn: int) -> list[str]:
        notes = []
        if drawn:
            notes.append(f"prompt lengths drawn, for the log has none: {drawn}")
        if self._other:
            notes.append(f"requests that generate nothing left out: {self._other}")
        if all(request.time_s == int(request.time_s) for request in self._requests):
            notes.append("arrivals are logged in whole seconds and spread evenly within each")
        lengths = Counter(one.prompt_ids for one in self._requests if one.prompt_ids)
        longest = max(lengths, default=0)
        if lengths[longest] >= max(3, 0.02 * lengths.total()) and len(lengths) > 1:
            notes.append(
                f"prompts of exactly {longest} token ids, where --max-log-len may have cut them: {lengths[longest]}"
            )
        return notes


def _row(request: _Request, time_s: float, drawn: int | None) -> Row:
    prompt, counted = request.prompt_ids or drawn, True
    if prompt is None:
        if not request.prompt_chars:
            raise LeftOut("requests without a prompt length")
        prompt, counted = text_tokens(request.prompt_chars), False
    note = ""
    if request.output_ids:
        output = request.output_ids
        note = "output lengths counted part by part in the logged stream, at least so many" if request.streamed else ""
    elif request.output_chars:
        output, note = text_tokens(request.output_chars), "output lengths estimated from the logged text"
    elif request.limit is not None:
        output, note = request.limit, "output lengths taken from max_tokens, an upper bound"
    else:
        raise LeftOut("requests without an output length or max_tokens")
    return Row(time_s, token_count(prompt, "the prompt"), token_count(output, "the output"), counted=counted, note=note)


def _prompt(text: str, end: str) -> tuple[int | None, int | None]:
    """How many token ids and how many characters of the prompt a line shows."""
    start = text.find("prompt: ") + len("prompt: ")
    shown = text[start : text.rfind(f", {end}")]
    return _ids(text, "prompt_token_ids: "), None if shown == "None" else max(0, len(shown) - 2)


def _ids(text: str, name: str) -> int | None:
    at = text.rfind(name)  # the last: a prompt may hold such words itself
    found = _IDS.match(text, at + len(name)) if at >= 0 else None
    if found is None or found[1] in ("None", "[]"):
        return None
    return found[1].count(",") + 1


def _json_line(line: str) -> tuple[float, re.Match[str] | None]:
    """The time and the message of a line of vLLM's JSON log."""
    try:
        record = json.loads(line)
        message, time = record["message"], record["asctime"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return 0.0, None
    found = _MESSAGE.match(message) if isinstance(message, str) else None
    return (iso_s(str(time), "asctime"), found) if found else (0.0, None)


def _spread(times_s: Sequence[float]) -> list[float]:
    """Times in whole seconds, those of one second evenly within it in their order; finer times as they are."""
    if not all(time == int(time) for time in times_s):
        return list(times_s)
    within, placed = Counter(times_s), Counter[float]()
    spread = []
    for time in times_s:
        spread.append(time + (placed[time] + 0.5) / within[time])
        placed[time] += 1
    return spread


def read_vllm_log(
    lines: Iterable[tuple[int, str]], year: int, fill: Callable[[int], Sequence[int]] | None = None
) -> tuple[Trace, Reading]:
    """The requests in the numbered lines of a vLLM log that begins in `year`; see VllmLog."""
    log = VllmLog(year)
    for number, line in lines:
        log.take(number, line)
    return log.finish(fill)
