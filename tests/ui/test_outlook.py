"""What each step would bring, beside the knob and on its page."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ui.stub import FACTS, POINT, live, make_app, screen_text, until

from tunetui.core.knobs import Knob
from tunetui.core.outlook import Expected, Outlook, options
from tunetui.core.predictions import Predicted, PredictionErrors, Range
from tunetui.core.progress import Progress
from tunetui.core.session import Session
from tunetui.core.slo import Verdict
from tunetui.ui import panels
from tunetui.ui.outlook import beside, outlook


def foreseen(errors: PredictionErrors | None = None) -> Session:
    state = live()

    def expected(seqs: int) -> Expected:
        verdict = Verdict.PASS if seqs < 64 else Verdict.FAIL if seqs > 64 else Verdict.UNDECIDED
        flags = ("12% of its time would be steps unlike any that was seen",) if seqs > 64 else ()
        point, tokens = replace(POINT, max_num_seqs=seqs), Range(1900.0, 2100.0, 2300.0)
        return Expected(point, state.load, tokens, Range(0.18, 0.21, 0.26), Range(0.0081, 0.0088, 0.0094), verdict, "",
                        flags)  # fmt: skip

    steps = tuple((option, expected(option.point.max_num_seqs)) for option in options(POINT, FACTS))
    return replace(state, outlook=Outlook(POINT, state.load, expected(64), steps, errors or PredictionErrors()))


def test_both_ways_of_the_chosen_knob_stand_beside_it() -> None:
    state = foreseen()
    assert beside(state, Knob.SEQS) == [
        "\u2192 128: 2,100 tok/s FAIL ?", "  TTFT 180-260, TPOT 8.1-9.4 ms",
        "\u2190 32: 2,100 tok/s PASS", "  TTFT 180-260, TPOT 8.1-9.4 ms",
    ]  # fmt: skip
    for width in (44, 34):
        shown = panels.knobs(state, Knob.SEQS, "", width).plain
        assert "\u2192 128: 2,100 tok/s FAIL ?\n  TTFT 180-260, TPOT 8.1-9.4 ms\n" in shown
        assert all(len(line) <= width for line in shown.split("\n"))
    assert "\u2194 off: 2,100 tok/s" in panels.knobs(state, Knob.CHUNKED, "", 44).plain


def test_a_point_that_would_be_overloaded_is_said_to_be() -> None:
    state = foreseen()
    assert state.outlook is not None
    steps = tuple((o, replace(e, overload="waiting would grow")) for o, e in state.outlook.steps)
    state = replace(state, outlook=replace(state.outlook, steps=steps))
    assert beside(state, Knob.SEQS) == ["\u2192 128: overloaded", "\u2190 32: overloaded"]
    assert "OVERLOADED" in outlook(state, 116, 30).plain


def test_where_predictions_are_poor_it_says_to_measure() -> None:
    errors = PredictionErrors()
    for factor in (3.0, 0.3, 3.0, 0.3):
        errors = errors.after(Predicted.TPOT, 1.0, factor)
    assert beside(foreseen(errors), Knob.SEQS) == ["predictions of TPOT are poor here: step, and measure"]
    assert "step, and measure" in outlook(foreseen(errors), 116, 30).plain


@pytest.mark.parametrize("width", [116, 76, 56])
def test_the_page_has_every_step_with_its_intervals_and_fits(width: int) -> None:
    errors = PredictionErrors().after(Predicted.TTFT, 1.0, 1.1)
    text = outlook(foreseen(errors), width, 30).plain
    lines = text.split("\n")
    assert all(len(line) <= width for line in lines)
    assert sum("180-260" in line for line in lines) == 1 + len(options(POINT, FACTS))
    assert "* takes a restart" in text
    words = " ".join(text.split())
    assert "predictions here were off by 10 % (TTFT) over 1 point" in words
    assert "? 12% of its time would be steps unlike any that was seen" in words


def test_without_an_outlook_the_page_says_why() -> None:
    assert "predictions come a few seconds after" in " ".join(outlook(live(), 76, 20).plain.split())
    assert "while the sweep runs" in outlook(live(progress=Progress()), 116, 20).plain
    blind = live(facts=replace(FACTS, live=False, why_not_live="no scheduler class"))
    assert "no scheduler class" in outlook(blind, 116, 20).plain
    assert beside(live(), Knob.SEQS) == []


async def test_its_key_opens_and_closes_it() -> None:
    app, _ = make_app(foreseen())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("x")
        await until(pilot, lambda: "WHAT EACH STEP WOULD BRING" in screen_text(app))
        assert "max-num-seqs" in screen_text(app)
        await pilot.press("x")
        await until(pilot, lambda: "KNOBS" in screen_text(app))
