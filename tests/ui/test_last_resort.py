"""After a signal the process ends even where the terminal's last writes never do; not where `run` has returned."""

from __future__ import annotations

import os
import threading

import pytest
from ui.stub import live, make_app

from tunetui.ui import app as app_module


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(app_module, "LAST_RESORT_S", 0.05)
    monkeypatch.setattr(app_module.TunetuiApp, "end", lambda self, code: None)  # as if its last writes hung
    return codes


def last_resorts() -> list[threading.Timer]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_hung_end_is_cut_short_once_with_the_signals_code(exits: list[int]) -> None:
    app, _ = make_app(live())
    app._end_by_signal(129)
    app._end_by_signal(143)
    for timer in last_resorts():
        timer.join(5)
    assert exits == [129]


def test_an_end_that_went_well_is_left_alone(exits: list[int]) -> None:
    app, _ = make_app(live())
    app._end_by_signal(143)
    app.run_is_over()
    for timer in last_resorts():
        timer.join(5)
    assert exits == []
