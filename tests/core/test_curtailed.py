"""A curtailed verdict is the verdict of the full episode, in ten thousand random episodes judged request by request."""

import random

import pytest

from tunetui.core.episode import curtailed
from tunetui.core.slo import Verdict

CASES = 10_000


def test_the_first_verdict_given_is_that_of_the_full_episode() -> None:
    rng = random.Random(4)
    early = {Verdict.PASS: 0, Verdict.FAIL: 0}
    for _ in range(CASES):
        percent, total = rng.choice([50, 90, 95, 99]), rng.randint(1, 120)
        attainment = min(1.0, max(0.0, percent / 100 + rng.uniform(-0.15, 0.1)))
        outcomes = [rng.random() < attainment for _ in range(total)]
        # The full computation, in whole numbers: at least `percent` of the requests met it.
        full = Verdict.PASS if 100 * sum(outcomes) >= percent * total else Verdict.FAIL
        met = seen = 0
        verdict, left = curtailed(0, 0, total, percent / 100)
        while verdict is Verdict.UNDECIDED:
            assert left == total - seen
            met += outcomes[seen]
            seen += 1
            verdict, left = curtailed(met, seen - met, total, percent / 100)
        assert verdict is full
        early[verdict] += seen < total
    assert early[Verdict.PASS] > 1000
    assert early[Verdict.FAIL] > 1000


@pytest.mark.parametrize(("met", "missed"), [(379, 20), (0, 20), (379, 0)])
def test_it_waits_while_either_verdict_is_still_possible(met: int, missed: int) -> None:
    assert curtailed(met, missed, 400, 0.95) == (Verdict.UNDECIDED, 400 - met - missed)
    assert curtailed(380, missed, 400, 0.95)[0] is Verdict.PASS
    assert curtailed(met, 21, 400, 0.95)[0] is Verdict.FAIL
