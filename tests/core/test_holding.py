"""Whether a baseline holds: the word for each combination, and the figures that it is said with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from store.test_baselines import baseline
from ui.stub import measurement

from tunetui.core.baseline import Baseline
from tunetui.core.episode import Measurement
from tunetui.core.holding import Checked, Drift, Holding, checked
from tunetui.core.slo import Verdict

WAS = {"ttft_ms": 400.0, "tpot_ms": 60.0, "goodput_rps": 13.0, "output_tokens_per_s": 2000.0}


def made(**result: Any) -> Baseline:
    return baseline(result=WAS | result)


def seen(verdict: Verdict = Verdict.PASS, **figures: Any) -> Measurement:
    same = {"ttft_s": 0.4, "tpot_s": 0.06, "goodput_rps": 13.0, "output_tokens_per_s": 2000.0}
    return replace(measurement(verdict), **same | figures)


@pytest.mark.parametrize(
    ("measured", "holding", "reason"),
    [
        (seen(), Holding.HOLDS, ""),
        (seen(ttft_s=0.459, tpot_s=0.0689, goodput_rps=11.1, output_tokens_per_s=1701.0), Holding.HOLDS, ""),
        (seen(ttft_s=0.1, tpot_s=0.02, goodput_rps=20.0, output_tokens_per_s=4000.0), Holding.HOLDS, ""),
        (seen(ttft_s=0.461), Holding.DRIFTED, "P95 TTFT 400 -> 461 ms (+15%)"),
        (seen(tpot_s=0.09), Holding.DRIFTED, "P95 TPOT 60 -> 90 ms (+50%)"),
        (seen(goodput_rps=11.0), Holding.DRIFTED, "goodput 13 -> 11 req/s (-15%)"),
        (seen(output_tokens_per_s=1500.0), Holding.DRIFTED, "throughput 2,000 -> 1,500 tok/s (-25%)"),
        (seen(Verdict.FAIL), Holding.DRIFTED, "the SLO is not met any more"),
        (seen(Verdict.UNDECIDED), Holding.UNDECIDED, ""),
    ],
)
def test_what_is_said(measured: Measurement, holding: Holding, reason: str) -> None:
    answer = checked(made(), measured)
    assert answer.holding is holding
    assert answer.reasons == ((reason,) if reason else ())


def test_a_point_that_failed_then_may_fail_now() -> None:
    answer = checked(made(verdict="FAIL"), seen(Verdict.FAIL))
    assert (answer.holding, answer.reasons) == (Holding.HOLDS, ())


def test_another_workload_comes_first_and_its_figures_are_only_shown() -> None:
    answer = checked(made(), seen(ttft_s=2.0), moved=("prompt tokens 200 -> 900",))
    assert answer.holding is Holding.CHANGED
    assert answer.reasons[0] == "prompt tokens 200 -> 900"


def test_the_tolerance_is_the_operators() -> None:
    assert checked(made(), seen(ttft_s=0.5), tolerance=0.3).holding is Holding.HOLDS


def test_figures_that_one_side_lacks_are_not_compared() -> None:
    answer = checked(baseline(), seen())
    assert answer == Checked(Holding.HOLDS, Verdict.PASS, ())
    assert [one.name for one in checked(made(), seen(tpot_s=None)).figures] == ["P95 TTFT", "goodput", "throughput"]
    assert Drift("x", "ms", 10.0, 12.0, True).sentence == "x 10 -> 12 ms (+20%)"
