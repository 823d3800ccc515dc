"""What the statistics of a session cost: a tick of the screen, and memory over a million requests.

    uv run python benchmarks/statistics_cost.py

It feeds the meter what a load process would report, without one: batches of a tenth of a second at 50 requests/s, in
episodes of 400. The peer of a tick is what it would be to judge the same requests one by one in Python, as objects.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import numpy as np

from tunetui.core.load import Load
from tunetui.core.sample import Outcome, Sample
from tunetui.core.slo import Metric, parse_slo
from tunetui.core.workload import Workload, parse_lengths, plan_episode
from tunetui.drive.meter import Meter
from tunetui.load.events import Batch, First, Sent

SLO = parse_slo(["ttft:600", "tpot:80"])
RATE, BATCH_S = 50.0, 0.1
REQUESTS = 1_000_000
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES / 2**20


def fed(meter: Meter, number: int, counted: int, rng: np.random.Generator) -> list[Sample]:
    """Let `meter` see one episode from its first to its last moment; returns its requests."""
    plan = plan_episode(Workload(parse_lengths("64-512"), parse_lengths("32-256")), Load(RATE), 0, counted)
    meter.expect(number, plan)
    meter.started(number)
    base_s = number * counted / RATE
    waits_s, gaps_s = rng.lognormal(-1.5, 0.5, counted), rng.lognormal(-3, 0.2, counted)
    samples = []
    for i, (offset_s, tokens) in enumerate(zip(plan.arrivals_s, plan.output_tokens, strict=True)):
        at_s = base_s + offset_s
        first_s = at_s + float(waits_s[i])
        last_s = first_s + float(gaps_s[i]) * (tokens - 1)
        prompt = plan.prompt_tokens[i]
        bins = ((-300, tokens - 1),)
        samples.append(Sample(number, i, at_s, at_s, first_s, last_s, prompt, tokens, Outcome.OK, last_s, "", 0, bins))
    for start in range(0, counted, 5):
        some = samples[start : start + 5]
        sent = tuple(Sent(number, s.index, s.scheduled_s, s.scheduled_s) for s in some)
        firsts = tuple(First(number, s.index, s.first_s) for s in some if s.first_s is not None)
        meter.took(Batch(some[-1].ended_s, 500, 5, 0, sent, firsts, tuple(some)))
    return samples


def milliseconds(call: Callable[[], object], times: int = 200) -> float:
    """The median of `times` calls."""
    took = []
    for _ in range(times):
        began_s = time.perf_counter()
        call()
        took.append(time.perf_counter() - began_s)
    return statistics.median(took) * 1000


def one_by_one(samples: list[Sample]) -> tuple[list[float], int]:
    """The same figures from the objects."""
    ttft = [s.ttft_s for s in samples if s.ttft_s is not None]
    tpot = [s.tpot_s for s in samples if s.tpot_s is not None]
    for metric in (Metric.TTFT, Metric.TPOT):
        limit_s = 0.6 if metric is Metric.TTFT else 0.08
        sum(s.meets(metric, limit_s) is False for s in samples)
    good = sum(s.good(SLO) for s in samples)
    return [float(np.percentile(ttft, 95)), float(np.percentile(tpot, 95))], good


def main() -> None:
    print("one tick, ms (median of 200)")
    print(f"{'requests':>10}{'percentiles':>14}{'all of it':>12}{'chart':>8}{'screens':>10}{'one by one':>12}")
    for counted in (400, 2000, 10_000):
        meter = Meter(SLO)
        samples = fed(meter, 1, counted, np.random.default_rng(1))
        episode = meter.shown
        assert episode is not None
        rows = episode.counted

        def percentiles(episode=episode, rows=rows) -> None:
            np.percentile(episode.requests.ttft_s(rows), 95)
            np.percentile(episode.requests.tpot_s(rows), 95)

        print(
            f"{counted:>10}{milliseconds(percentiles):>14.3f}"
            f"{milliseconds(lambda m=meter: m.measurement(1e9)):>12.3f}"
            f"{milliseconds(lambda m=meter, t=samples[-1].ended_s: m.chart(t)):>8.3f}"
            f"{milliseconds(lambda m=meter: m.statistics.view(0.6), 50):>10.3f}"
            f"{milliseconds(lambda s=samples: one_by_one(s), 20):>12.3f}"
        )
    print(f"\nmemory of a session over {REQUESTS:,} requests, MiB resident")
    meter, rng = Meter(SLO), np.random.default_rng(2)
    for number in range(1, REQUESTS // 400 + 1):
        fed(meter, number, 400, rng)
        if number in (25, 250) or number % 500 == 0:
            meter.statistics.view(0.6)
            print(f"{number * 400:>10,}{resident_mib():>10.1f}", flush=True)


if __name__ == "__main__":
    main()
