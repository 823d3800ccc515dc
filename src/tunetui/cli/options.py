"""What the commands share: refusals in one sentence with an exit code, and the reading of common options.

It runs nothing.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tunetui.core.load import Load
    from tunetui.core.trace import Trace
    from tunetui.core.workload import Workload

USAGE, SERVER = 2, 3
MOST = 1_000_000  # requests, sequences or tokens: more is a slip of the finger


class Refused(Exception):
    """One sentence for the operator, and the exit code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, where argparse would print the usage first."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message} (see --help)", USAGE)


def is_url(text: str) -> bool:
    """Whether a server can be asked for at `text`."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError for one that is none
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"\s", text)


def add_load_options(group: argparse._ArgumentGroup, rate_help: str) -> None:
    """The options that say what load is sent; `workload_from` and `load_from` read them."""
    add = group.add_argument
    add("--rate", type=float, metavar="R", help=rate_help)
    add(
        "--concurrency",
        type=int,
        metavar="C",
        help="closed loop: C streams, each sending its next request when the last ended",
    )
    add("--arrival", choices=("poisson", "gamma", "constant", "ramp"), help="gaps between arrivals (default poisson)")
    add("--burstiness", type=float, metavar="B", help="of gamma arrivals, as in vLLM: 1 is Poisson, less is burstier")
    add("--ramp", metavar="FROM:TO", help="the rate rises or falls over the requests, e.g. 2:20 or 2:20:exponential")
    add("--prompt-tokens", metavar="N", help="256, 64-512, or a mix 100@0.8,4000@0.2 (default 64-512)")
    add("--output-tokens", metavar="N", help="in the same form (default 32-256)")
    add("--trace", metavar="FILE", help="a recorded workload instead of drawn lengths (see tunetui workload --help)")
    add("--speed", type=float, metavar="X", help="replay the trace's own times X times as fast (default 1)")
    add("--fit", choices=("clip", "drop"), help="trace requests longer than the model allows (default clip)")
    add("--endpoint", choices=("completions", "chat"), default="completions", help="default completions")
    add("--timeout", type=float, default=600.0, metavar="S", help="seconds until a request has failed (default 600)")
    add("--retries", type=int, default=0, metavar="N", help="how often a failed request is sent again (default 0)")
    add("--max-in-flight", type=int, metavar="N", help="open loop: drop, and count as failed, what would exceed N")
    add("--seed", type=int, default=0, help="of arrivals and lengths (default 0)")


def add_goal_options(group: argparse._ArgumentGroup, default: list[str] | None, default_help: str) -> None:
    """The options that say what must be met."""
    group.add_argument(
        "--slo",
        nargs="+",
        default=default,
        metavar="KEY:MS",
        help=f"objectives in milliseconds, KEY ttft, tpot or e2el {default_help}",
    )
    group.add_argument(
        "--percentile", type=int, default=95, choices=(50, 90, 95, 99), help="where they must hold (default 95)"
    )


def load_from(options: argparse.Namespace, default_rps: float | None) -> Load:
    """The load asked for. Raises WorkloadError, or Refused where nothing says how much."""
    from tunetui.core.load import Arrival, Load, WorkloadError, parse_ramp

    rate, ramp, arrival = options.rate, None, options.arrival or "poisson"
    if options.rate is not None and options.concurrency is not None:
        raise WorkloadError("give either --rate or --concurrency, not both")
    if options.concurrency is not None and options.max_in_flight is not None:
        raise WorkloadError("--max-in-flight is for an open loop: --concurrency keeps so many in flight already")
    if options.ramp is not None:
        if options.rate is not None:
            raise WorkloadError("give either --rate or --ramp, not both: the ramp names both rates")
        rate, ramp = parse_ramp(options.ramp)
    elif options.arrival == "ramp":
        raise WorkloadError("a ramp needs its rates: give --ramp FROM:TO, e.g. --ramp 2:20")
    if options.burstiness is not None and options.arrival is None:
        arrival = "gamma"
    if options.burstiness is not None and arrival != "gamma":
        raise WorkloadError("--burstiness goes with gamma arrivals: give --arrival gamma")
    shape = Arrival.POISSON if arrival == "ramp" else Arrival(arrival)
    if rate is None and options.concurrency is None:
        if options.trace is not None:
            return Load(speed=1.0 if options.speed is None else options.speed)
        if default_rps is None:
            raise Refused("how much load? give --rate R, --concurrency C, --ramp FROM:TO or --trace FILE", USAGE)
        rate = default_rps
    if options.speed is not None:
        raise WorkloadError("--speed replays a trace's own times: give --trace, and no rate or concurrency")
    burstiness = 1.0 if options.burstiness is None else options.burstiness
    return Load(rate, options.concurrency, None, shape, burstiness, ramp)


def workload_from(options: argparse.Namespace) -> Workload:
    """The requests asked for. Raises WorkloadError, or Refused for a trace that cannot be read."""
    from tunetui.core.load import WorkloadError
    from tunetui.core.workload import Workload, parse_lengths

    if options.trace is not None and (options.prompt_tokens or options.output_tokens):
        raise WorkloadError("the trace has its own lengths: leave out --prompt-tokens and --output-tokens")
    if options.fit is not None and options.trace is None:
        raise WorkloadError("--fit says what to do with the requests of a trace: give --trace FILE")
    if options.seed < 0:
        raise Refused("--seed must be 0 or more", USAGE)
    if not 0 < options.timeout <= 86_400:
        raise Refused("--timeout must be above 0 and at most 86400 seconds", USAGE)
    if not 0 <= options.retries <= 100:
        raise Refused("--retries must be from 0 to 100", USAGE)
    refuse_counts(options, "max_in_flight")
    return Workload(
        parse_lengths(options.prompt_tokens or "64-512"),
        parse_lengths(options.output_tokens or "32-256"),
        options.seed,
        None if options.trace is None else trace_from(options.trace),
        options.endpoint == "chat",
    )


def refuse_counts(options: argparse.Namespace, *names: str) -> None:
    """Raises Refused for one of these options that is given and is not from 1 to a million."""
    for name in names:
        if (value := getattr(options, name)) is not None and not 1 <= value <= MOST:
            raise Refused(f"--{name.replace('_', '-')} must be from 1 to {MOST}", USAGE)


def trace_from(path: str) -> Trace:
    """The recording at `path`; what was wrong with some of its lines is said on stderr. Raises Refused."""
    import sys

    from tunetui.traces.lines import TraceError
    from tunetui.traces.reading import read_trace

    try:
        trace, reading = read_trace(path)
    except TraceError as error:
        raise Refused(str(error), USAGE) from None
    for line in reading.said():
        print(f"tunetui: {line}", file=sys.stderr)
    return trace


def fit_to(workload: Workload, max_model_len: int | None, policy: str | None) -> Workload:
    """`workload` with no request over the model's length, where that is known; what a trace had to give up is said.

    Raises Refused for lengths that were asked for and do not fit.
    """
    import sys
    from dataclasses import replace

    from tunetui.core.trace import fitted

    if max_model_len is None or workload.longest <= max_model_len:
        return workload
    if workload.trace is None:
        raise Refused(
            f"requests of up to {workload.longest} tokens do not fit the model's {max_model_len}: "
            "lower --prompt-tokens or --output-tokens",
            USAGE,
        )
    trace, counts = fitted(workload.trace, max_model_len, "drop" if policy == "drop" else "clip")
    if not trace.requests:
        raise Refused(
            f"no request of the trace fits the model's {max_model_len} tokens: clip them with --fit clip", USAGE
        )
    what = f"{counts.dropped} dropped" if counts.dropped else f"{counts.clipped} clipped"
    print(f"tunetui: requests of the trace that do not fit the model's {max_model_len} tokens: {what}", file=sys.stderr)
    return replace(workload, trace=trace)
