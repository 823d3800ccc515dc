"""Which steps are looked ahead at, and what is said of how far predictions were off."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ui.stub import FACTS, POINT

from tunetui.core.events import Foreseen, LoadChanged, RestartOffered, StepAsked
from tunetui.core.fold import fold
from tunetui.core.knobs import How, Knob, Step, plan_step
from tunetui.core.load import Load
from tunetui.core.outlook import Outlook, load_at, options
from tunetui.core.predictions import Predicted, PredictionErrors
from tunetui.core.session import Session
from tunetui.core.slo import Slo


def test_each_knob_is_looked_at_both_ways_and_a_switch_once() -> None:
    found = options(POINT, FACTS)
    assert len({option.point for option in found}) == len(found)
    seqs = {option.direction: option.point.max_num_seqs for option in found if option.knob is Knob.SEQS}
    assert seqs == {1: 128, -1: 32}
    assert [option.point.chunked_prefill for option in found if option.knob is Knob.CHUNKED] == [False]
    assert [option.point.prefix_caching for option in found if option.knob is Knob.PREFIX] == [False]


def test_what_takes_a_restart_is_marked_and_what_vllm_refuses_left_out() -> None:
    found = options(POINT, FACTS)
    for option in found:
        assert plan_step(POINT, option.point, FACTS).how is (How.RESTART if option.restart else How.LIVE)
    assert [option.restart for option in found if option.knob is Knob.PREFIX] == [True]
    tight = replace(POINT, max_num_seqs=1024, max_num_batched_tokens=1024)
    assert not [o for o in options(tight, FACTS) if o.knob is Knob.SEQS and o.direction > 0]


def test_the_load_follows_the_slots_where_it_does() -> None:
    assert load_at(POINT, Load(4.0), follows=False) == Load(4.0)
    assert load_at(POINT, Load(concurrency=9), follows=True) == Load(concurrency=64)


def test_an_outlook_is_of_where_a_key_starts_from_and_of_the_load() -> None:
    session = Session("m", Slo(()), Load(4.0), point=POINT, facts=FACTS)
    there = fold(session, Foreseen(Outlook(POINT, Load(4.0))))
    assert there.outlook_here is not None
    assert fold(there, LoadChanged(Load(5.0), False, True)).outlook_here is None
    other = replace(POINT, max_num_seqs=128)
    assert fold(there, StepAsked(0.0, other)).outlook_here is None
    offered = fold(there, RestartOffered(Step(other, How.RESTART, "")))
    assert (offered.origin, offered.outlook_here) == (other, None)


def test_how_far_predictions_were_off_is_said_and_where_they_are_poor() -> None:
    assert (Outlook(POINT, Load(4.0)).error_words, Outlook(POINT, Load(4.0)).poor_words) == ("", "")
    errors = PredictionErrors().after(Predicted.TTFT, 1.0, 1.1).after(Predicted.THROUGHPUT, 100.0, 98.0)
    outlook = Outlook(POINT, Load(4.0), errors=errors)
    assert outlook.error_words == "off by 2 % (throughput), 10 % (TTFT) over 1 point"
    assert outlook.poor_words == ""
    for factor in (3.0, 0.3, 3.0, 0.3):
        errors = errors.after(Predicted.TPOT, 1.0, factor)
    assert Outlook(POINT, Load(4.0), errors=errors).poor_words == "predictions of TPOT are poor here: step, and measure"


@pytest.mark.parametrize("knob", list(Knob))
def test_the_steps_of_one_knob_come_upwards_first(knob: Knob) -> None:
    found = options(POINT, FACTS)
    outlook = Outlook(POINT, Load(4.0), steps=tuple((option, None) for option in found))  # type: ignore[arg-type]
    directions = [option.direction for option, _ in outlook.of(knob)]
    assert directions == sorted(directions, reverse=True)
    assert all(option.knob is knob for option, _ in outlook.of(knob))
