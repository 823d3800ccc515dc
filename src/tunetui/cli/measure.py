"""`tunetui measure`: one measurement of a running server without a screen; progress on stderr, data on stdout.

It starts no server and steps no knob.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import math
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tunetui.cli.options import (
    MOST,
    SERVER,
    USAGE,
    Parser,
    Refused,
    add_goal_options,
    add_load_options,
    fit_to,
    is_url,
    load_from,
    refuse_counts,
    workload_from,
)  # fmt: skip

if TYPE_CHECKING:
    from tunetui.core.load import Load
    from tunetui.drive.measure import Progress, Result
    from tunetui.drive.settings import Settings

FAIL, UNDECIDED, INTERRUPTED = 1, 4, 130
REQUESTS = 400
BAR = 30
MOST_REQUESTS_PER_STREAM_S = 20  # how many requests a stream of a closed loop can at most end in a second

EPILOG = """\
examples:
  tunetui measure --url http://127.0.0.1:8000 --rate 12 --slo ttft:600 tpot:80
  tunetui measure --url http://127.0.0.1:8000 --concurrency 64 --seconds 60 --json result.json --samples samples.jsonl
  tunetui measure --url http://127.0.0.1:8000 --trace azure.csv --requests 2000
  tunetui measure --url http://127.0.0.1:8000 --compare-rates 5,10,20 --slo ttft:600 tpot:80

The names in the JSON are those of `vllm bench serve --save-result`. An API key is taken from TUNETUI_API_KEY.
exit codes: 0 PASS or no SLO given, 1 FAIL, 4 UNDECIDED, 2 usage, 3 no server or no answer, 130 interrupted.
"""


def parser() -> argparse.ArgumentParser:
    """The options, as `--help` shows them. Parsing raises Refused."""
    made = Parser(
        prog="tunetui measure",
        description="Send a load to a running server and say what it saw: latencies, throughput, SLO verdicts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    server = made.add_argument_group("server")
    server.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default http://127.0.0.1:8000)")
    server.add_argument("--model", help="its model (default: the first that it serves)")
    server.add_argument(
        "--yes-load", action="store_true", help="send load to another machine than this, which may be in production"
    )
    load = made.add_argument_group("load")
    add_load_options(load, "open loop: R requests/s")
    load.add_argument("--requests", type=int, metavar="N", help="how many are judged (default 400, or the whole trace)")
    load.add_argument("--seconds", type=float, metavar="S", help="how long requests are sent")
    load.add_argument(
        "--warmup",
        default="auto",
        metavar="N",
        help="requests left out at the start; auto (default): batches until the engine is warm, then one turnover",
    )
    load.add_argument("--compare-rates", metavar="R,R,...", help="measure at each of these rates, and print a table")
    add_goal_options(made.add_argument_group("objective"), [], "(default none: measure only)")
    output = made.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write the figures as JSON; - prints that alone")
    output.add_argument("--samples", metavar="FILE", help="write each request with its moments, a JSON line each")
    return made


def main(words: Sequence[str]) -> int:
    """Measure as `words` ask for; returns the exit code. Raises Refused."""
    options = parser().parse_args(words)
    settings, loads = settings_from(options)
    refuse_unwritable(options.json, options.samples)
    settings, results = asyncio.run(measured(options, settings, loads))
    write(options, settings, results)
    return exit_code(results)


def settings_from(options: argparse.Namespace) -> tuple[Settings, list[Load]]:
    """What is asked for, and the loads that are measured one after the other. Raises Refused."""
    from tunetui.core.load import WorkloadError
    from tunetui.core.slo import SloError, parse_slo
    from tunetui.drive.settings import Settings

    if not is_url(options.url):
        raise Refused(f"cannot measure {options.url!r}: give a URL such as http://127.0.0.1:8000", USAGE)
    if not (options.yes_load or is_this_machine(options.url)):
        raise Refused(f"{options.url} may be somebody's production: give --yes-load to send load there", USAGE)
    refuse_counts(options, "requests")
    if options.seconds is not None and not 0 < options.seconds <= 86_400:
        raise Refused("--seconds must be above 0 and at most 86400", USAGE)
    try:
        slo = parse_slo(options.slo, options.percentile)
        if options.compare_rates is not None:
            if any(one is not None for one in (options.rate, options.concurrency, options.ramp, options.speed)):
                raise WorkloadError("--compare-rates names the rates: leave out --rate, --concurrency, --ramp, --speed")
            rates = rates_of(options.compare_rates)
            options.rate = rates[0]
            loads: list[Load] = [replace(load_from(options, None), rate_rps=rate) for rate in rates]
        else:
            loads = [load_from(options, None)]
        workload = workload_from(options)
        if loads[0].speed is not None and workload.trace is not None and workload.trace.arrivals_s is None:
            raise WorkloadError("this trace has no times to replay: give --rate or --concurrency")
    except (SloError, WorkloadError) as error:
        raise Refused(str(error), USAGE) from None
    settings = Settings(
        slo=slo,
        load=loads[0],
        workload=workload,
        episode_requests=REQUESTS,
        sessions_dir=Path(),
        url=options.url.rstrip("/").removesuffix("/v1"),
        timeout_s=options.timeout,
        retries=options.retries,
        max_in_flight=options.max_in_flight,
        cut=cut_of(options.warmup),
    )
    return settings, loads


def is_this_machine(url: str) -> bool:
    """Whether `url` is a loopback address: a server of one's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def rates_of(text: str) -> list[float]:
    """Read `50,100,150`. Raises Refused."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise Refused(f"cannot read the rates {text!r}: write requests/s with commas, e.g. 50,100,150", USAGE) from None


def cut_of(text: str) -> int | None:
    """Read --warmup: None for auto. Raises Refused."""
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit()) or int(text) > MOST:
        raise Refused(f"cannot read --warmup {text!r}: write auto or a number of requests", USAGE)
    return int(text)


def refuse_unwritable(figures: str | None, samples: str | None) -> None:
    """A file that cannot be written is said before the measurement, not after it; nothing is left of the trial."""
    if samples == "-":
        raise Refused("--samples goes into a file: give its name, - is for --json", USAGE)
    if samples is not None and figures is not None and Path(samples).resolve() == Path(figures).resolve():
        raise Refused("--json and --samples name the same file: give two", USAGE)
    for path in (figures, samples):
        if path is None or path == "-":
            continue
        try:
            was_there = Path(path).exists()
            with open(path, "a", encoding="utf-8"):
                pass
            if not was_there:
                Path(path).unlink()
        except OSError as error:
            raise unwritable(path, error) from None


def unwritable(path: str, error: OSError) -> Refused:
    return Refused(f"cannot write {path} ({error.strerror}): give another file", USAGE)


def requests_of(settings: Settings, load: Load, requests: int | None, seconds: float | None) -> int:
    """How many requests an episode counts: asked for, or what fits into the time, or the whole trace."""
    trace = settings.workload.trace
    if seconds is not None and requests is None:
        rate = load.mean_rps(trace.mean_rps if trace is not None else None)
        if rate is None:
            rate = (load.concurrency or 1) * MOST_REQUESTS_PER_STREAM_S
        return max(1, min(MOST, math.ceil(rate * seconds)))
    if requests is not None:
        return requests
    return trace.requests if trace is not None and load.speed is not None else REQUESTS


async def measured(options: argparse.Namespace, settings: Settings, loads: list[Load]) -> tuple[Settings, list[Result]]:
    """The measurements, and the settings as the server made them. Raises Refused."""
    from tunetui.drive.measure import InterruptedMeasurement, MeasureError, Measuring, NothingDueError
    from tunetui.engine.server_api import ApiError, ServerApi
    from tunetui.load.generator import GeneratorGoneError

    api = ServerApi(settings.url, os.environ.get("TUNETUI_API_KEY", "").strip() or None)
    progress = ProgressLine()
    results: list[Result] = []
    measuring: Measuring | None = None
    try:
        settings = await with_model(settings, api, options)
        counts = [requests_of(settings, load, options.requests, options.seconds) for load in loads]
        settings = replace(settings, episode_requests=counts[0])
        measuring = Measuring(settings, api, progress.show)
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(name, measuring.interrupt)
        await measuring.start(warm=settings.cut is None)
        for load, count in zip(loads, counts, strict=True):
            progress.begin(str(load))
            results.append(await measuring.measure(load, count, options.seconds))
            if results[-1].interrupted:
                break
        return settings, results
    except (ApiError, GeneratorGoneError, MeasureError) as error:
        raise Refused(str(error), SERVER) from None
    except NothingDueError as error:
        raise Refused(str(error), USAGE) from None
    except InterruptedMeasurement:
        if not results:
            raise Refused("interrupted before any request was measured", INTERRUPTED) from None
        return settings, [*results[:-1], replace(results[-1], interrupted=True)]
    finally:
        progress.end()
        if measuring is not None:
            await measuring.close()
        await api.aclose()


async def with_model(settings: Settings, api: Any, options: argparse.Namespace) -> Settings:
    """The settings with the server's model, and requests that fit it. Raises Refused or ApiError."""
    from tunetui.core.session import SIMULATED
    from tunetui.engine.server_api import ApiError

    models = await api.models()
    if not models:
        raise Refused(f"{settings.url} serves no model: see the server's log", SERVER)
    card = next((m for m in models if m.id == options.model), models[0])
    if options.model is not None and card.id != options.model:
        names = ", ".join(m.id for m in models[:5])
        raise Refused(f"{settings.url} does not serve {options.model!r}, but {names}: give --model one of these", USAGE)
    workload = fit_to(settings.workload, card.max_model_len, options.fit)
    version = ""
    with suppress(ApiError):  # others than vLLM need not have one
        version = await api.version() or ""
    return replace(settings, model=card.id, workload=workload, simulated=version.endswith(SIMULATED))


def exit_code(results: list[Result]) -> int:
    """Of the worst verdict; a server that answered nothing is none."""
    if any(result.interrupted for result in results):
        return INTERRUPTED
    if not any(result.answered for result in results):
        return SERVER
    verdicts = {result.seen.verdict.value for result in results if result.seen.objectives}
    return FAIL if "FAIL" in verdicts else UNDECIDED if "UNDECIDED" in verdicts else 0


def write(options: argparse.Namespace, settings: Settings, results: list[Result]) -> None:
    """The figures, where they are wanted. Raises Refused for a file that takes no more, once the rest is written."""
    from tunetui.cli.report import comparison, report
    from tunetui.core.summary import request_lines

    runs = [result.as_data(settings) for result in results]
    if options.json != "-":
        lines = report(settings, results[0]) if options.compare_rates is None else comparison(settings, results)
        print("\n".join(lines))
    if options.json is not None:
        text = json.dumps(runs[0] if options.compare_rates is None else {"runs": runs}, indent=2) + "\n"
        into(options.json, [text])
    if options.samples is not None:
        rates = [{"rate": r.load.rate_rps} if options.compare_rates is not None else {} for r in results]
        into(
            options.samples,
            (
                json.dumps(rate | line) + "\n"
                for rate, result in zip(rates, results, strict=True)
                for line in request_lines(result.episode, result.base_s)
            ),
        )


def into(path: str, lines: Iterable[str]) -> None:
    """Write to a file, or to stdout for -. Raises Refused."""
    try:
        if path == "-":
            sys.stdout.writelines(lines)
            sys.stdout.flush()
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(lines)
    except OSError as error:
        raise unwritable(path, error) from None


class ProgressLine:
    """Progress on stderr: a bar where that is a terminal, else a line at the start and at each quarter."""

    def __init__(self) -> None:
        self._bar = sys.stderr.isatty()
        self._last = ""

    def begin(self, what: str) -> None:
        self._say(what)

    def show(self, progress: Progress) -> None:
        """Say where it stands, as far as that is news."""
        if progress.what:
            self._say(progress.what)
            return
        share = progress.judged / progress.total if progress.total else 0.0
        if self._bar:
            filled = "#" * round(BAR * share)
            errors = f", {progress.errors} failed" if progress.errors else ""
            text = f"[{filled:.<{BAR}}] {progress.judged}/{progress.total}, {progress.in_flight} in flight{errors}"
            sys.stderr.write(f"\r{text:<78}")
            sys.stderr.flush()
            self._last = "bar"
        elif share >= 0.25:
            self._say(f"{math.floor(share * 4) * 25} % of {progress.total} requests")

    def _say(self, text: str) -> None:
        if text != self._last:
            self.end()
            print(text, file=sys.stderr, flush=True)
        self._last = text

    def end(self) -> None:
        """Leave the bar's line."""
        if self._last == "bar":
            with suppress(OSError):
                print(file=sys.stderr)
            self._last = ""
