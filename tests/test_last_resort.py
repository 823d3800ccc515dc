"""After a signal the process ends even where the terminal's last writes never do; not where the app has ended."""

from __future__ import annotations

import signal
import threading

from ui.stub import live, make_app, until

from tunetui.cli.tune import LastResort


def settle(before: set[threading.Thread]) -> None:
    for thread in set(threading.enumerate()) - before:
        thread.join(5)


def test_a_hung_end_is_cut_short_once_with_the_first_signals_code() -> None:
    before, codes = set(threading.enumerate()), []
    last_resort = LastResort(0.05, codes.append)
    last_resort.begin(129)
    last_resort.begin(143)
    settle(before)
    assert codes == [129]


def test_an_end_that_went_well_is_left_alone() -> None:
    before, codes = set(threading.enumerate()), []
    last_resort = LastResort(0.05, codes.append)
    last_resort.begin(143)
    last_resort.cancel()
    settle(before)
    assert codes == []


async def test_the_app_tells_of_a_signal_before_it_ends() -> None:
    heard: list[tuple[int, object]] = []
    app, _ = make_app(live())
    app._on_signal = lambda code: heard.append((code, app.return_code))
    async with app.run_test(size=(120, 36)) as pilot:
        signal.raise_signal(signal.SIGTERM)
        await until(pilot, lambda: app.return_code is not None)
    assert heard == [(143, None)]
