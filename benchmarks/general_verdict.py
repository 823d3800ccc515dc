"""How often the statement "in general" is wrong, and how often it is made, beside the methods people would use instead.

`uv run python benchmarks/general_verdict.py [RUNS]` (default 500 runs of 20,000 requests a setting). M/G/4, lognormal
service of CV 1, TTFT limits such that the true attainment of the wait is 0.85 to 0.99 against a target of 0.95. Every
method looks at the same requests at the same moments. Then the overload alarm on the same kind of queue.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field

import numpy as np
from queueing import Floats, Runs, simulate

from tunetui.core.general import GeneralAttainment, Interval
from tunetui.core.overload import OverloadAlarm
from tunetui.core.slo import Verdict

TARGET = 0.95
REQUESTS = 20_000
CUT = 500  # requests until the queue is stationary
UTILIZATIONS = (0.5, 0.7)
ATTAINMENTS = (0.85, 0.90, 0.98, 0.99)
PREFILL_S = 0.02  # TTFT is the wait and this
RATE_RPS = 10.0
Z = 1.959964
METHODS = ("tunetui", "batch means", "binomial")


def looks() -> list[int]:
    """How many requests are in at each look: 100, and then about 5 % more each time."""
    counts = [100]
    while counts[-1] < REQUESTS:
        counts.append(min(REQUESTS, math.ceil(counts[-1] * 1.05)))
    return counts


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's interval at 95 % for `share` of `count` independent requests, as if looked at once."""
    centre, part = share + Z * Z / (2 * count), Z * Z / count
    half = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return (centre - half) / (1 + part), (centre + half) / (1 + part)


def batch_means_tau(met: Floats) -> float:
    """Requests that tell as much as one independent one, from 32 batch means of met/missed; 1 where all are alike."""
    length, share = len(met) // 32, float(met.mean())
    if length == 0 or share in (0.0, 1.0):
        return 1.0
    means = met[-32 * length :].reshape(32, length).mean(axis=1)
    return max(1.0, length * float(means.var(ddof=1)) / (share * (1 - share)))


def verdict(low: float, high: float) -> Verdict:
    return Verdict.PASS if low >= TARGET else Verdict.FAIL if high < TARGET else Verdict.UNDECIDED


@dataclass
class Tally:
    """What one method said over the runs of one setting."""

    runs: int = 0
    wrong: int = 0
    decided: int = 0
    missed: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, said: list[tuple[int, float, float, Verdict]], right: Verdict, truth: float) -> None:
        """One run: a wrong verdict at any look is wrong, however it ends; an interval that misses the truth, missed."""
        verdicts = [(count, v) for count, _, _, v in said if v is not Verdict.UNDECIDED]
        self.runs += 1
        self.decided += bool(verdicts)
        self.wrong += any(v is not right for _, v in verdicts)
        self.missed += any(not low <= truth <= high for _, low, high, _ in said)
        self.first += [verdicts[0][0]] if verdicts else []

    def words(self) -> str:
        half = f"{np.median(self.first):6.0f}" if self.first else "     -"
        shares = " ".join(f"{100 * n / self.runs:6.1f}" for n in (self.wrong, self.decided, self.missed))
        return f"{shares} {half}"


def judge(queue: Runs, run: int, limit_s: float, counts: list[int], variability: float) -> dict[str, list[tuple]]:  # type: ignore[type-arg]
    """(requests, low, high, verdict) of each look of one run, by method."""
    waits_s = queue.waits_s[run, CUT:]
    met = (waits_s <= limit_s).astype(float)
    attainment = GeneralAttainment(TARGET, variability=variability)
    said: dict[str, list[tuple]] = {method: [] for method in METHODS}  # type: ignore[type-arg]
    seen = 0
    for count in counts:
        attainment.add_many(met[seen:count], waits_s[seen:count] + PREFILL_S)
        seen = count
        interval: Interval | None = attainment.look(queue.utilization(run, CUT, CUT + count))
        if interval is not None:
            said["tunetui"].append((count, interval.low, interval.high, interval.verdict))
        share = float(met[:count].mean())
        for method, tau in (("batch means", batch_means_tau(met[:count])), ("binomial", 1.0)):
            if count >= 20 * tau:
                low, high = wilson(share, count / tau)
                said[method].append((count, low, high, verdict(low, high)))
    return said


def print_general(runs: int) -> None:
    counts = looks()
    print(f"{runs} runs of {REQUESTS} requests a row; % of runs wrong at any look, decided, and with an interval that")
    print("misses the true attainment at any look; median requests to the first verdict")
    print(f"{'rho':>4} {'true':>5} " + " ".join(f"{m + ': wrong dec. miss. first':>35}" for m in METHODS))
    for utilization in UTILIZATIONS:
        truth = simulate(400, CUT + REQUESTS, utilization, seed=1).waits_s[:, CUT:]
        queue = simulate(runs, CUT + REQUESTS + 1, utilization, seed=2)
        measured = [queue.utilization(r, CUT, CUT + REQUESTS) for r in range(runs)]
        for attainment in ATTAINMENTS:
            limit_s, right = float(np.quantile(truth, attainment)), verdict(attainment, attainment)
            tallies = {method: Tally() for method in METHODS}
            for run in range(runs):
                for method, said in judge(queue, run, limit_s, counts, 1.0).items():
                    tallies[method].add(said, right, attainment)
            print(
                f"{utilization:4} {attainment:5} " + " ".join(f"{tallies[m].words():>35}" for m in METHODS), flush=True
            )
        print(f"     rho measured over each run: {np.mean(measured):.3f}, standard deviation {np.std(measured):.3f}")


def print_variable(runs: int) -> None:
    """Services of CV 2: what the interval does when it is told, and when it is not."""
    counts, cv = looks(), 2.0
    truth = simulate(400, CUT + REQUESTS, 0.7, 4, cv).waits_s[:, CUT:]
    queue = simulate(runs, CUT + REQUESTS + 1, 0.7, 5, cv)
    print(f"\nservices of CV {cv:g} at utilization 0.7, {runs} runs a row: wrong, decided, missed, first")
    for attainment in (0.90, 0.94, 0.98):
        limit_s, right = float(np.quantile(truth, attainment)), verdict(attainment, attainment)
        for variability in (1.0, (1 + cv * cv) / 2):
            tally = Tally()
            for run in range(runs):
                tally.add(judge(queue, run, limit_s, counts, variability)["tunetui"], right, attainment)
            print(f"true {attainment:4}  variability given as {variability:3}: {tally.words()}", flush=True)


def alarm_at(arrivals_s: Floats, first_s: Floats) -> int:
    """At how many arrivals the alarm was given, or 0."""
    alarm, arrived = OverloadAlarm(RATE_RPS), 0
    times_s = np.concatenate([arrivals_s, first_s])
    order = np.argsort(times_s, kind="stable")
    ttft_s = np.concatenate([np.full(len(arrivals_s), -1.0), first_s - arrivals_s])
    for time_s, seconds in zip(times_s[order].tolist(), ttft_s[order].tolist(), strict=True):
        if time_s > arrivals_s[-1]:
            break
        if seconds >= 0:
            alarm.first_token(time_s, seconds)
        else:
            arrived += 1
            alarm.arrived(time_s)
        if alarm.alarm:
            return arrived
    return 0


def print_overload(runs: int) -> None:
    print(f"\noverload alarm at {RATE_RPS:g} requests/s: % of runs with an alarm within so many arrivals")
    print(f"{'load':>5} {'CV':>3} {'runs':>5} {'100':>6} {'200 (20 s)':>10} {'2000':>6} {'20000':>6}")
    for utilization, cv, count, requests in (
        (1.5, 1.0, 2 * runs, 220),
        (1.1, 1.0, runs // 5, 2_020),
        (0.9, 1.0, runs, REQUESTS),
        (0.95, 1.0, runs // 5, REQUESTS),
        (0.9, 2.0, runs // 5, REQUESTS),
    ):
        at = []
        for seed in range(0, count, 100):
            queue = simulate(min(100, count - seed), requests, utilization, seed + 3, cv, rate_rps=RATE_RPS)
            at += [alarm_at(a, s + PREFILL_S) for a, s in zip(queue.arrivals_s, queue.starts_s, strict=True)]
        given = np.array(at)
        cells = [
            f"{100 * ((given > 0) & (given <= within)).mean():.1f}" if within <= requests else "-"
            for within in (100, 200, 2_000, 20_000)
        ]
        print(f"{utilization:5} {cv:3} {count:5} {cells[0]:>6} {cells[1]:>10} {cells[2]:>6} {cells[3]:>6}", flush=True)


if __name__ == "__main__":
    began_s = time.monotonic()
    how_many = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    print_general(how_many)
    print_variable(how_many // 3)
    print_overload(how_many)
    print(f"\n{time.monotonic() - began_s:.0f} s")
