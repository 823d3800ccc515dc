"""`tunetui record`: makes a recording of a production load from a log, or by watching a server's /metrics page.

It touches no production: a log is read, and of a server nothing but /metrics is asked. It shows no recording
(`workload` does).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tunetui.cli.options import SERVER, USAGE, Parser, Refused, is_url

if TYPE_CHECKING:
    import httpx

    from tunetui.core.trace import Trace
    from tunetui.traces.columns import Reading
    from tunetui.traces.scrapes import Scrape

MOST_S = 7 * 86_400
_TIMEOUT_S = 5.0
_MISSED = 3  # pages in a row that may fail: a busy server answers late now and then

EPILOG = """\
examples:
  tunetui record --vllm-log vllm.log -o load.jsonl       vLLM ran with --enable-log-requests --enable-log-outputs
  journalctl -u vllm -o cat | tunetui record --vllm-log - -o load.jsonl
  tunetui record --access-log gateway.jsonl --fields time=ts,prompt=usage.prompt_tokens -o load.jsonl
  tunetui record --url http://127.0.0.1:8000 --seconds 600 -o load.jsonl      asks for /metrics only

The recording is JSONL: {"timestamp": ms, "input_length": tokens, "output_length": tokens}. No prompt is kept.
exit codes: 0 done, 2 a file or an option cannot be used, 3 the server cannot be read.
"""


def parser() -> argparse.ArgumentParser:
    """The options, as `--help` shows them. Parsing raises Refused."""
    made = Parser(
        prog="tunetui record",
        description="Make a recording of a production load without touching it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument("--vllm-log", metavar="FILE", help="a vLLM log with requests in it; - reads it from stdin")
    source.add_argument("--access-log", metavar="FILE", help="JSON lines or name=value fields with token counts; - too")
    source.add_argument("--url", help="a running server, by its /metrics alone: rate and lengths, not their order")
    made.add_argument("-o", "--output", required=True, metavar="TRACE", help="where to write it; - prints it")
    made.add_argument("--force", action="store_true", help="overwrite TRACE")
    made.add_argument("--fields", metavar="LIST", help="names in the access log: time=NAME,prompt=NAME,output=NAME")
    made.add_argument(
        "--prompt-tokens", metavar="N", help="for a vLLM log without prompt lengths: draw them, e.g. 64-512"
    )
    made.add_argument("--seconds", type=float, metavar="S", help="how long to watch --url (default 300)")
    made.add_argument("--every", type=float, metavar="S", help="how often (default 5)")
    made.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")
    return made


def main(words: list[str]) -> int:
    """Make the recording that `words` ask for; returns the exit code. Raises Refused."""
    from tunetui.traces.lines import TraceError

    options = parser().parse_args(words)
    _refuse_contradiction(options)
    target = options.output
    if target != "-":
        _refuse_target(Path(target), options.force)
        _refuse_overwriting(options.vllm_log or options.access_log, target)
    try:
        if options.url:
            trace, notes = _from_server(options)
        elif options.vllm_log:
            trace, notes = _from_vllm_log(options)
        else:
            trace, notes = _from_access_log(options)
    except TraceError as error:
        raise Refused(str(error), USAGE) from None
    _write(target, trace, notes, options.force)
    print(summary(trace, notes, target), file=sys.stderr if target == "-" else sys.stdout)
    return 0


def _refuse_target(target: Path, force: bool) -> None:
    try:
        there, is_file, in_folder = target.exists(), target.is_file(), target.absolute().parent.is_dir()
    except OSError as error:
        raise Refused(f"cannot write {target} ({error.strerror}): give another -o TRACE", USAGE) from None
    if there and not is_file:
        raise Refused(f"{target} is not a file: give another -o TRACE", USAGE)
    if there and not force:
        raise Refused(f"{target} exists: give another -o TRACE, or --force to overwrite it", USAGE)
    if not in_folder:
        raise Refused(f"there is no folder for {target}: make it, or give another -o TRACE", USAGE)


def _refuse_overwriting(source: str | None, target: str) -> None:
    with suppress(OSError):  # one of them is not there
        if source and os.path.samefile(source, target):
            raise Refused("the recording would overwrite the log itself: give another -o TRACE", USAGE)


def _refuse_contradiction(options: argparse.Namespace) -> None:
    for name, needs in (
        ("fields", "access_log"), ("prompt_tokens", "vllm_log"), ("seconds", "url"), ("every", "url"),
    ):  # fmt: skip
        if getattr(options, name) is not None and getattr(options, needs) is None:
            raise Refused(f"--{name.replace('_', '-')} goes with --{needs.replace('_', '-')}", USAGE)
    if options.seed < 0:
        raise Refused("--seed must be 0 or more", USAGE)
    options.seconds = 300.0 if options.seconds is None else options.seconds
    options.every = min(5.0, options.seconds) if options.every is None else options.every
    if options.url is not None and not is_url(options.url):
        raise Refused(f"cannot record from {options.url!r}: give a URL such as http://127.0.0.1:8000", USAGE)
    if not 0.1 <= options.every <= options.seconds <= MOST_S:
        raise Refused("--every must be 0.1 or more, and --seconds at least that and at most a week", USAGE)


def summary(trace: Trace, notes: Sequence[str], target: str) -> str:
    """The one line that says what was recorded, and what was not."""
    span = f" over {trace.arrivals_s[-1]:.0f} s" if trace.arrivals_s else " without times"
    said = f" ({'; '.join(notes)})" if notes else ""
    return f"recorded {trace.requests} requests{span} in {'stdout' if target == '-' else target}{said}"


def _from_vllm_log(options: argparse.Namespace) -> tuple[Trace, Sequence[str]]:
    from tunetui.traces.vllm_log import read_vllm_log

    fill = _fill(options.prompt_tokens, options.seed) if options.prompt_tokens else None
    with _log_lines(options.vllm_log) as (lines, year):
        trace, reading = read_vllm_log(lines, year, fill)
    return trace, _told(reading)


def _fill(text: str, seed: int) -> Callable[[int], Sequence[int]]:
    from tunetui.core.load import WorkloadError
    from tunetui.core.workload import parse_lengths

    try:
        mix = parse_lengths(text)
    except WorkloadError as error:
        raise Refused(str(error), USAGE) from None

    def fill(count: int) -> Sequence[int]:
        import numpy as np

        drawn: list[int] = mix.draw(np.random.default_rng(seed), count).tolist()
        return drawn

    return fill


def _from_access_log(options: argparse.Namespace) -> tuple[Trace, Sequence[str]]:
    from tunetui.traces.access_log import FIELDS, parse_fields, read_access_log

    fields = parse_fields(options.fields) if options.fields else FIELDS
    with _log_lines(options.access_log) as (lines, _):
        trace, reading = read_access_log(lines, fields)
    return trace, _told(reading)


def _told(reading: Reading) -> Sequence[str]:
    notes = list(reading.notes)
    if reading.broken:
        notes.append(f"broken lines skipped: {reading.broken}, {'; '.join(reading.first_broken)}")
    if reading.out_of_order:
        notes.append(f"requests that stood after a later one, sorted by time: {reading.out_of_order}")
    return notes


@contextmanager
def _log_lines(source: str) -> Iterator[tuple[Iterator[tuple[int, str]], int]]:
    """The numbered lines of a file or of stdin, and the year of the last of them. Raises TraceError."""
    from tunetui.traces.lines import numbered_lines, opened

    if source == "-":
        yield numbered_lines(sys.stdin.buffer), datetime.now(UTC).year  # type: ignore[arg-type]
        return
    path = Path(source)
    with opened(path) as stream:
        yield numbered_lines(stream), datetime.fromtimestamp(path.stat().st_mtime, UTC).year


def _from_server(options: argparse.Namespace) -> tuple[Trace, Sequence[str]]:
    import httpx

    from tunetui.traces.scrapes import sampled_trace

    base = options.url.rstrip("/").removesuffix("/v1")
    scrapes: list[Scrape] = []
    with httpx.Client(base_url=base, timeout=_TIMEOUT_S, trust_env=not _is_loopback(base)) as client:
        try:
            _watch(client, options.seconds, options.every, scrapes)
        except KeyboardInterrupt:
            if len(scrapes) < 2:
                raise
    return sampled_trace(scrapes, options.seed)


def _watch(client: httpx.Client, seconds: float, every_s: float, scrapes: list[Scrape]) -> None:
    """Add a page every `every_s` until `seconds` are over. Raises Refused where the server cannot be read."""
    began, missed = time.monotonic(), 0
    pages = math.ceil(seconds / every_s - 1e-9) + 1  # not counted in floating steps, which fall short of the end
    for number in range(1, pages + 1):
        try:
            scrapes.append(_scrape(client))
            missed = 0
            if len(scrapes) == 1:
                print(f"watching {client.base_url} for {seconds:g} s (ctrl+c ends it early)", file=sys.stderr)
        except Refused:
            missed += 1
            if not scrapes or missed > _MISSED:
                raise
        if number < pages:
            time.sleep(max(0.0, began + min(number * every_s, seconds) - time.monotonic()))


def _scrape(client: httpx.Client) -> Scrape:
    import httpx

    from tunetui.traces.lines import TraceError
    from tunetui.traces.scrapes import parse_scrape

    where = f"{str(client.base_url).rstrip('/')}/metrics"
    try:
        answer = client.get("/metrics")
    except httpx.ConnectError:
        raise Refused(f"nothing answers at {where}: check that the server runs and the address", SERVER) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise Refused(f"{where} could not be read ({why}): see the server's log", SERVER) from None
    if answer.status_code != 200:
        raise Refused(f"{where} answered HTTP {answer.status_code}: check the address", SERVER)
    try:
        return parse_scrape(answer.text, time.monotonic())
    except TraceError as error:
        raise Refused(f"{error} ({where})", SERVER) from None


def _is_loopback(url: str) -> bool:
    """A proxy of the environment is not for a server on this machine."""
    import ipaddress
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _write(target: str, trace: Trace, notes: Sequence[str], force: bool) -> None:
    """Print the recording or write its file, whole or not at all. Raises Refused where it cannot be written."""
    from tunetui.traces.written import recording_lines

    try:
        if target == "-":
            sys.stdout.writelines(recording_lines(trace, notes))
            sys.stdout.flush()
            return
        part = Path(f"{target}.part")
        with part.open("w", encoding="utf-8") as file:
            file.writelines(recording_lines(trace, notes))
        _refuse_target(Path(target), force)  # watching takes long: the file may have come to be meanwhile
        os.replace(part, target)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush at exit fails again
    except OSError as error:
        raise Refused(f"cannot write {target} ({error.strerror}): give another -o TRACE", USAGE) from None
