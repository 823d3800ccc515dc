"""The pages of the statistics at three sizes, in every state, and the lines of the board that come from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from ui.stub import (
    BUCKETS,
    EDGES_S,
    FINDING,
    MODES,
    ONE_HILL,
    OVERLOAD,
    decided,
    few,
    live,
    make_app,
    measurement,
    nothing_seen,
    point_view,
    row_text,
    screen_text,
    until,
)

from tunetui.core.lengths import Bucket, ByLength
from tunetui.core.load import Load
from tunetui.core.point_statistics import Closing, Distribution
from tunetui.core.session import Session
from tunetui.core.slo import Metric, Verdict, parse_slo
from tunetui.ui import panels
from tunetui.ui.app import TunetuiApp
from tunetui.ui.by_length import by_length
from tunetui.ui.format import interval
from tunetui.ui.histograms import AXIS, histogram, histograms
from tunetui.ui.in_general import in_general, unsaid
from tunetui.ui.plot import Band, build_band, floor_for
from tunetui.ui.rows import Rows, strips_of
from tunetui.ui.statistics import VIEWS, StatisticsPage

SIZES = [(120, 36), (80, 24), (60, 15)]
FULL = point_view(decided(), modes=MODES, by_length=ByLength(BUCKETS, FINDING))
BARS = set("▁▂▃▄▅▆▇█")
OVERLOADED = replace(measurement(Verdict.FAIL), overload=OVERLOAD)
STATES = {
    "nothing yet": live(point_view=None, measurement=None),
    "none ended": live(point_view=nothing_seen(), measurement=None),
    "few": live(point_view=point_view(few(), (0,) * 20 + (5, 2, 1, 1))),
    "one mode": live(point_view=point_view(few(3000))),
    "two modes": live(point_view=FULL),
    "decided": live(point_view=FULL),
    "overload": live(point_view=point_view(few(300)), measurement=OVERLOADED),
}
SAYS: dict[str, dict[str, str]] = {
    "nothing yet": dict.fromkeys("dng", "nothing yet: no request of this point has been counted"),
    "none ended": {
        "d": "no request that has one has ended yet", "n": "no request of this point has ended yet",
        "g": "nothing can be said in general yet: the 0 requests so far",
    },
    "few": {
        "d": "too few to tell one mode from two", "n": "short prompts are not seen to wait behind long ones",
        "g": "nothing can be said in general yet: the 37 requests so far are worth fewer than 20 independent ones",
    },
    "one mode": {"d": "no second mode is seen", "n": "2048-4095", "g": "the 3,000 requests so far"},
    "two modes": {
        "d": "two modes: 74% near 15 ms and 26% near 46 ms. Often: prefill and decode share steps, so some requests' "
             "tokens wait for others' prefills.",
        "n": FINDING, "g": "all objectives in general: PASS",
    },
    "decided": {
        "d": "SLO missed by 10.0 % of this episode", "n": "SLO 600 ms",
        "g": "in general TTFT is met by 95.3-98.2 % (of 12,400 requests, worth 380 independent ones): PASS its "
             "long-run P95 is 380 ms to 455 ms (SLO 600)",
    },
    "overload": {
        "d": "TTFT", "n": "prompt", "g": f"FAIL on this load, {OVERLOAD}: no long-run share exists.",
    },
}  # fmt: skip

# Of the rows, which are there in every state, and of predictions, which are in none.
ALWAYS = {"p": "output tok/s against P95 in ms", "x": "nothing yet: predictions come a few seconds after"}


def words(app: TunetuiApp) -> str:
    """All of an open page, what is scrolled out of sight included, in one line."""
    return " ".join(app.screen.query_one("#figures", Rows).text.plain.split())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", STATES)
async def test_every_page_says_what_is_known(name: str, size: tuple[int, int]) -> None:
    app, driver = make_app(STATES[name])
    async with app.run_test(size=size) as pilot:
        for key, (title, _, _) in VIEWS.items():
            await pilot.press(key)
            await until(pilot, lambda title=title: screen_text(app).lstrip().startswith(title))
            await until(pilot, lambda key=key: (SAYS[name] | ALWAYS)[key] in words(app))
            first = app.screen.query_one("#figures", Rows).text.plain.split("\n")[0].strip()
            await until(pilot, lambda first=first: first in screen_text(app))
            scroll = app.screen.query_one(VerticalScroll)
            assert scroll.max_scroll_x == 0
            assert scroll.max_scroll_y == 0 or size == (60, 15)
            assert max(map(len, app.screen.query_one("#figures", Rows).text.plain.split("\n"))) <= size[0] - 4
            assert "…" not in screen_text(app)
            await pilot.press(key)
            assert len(app.screen_stack) == 1
        assert driver.asked == []


async def open_page(pilot: Pilot[Any], app: TunetuiApp, key: str) -> None:
    await pilot.press(key)
    await until(pilot, lambda: isinstance(app.screen, StatisticsPage) and words(app))


async def test_a_page_follows_the_session() -> None:
    app, driver = make_app(STATES["nothing yet"])
    async with app.run_test(size=(120, 36)) as pilot:
        await open_page(pilot, app, "g")
        driver.put(point_view=point_view(few(800)))
        await until(pilot, lambda: "the 800 requests so far" in screen_text(app))
        driver.put(point_view=FULL)
        await until(pilot, lambda: "all objectives in general: PASS" in screen_text(app))
        driver.put(point_view=None, load_allowed=False)
        await until(pilot, lambda: "nothing yet: no load is sent: L asks" in screen_text(app))
        await pilot.press("escape")
        assert len(app.screen_stack) == 1


async def test_the_keys_of_the_others_go_there_and_ones_own_goes_back() -> None:
    app, driver = make_app(STATES["decided"])
    async with app.run_test(size=(80, 24)) as pilot:
        await open_page(pilot, app, "d")
        assert "g in general   p points   x steps" in screen_text(app)
        await pilot.press("n")
        await until(pilot, lambda: "prompt tokens requests" in screen_text(app))
        await pilot.press("g", "u", "space", "right", "enter")
        await until(pilot, lambda: "how the interval closed" in screen_text(app))
        assert len(app.screen_stack) == 2
        assert driver.asked == []
        await pilot.press("g")
        assert len(app.screen_stack) == 1


async def test_a_timer_that_rings_while_a_page_or_the_app_goes_down_paints_nothing() -> None:
    app, _ = make_app(STATES["decided"])
    async with app.run_test(size=(80, 24)) as pilot:
        await open_page(pilot, app, "d")
        page = app.screen
        assert isinstance(page, StatisticsPage)
        await pilot.press("escape")
        await until(pilot, lambda: not page.query("#figures"))
        page._painted = None
        page._paint()
    app._paint()


async def test_a_page_that_is_higher_than_the_screen_is_read_to_its_end() -> None:
    app, _ = make_app(STATES["decided"])
    async with app.run_test(size=(60, 15)) as pilot:
        await open_page(pilot, app, "g")
        for _ in range(40):
            await pilot.press("j")
        await until(pilot, lambda: "brings: UNDECIDED while the target lies inside the" in screen_text(app))
        await pilot.press("n")
        await until(pilot, lambda: "newest 4,000 requests, TTFT in ms" in screen_text(app))


async def test_a_page_is_laid_out_anew_when_the_terminal_changes() -> None:
    app, _ = make_app(STATES["decided"])
    async with app.run_test(size=(120, 36)) as pilot:
        await open_page(pilot, app, "d")
        titles = [line for line in screen_text(app).split("\n") if "SLO missed" in line]
        assert [line.count("SLO missed") for line in titles] == [2]
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: screen_text(app).count("newest") == 2)
        assert [line.count("SLO missed") for line in screen_text(app).split("\n") if "SLO missed" in line] == [1, 1]


# -- histograms ---------------------------------------------------------------------------------------------------


def drawn(seen: Distribution, slo: str = "ttft:600", width: int = 57, rows: int = 4) -> list[str]:
    state = live(slo=parse_slo([slo] if slo else []), measurement=None)
    return [line.plain.rstrip() for line in histogram(state, seen, width, rows)]


@pytest.mark.parametrize(
    ("slo", "label"),
    [("ttft:600", "SLO 600"), ("ttft:6000", "SLO 6000 ▸"), ("ttft:10", "◂ SLO 10"), ("tpot:80", "")],
)
def test_the_slo_stands_where_it_falls_or_says_where_it_lies(slo: str, label: str) -> None:
    lines = drawn(Distribution(Metric.TTFT, EDGES_S, ONE_HILL), slo)
    assert lines[1].strip() == label
    marked = [line.index("┊") for line in lines if "┊" in line]
    assert len(marked) == (4 if slo == "ttft:600" else 0)  # on the axis, and above the bars
    assert len(set(marked)) <= 1
    assert ("no objective" in lines[0]) == (not label)
    if marked:
        start = lines[1].index("SLO")
        assert start <= marked[0] < start + len("SLO 600")


def test_percentiles_stand_under_their_bars() -> None:
    counts = (0,) * 3 + (50, 44) + (0,) * 10 + (2,) + (0,) * 7 + (4,)
    lines = drawn(Distribution(Metric.TTFT, EDGES_S, counts), width=AXIS + 24)  # one cell a bar
    axis, labels = lines[6], lines[7]
    assert [n - AXIS for n, cell in enumerate(axis) if cell == "▲"] == [3, 15]  # reached by 50 and by 96 of 100
    assert labels.index("P50") < labels.index("P95")
    assert "50" in lines[2]
    assert sum(cell in BARS for cell in lines[5]) == 4  # what is counted at all is seen


def test_an_slo_at_the_median_is_one_mark() -> None:
    state = live(slo=parse_slo(["ttft:600"], 50), measurement=None)
    lines = [line.plain for line in histogram(state, Distribution(Metric.TTFT, EDGES_S, ONE_HILL), 57, 4)]
    assert lines[6].count("▲") == 1
    assert lines[7].count("P50") == 1


def test_latencies_that_are_all_alike_have_a_labelled_axis() -> None:
    edges = tuple(0.0123 * 1.002**n for n in range(25))
    lines = drawn(Distribution(Metric.TPOT, edges, (300,) + (0,) * 23), "tpot:80")
    assert "P50 P95" in lines[-3]
    assert "12.4" in lines[-3]
    assert "12.8" in lines[-3]
    assert " ms" in lines[-3]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 10**4), min_size=24, max_size=24).filter(any),
    st.floats(1e-5, 1e3), st.floats(1.001, 2.0), st.floats(1e-4, 1e7), st.sampled_from([32, 57, 76, 116]),
)  # fmt: skip
def test_no_distribution_breaks_its_chart(
    counts: list[int], low_s: float, ratio: float, limit_ms: float, width: int
) -> None:
    edges = tuple(low_s * ratio**n for n in range(25))
    seen = Distribution(Metric.TTFT, edges, tuple(counts))
    for line in histogram(live(slo=parse_slo([f"ttft:{limit_ms}"])), seen, width, 3):
        assert line.cell_len <= width


def test_both_charts_are_as_high_as_the_screen_gives() -> None:
    heights = [histograms(live(point_view=FULL), 116, rows).plain.count("\n") + 1 for rows in (14, 23, 35, 60)]
    assert heights == sorted(heights)
    assert heights[:3] <= [16, 24, 35]


# -- by length ----------------------------------------------------------------------------------------------------


def table(state: Session, width: int = 76) -> list[str]:
    return [line.rstrip() for line in by_length(state, width, 23).plain.split("\n")]


@pytest.mark.parametrize("width", [56, 76, 116])
def test_the_bars_cross_the_slo_only_where_the_percentile_does(width: int) -> None:
    lines = table(STATES["decided"], width)
    rows = [line for line in lines if " %" in line]
    assert [("┊" in row) for row in rows] == [True, True, width > 60, False]
    assert rows[0].split()[:6] == ["16-127", "1,204", "94", "480", "98.2", "%"]
    assert any("█ to P50  ▒ to P95" in line for line in lines)
    assert any(line.strip() == "SLO 600 ms" for line in lines)


def test_a_bucket_without_an_answer_has_no_bar_and_without_an_objective_there_is_no_line() -> None:
    buckets = (Bucket(16, 31, 20, None, None, 0.0), Bucket(32, 63, 20, 0.1, 0.2, 1.0))
    lines = table(live(point_view=point_view(by_length=ByLength(buckets, "")), slo=parse_slo([])))
    dead = next(line for line in lines if "16-31" in line)
    assert dead.split() == ["16-31", "20", "-", "-", "0.0", "%"]
    assert "┊" not in "\n".join(lines)
    assert any("no objective" in line for line in lines)


def test_an_slo_far_beyond_every_bar_does_not_flatten_them() -> None:
    lines = table(live(point_view=FULL, slo=parse_slo(["ttft:6000"])))
    assert any(line.endswith("SLO 6000 ms ▸") for line in lines)
    assert "┊" not in "\n".join(lines)
    assert next(line for line in lines if "2048-4095" in line).count("█") > 10


def test_short_latencies_keep_a_decimal() -> None:
    buckets = (Bucket(16, 31, 20, 0.0042, 0.0061, 1.0),)
    lines = table(live(point_view=point_view(by_length=ByLength(buckets, ""))))
    assert next(line for line in lines if "16-31" in line).split()[2:4] == ["4.2", "6.1"]


def test_one_bucket_compares_with_nothing() -> None:
    lines = table(live(point_view=point_view(by_length=ByLength(BUCKETS[:1], ""))))
    assert lines[-1] == "one range of lengths: nothing to compare"


# -- in general ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({}, "nothing can be said in general yet: the 37 requests"),
        ({"load": Load(concurrency=8)}, "nothing is said in general of a closed loop"),
        ({"slo": parse_slo([])}, "nothing to state in general: there is no objective"),
    ],
)
def test_nothing_is_said_with_a_reason(changes: dict[str, Any], start: str) -> None:
    state = live(point_view=point_view(), **changes)
    assert state.point_view is not None
    assert unsaid(state, state.point_view.statement).startswith(start)
    text = in_general(state, 76, 23).plain
    assert start[:40] in text
    assert "An episode's verdict is exact" in text
    assert "closed   target" not in text


@pytest.mark.parametrize(
    ("utilization", "start"),
    [(None, "nothing can be said in general: no metrics"), (1.0, "nothing is said in general of an engine that was")],
)
def test_a_statement_needs_a_utilization_below_one(utilization: float | None, start: str) -> None:
    statement = replace(few(), utilization=utilization)
    assert unsaid(live(point_view=point_view(statement)), statement).startswith(start)


def test_each_objective_says_its_own() -> None:
    text = in_general(STATES["decided"], 116, 35).plain
    assert "in general TPOT is met by 97.6-99.6 % (of 12,400 requests, worth 380 independent ones): PASS" in text
    assert "its long-run P95 is at least 61.0 ms (SLO 80); no upper bound yet" in text
    statement = decided()
    half = replace(statement, general=(statement.general[0], replace(statement.general[1], interval=None)))
    text = in_general(live(point_view=point_view(half)), 116, 35).plain
    assert "in general TPOT: too few requests yet" in text
    failing = in_general(live(point_view=point_view(decided(Verdict.FAIL, (0.81, 0.93)))), 116, 35).plain
    assert "all objectives in general: FAIL" in failing


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [(0.9484, 0.9806, "94.8-98.1 %"), (0.95, 0.981, "95.0-98.1 %"), (0.9499, 0.95001, "94.9-95.1 %"),
     (0.0, 1.0, "0.0-100.0 %")],
)  # fmt: skip
def test_an_interval_is_rounded_outwards(low: float, high: float, shown: str) -> None:
    assert interval(low, high) == shown


@pytest.mark.parametrize("target", [50.0, 90.0, 95.0, 99.0])
@pytest.mark.parametrize("looks", [0, 1, 2, 80])
@pytest.mark.parametrize("size", [(116, 20), (56, 7), (20, 7)])
def test_every_band_is_drawn_in_its_size(target: float, looks: int, size: tuple[int, int]) -> None:
    from rich.text import Text

    closing = [Closing(100 + n * 50, max(0.9 - 0.8 * 0.9**n, 0.0), 1.0) for n in range(looks)]
    band = Band(
        tuple(c.requests for c in closing), tuple(c.low * 100 for c in closing), (100.0,) * looks, target
    )  # fmt: skip
    lines = [s.text for s in strips_of(Text.from_ansi(build_band(band, *size)), *size)]
    assert [len(line) for line in lines] == [size[0]] * size[1]
    assert "╌" in "\n".join(lines) or target == 99.0  # on few rows the upper end covers it


def test_the_axis_of_a_share_leaves_room_below() -> None:
    assert [floor_for(low) for low in (99.9, 99.0, 95.0, 94.0, 60.0, 0.0)] == [98.0, 98.0, 90.0, 90.0, 50.0, 0.0]


# -- on the board -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_the_episodes_line_has_what_holds_in_general(size: tuple[int, int]) -> None:
    app, driver = make_app(STATES["decided"])
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "in general 95.3-98.2 %" in row_text(app, "episode"))
        assert row_text(app, "episode").endswith("PASS")
        driver.put(point_view=point_view(few()))
        await until(pilot, lambda: "in general" not in row_text(app, "episode"))


@pytest.mark.parametrize("size", SIZES)
async def test_an_overload_says_why_to_its_end(size: tuple[int, int]) -> None:
    app, driver = make_app(STATES["overload"])
    async with app.run_test(size=size) as pilot:
        said = "OVERLOADED 140 requests wait for their first token, 3.12 a second get it and 14 arrive"
        await until(pilot, lambda: said in " ".join(row_text(app, "message").split()))
        assert row_text(app, "message").count("\n") == (0 if size[0] > 100 else 1)
        assert row_text(app, "episode").endswith("FAIL")
        driver.put(measurement=measurement())
        await until(pilot, lambda: row_text(app, "message") == "")


def test_the_overload_of_the_episode_before_is_still_the_reason_of_its_verdict() -> None:
    state = live(measurement=measurement(Verdict.UNDECIDED), decided=OVERLOADED, point_view=point_view())
    assert panels.message(state, state.began_s, 120).plain.startswith("last OVERLOADED 140 requests wait for their")
    assert panels.episode(state, 120).plain.endswith("last FAIL  UNDECIDED")
    assert "no long-run share exists" in " ".join(in_general(state, 116, 35).plain.split())


def test_an_overload_goes_before_what_is_suspect_and_both_are_said_where_they_fit() -> None:
    state = live(measurement=replace(OVERLOADED, suspect="the client was late"))
    assert panels.message(state, state.began_s, 120).plain.endswith("14 arrive   SUSPECT the client was late")
    assert "SUSPECT" not in panels.message(state, state.began_s, 100).plain
    text = panels.accept_text(state).plain
    assert OVERLOAD in text
    assert "SUSPECT: the client was late" in text
