"""The charts: values that are not finite, limits and sizes at their edges, gaps, and the rows that are sent again."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.geometry import Region

from tunetui.ui.plot import Chart, Series, build, nice_ceiling, ticks_for, unbroken, window_for
from tunetui.ui.rows import strips_of

BRAILLE = {chr(code) for code in range(0x2801, 0x2900)}


def series(*values: float, limit_ms: float | None = 600, marks: tuple[float, ...] = ()) -> Series:
    return Series(tuple(float(i - len(values)) for i in range(len(values))), values, limit_ms, marks, 60.0)


def drawn(chart: Series, width: int = 70, height: int = 10) -> str:
    from rich.text import Text

    return "\n".join(s.text for s in strips_of(Text.from_ansi(build(chart, width, height)), width, height))


def has_line(text: str) -> bool:
    return bool(BRAILLE & set(text))


@pytest.mark.parametrize(
    ("chart", "line"),
    [
        (series(), False),
        (series(limit_ms=None), False),
        (series(nan, nan), False),
        (series(inf, -inf), False),
        (series(100.0), True),
        (series(nan, 100.0, inf, 200.0), True),
        (series(600.0, 600.0, 600.0), True),
        (series(0.0, 0.0, limit_ms=None), True),
        (series(1e-9, 1e12), True),
        (series(100.0, 200.0, marks=(-30.0, -61.0, 5.0, 0.0)), True),
    ],
)
@pytest.mark.parametrize("size", [(70, 10), (20, 3), (200, 40), (24, 4)])
def test_every_series_is_drawn_in_its_size(chart: Series, line: bool, size: tuple[int, int]) -> None:
    text = drawn(chart, *size)
    lines = text.split("\n")
    assert [len(row) for row in lines] == [size[0]] * size[1]
    if size[0] >= 60:
        assert has_line(text) == line
        assert ("╌" in text) == (chart.limit_ms is not None)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(), max_size=30), st.one_of(st.none(), st.floats(min_value=1e-3, max_value=1e8)))
def test_no_value_breaks_a_chart(values: list[float], limit_ms: float | None) -> None:
    assert len(drawn(series(*values, limit_ms=limit_ms), 40, 6).split("\n")) == 6


def test_a_value_that_is_not_there_and_a_gap_in_time_break_the_line() -> None:
    assert unbroken(series(1, 2, nan, 3, inf, 4)) == [[(-6, 1), (-5, 2)], [(-3, 3)], [(-1, 4)]]
    gap = Series((-10.0, -9.0, -2.0, -1.0), (1.0, 2.0, 3.0, 4.0), None, (), 60.0)
    assert unbroken(gap) == [[(-10, 1), (-9, 2)], [(-2, 3), (-1, 4)]]


@pytest.mark.parametrize(("age_s", "window_s"), [(0, 60), (60, 60), (61, 90), (119, 120), (121, 180), (9999, 180)])
def test_the_window_grows_from_one_minute_to_three(age_s: float, window_s: float) -> None:
    assert window_for(age_s) == window_s


@pytest.mark.parametrize(("value", "ceiling"), [(0, 1), (nan, 1), (inf, 1), (-3, 1), (1, 1), (1.1, 1.5), (617, 800)])
def test_the_axis_ends_at_a_round_figure(value: float, ceiling: float) -> None:
    assert nice_ceiling(value) == pytest.approx(ceiling)


@pytest.mark.parametrize(
    ("top", "limit", "height", "ticks"),
    [(800, 600, 10, [0, 400, 600, 800]), (800, 790, 10, [0, 400, 790]), (300, 100, 6, [0, 100, 300]),
     (800, None, 10, [0, 400, 800]), (800, 800, 10, [0, 400, 800]), (800, 600, 3, [0, 600]),
     (8000, 600, 8, [600, 4000, 8000]), (5000, 600, 8, [0, 600, 2500, 5000]), (800, 900, 10, [0, 400, 800])],
)  # fmt: skip
def test_the_limit_is_labelled_before_the_ends_and_the_middle(
    top: float, limit: float, height: int, ticks: list[float]
) -> None:
    assert ticks_for(top, limit, height) == ticks


@pytest.mark.parametrize("height", [4, 5, 8, 11, 14])
@pytest.mark.parametrize("tallest", [100.0, 560.0, 620.0, 1900.0, 4700.0, 7000.0, 30_000.0, 900_000.0])
def test_the_limits_line_has_its_label_however_far_the_axis_goes_up(tallest: float, height: int) -> None:
    rows = drawn(series(tallest), 70, height).split("\n")
    (line,) = [row for row in rows if "╌" in row]
    assert line.split("╌")[0].strip() == "600"
    labels = [label for row in rows[:-1] if (label := row[:6].strip())]
    assert len(labels) >= 2


def test_two_charts_share_their_time_axis() -> None:
    """Labels take the same room whatever their figures."""
    tall, small = drawn(series(25_000.0, limit_ms=20_000)), drawn(series(3.0, limit_ms=2))
    assert tall.split("\n")[-1] == small.split("\n")[-1]


class OneChart(App[None]):
    def compose(self) -> ComposeResult:
        yield Chart(id="chart")


async def test_only_the_rows_that_changed_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    app = OneChart()
    async with app.run_test(size=(70, 12)):
        chart = app.query_one(Chart)
        chart.plot(series(*[100.0] * 20))
        sent: list[tuple[Region, ...]] = []
        monkeypatch.setattr(chart, "refresh", lambda *regions, **_: sent.append(regions))
        chart.plot(series(*[100.0] * 20))
        assert sent == []
        chart.plot(series(*[100.0] * 19, 150.0))
        (regions,) = sent
        assert 1 <= len(regions) <= 3
        assert all(region.height == 1 and region.width == 70 for region in regions)


async def test_a_chart_without_room_or_data_is_blank() -> None:
    app = OneChart()
    async with app.run_test(size=(10, 2)) as pilot:
        chart = app.query_one(Chart)
        chart.plot(series(1.0, 2.0))
        await pilot.pause()
        assert [s.text.strip() for s in chart._strips] == ["", ""]
        await pilot.resize_terminal(70, 12)
        await pilot.pause()
        assert any(s.text.strip() for s in chart._strips)
