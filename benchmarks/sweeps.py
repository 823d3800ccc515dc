"""Sweeps over random machines, workloads and objectives in virtual time, beside the best point of a small grid.

    uv run python benchmarks/sweeps.py [--machines N] [--truth]

The truth is what long runs of the same machine say: `--truth` computes what is missing of the grid's, and keeps it in
`benchmarks/data/sweep_truth.json`; without it that file is read. The shortfall of a sweep is how far the capacity of
the point it accepted lies below that of the grid's best point, both from long runs of the same requests; an accepted
point fails where long runs of other seeds do not meet the SLO at the rate it was accepted for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from random_machines import CEILING, START, TRUTH_SEED, Setting, grid, machine_times, noisy, setting_of, settings

from tunetui.core.knobs import Point
from tunetui.core.load import Load
from tunetui.core.slo import Verdict
from tunetui.drive.predict_capacity import virtual_capacity
from tunetui.drive.settings import Settings
from tunetui.drive.sweep_plan import Asked, sweeping
from tunetui.drive.virtual_episode import virtual_episode
from tunetui.drive.virtual_rig import VirtualRig

TRUTH = Path(__file__).parent / "data" / "sweep_truth.json"
REQUESTS = 4000  # of a long run
CHECKS, CHECK_REQUESTS = 4, 8000  # long runs of other seeds at the accepted rate, judged together


def long_workload(setting: Setting, seed: int = TRUTH_SEED) -> Any:
    return replace(setting.workload, seed=setting.workload.seed + seed)


def capacity_of(setting: Setting, point: Point, above_rps: float = 0.0) -> float:
    """Requests per second over a long run; where it is clearly below `above_rps`, about so."""
    workload = long_workload(setting)
    return virtual_capacity(
        machine_times(setting), setting.facts, point, workload, Load(1.0), setting.slo, above_rps, REQUESTS
    ).rate_rps


def truth_of(setting: Setting) -> dict[str, Any]:
    """The grid's best point: each is first asked whether it holds a little more than the best one so far."""
    best, best_rps = None, 0.0
    for point in grid(setting):
        if best is None or holds(setting, point, best_rps * 1.01, TRUTH_SEED, REQUESTS):
            rate_rps = capacity_of(setting, point)
            if rate_rps > best_rps:
                best, best_rps = point, rate_rps
    return {"number": setting.number, "best_rps": best_rps, "best": None if best is None else asdict(best)}


def holds(setting: Setting, point: Point, rate_rps: float, seed: int, requests: int) -> bool:
    run = virtual_episode(
        machine_times(setting), setting.facts, point, long_workload(setting, seed), Load(rate_rps), setting.slo,
        requests // 10, requests, until_certain=True, report_s=1.0,
    )  # fmt: skip
    return run.measurement.verdict is Verdict.PASS


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep came to. `shortfall` of capacity, 0.03 is 3 %."""

    number: int
    point: Point | None
    accepted_rps: float
    shortfall: float
    fails: bool
    engine_s: float
    starts: int
    trials: int
    took_s: float
    reason: str


def sweep_of(number: int, best_rps: float) -> Swept:
    """One sweep on a noisy machine, and what long runs say of its answer."""
    setting = setting_of(number)
    began_s = time.perf_counter()
    rig = VirtualRig(setting.machine, CEILING, START, setting.workload, setting.slo, times=noisy(setting, 1))
    asked = Asked(requests=400)
    session = Settings(
        slo=setting.slo, load=Load(1.0), workload=setting.workload, episode_requests=400, sessions_dir=Path(),
        simulated=True,
    )  # fmt: skip
    found = sweeping(asked, session, rig.facts, START, rig.mean_e2el_s, rig, lambda progress: None)
    outcome = asyncio.run(found.run())
    took_s = time.perf_counter() - began_s
    spent = rig.spent
    if outcome.point is None or outcome.reason:
        return Swept(number, None, 0.0, 1.0, False, spent.total_s, spent.starts, spent.trials, took_s, outcome.reason)
    rate_rps = outcome.load.rate_rps if outcome.load and outcome.load.rate_rps else 0.0
    capacity_rps = capacity_of(setting, outcome.point)
    fails = not_held(setting, outcome.point, rate_rps)
    shortfall = 1 - capacity_rps / best_rps
    return Swept(
        number, outcome.point, rate_rps, shortfall, fails, spent.total_s, spent.starts, spent.trials, took_s, ""
    )


def not_held(setting: Setting, point: Point, rate_rps: float) -> bool:
    """Whether long runs miss an objective together at the accepted rate."""
    missed = np.zeros(len(setting.slo.objectives))
    total = 0
    for seed in range(1, CHECKS + 1):
        run = virtual_episode(
            machine_times(setting), setting.facts, point, long_workload(setting, TRUTH_SEED + seed), Load(rate_rps),
            setting.slo, CHECK_REQUESTS // 10, CHECK_REQUESTS, report_s=1.0,
        )  # fmt: skip
        if run.measurement.overload:
            return True
        missed += [o.missed for o in run.measurement.objectives]
        total += CHECK_REQUESTS
    return bool((missed > (1 - setting.slo.share) * total).any())


def keep_truth(pool: ProcessPoolExecutor, wanted: list[Setting]) -> None:
    """Add to the file what is missing in it, one after the other: it may be ended, and gone on with."""
    known = {truth["number"]: truth for truth in json.loads(TRUTH.read_text())} if TRUTH.exists() else {}
    missing = [setting for setting in wanted if setting.number not in known]
    for done in as_completed([pool.submit(truth_of, setting) for setting in missing]):
        known[done.result()["number"]] = done.result()
        TRUTH.write_text(json.dumps([known[number] for number in sorted(known)], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--truth", action="store_true", help="compute the grid's truth and keep it")
    options = parser.parse_args()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        if options.truth:
            keep_truth(pool, settings(options.machines))
            return
        truths = json.loads(TRUTH.read_text())[: options.machines]
        known = [t for t in truths if t["best_rps"] > 0]
        print(f"{len(known)} machines ({len(truths) - len(known)} more on which no point of the grid meets the SLO)")
        swept = list(pool.map(sweep_of, [t["number"] for t in known], [t["best_rps"] for t in known]))
    report(swept)


def report(swept: list[Swept]) -> None:
    accepted = [s for s in swept if s.point is not None]
    short = np.array([s.shortfall for s in swept])
    print(f"accepted {len(accepted)}, of which {sum(s.fails for s in accepted)} fail over long runs at their rate "
          f"({sum(s.fails for s in accepted) / max(len(accepted), 1):.1%}, asked: at most 5 %)")  # fmt: skip
    print(f"shortfall of capacity: median {np.median(short):.1%} (asked: under 3 %), "
          f"P95 {np.percentile(short, 95):.1%} (asked: under 10 %), largest {short.max():.1%}")  # fmt: skip
    rates = np.array([s.accepted_rps for s in accepted])
    engine_s = np.array([s.engine_s for s in swept])
    print(f"engine time with 60 s starts: median {np.median(engine_s) / 60:.1f} min, P95 "
          f"{np.percentile(engine_s, 95) / 60:.1f} min; {np.mean([s.starts for s in swept]):.1f} starts and "
          f"{np.mean([s.trials for s in swept]):.1f} trials on average; "
          f"rates {rates.min():.2f}-{rates.max():.1f} req/s")  # fmt: skip
    print(f"computing took {np.median([s.took_s for s in swept]):.1f} s a sweep")
    for one in sorted(swept, key=lambda s: -s.shortfall)[:8]:
        print(f"  machine {one.number}: shortfall {one.shortfall:.1%} {one.point} {one.reason}")


if __name__ == "__main__":
    main()
