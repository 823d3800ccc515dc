"""The sweep beside two other ways to the best settings, all on the same simulated engine in virtual time.

    uv run python benchmarks/sweep_vs_peers.py [--machines N] [--seeds N] [--no-case]

  sweep  ours, as `sweeps.py` runs it: its confirmation on a fresh server counts too. `search` is the part of it before
         that, for the other ways confirm nothing.
  grid   a start for every point of `random_machines.grid`, and the request rate found as vLLM's own
         benchmarks/auto_tune/auto_tune.sh finds it: all slots taken give a throughput, and from there the rate is
         lowered step by step until the SLO is met. Its episodes are of 500 requests, and go to their end. That script's
         own are of 100 as it is shipped: `grid/100` has those, cheaper and surer to take luck for capacity.
  TPE    Optuna's sampler over max-num-seqs, the token budget and chunked prefill: a start for every trial, and the edge
         of its point found by the sweep's own search (bracketing, then bisection to 5 %), with its early endings, in
         episodes of 500 requests. When it meets a good point is luck, so several seeds are tried, and the one of median
         engine time is shown.

Engine time is virtual: starts at 60 s each, and episodes with the warm-ups. The capacity of the point that a way ends
with is told by long runs of requests that none of them has seen, on a server with exactly its flags and with even step
times; the ways themselves run on step times with the same noise.

The grid is counted as a whole. TPE is counted up to the end of the trial with which its best point so far, by its own
figures, first had a long-run capacity of 98 % of the sweep's: a long run tells a capacity within 2 %, from below, so
equal ones can differ by that much. What does not get there in its trials is counted to its end, and marked with `>=`.
Nobody who runs TPE knows that moment: this is the least that it takes, not what it would be run for.

The other ways are not held back: a point that vLLM would refuse, or that was tried before, takes TPE no engine time
(it is told 0, or the value of before); its searches begin at the best capacity so far; the grid asks no SLO of its
infinite rate, so it ends at a rate that arrivals at random have held. What helps the sweep: it moves two knobs more
than they do (the threshold for long prefills, and memory; where it ends with one moved, its line shows it), and its
episodes are of 400 requests by default, not of 500. It begins at a given point, TPE's first trials are at random.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import optuna
from random_machines import CEILING, START, Setting, grid, machine_times, noisy, settings
from sweeps import REQUESTS as LONG_RUN
from sweeps import long_workload

from tunetui.core.candidates import LEAST_TOKENS, seqs_ladder, token_budgets
from tunetui.core.edge import Length, Seen, Trial, find_edge
from tunetui.core.knobs import Point, start_refusal
from tunetui.core.load import Load
from tunetui.core.slo import Metric, Objective, Slo
from tunetui.demo import case
from tunetui.demo.virtual import StepTimes
from tunetui.drive.predict_capacity import virtual_capacity
from tunetui.drive.settings import Settings
from tunetui.drive.sweep_plan import WARM_STREAMS, Asked, sweeping
from tunetui.drive.virtual_rig import Spent, VirtualRig, virtual_facts

SWEEP_REQUESTS = 400  # as `sweeps.py` has it
REQUESTS = 500  # of an episode of the others
SHORT_REQUESTS = 100  # of auto_tune's own, once it lowers the rate
# auto_tune lowers the rate by 1 req/s. That is 1 % of what some of the random machines hold, and twice what others do.
LOWER_BY = 0.05  # of the throughput
TRIALS = 40  # of TPE
EQUAL = 0.98  # of the sweep's capacity
GRID_BAR, TPE_BAR = 10.0, 3.0  # times the sweep's engine time that the others must take
CASE_NUMBER = 1_000_000  # no random machine has it


@dataclass(frozen=True, slots=True)
class Problem:
    """A setting, and the point that the sweep starts at."""

    name: str
    setting: Setting
    start: Point = START


@dataclass(frozen=True, slots=True)
class Found:
    """What one way came to: its point, the long-run capacity of that, and where its engine time went. `short`: it
    never got as far as the sweep did."""

    way: str
    point: Point | None
    capacity_rps: float
    spent: Spent
    short: bool = False


class ConfirmingRig(VirtualRig):
    """Knows what had been spent when the confirmation began."""

    searched: Spent | None = None

    async def confirm(self, point: Point) -> None:
        self.searched = replace(self.spent)
        await super().confirm(point)


class Judge:
    """Long-run capacities of a setting's points, each on a server with exactly its flags, and asked for once."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._known: dict[Point, float] = {}

    def capacity_rps(self, point: Point | None) -> float:
        if point is None:
            return 0.0
        if point not in self._known:
            facts = virtual_facts(self._setting.machine, point)  # a smaller budget leaves more to the KV cache
            workload = long_workload(self._setting)
            self._known[point] = virtual_capacity(
                machine_times(self._setting), facts, point, workload, Load(1.0), self._setting.slo, requests=LONG_RUN
            ).rate_rps
        return self._known[point]


def problems(machines: int, with_case: bool) -> Iterator[Problem]:
    if with_case:
        slo = Slo((Objective(Metric.TTFT, case.TTFT_S), Objective(Metric.TPOT, case.TPOT_S)), 95)
        start = replace(START, max_num_batched_tokens=4096, chunked_prefill=False)
        yield Problem("case", Setting(CASE_NUMBER, case.MACHINE, case.WORKLOAD, slo), start)
    for setting in settings(machines):
        yield Problem(f"machine {setting.number}", setting)


# -- the three ways ----------------------------------------------------------------------------------------------------


def by_sweep(problem: Problem, judge: Judge) -> tuple[Found, Found]:
    """The whole sweep, and its part before the confirmation."""
    setting = problem.setting
    rig = ConfirmingRig(
        setting.machine, CEILING, problem.start, setting.workload, setting.slo, times=noisy(setting, 1)
    )  # fmt: skip
    session = Settings(
        slo=setting.slo, load=Load(1.0), workload=setting.workload, episode_requests=SWEEP_REQUESTS,
        sessions_dir=Path(), simulated=True,
    )  # fmt: skip
    asked = Asked(requests=SWEEP_REQUESTS)
    found = sweeping(asked, session, rig.facts, problem.start, rig.mean_e2el_s, rig, lambda progress: None)
    outcome = asyncio.run(found.run())
    point = None if outcome.reason else outcome.point
    whole = Found("sweep", point, judge.capacity_rps(point), rig.spent)
    return whole, replace(whole, way="search", spent=rig.searched or rig.spent)


def by_grid(problem: Problem, judge: Judge, requests: int, way: str) -> Found:
    """`requests` are those of an episode with a lowered rate."""
    setting, times, spent = problem.setting, noisy(problem.setting, 2), Spent()
    best, best_rps = None, 0.0
    for point in grid(setting):
        rig = started_at(setting, times, point)
        rate_rps = lowered_rate(rig, point, requests)
        spent = both(spent, rig.spent)
        if rate_rps > best_rps:
            best, best_rps = point, rate_rps
    return Found(way, best, judge.capacity_rps(best), spent)


def lowered_rate(rig: VirtualRig, point: Point, requests: int) -> float:
    """The first rate below the throughput that meets the SLO; 0 where none does."""
    full = Trial(point, Load(concurrency=point.max_num_seqs), REQUESTS, cut=point.max_num_seqs, whole=True)
    throughput_rps = measured(rig, full).measurement.requests_per_s
    for step in range(round(1 / LOWER_BY)):
        rate_rps = throughput_rps * (1 - step * LOWER_BY)
        if measured(rig, Trial(point, Load(rate_rps), requests, cut=0, whole=True)).passed:
            return rate_rps
    return 0.0


def by_tpe(problem: Problem, judge: Judge, sweep_rps: float, seed: int) -> Found:
    """Until its best point is as good as the sweep's, or its trials are used up."""
    setting, times, spent = problem.setting, noisy(problem.setting, 3 + seed), Spent()
    sampler = optuna.samplers.TPESampler(seed=1000 * seed + setting.number)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    told: dict[Point, float] = {}
    best, best_rps = None, 0.0
    for _ in range(TRIALS):
        trial = study.ask()
        point = suggested(trial, setting)
        if point not in told and start_refusal(point, setting.facts):
            told[point] = 0.0
        if point not in told:
            rig = started_at(setting, times, point)
            told[point] = edge_rps(rig, point, best_rps)
            spent = both(spent, rig.spent)
        study.tell(trial, told[point])
        if told[point] > best_rps:
            best, best_rps = point, told[point]
            if judge.capacity_rps(best) >= EQUAL * sweep_rps:
                return Found("TPE", best, judge.capacity_rps(best), spent)
    return Found("TPE", best, judge.capacity_rps(best), spent, short=True)


def suggested(trial: optuna.trial.Trial, setting: Setting) -> Point:
    """By places on the sweep's ladders: so the sampler knows which values are neighbours."""
    seqs, tokens = ladders(setting)
    return replace(
        CEILING,
        max_num_seqs=seqs[trial.suggest_int("max-num-seqs", 0, len(seqs) - 1)],
        max_num_batched_tokens=tokens[trial.suggest_int("tokens", 0, len(tokens) - 1)],
        chunked_prefill=trial.suggest_categorical("chunked", [True, False]),
    )


def ladders(setting: Setting) -> tuple[list[int], list[int]]:
    return seqs_ladder(setting.facts), sorted(token_budgets(LEAST_TOKENS, setting.facts))


def edge_rps(rig: VirtualRig, point: Point, near_rps: float) -> float:
    """The capacity of the point that the rig was started at. `near_rps`: where to look first; 0: as the sweep does."""
    guess_rps = near_rps or min(WARM_STREAMS, point.max_num_seqs) / rig.mean_e2el_s
    plan = find_edge(point, guess_rps, Length(REQUESTS, rig.mean_e2el_s))
    trial = next(plan)
    while True:
        try:
            trial = plan.send(measured(rig, trial))
        except StopIteration as end:
            return float(end.value.capacity_rps)


def started_at(setting: Setting, times: StepTimes, point: Point) -> VirtualRig:
    """A server with exactly the flags of `point`."""
    return VirtualRig(setting.machine, point, point, setting.workload, setting.slo, times=times)


def measured(rig: VirtualRig, trial: Trial) -> Seen:
    seen, _ = asyncio.run(rig.measure(trial))
    return seen


def both(one: Spent, other: Spent) -> Spent:
    return Spent(
        one.starting_s + other.starting_s, one.serving_s + other.serving_s,
        one.starts + other.starts, one.trials + other.trials,
    )  # fmt: skip


# -- what is said ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compared:
    """The ways in one setting; `tpe` by engine time, one for each seed."""

    problem: Problem
    sweep: Found
    search: Found
    grid: Found
    short_grid: Found
    tpe: list[Found]

    @property
    def median_tpe(self) -> Found:
        return self.tpe[len(self.tpe) // 2]


def compared(problem: Problem, seeds: int) -> Compared:
    judge = Judge(problem.setting)
    sweep, search = by_sweep(problem, judge)
    grids = by_grid(problem, judge, REQUESTS, "grid"), by_grid(problem, judge, SHORT_REQUESTS, "grid/100")
    tpe = [by_tpe(problem, judge, sweep.capacity_rps, seed) for seed in range(seeds)]
    return Compared(problem, sweep, search, *grids, sorted(tpe, key=lambda found: found.spent.total_s))


def table(one: Compared, took_s: float) -> str:
    setting = one.problem.setting
    lines = [
        f"{one.problem.name}: {setting.workload.prompt} prompt and {setting.workload.output} output tokens, "
        f"P{setting.slo.percentile} {setting.slo} ({took_s:.0f} s of computing)",
        f"  {'':8}{'engine min':>11}{'x sweep':>9}{'starts':>8}{'their min':>11}{'episodes':>10}{'their min':>11}"
        f"{'capacity':>10}{'of sweep':>10}  point",
    ]
    for found in (one.sweep, one.search, one.grid, one.short_grid, one.median_tpe):
        spent, least = found.spent, ">=" if found.short else ""
        times, share = spent.total_s / one.sweep.spent.total_s, found.capacity_rps / (one.sweep.capacity_rps or 1.0)
        lines.append(
            f"  {found.way:8}{least + format(spent.total_s / 60, '.1f'):>11}{least + format(times, '.1f'):>9}"
            f"{spent.starts:>8}{spent.starting_s / 60:>11.1f}{spent.trials:>10}{spent.serving_s / 60:>11.1f}"
            f"{found.capacity_rps:>10.2f}{share:>10.1%}  {shown(found.point)}"
        )
    each = ", ".join(f"{'>=' if f.short else ''}{f.spent.total_s / 60:.1f}" for f in one.tpe)
    return "\n".join([*lines, f"  TPE's engine minutes with each seed: {each}"])


def shown(point: Point | None) -> str:
    if point is None:
        return "none"
    words = [f"{point.max_num_seqs} x {point.max_num_batched_tokens}", "chunked" if point.chunked_prefill else "whole"]
    if point.long_prefill_token_threshold:
        words.append(f"threshold {point.long_prefill_token_threshold}")
    if point.memory != CEILING.memory:
        words.append(f"memory {point.memory:g}")
    return " ".join(words)


def summary(results: list[Compared]) -> str:
    found = [one for one in results if one.sweep.capacity_rps]
    missed = len(results) - len(found)
    lost = sum(not one.sweep.capacity_rps and one.grid.capacity_rps > 0 for one in results)
    head = f"{len(results)} settings; in {missed} the sweep accepted no point (the grid found one in {lost} of these)"
    if not found:
        return head
    lines = [head, "engine time by the sweep's, medians of the settings in which it accepted a point:"]
    lines += summed_up("grid", found, [one.grid for one in found], GRID_BAR)
    lines += summed_up("grid/100", found, [one.short_grid for one in found], GRID_BAR)
    lines += summed_up("TPE", found, [one.median_tpe for one in found], TPE_BAR)
    runs = [run for one in found for run in one.tpe]
    short = sum(run.short for run in runs)
    lines.append(f"  {short} of {len(runs)} runs of TPE never got to {EQUAL:.0%} of its capacity")
    return "\n".join([*lines, where_it_went(found)])


def summed_up(way: str, results: list[Compared], others: list[Found], bar: float) -> list[str]:
    least = ">=" if any(other.short for other in others) else ""
    shares = [other.capacity_rps / one.sweep.capacity_rps for one, other in zip(results, others, strict=True)]
    lines = []
    for asked, ours in (
        (f"asked: at least {bar:g}", [one.sweep for one in results]),
        ("before its confirmation", [one.search for one in results]),
    ):
        ratios = [other.spent.total_s / own.spent.total_s for other, own in zip(others, ours, strict=True)]
        lines.append(
            f"  {way:9}{least}{median(ratios):.1f} ({asked}), from {min(ratios):.1f} to {max(ratios):.1f}; "
            f"at least {bar:g} in {sum(ratio >= bar for ratio in ratios)} of {len(ratios)}"
        )
    lines.append(f"           with {median(shares):.1%} of its capacity, from {min(shares):.1%} to {max(shares):.1%}")
    return lines


def where_it_went(results: list[Compared]) -> str:
    """The sweep's engine time in its parts: the medians of them, so they add up only about to the whole."""

    def minutes(of: Callable[[Compared], float]) -> str:
        return f"{median(of(one) / 60 for one in results):.1f}"

    return (
        f"  the sweep's own minutes: {minutes(lambda one: one.search.spent.starting_s)} starting, "
        f"{minutes(lambda one: one.search.spent.serving_s)} in trials, then to confirm "
        f"{minutes(lambda one: one.sweep.spent.starting_s - one.search.spent.starting_s)} starting, "
        f"{minutes(lambda one: one.sweep.spent.serving_s - one.search.spent.serving_s)} in episodes;\n"
        f"    in all {minutes(lambda one: one.sweep.spent.total_s)}, and a tenth of the grid's is "
        f"{minutes(lambda one: one.grid.spent.total_s / GRID_BAR)}, a third of TPE's "
        f"{minutes(lambda one: one.median_tpe.spent.total_s / TPE_BAR)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=5, help="random ones (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="of TPE, in each setting (default: %(default)s)")
    parser.add_argument("--no-case", action="store_true", help="leave the tuning guide's case out")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    results = []
    for problem in problems(options.machines, not options.no_case):
        began_s = time.perf_counter()
        one = compared(problem, max(options.seeds, 1))
        print(table(one, time.perf_counter() - began_s), end="\n\n", flush=True)
        results.append(one)
    if results:
        print(summary(results))


if __name__ == "__main__":
    main()
