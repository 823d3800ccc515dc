"""The page of a sweep: the plan's marks, the standing, the table at its widths, and that it follows its end."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from ui.stub import FACTS, OVERLOAD, POINT, live, make_app, measurement, screen_text, until

from tunetui.core.candidates import Stage
from tunetui.core.edge import Length, Seen
from tunetui.core.knobs import Point
from tunetui.core.load import Load
from tunetui.core.progress import STAGES, Line, Progress
from tunetui.core.slo import Verdict
from tunetui.core.tasks import Outcome
from tunetui.ui.app import TunetuiApp
from tunetui.ui.rows import Rows
from tunetui.ui.sweep_page import before_any, head, mark, plan, point_words, standing
from tunetui.ui.trials import LEFT_OUT, entries, trials

WIDTHS = (56, 76, 96, 116, 196)
BEST = replace(POINT, max_num_seqs=320, max_num_batched_tokens=8192)
LONG = replace(BEST, long_prefill_token_threshold=16384)


def trial(point: Point, rate_rps: float, why: str) -> Any:
    return Length(400).trial(point, Load(rate_rps), why)


def tried(stage: Stage, point: Point, rate_rps: float, why: str, ttft: Verdict = Verdict.PASS, **seen: Any) -> Line:
    found = replace(measurement(ttft), **seen)
    return Line(stage, point, rate_rps, why, Seen(trial(point, rate_rps, why), found))


def left_out(stage: Stage, point: Point, capacity_rps: float, text: str = "left out: predicted") -> Line:
    return Line(stage, point, capacity_rps, text)


LINES = (
    tried(Stage.BASELINE, POINT, 6.1, "a first look"),
    tried(Stage.BASELINE, POINT, 23.18, "predicted to hold 24.40 req/s", on_the_line=True),
    tried(Stage.SEQS, BEST, 24.38, "predicted to hold 25.67 req/s", Verdict.FAIL),
    left_out(Stage.SEQS, replace(POINT, max_num_seqs=448), 25.66),
)
UNDER_WAY = trial(LONG, 24.5, "predicted to hold 25.78 req/s")
MIDWAY = Progress(
    Stage.PREFILL, (Stage.BASELINE, Stage.SEQS), BEST, 25.67, "trial 4: predicted to hold 25.78 req/s", UNDER_WAY,
    LINES, 3, 192.0, 448.0,
)  # fmt: skip
HELD = Outcome(BEST, Load(22.56), 24.0)
ENDED = replace(
    MIDWAY, stage=Stage.CONFIRM, done=(Stage.BASELINE, Stage.SEQS, Stage.PREFILL, Stage.MEMORY, Stage.FINE), doing="",
    trial=None, running=False, outcome=HELD,
)  # fmt: skip
SEARCH = Progress(Stage.EDGE, (Stage.BASELINE,), POINT, doing="trial 1: bracket its edge")


def table(progress: Progress, width: int) -> list[str]:
    """The heads and the lines of the table."""
    columns, lines = trials(progress, FACTS, 95, width)
    return [line.rstrip() for line in f"{columns.plain}\n{lines.plain}".split("\n")]


def words(text: Any) -> str:
    return " ".join(text.plain.split())


# -- what it says -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "marks"),
    [
        (Progress(), ["now", "to come", "to come", "to come", "to come", "if needed", "to come"]),
        (MIDWAY, ["done", "done", "now", "to come", "to come", "if needed", "to come"]),
        (replace(MIDWAY, stage=Stage.SEQS),
         ["done", "now again", "to come", "to come", "to come", "if needed", "to come"]),
        (replace(MIDWAY, running=False), ["done", "done", "stopped", "to come", "to come", "if needed", "to come"]),
        (replace(MIDWAY, stage=Stage.CONFIRM), ["done", "done", "left out", "left out", "left out", "no need", "now"]),
        (ENDED, ["done", "done", "done", "done", "done", "no need", "done"]),
        (replace(ENDED, outcome=Outcome(BEST, Load(9.0), 9.0, (), "it did not hold")),
         ["done", "done", "done", "done", "done", "no need", "ended"]),
        (Progress(running=False, outcome=Outcome(None, reason="no rate")),
         ["ended", "left out", "left out", "left out", "left out", "no need", "left out"]),
    ],
)  # fmt: skip
def test_every_stage_of_the_plan_is_marked_in_words(progress: Progress, marks: list[str]) -> None:
    assert [mark(progress, stage) for stage in STAGES] == marks
    for width in WIDTHS:
        assert [line.plain[:10].strip() for line in plan(progress, width).split("\n")] == marks


def test_a_wide_plan_counts_what_was_tried_in_each_stage() -> None:
    done = replace(ENDED, lines=LINES)
    lines = [" ".join(line.split()) for line in plan(done, 116).plain.split("\n")]
    assert lines[:3] == [
        "done baseline 2 trials", "done max-num-seqs 1 trial, 1 left out",
        "done prefill nothing to try",
    ]  # fmt: skip
    assert "prefill: chunking and token budget  nothing to try" in plan(done, 196).plain
    assert plan(done, 76).plain.split("\n")[1] == "done       max-num-seqs"


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (Progress(doing="predicting 1 points"),
         "best not known yet now predicting 1 points time known once a trial has ended"),
        (MIDWAY, "best 320 seqs, 8192 tokens, chunked prefill on, memory 0.90, prefix caching on; capacity 25.67 req/s "
         "now trial 4: predicted to hold 25.78 req/s; 164 of 400 requests judged "
         "time 00:03:12 for 3 trials, about 00:07:28 left"),
        (replace(MIDWAY, doing="", trial=None), "now the stage begins"),
        (replace(MIDWAY, running=False),
         "now stopped before its end: s goes on, e says why time 00:03:12 for 3 trials"),
        (ENDED, "capacity 24.00 req/s now ended: 22.56 rps held on a fresh server time 00:03:12 for 3 trials"),
        (replace(ENDED, outcome=Outcome(None, reason="it does not hold")), "now ended: it does not hold"),
        (replace(SEARCH, running=False), "stopped before its end: f looks"),
        (replace(SEARCH, running=False, outcome=Outcome(POINT, Load(9.0), 9.0)),
         "capacity 9.00 req/s now ended: the edge is found"),
    ],
)  # fmt: skip
def test_the_best_so_far_what_is_done_now_and_the_time_are_said(progress: Progress, said: str) -> None:
    assert said in words(standing(live(progress=progress), progress, 96))


def test_a_point_is_said_in_words() -> None:
    assert point_words(LONG, FACTS) == (
        "320 seqs, 8192 tokens, chunked prefill on, long prefills at most 16384, memory 0.90, prefix caching on"
    )


def test_before_any_sweep_the_page_says_what_s_does() -> None:
    for width in WIDTHS:
        text = before_any(width)
        assert max(map(len, text.plain.split("\n"))) <= width
        assert words(text).startswith("no sweep has begun in this session: s on the board begins one.")
        assert "max-num-seqs" in text.plain
        assert "s goes on where the sweep stood." in words(text)


# -- the table --------------------------------------------------------------------------------------------------------


def test_every_trial_and_every_point_left_out_has_its_line() -> None:
    assert table(MIDWAY, 116) == [
        "TRIALS  P95 in ms, rates in req/s  3 tried, 1 left out",
        "  # stage     seqs tokens  chunk   memory prefix  req/s   TTFT   TPOT verdict   why",
        "  1 baseline    64   2048     on     0.90     on   6.10    412   65.1 PASS      a first look",
        "  2 baseline    64   2048     on     0.90     on  23.18    412   65.1 PASS      ON THE LINE, predicted 24.40",
        "  3 max-seqs   320   8192     on     0.90     on  24.38    412   65.1 FAIL      predicted to hold 25.67 req/s",
        "    max-seqs   448   2048     on     0.90     on      -      -      - left out  predicted 25.66 req/s",
        "  4 prefill    320   8192 ≤16384     0.90     on  24.50      -      - now       predicted to hold 25.78 req/s",
    ]


def test_at_80_columns_a_knob_that_never_moved_is_said_once() -> None:
    assert table(MIDWAY, 76) == [
        "TRIALS  P95 in ms, rates in req/s  all with memory 0.90, prefix on",
        "stage     seqs tokens  chunk  req/s   TTFT   TPOT verdict   why",
        "baseline    64   2048     on   6.10    412   65.1 PASS      a first look",
        "baseline    64   2048     on  23.18    412   65.1 PASS      ON THE LINE\u2026",
        "max-seqs   320   8192     on  24.38    412   65.1 FAIL      predicted 25.67",
        "max-seqs   448   2048     on      -      -      - left out  predicted 25.66",
        "prefill    320   8192 \u226416384  24.50      -      - now       predicted 25.78",
    ]


def test_at_80_columns_memory_has_its_column_once_it_moved() -> None:
    other = tried(Stage.MEMORY, replace(BEST, memory=0.95), 24.0, "against 23.10 req/s")
    heads = table(replace(MIDWAY, lines=(*LINES, other)), 76)[1].split()
    assert heads == ["seqs", "tokens", "chunk", "memory", "req/s", "TTFT", "TPOT", "verdict", "why"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("progress", [Progress(), MIDWAY, ENDED, SEARCH], ids=["begun", "midway", "ended", "search"])
def test_everything_fits_and_no_verdict_is_lost(width: int, progress: Progress) -> None:
    state = live(progress=progress)
    lines = table(progress, width)
    shown = [*head(state, progress, width, 24).plain.split("\n"), *lines]
    assert max(map(len, shown)) <= width
    for entry, line in zip(entries(progress), lines[2:], strict=False):
        assert entry.verdict in line
        assert str(entry.point.max_num_seqs if entry.point else "") in line
    assert ("none yet" in lines) == (not entries(progress))


def test_a_reason_is_cut_between_words_only() -> None:
    budget = left_out(Stage.FINE, BEST, 25.0, "left out: the budget is used up")
    assert table(replace(MIDWAY, lines=(*LINES, budget)), 76)[-2].endswith("left out  the budget is\u2026")
    assert table(replace(MIDWAY, lines=(*LINES, budget)), 116)[-2].endswith("left out  the budget is used up")


def test_what_makes_a_verdict_doubtful_stands_before_the_reason() -> None:
    loaded = tried(Stage.SEQS, BEST, 9.0, "bisect its edge", Verdict.FAIL, overload=OVERLOAD, suspect="late")
    _, lines = trials(replace(MIDWAY, lines=(loaded,), running=False), FACTS, 95, 116)
    assert lines.plain.endswith("FAIL      overloaded, SUSPECT, bisect its edge")
    missed = [lines.plain[span.start : span.end].strip() for span in lines.spans if "ff8787" in str(span.style)]
    assert missed == ["412", "FAIL"]  # the latency that was missed, and the verdict


def test_a_trial_that_was_cut_off_has_no_line() -> None:
    stopped = replace(MIDWAY, running=False)
    assert [entry.verdict for entry in entries(stopped)] == ["PASS", "PASS", "FAIL", LEFT_OUT]


def test_a_low_screen_has_the_stage_in_one_line() -> None:
    lines = head(live(progress=MIDWAY), MIDWAY, 56, 15).plain.split("\n")
    assert lines[0] == "stage 3 of 7, now: prefill"
    assert len(lines) <= 6


# -- the page ---------------------------------------------------------------------------------------------------------


def title(app: TunetuiApp) -> str:
    return app.screen.query_one("#page-title", Rows).text.plain


def many(count: int) -> Progress:
    lines = tuple(tried(Stage.SEQS, replace(POINT, max_num_seqs=n), float(n), f"try {n}") for n in range(1, count + 1))
    return replace(MIDWAY, lines=lines, trials=count, trial=None)


@pytest.mark.parametrize("key", ["w", "escape", "q"])
async def test_its_key_opens_it_and_three_keys_close_it(key: str) -> None:
    app, driver = make_app(live())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("w")
        await until(pilot, lambda: "no sweep has begun in this session" in screen_text(app))
        driver.put(progress=MIDWAY)
        await until(pilot, lambda: "now        prefill" in screen_text(app))
        await pilot.press("s", "u")  # the board's keys wait
        assert driver.asked == []
        await pilot.press(key)
        await until(pilot, lambda: "KNOBS" in screen_text(app))


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (200, 50), (60, 15)])
async def test_plan_standing_and_table_are_on_the_screen(size: tuple[int, int]) -> None:
    app, _ = make_app(live(progress=MIDWAY))
    async with app.run_test(size=size) as pilot:
        await pilot.press("w")
        await until(pilot, lambda: "TRIALS" in screen_text(app))
        await until(pilot, lambda: "24.50" in screen_text(app))  # the newest trial
        shown = screen_text(app)
        for said in ("prefill", "320 seqs", "about 00:07:28 left", "verdict"):
            assert said in shown
        if size[1] >= 24:
            assert all(word in shown for word in ("done ", "to come", "if needed", LEFT_OUT))
        assert app.screen.query_one(VerticalScroll).max_scroll_x == 0


async def test_before_any_sweep_the_page_begins_at_its_beginning() -> None:
    app, _ = make_app(live())
    async with app.run_test(size=(60, 15)) as pilot:
        await pilot.press("w")
        await until(pilot, lambda: "no sweep has begun" in screen_text(app))
        for _ in range(30):
            await pilot.press("j")
        await until(pilot, lambda: "sweep stood." in screen_text(app))


async def newest_is(pilot: Pilot[int], app: TunetuiApp, number: int) -> None:
    await until(pilot, lambda: re.findall(r"try (\d+)", screen_text(app))[-1:] == [str(number)])


async def test_it_follows_its_end_until_it_is_scrolled_up_and_again_after_end() -> None:
    app, driver = make_app(live(progress=many(40)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("w")
        await newest_is(pilot, app, 40)
        driver.put(progress=many(41))
        await newest_is(pilot, app, 41)
        assert "following" in title(app)
        await pilot.press("k", "up", "j")
        await newest_is(pilot, app, 40)
        await until(pilot, lambda: "scrolled up, end follows" in title(app))
        driver.put(progress=many(50))
        await until(pilot, lambda: "50 trials" in screen_text(app))
        await newest_is(pilot, app, 40)
        await pilot.press("home")
        await until(pilot, lambda: "try 1 " in screen_text(app))
        await pilot.press("G")
        await newest_is(pilot, app, 50)
        await until(pilot, lambda: "   following" in title(app))
        await pilot.resize_terminal(120, 30)
        await newest_is(pilot, app, 50)
        driver.put(progress=many(51))
        await newest_is(pilot, app, 51)


async def test_an_edge_search_has_no_plan() -> None:
    app, _ = make_app(live(progress=SEARCH))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("w")
        await until(pilot, lambda: "EDGE OF ONE POINT" in screen_text(app))
        await until(pilot, lambda: "trial 1: bracket its edge" in screen_text(app))
        assert "to come" not in screen_text(app)
