"""The app on the demo's server: real keys, a real driver, the real load, and the simulated engine behind its HTTP."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from drive.sessions import offspring
from drive.sessions import until as until_true
from engine.fakes import free_port
from textual.pilot import Pilot
from ui.stub import row_text, screen_text, until

from tunetui.cli.tune import parser, settings_from
from tunetui.drive.driver import Driver
from tunetui.ui.app import TunetuiApp

STREAMS = 64  # of the point that is accepted: its first turnover is soon over
REQUESTS = 20  # judged in an episode
CHARTED_S = 3.0  # from settling to the first chart point of what is in force then
PATIENCE = 4.0  # with bounds of time, on a machine that stalls
LIMIT_S = 120.0  # of a wait


@pytest.fixture
async def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TunetuiApp]:
    """`tunetui --demo case`, with episodes of few requests; after the test nothing that it started may be left."""
    monkeypatch.setenv("TUNETUI_DEMO_START_S", "0.2")
    before = offspring()
    words = ["--demo", "case", "--port", str(free_port()), "--episode-requests", str(REQUESTS)]
    settings = settings_from(parser().parse_args([*words, "--sessions-dir", str(tmp_path)]), [])
    app = TunetuiApp(lambda changed: Driver(settings, tmp_path, on_change=changed))
    yield app
    assert await asyncio.to_thread(app.driver.stop_server) == ()
    await until_true(lambda: not offspring() - before)


async def see(pilot: Pilot[int], app: TunetuiApp, *words: str) -> None:
    """Wait until the screen says all of `words`. Whatever it says meanwhile, it says SIMULATED too."""

    def said() -> bool:
        assert "SIMULATED" in row_text(app, "header")
        return all(word in screen_text(app) for word in words)

    await until(pilot, said, LIMIT_S)


def row_of_present_point(app: TunetuiApp) -> str:
    """The last of its lines in the table of points, as it is shown."""
    return next((line for line in reversed(row_text(app, "points").split("\n")) if line.startswith(">")), "")


@pytest.mark.parametrize("size", [(80, 24), (120, 36)], ids=lambda size: "{}x{}".format(*size))
async def test_the_case_is_walked_by_keys_to_a_baseline(demo: TunetuiApp, size: tuple[int, int]) -> None:
    async with demo.run_test(size=size) as pilot:
        state = partial(getattr, demo.driver, "state")
        await until(pilot, lambda: row_text(demo, "header"))
        await see(pilot, demo, "LIVE 00:", "256 streams")
        await until(pilot, lambda: any(point.ttft_s is not None for point in state().chart), LIMIT_S)

        await pilot.press("left", "left", "left")
        await see(pilot, demo, "step SETTLED", f"{STREAMS} streams")
        (settled_s,) = state().marks[-1:]
        charted = await until_true(lambda: [p for p in state().chart if p.time_s > settled_s and p.ttft_s is not None])
        assert charted[0].time_s - settled_s <= PATIENCE * CHARTED_S
        await see(pilot, demo, "\u250a")  # the mark of the step, in the charts
        await until(pilot, lambda: row_of_present_point(demo).endswith("live"), LIMIT_S)
        assert f" {STREAMS} " in row_of_present_point(demo)
        assert state().rows[-1].measurement.counted == REQUESTS

        await pilot.press("a")
        await see(pilot, demo, "Accept this point", "confirm by a restart")
        await pilot.press("c")
        await see(pilot, demo, "CONFIRMED 00:")
        await until(pilot, lambda: state().baseline_path, LIMIT_S)
        assert row_of_present_point(demo).endswith("conf")
    baseline = tomllib.loads(Path(state().baseline_path).read_text("utf-8"))
    assert baseline["engine"]["simulated"] is True
    assert baseline["result"]["confirmed"] is True
    assert baseline["knobs"]["max-num-seqs"] == STREAMS
