"""Keys and dialogs: every command of the table calls what its help says, and leaving asks first."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ui.stub import (
    ADVICE,
    BYTES_FACTS,
    FOUND,
    POINT,
    RESTART,
    failed,
    live,
    make_app,
    measurement,
    row_text,
    screen_text,
    until,
)

from tunetui.core.coach import Coach
from tunetui.core.knobs import Knob
from tunetui.core.session import Phase
from tunetui.core.slo import Verdict
from tunetui.ui.commands import COMMANDS
from tunetui.ui.dialogs import Question
from tunetui.ui.pages import LogPage, Page
from tunetui.ui.statistics import StatisticsPage
from tunetui.ui.sweep_page import SweepPage

CALLS: dict[str, list[tuple[Any, ...]]] = {
    "up": [], "k": [], "down": [], "j": [],
    "right": [("step_knob", Knob.SEQS, 1, False)], "l": [("step_knob", Knob.SEQS, 1, False)],
    "left": [("step_knob", Knob.SEQS, -1, False)], "h": [("step_knob", Knob.SEQS, -1, False)],
    "right_square_bracket": [("step_knob", Knob.SEQS, 1, True)],
    "left_square_bracket": [("step_knob", Knob.SEQS, -1, True)],
    "u": [("undo",)], "plus": [("step_load", 1)], "equals_sign": [("step_load", 1)], "minus": [("step_load", -1)],
    "space": [("toggle_pause",)], "f": [("find_edge",)], "s": [("sweep",)],
    "a": [], "o": [], "e": [], "d": [], "n": [], "g": [], "p": [], "x": [], "w": [],
    "L": [("say", "load is being sent already")],
    "question_mark": [], "ctrl+l": [], "q": [], "ctrl+c": [], "ctrl+q": [],
}  # fmt: skip
OPENS = {"a": Question, "o": LogPage, "e": Page, "question_mark": Page, "q": Question, "ctrl+c": Question,
         "ctrl+q": Question, "d": StatisticsPage, "n": StatisticsPage, "g": StatisticsPage,
         "p": StatisticsPage, "x": StatisticsPage, "w": SweepPage}  # fmt: skip


def test_the_table_here_is_the_table_of_commands() -> None:
    assert {key for command in COMMANDS for key in command.keys.split(",") if key} == set(CALLS)


@pytest.mark.parametrize("key", CALLS)
async def test_each_key_does_what_the_table_says(key: str) -> None:
    app, driver = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press(key)
        assert driver.asked == CALLS[key]
        assert len(app.screen_stack) == (2 if key in OPENS else 1)
        assert isinstance(app.screen, OPENS.get(key, object))
        if key in OPENS:
            await pilot.press("escape")
            assert len(app.screen_stack) == 1
            assert driver.asked == []
    assert ("start",) in driver.calls
    assert driver.calls[-1] == ("close",)


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [(["down"], Knob.TOKENS), (["j", "j"], Knob.CHUNKED), (["up"], Knob.PREFIX), (["down", "k"], Knob.SEQS)],
)
async def test_up_and_down_choose_a_knob_around_the_list(keys: list[str], chosen: Knob) -> None:
    app, driver = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press(*keys, "right")
        assert driver.asked == [("step_knob", chosen, 1, False)]
        marked = [line for line in row_text(app, "knobs").split("\n") if line.startswith("> ")]
        assert len(marked) == 1


async def test_digits_type_a_value_that_enter_applies() -> None:
    app, driver = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("3", "2", "9", "backspace", "0")
        assert "320_" in row_text(app, "knobs")
        await pilot.press("enter")
        assert driver.asked == [("set_knob", Knob.SEQS, 320.0)]
        await pilot.press("4", "escape", "enter")
        assert len(driver.asked) == 1


@pytest.mark.parametrize(("typed", "said"), [("1.2.3", "cannot read '1.2.3'"), ("0", "whole number of 1 or more")])
async def test_a_value_that_makes_no_sense_is_said_and_not_applied(typed: str, said: str) -> None:
    app, driver = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press(*typed, "enter")
        await until(pilot, lambda: said in row_text(app, "message"))
        assert [c[0] for c in driver.asked] == ["say"]


async def test_a_zero_takes_the_long_prefill_limit_away() -> None:
    app, driver = make_app(live(point=replace(POINT, long_prefill_token_threshold=512)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("down", "down", "down")
        await until(pilot, lambda: "> long-prefill         512 live" in row_text(app, "knobs"))
        await pilot.press("0")
        await until(pilot, lambda: "> long-prefill          0_ enter" in row_text(app, "knobs"))
        await pilot.press("enter")
        assert driver.asked == [("set_knob", Knob.THRESHOLD, 0.0)]
        driver.put(point=POINT)
        await until(pilot, lambda: "> long-prefill        none live" in row_text(app, "knobs"))


async def test_the_size_of_the_kv_cache_is_typed_in_the_unit_that_is_shown() -> None:
    app, driver = make_app(live(facts=BYTES_FACTS, point=replace(POINT, memory=2.0**31)))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("down", "down", "down", "down", "1", ".", "5")
        assert "1.5_  GiB enter" in row_text(app, "knobs")
        await pilot.press("enter")
        assert driver.asked == [("set_knob", Knob.MEMORY, 1.5 * 2**30)]


@pytest.mark.parametrize(("key", "call"), [("enter", "confirm_restart"), ("escape", "drop_restart")])
async def test_an_offered_restart_is_answered(key: str, call: str) -> None:
    app, driver = make_app(live(restart=RESTART))
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "RESTART? enter yes  esc no" in row_text(app, "message"))
        assert "about 95 s, no load meanwhile" in row_text(app, "message")
        assert "restart?" in row_text(app, "knobs")
        await pilot.press(key)
        assert driver.asked == [(call,)]


async def test_enter_and_escape_do_nothing_where_nothing_is_asked() -> None:
    app, driver = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("enter", "escape", "backspace")
        assert driver.asked == []


async def test_enter_takes_the_coachs_advice_where_nothing_else_is_asked() -> None:
    app, driver = make_app(live(coach=Coach(FOUND, ADVICE)))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: row_text(app, "coach").endswith("max-num-seqs 128  [enter]"))
        await pilot.press("enter")
        assert driver.asked == [("apply_advice",)]
        await pilot.press("3", "enter")
        assert driver.asked[1:] == [("set_knob", Knob.SEQS, 3.0)]
        driver.put(restart=RESTART)
        await pilot.press("enter")
        assert driver.asked[2:] == [("confirm_restart",)]


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (80, 18)])
async def test_the_coach_has_a_row_and_the_charts_keep_theirs(size: tuple[int, int]) -> None:
    app, driver = make_app(live(coach=Coach(FOUND, ADVICE)))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "max-num-seqs 128" in row_text(app, "coach"))
        assert "-60 s" in screen_text(app)
        assert row_text(app, "points").count("\n") == {24: 3, 36: 8, 18: 0}[size[1]]
        driver.say("max-num-seqs must be at least 1", "warning")
        await until(pilot, lambda: "must be at least 1" in row_text(app, "message"))
        assert bool(row_text(app, "coach")) == (size[1] >= 20)  # a short screen has one row for both


async def test_enter_starts_again_after_a_failure() -> None:
    app, driver = make_app(failed())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("enter")
        assert driver.asked == [("confirm_restart",)]


@pytest.mark.parametrize(("key", "calls"), [("c", [("accept", True)]), ("s", [("accept", False)]), ("escape", [])])
async def test_accept_asks_how(key: str, calls: list[tuple[Any, ...]]) -> None:
    app, driver = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("a", "x", "right", key)
        assert driver.asked == calls
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize(
    ("verdict", "warning"),
    [(Verdict.PASS, ""), (Verdict.FAIL, "It does not meet the SLO."), (Verdict.UNDECIDED, "Not decided yet")],
)
@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_accept_states_the_verdict_and_warns(verdict: Verdict, warning: str, size: tuple[int, int]) -> None:
    app, _ = make_app(live(measurement=measurement(verdict)))
    async with app.run_test(size=size) as pilot:
        await pilot.press("a")
        shown = screen_text(app)
        assert f"This point: {verdict.value}" in shown
        assert "save the baseline unconfirmed" in shown
        assert ("Not decided" in shown) == (verdict is Verdict.UNDECIDED)
        assert ("does not meet" in shown) == (verdict is Verdict.FAIL)
        assert warning in shown


async def test_accept_while_starting_asks_the_driver_for_the_reason() -> None:
    app, driver = make_app(live(phase=Phase.CONFIRMING))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("a")
        assert driver.asked == [("accept", False)]
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize(("typed", "calls"), [("yes", [("allow_load",)]), ("y", []), ("", [])])
async def test_load_goes_to_an_attached_server_only_after_the_word(typed: str, calls: list[tuple[str]]) -> None:
    app, driver = make_app(live(load_allowed=False, phase=Phase.ATTACHED, measurement=None))
    driver.settings = SimpleNamespace(attached=True, url="http://prod:8000")
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("L")
        await until(pilot, lambda: "http://prod:8000 may be somebody's production server" in screen_text(app))
        await pilot.press(*typed, "enter")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await pilot.pause()
        assert driver.asked == calls


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
@pytest.mark.parametrize(("answer", "leaves"), [("s", False), ("l", True)])
async def test_leaving_asks_what_becomes_of_the_server(key: str, answer: str, leaves: bool) -> None:
    app, _ = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press(key)
        assert "vLLM (pid 4242) is running on http://127.0.0.1:8000." in screen_text(app)
        await pilot.press("escape")
        assert app.is_running
        await pilot.press(key, answer)
    assert (app.leave_running, app.return_code) == (leaves, 0)


async def test_ctrl_c_asks_from_a_page_and_only_once() -> None:
    app, _ = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("question_mark", "ctrl+c", "ctrl+c")
        assert len(app.screen_stack) == 3
        await pilot.press("escape", "q")
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize(("state", "code"), [(failed(), 3), (live(), 0)])
async def test_without_a_server_there_is_nothing_to_ask(state: Any, code: int) -> None:
    app, driver = make_app(state)
    driver.engine.pid = None
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("q")
    assert app.return_code == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_a_signal_ends_the_app_with_its_code(number: signal.Signals, code: int) -> None:
    app, driver = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("question_mark")
        os.kill(os.getpid(), number)
        await until(pilot, lambda: app.return_code is not None)
    assert app.return_code == code
    assert not app.leave_running
    assert driver.calls[-1] == ("close",)


async def test_a_start_that_raises_is_shown() -> None:
    app, driver = make_app(live())

    async def start() -> None:
        raise RuntimeError("[bold]odd[/bold]")

    driver.start = start  # type: ignore[method-assign]
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "RuntimeError('[bold]odd[/bold]')" in row_text(app, "message"))
