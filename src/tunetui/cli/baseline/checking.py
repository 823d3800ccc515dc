"""`tunetui baseline check`: does a baseline still hold? It measures the same episode again, and compares.

It judges nothing (`core.holding` does).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunetui.cli.options import SERVER, USAGE, Parser, Refused

if TYPE_CHECKING:
    from tunetui.core.baseline import Baseline
    from tunetui.core.episode import Measurement
    from tunetui.core.holding import Checked
    from tunetui.core.workload import EpisodePlan
    from tunetui.drive.settings import Settings

CODES = {"HOLDS": 0, "DRIFTED": 1, "UNDECIDED": 4, "WORKLOAD CHANGED": 5}

EPILOG = """\
examples:
  tunetui baseline check sessions/llama-20261202        start vLLM with its flags, send its episode again
  tunetui baseline check baseline.toml --url http://127.0.0.1:8000 --json -
  tunetui baseline check baseline.toml --trace today.jsonl --rate 12

HOLDS: the SLO is still met, and no figure is worse by more than the tolerance. DRIFTED: which figure, from what to
what. WORKLOAD CHANGED: today's traffic is not what the baseline was made for: time to tune again.
exit codes: 0 HOLDS, 1 DRIFTED, 4 UNDECIDED, 5 WORKLOAD CHANGED, 2 usage, 3 no server, 130 interrupted.
"""


def parser() -> argparse.ArgumentParser:
    """The options, as `--help` shows them. Parsing raises Refused."""
    made = Parser(
        prog="tunetui baseline check",
        description="Say whether a baseline still holds.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("baseline", help="a session's folder, or its baseline.toml")
    made.add_argument("--url", help="measure this server instead of starting one; how it was started is not looked at")
    made.add_argument("--vllm", metavar="CMD", help="the vLLM command (default: found as tunetui does)")
    made.add_argument("--model", help="a folder or name to start instead of the baseline's")
    made.add_argument("--port", type=int, help="where the server listens (default 8000)")
    made.add_argument("--trace", metavar="FILE", help="today's traffic instead of the baseline's episode")
    made.add_argument("--rate", type=float, metavar="R", help="with --trace: at this rate, not at its own times")
    made.add_argument("--tolerance", type=float, default=15.0, metavar="PERCENT", help="of a figure (default 15)")
    made.add_argument("--yes-load", action="store_true", help="send load to another machine than this")
    made.add_argument("--json", metavar="FILE", help="write the answer as JSON; - prints that alone")
    return made


def main(words: Sequence[str]) -> int:
    """Check as `words` ask for; returns the exit code. Raises Refused."""
    from tunetui.cli.measure import into, refuse_unwritable

    options = parser().parse_args(words[1:])
    if not 0 < options.tolerance < 1000:
        raise Refused("--tolerance is in percent: give more than 0, e.g. 15", USAGE)
    refuse_unwritable(options.json, None)
    baseline = baseline_at(options.baseline)
    settings = settings_of(baseline, options)
    cut = None if options.trace else baseline.episode.get("cut")
    seen, plan = asyncio.run(measured(settings, baseline, cut))
    answer = judged(baseline, seen, plan, options)
    data = figures(baseline, answer)
    if options.json != "-":
        print("\n".join(report(data)))
    if options.json is not None:
        into(options.json, [json.dumps(data, indent=2) + "\n"])
    return CODES[answer.holding.value]


def baseline_at(text: str) -> Baseline:
    """The baseline of a folder or file. Raises Refused."""
    from tunetui.store.baselines import StoreError, read_baseline

    path = Path(text)
    try:
        return read_baseline(path / "baseline.toml" if path.is_dir() else path)
    except StoreError as error:
        raise Refused(str(error), USAGE) from None


def settings_of(baseline: Baseline, options: argparse.Namespace) -> Settings:
    """The session that measures it. Raises Refused."""
    from tunetui.cli import tune
    from tunetui.cli.baseline.starting import merged, words_of
    from tunetui.cli.measure import is_this_machine

    if "trace" in baseline.episode and options.trace is None:
        raise Refused("this baseline's episode replays a recording that is not in it: give it with --trace", USAGE)
    if options.url and not (options.yes_load or is_this_machine(options.url)):
        raise Refused(f"{options.url} may be somebody's production: give --yes-load to send load there", USAGE)
    ours, flags = words_of(baseline)
    given = [f"--{name}={value}" for name in ("url", "vllm", "model", "port", "trace", "rate")
             if (value := getattr(options, name)) is not None]  # fmt: skip
    asked = tune.parser().parse_args(merged(ours, given))
    return replace(tune.settings_from(asked, [] if options.url else flags), follows_seqs=False)


async def measured(settings: Settings, baseline: Baseline, cut: int | None) -> tuple[Measurement, EpisodePlan]:
    """The episode, measured again; a server that is started for it is stopped. Raises Refused."""
    from tunetui.cli.measure import ProgressLine
    from tunetui.cli.sweep import unless
    from tunetui.drive.checking import CheckError, measured_on_a_start, measured_there
    from tunetui.drive.driver import Driver
    from tunetui.drive.engine import port_refusal

    interrupted = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(name, interrupted.set)
    try:
        if settings.attached:
            progress = ProgressLine()
            progress.begin(str(settings.load))
            try:
                found: tuple[Measurement, EpisodePlan] = await unless(
                    interrupted, measured_there(settings, cut, progress.show)
                )
            finally:
                progress.end()
            return found
        if refusal := port_refusal(settings.host, settings.port):
            raise Refused(refusal, SERVER)
        print(f"starting {settings.model} as it was accepted", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="tunetui-check-") as folder:
            driver = Driver(settings, Path(folder))
            try:
                found = await unless(interrupted, measured_on_a_start(driver, baseline.point, cut))
            finally:
                await driver.close()
                left = await asyncio.to_thread(driver.stop_server)
                if left:
                    pids = ", ".join(map(str, left))
                    print(f"tunetui: these processes would not end: {pids}", file=sys.stderr)
        return found
    except CheckError as error:
        raise Refused(str(error), SERVER) from None


def judged(baseline: Baseline, seen: Measurement, plan: EpisodePlan, options: argparse.Namespace) -> Checked:
    """What is said of it."""
    from tunetui.core.holding import checked
    from tunetui.core.workload import features

    moved: tuple[str, ...] = ()
    if options.trace is not None:
        from tunetui.core.nearness import out_of_range

        moved = out_of_range(baseline.workload, features(plan))
    return checked(baseline, seen, options.tolerance / 100, moved)


def figures(baseline: Baseline, answer: Checked) -> dict[str, Any]:
    """The answer as JSON holds it."""
    return {
        "answer": answer.holding.value,
        "verdict": answer.verdict.value,
        "baseline": baseline.created,
        "model_id": baseline.model["name"],
        "reasons": list(answer.reasons),
        "figures": [
            {"name": one.name, "unit": one.unit, "was": one.was, "now": round(one.now, 3), "worse": one.worse}
            for one in answer.figures
        ],
    }


def report(data: dict[str, Any]) -> list[str]:
    """The answer in lines of text."""
    lines = [f"{data['answer']}   {data['model_id']}, baseline of {data['baseline'] or 'an unknown day'}", ""]
    for one in data["figures"]:
        change = f"{one['now'] / one['was'] - 1:+.0%}"
        mark = "  worse" if one["worse"] else ""
        figures = f"{one['was']:>10,.4g} -> {one['now']:>10,.4g} {one['unit']:<6} {change:>6}"
        lines.append(f"  {one['name']:<12} {figures}{mark}")
    lines += ["", f"  SLO: {data['verdict']}", *(f"  {reason}" for reason in data["reasons"])]
    return lines
