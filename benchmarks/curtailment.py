"""How much of an episode of 400 a curtailed verdict saves, and that it is always the verdict of the full episode.

`uv run python benchmarks/curtailment.py [EPISODES]` (default 2,000 a row). The full episode stands beside it: it always
takes 400 requests. Outcomes are drawn one by one at each attainment, and those of an M/G/4 queue at utilization 0.7,
where bad ones come in bursts.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from numpy.typing import NDArray
from queueing import simulate

from tunetui.core.episode import curtailed
from tunetui.core.slo import Verdict

COUNTED, TARGET = 400, 0.95
ATTAINMENTS = (0.80, 0.85, 0.90, 0.93, 0.95, 0.97, 0.98, 0.99)
CHECKED = 10_000


def decided_at(met: NDArray[np.bool_], share: float) -> tuple[Verdict, int]:
    """The curtailed verdict of one episode, and after how many requests it came."""
    good = 0
    for seen, ok in enumerate(met.tolist(), start=1):
        good += ok
        verdict, _ = curtailed(good, seen - good, len(met), share)
        if verdict is not Verdict.UNDECIDED:
            return verdict, seen
    raise AssertionError("an episode that is complete has a verdict")


def row(met: NDArray[np.bool_]) -> str:
    """% of the requests saved, on average and by verdict, of episodes of shape (episodes, COUNTED)."""
    results = [decided_at(episode, TARGET) for episode in met]
    saved = {v: [100 * (1 - n / COUNTED) for w, n in results if w is v] for v in (Verdict.PASS, Verdict.FAIL)}
    everything = saved[Verdict.PASS] + saved[Verdict.FAIL]
    each = " ".join(f"{np.mean(s):8.1f}" if s else f"{'-':>8}" for s in (saved[Verdict.PASS], saved[Verdict.FAIL]))
    return f"{100 * len(saved[Verdict.PASS]) / len(met):7.1f} {np.mean(everything):8.1f} {each}"


def disagreements(rng: np.random.Generator) -> int:
    """In how many of CHECKED random episodes the curtailed verdict differs from the count of the whole episode."""
    differ = 0
    for _ in range(CHECKED):
        percent, total = int(rng.choice([50, 90, 95, 99])), int(rng.integers(1, 401))
        met = rng.random(total) < np.clip(percent / 100 + rng.uniform(-0.15, 0.1), 0, 1)
        full = Verdict.PASS if 100 * int(met.sum()) >= percent * total else Verdict.FAIL
        differ += decided_at(met, percent / 100)[0] is not full
    return differ


def main(episodes: int) -> None:
    began_s = time.monotonic()
    rng = np.random.default_rng(5)
    waits_s = simulate(episodes, 500 + COUNTED, 0.7, seed=6).waits_s[:, 500:]
    print(f"% of an episode of {COUNTED} saved at a target of {TARGET}, {episodes} episodes a row")
    heads = f"{'PASS %':>7} {'saved':>8} {'by PASS':>8} {'by FAIL':>8}"
    print(f"{'attainment':>10} | independent: {heads} | queue at 0.7: {heads}")
    for attainment in ATTAINMENTS:
        queue = waits_s <= np.quantile(waits_s, attainment)
        alone = rng.random((episodes, COUNTED)) < attainment
        print(f"{attainment:10} | {'':12} {row(alone)} | {'':13} {row(queue)}", flush=True)
    print(f"curtailed verdicts that differ from the full episode's: {disagreements(rng)} of {CHECKED}")
    print(f"{time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
