"""`tunetui sweep`: the tuning guide's whole procedure without a screen; progress on stderr, the answer on stdout.

It plans no trial (`core.sweep` does) and judges none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunetui.cli.options import SERVER, USAGE, Parser, Refused
from tunetui.cli.tune import add_session_options, session_folder, settings_from, with_baseline

if TYPE_CHECKING:
    from tunetui.core.progress import Progress
    from tunetui.core.tasks import Outcome
    from tunetui.drive.driver import Driver
    from tunetui.drive.settings import Settings
    from tunetui.drive.sweep_plan import Asked
    from tunetui.drive.sweeping import Sweeping

FAIL, INTERRUPTED = 1, 130

EPILOG = """\
examples:
  tunetui sweep --demo case --virtual --json -     the guide's case on a simulated engine, in seconds
  tunetui sweep --demo 7b-24gb --budget 10
  tunetui sweep --model ./llama --slo ttft:600 tpot:80 --budget 30 -- --dtype bfloat16
  tunetui sweep --model ./llama --fixed-load --rate 12 --knobs max-num-seqs,max-num-batched-tokens

Starts the server, finds the point with the highest request rate inside the SLO, confirms it on a freshly started server
with exactly its flags, and saves it as a baseline.
exit codes: 0 confirmed, 1 no point meets the SLO or it did not hold, 2 usage, 3 no server, 130 interrupted.
"""


def parser() -> argparse.ArgumentParser:
    """The options, as `--help` shows them. Parsing raises Refused."""
    made = Parser(
        prog="tunetui sweep",
        usage="tunetui sweep --model MODEL [options] [-- vllm flags]\n       tunetui sweep --demo [PROFILE] [options]",
        description="Find the settings that serve the most traffic inside the SLO, by itself.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    sweep = made.add_argument_group("sweep")
    sweep.add_argument("--budget", type=float, metavar="MINUTES", help="for all of it, the confirmation included")
    sweep.add_argument("--knobs", metavar="K,K,...", help="the flags that may be stepped (default all)")
    sweep.add_argument(
        "--fixed-load", action="store_true", help="the largest margin at the given load, not the highest request rate"
    )
    sweep.add_argument(
        "--virtual", action="store_true", help="with --demo: in virtual time, the whole sweep in seconds"
    )
    sweep.add_argument("--json", metavar="FILE", help="write the answer as JSON; - prints that alone")
    sweep.add_argument("--out", metavar="DIR", help="the same as --sessions-dir")
    add_session_options(made)
    return made


def main(words: Sequence[str]) -> int:
    """Sweep as `words` ask for; returns the exit code. Raises Refused."""
    from tunetui.cli.measure import refuse_unwritable

    words = with_baseline(words)
    cut = words.index("--") if "--" in words else len(words)
    options = parser().parse_args(words[:cut])
    if options.url:
        raise Refused("a sweep steps the knobs, which an attached server does not let: give --model or --demo", USAGE)
    if options.virtual and options.demo is None:
        raise Refused("--virtual is for a simulated engine: give --demo", USAGE)
    if options.fixed_load and options.rate is None and options.concurrency is None and options.trace is None:
        raise Refused("--fixed-load ranks points at a load: give --rate R, --concurrency C or --trace FILE", USAGE)
    given = options.episode_requests
    if options.out is not None:
        options.sessions_dir = type(options.sessions_dir)(options.out)
    settings = settings_from(options, words[cut + 1 :])
    asked = asked_for(options, settings, given)
    refuse_unwritable(options.json, None)
    run = run_virtual if options.virtual else run_live
    return run(options, settings, asked)


def asked_for(options: argparse.Namespace, settings: Settings, requests: int | None) -> Asked:
    """What the sweep is asked for. Raises Refused."""
    from tunetui.core.workload import default_episode_requests
    from tunetui.drive.sweep_plan import Asked

    if options.budget is not None and not 0 < options.budget <= 10_000:
        raise Refused("--budget is in minutes: give more than 0 and at most 10000", USAGE)
    if not settings.slo.objectives:
        raise Refused("a sweep needs an SLO: give --slo, e.g. --slo ttft:600 tpot:80", USAGE)
    return Asked(
        requests=requests or default_episode_requests(settings.slo.percentile),
        fixed_load=options.fixed_load,
        knobs=knobs_of(options.knobs),
        budget_s=math.inf if options.budget is None else options.budget * 60,
        rate_rps=options.rate,
    )


def knobs_of(text: str | None) -> frozenset[Any]:
    """Read --knobs. Raises Refused."""
    from tunetui.core.knobs import Knob

    if text is None:
        return frozenset(Knob)
    names = {knob.value: knob for knob in Knob}
    unknown = [word for word in text.split(",") if word not in names]
    if unknown:
        raise Refused(f"no knob {unknown[0]!r}: give some of {', '.join(names)}", USAGE)
    return frozenset(names[word] for word in text.split(","))


# -- in virtual time ---------------------------------------------------------------------------------------------------


def run_virtual(options: argparse.Namespace, settings: Settings, asked: Asked) -> int:
    """The whole sweep on the simulated engine, without a server. Raises Refused."""
    from tunetui.demo.profiles import PROFILES
    from tunetui.drive.settings import ceiling_of, first_point
    from tunetui.drive.sweep_plan import sweeping
    from tunetui.drive.virtual_rig import VirtualRig

    cards = settings.cards or ()
    ceiling = ceiling_of(settings, cards)
    start = first_point(settings, ceiling, cards)
    rig = VirtualRig(PROFILES[options.demo].machine, ceiling, start, settings.workload, settings.slo)
    if rig.facts.num_blocks <= rig.facts.blocks_per_max_request:
        raise Refused("the KV cache of this demo does not hold one request of the model's length", SERVER)
    line = ProgressLines()
    found = sweeping(asked, settings, rig.facts, start, rig.mean_e2el_s, rig, line.show)
    outcome = asyncio.run(found.run())
    data = answer(settings, found, outcome) | {
        "virtual": True,
        "engine_s": round(rig.spent.total_s, 1),
        "starting_s": rig.spent.starting_s,
        "starts": rig.spent.starts,
    }
    write(options, data)
    return FAIL if outcome.reason else 0


# -- on a server -------------------------------------------------------------------------------------------------------


def run_live(options: argparse.Namespace, settings: Settings, asked: Asked) -> int:
    """Start the server, sweep, save the baseline, stop the server, whatever ends it. Raises Refused."""
    from tunetui.drive.driver import Driver

    driver = Driver(replace(settings, follows_seqs=False), session_folder(settings))
    try:
        data, code = asyncio.run(swept(driver, asked))
    finally:
        left = driver.stop_server()
        if left:
            print(f"tunetui: these processes would not end: {', '.join(map(str, left))}", file=sys.stderr)
        with suppress(OSError):
            driver.folder.rmdir()  # it stays where it holds something
    write(options, data)
    return code


async def swept(driver: Driver, asked: Asked) -> tuple[dict[str, Any], int]:
    """The answer and the exit code. Raises Refused."""
    from tunetui.core.session import Phase
    from tunetui.drive.live_rig import LiveRig, RigError
    from tunetui.drive.sweep_plan import sweeping

    lines = ProgressLines()
    lines.say(f"starting {driver.settings.model}")
    interrupted = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(name, interrupted.set)
    try:
        await unless(interrupted, driver.start())
        state = driver.state
        if state.phase is not Phase.LIVE or state.facts is None or state.point is None:
            raise Refused("  ".join(state.failure[:2]) or "the server did not start", SERVER)
        rig = LiveRig(driver)
        found = sweeping(asked, driver.settings, state.facts, state.point, driver.loop.mean_e2el_s, rig, lines.show)
        try:
            outcome = await unless(interrupted, found.run())
        except RigError as error:
            raise Refused(str(error), SERVER) from None
        if outcome.point is not None and not outcome.reason:
            driver.accept(confirm=False)
        data = answer(driver.settings, found, outcome) | {"baseline": driver.state.baseline_path or None}
        return data, FAIL if outcome.reason else 0
    finally:
        await driver.close()


async def unless(interrupted: asyncio.Event, work: Any) -> Any:
    """What `work` returns. Raises Refused where the interrupt comes first."""
    working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(interrupted.wait())
    await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not working.done():
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        raise Refused("interrupted: the server is stopped", INTERRUPTED)
    return await working


# -- what is said ------------------------------------------------------------------------------------------------------


def answer(settings: Settings, found: Sweeping, outcome: Outcome) -> dict[str, Any]:
    """The answer as JSON holds it: the accepted point and its evidence, every trial, and what was left out and why."""
    from tunetui.core.knobs import knob_flags

    def flags(point: Any) -> dict[str, Any]:
        return knob_flags(point, settings.memory_flag)

    def figures(seen: Any) -> dict[str, Any]:
        return {
            "verdict": seen.verdict.value,
            "ttft_ms": None if seen.ttft_s is None else round(seen.ttft_s * 1000, 2),
            "tpot_ms": None if seen.tpot_s is None else round(seen.tpot_s * 1000, 3),
            "output_throughput": round(seen.output_tokens_per_s, 1),
            "judged": seen.judged,
            "overload": seen.overload,
        }

    trials = [
        {"knobs": flags(s.trial.point), "load": str(s.trial.load), "why": s.trial.why, **figures(s.measurement)}
        for s in found.trials
    ]
    left_out = [
        {
            "knobs": flags(line.point),
            "stage": line.stage.value,
            "why": line.text,
            "predicted_rps": line.rate_rps or None,
        }
        for line in found.progress.lines
        if line.seen is None and line.point is not None
    ]
    return {
        "model_id": settings.model,
        **({"simulated": True} if settings.simulated else {}),
        "slo": str(settings.slo),
        "percentile": settings.slo.percentile,
        "workload": str(settings.workload),
        "verdict": "FAIL" if outcome.reason else "PASS",
        "reason": outcome.reason,
        "knobs": None if outcome.point is None else flags(outcome.point),
        "accepted_load": None if outcome.load is None else str(outcome.load),
        "accepted_rps": None if outcome.load is None else outcome.load.rate_rps,
        "capacity_rps": round(outcome.capacity_rps, 3) or None,
        "confirmations": [figures(seen) for seen in outcome.confirmed],
        "trials": trials,
        "left_out": left_out,
        "seconds": round(found.progress.elapsed_s, 1),
    }


def write(options: argparse.Namespace, data: dict[str, Any]) -> None:
    """The answer, where it is wanted. Raises Refused."""
    from tunetui.cli.measure import into

    if options.json != "-":
        print("\n".join(report(data)))
    if options.json is not None:
        into(options.json, [json.dumps(data, indent=2) + "\n"])


def report(data: dict[str, Any]) -> list[str]:
    """The answer in lines of text."""
    lines = [("SIMULATED " if data.get("simulated") else "") + data["model_id"], f"SLO {data['slo']}"]
    if data["knobs"] is not None:
        lines += ["", *(f"  {flag(name, value)}" for name, value in data["knobs"].items()), ""]
    if data["reason"]:
        lines.append(f"FAIL: {data['reason']}")
    else:
        lines.append(f"confirmed at {data['accepted_load']}, {len(data['confirmations'])} episodes on a fresh server")
        if data["capacity_rps"]:
            lines.append(f"capacity {data['capacity_rps']:.2f} req/s")
    lines.append(f"{len(data['trials'])} trials, {len(data['left_out'])} points left out, {data['seconds']:.0f} s")
    if data.get("baseline"):
        lines.append(f"baseline: {data['baseline']}")
    return lines


def flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"


class ProgressLines:
    """Progress on stderr: one line a trial, and one a stage."""

    def __init__(self) -> None:
        self._lines = 0

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def show(self, progress: Progress) -> None:
        """Say what is new."""
        for line in progress.lines[self._lines :]:
            if line.seen is not None:
                self.say(f"{progress.elapsed_s:6.0f} s  {line_of(line)}")
        self._lines = len(progress.lines)


def line_of(line: Any) -> str:
    """A trial in one line of 80 columns at most."""
    point, seen = line.point, line.seen.measurement
    chunk = "chunked" if point.chunked_prefill else "whole"
    ttft = "-" if seen.ttft_s is None else f"{seen.ttft_s * 1000:.0f}"
    tpot = "-" if seen.tpot_s is None else f"{seen.tpot_s * 1000:.1f}"
    what = f"{point.max_num_seqs} {point.max_num_batched_tokens} {chunk} at {line.seen.trial.load}"
    return f"{what}: {seen.verdict.value}, TTFT {ttft} ms, TPOT {tpot} ms"
