"""`tunetui sweep`: what it refuses, and a whole sweep of the guide's case in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import case_truth
import pytest

from tunetui.cli import main
from tunetui.core.knobs import Knob, Point


def exit_of(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["sweep", *words])
    return int(left.value.code or 0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--url", "http://127.0.0.1:1"], "an attached server does not let"),
        (["--model", "m", "--virtual"], "--virtual is for a simulated engine: give --demo"),
        (["--demo", "--virtual", "--fixed-load"], "give --rate R"),
        (["--demo", "--virtual", "--budget", "0"], "--budget is in minutes"),
        (["--demo", "--virtual", "--knobs", "max-num-sequences"], "no knob 'max-num-sequences': give some of max-num-"),
        (["--demo", "none", "--virtual"], "no demo 'none'"),
        (["--demo", "--virtual", "--json", "/nowhere/at/all"], "give another file"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_of(*words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def point_of(knobs: dict[str, Any]) -> Point:
    return Point(
        knobs[Knob.SEQS], knobs[Knob.TOKENS], knobs[Knob.CHUNKED], knobs[Knob.MEMORY], knobs[Knob.PREFIX],
        knobs[Knob.THRESHOLD],
    )  # fmt: skip


def test_the_case_ends_on_a_confirmed_point_with_chunked_prefill_as_good_as_the_best_of_a_grid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_of("--demo", "case", "--virtual", "--json", "-") == 0
    told = capsys.readouterr()
    data = json.loads(told.out)
    assert data["simulated"]
    assert data["virtual"]
    assert data["verdict"] == "PASS"
    assert data["knobs"]["enable-chunked-prefill"]
    assert data["knobs"]["max-num-seqs"] > 256
    assert [seen["verdict"] for seen in data["confirmations"]] == ["PASS"] * 3
    assert 0.8 * data["capacity_rps"] < data["accepted_rps"] <= data["capacity_rps"] + 0.001  # it is rounded
    # It started with the profile's flags, left points out for a reason, and restarted once: to confirm.
    assert not data["trials"][0]["knobs"]["enable-chunked-prefill"]
    assert data["left_out"]
    assert all(left["why"].startswith("left out") for left in data["left_out"])
    assert data["starts"] == 2
    assert "TTFT" in told.err
    # Over a long run the point is as good as any, and the rate that it was accepted for holds.
    best = case_truth.best_of(case_truth.kept())
    assert best is not None
    capacity_rps = case_truth.capacity_of(point_of(data["knobs"])).rate_rps
    assert capacity_rps >= 0.97 * best.rate_rps
    assert data["accepted_rps"] <= capacity_rps


def test_the_kept_truth_of_the_case_is_what_the_code_finds() -> None:
    best = case_truth.best_of(case_truth.kept())
    assert best is not None
    assert case_truth.capacity_of(best.point).rate_rps == pytest.approx(best.rate_rps, rel=0.01)


def test_a_fixed_load_is_met_with_the_largest_margin(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    words = ["--demo", "7b-80gb", "--virtual", "--fixed-load", "--rate", "10", "--json", str(path)]
    assert exit_of(*words, "--knobs", "max-num-seqs,max-num-batched-tokens") == 0
    data = json.loads(path.read_text())
    assert data["accepted_rps"] == 10
    first = data["trials"][0]["knobs"]
    assert {name for name, value in data["knobs"].items() if value != first[name]} <= {
        "max-num-seqs",
        "max-num-batched-tokens",
    }
    out = capsys.readouterr().out
    assert "SIMULATED" in out
    assert "confirmed at 10 rps" in out


def test_an_slo_that_no_rate_meets_is_a_fail_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--demo", "7b-24gb", "--virtual", "--slo", "tpot:1", "--episode-requests", "50"]
    assert exit_of(*words) == 1
    assert "FAIL: the SLO is not met at any rate" in capsys.readouterr().out
