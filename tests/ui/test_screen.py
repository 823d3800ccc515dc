"""The screen at its sizes: what is legible, what untrusted text becomes, and how many bytes an update takes."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.text import Text
from textual.drivers import headless_driver
from textual.geometry import Region
from ui.stub import (
    ADVICE,
    FACTS,
    FOUND,
    POINT,
    chart,
    failed,
    live,
    make_app,
    measurement,
    row_text,
    screen_text,
    starting,
    until,
)

from tunetui.core.coach import Coach
from tunetui.core.load import Load
from tunetui.core.session import EngineView, Notice, Phase, Row
from tunetui.core.slo import Verdict
from tunetui.ui.board import Board
from tunetui.ui.plot import Chart
from tunetui.ui.rows import Rows, strips_of, visible

EVIL = "[bold red]x[/] \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \u202eback"


@pytest.mark.parametrize("size", [(59, 14), (59, 40), (120, 14)])
async def test_a_terminal_that_is_too_small_gets_the_verdict_and_the_size(size: tuple[int, int]) -> None:
    app, _ = make_app(live(measurement=measurement(Verdict.FAIL)))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "FAIL" in screen_text(app))
        shown = screen_text(app)
        assert f"needs 60x15, is {size[0]}x{size[1]}" in shown
        assert shown.split() == ["FAIL", "needs", "60x15,", "is", f"{size[0]}x{size[1]}"]
        await pilot.resize_terminal(120, 36)
        await until(pilot, lambda: "KNOBS" in screen_text(app))


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (60, 15), (200, 50)])
async def test_every_panel_has_its_place(size: tuple[int, int]) -> None:
    app, _ = make_app(live(measurement=measurement(Verdict.PASS, Verdict.UNDECIDED)))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "-60 s" in screen_text(app))
        assert all(c.size.height >= 4 and c.size.width >= 20 for c in app.query(Chart)), screen_text(app)
        assert "max-num-seqs" in row_text(app, "knobs")
        assert row_text(app, "ttft-title").endswith(("PASS", "PASS   met 90.0 %"))
        assert "UNDECIDED" in row_text(app, "tpot-title")
        assert row_text(app, "episode").endswith("UNDECIDED")
        assert row_text(app, "engine").endswith("limit: SEQ CAP")
        assert "LIVE 00:12:3" in row_text(app, "header")
        assert "14 rps" in row_text(app, "header")
        assert row_text(app, "footer").endswith("? help  q quit")
        assert "…" not in screen_text(app)


async def test_the_points_at_80_columns_keep_verdict_and_kind_and_mark_the_present_one() -> None:
    seen = measurement(Verdict.FAIL)
    other = Row(1, replace(POINT, max_num_seqs=8), Load(14.0), measurement(Verdict.UNDECIDED))
    rows = (other, Row(2, POINT, Load(14.0), seen), Row(3, POINT, Load(14.0), seen, confirmed=True))
    app, _ = make_app(live(rows=rows))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "conf" in row_text(app, "points"))
        lines = row_text(app, "points").split("\n")
        assert [line[0] for line in lines[1:4]] == [" ", ">", ">"]
        assert [line.split()[-2:] for line in lines[1:4]] == [
            ["UNDECIDED", "live"], ["FAIL", "live"], ["FAIL", "conf"]
        ]  # fmt: skip


async def test_a_long_model_name_does_not_push_the_load_off() -> None:
    app, _ = make_app(live(model="/models/" + "very-long-name-" * 20, load=Load(concurrency=64), paused=True))
    async with app.run_test(size=(120, 36)) as pilot:
        for width, load in ((120, "load 64 streams closed loop PAUSED"), (80, "64 streams PAUSED"), (60, "64 streams")):
            await pilot.resize_terminal(width, 24)
            await until(pilot, lambda: len(app.query_one(Board).query_one("#header", Rows)._strips) == 1)
            await until(pilot, lambda load=load: load in row_text(app, "header"))
            assert "LIVE 00:12:3" in row_text(app, "header")


async def test_a_start_shows_its_phases_with_seconds_and_the_end_of_the_log() -> None:
    app, driver = make_app(starting(start_expected_s=95.0))
    driver.engine.log.extend(["one", "two", "three", "Loading safetensors [red]3/4[/]"])
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "loading weights" in row_text(app, "startup"))
        shown = row_text(app, "startup")
        assert re.search(r"^Starting vLLM  2\d s\nlast time it took 95 s\n", shown)
        assert re.search(r"^ok  starting python +4\.3 s$", shown, re.M)
        assert re.search(r"^\.\.\. loading weights +1[5-9]\.\d s$", shown, re.M)
        assert "Loading safetensors [red]3/4[/]" in shown
        assert "one" not in shown.split()
        assert row_text(app, "footer") == "o log  e events  ? help  q quit"


async def test_a_failed_start_shows_sentence_next_step_and_evidence() -> None:
    app, _ = make_app(failed())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "The server is not running" in row_text(app, "startup"))
        shown = " ".join(row_text(app, "startup").split())
        for part in ("the card has too little memory", "Next: lower --gpu-memory-utilization", "enter start again",
                     "torch.OutOfMemoryError: CUDA"):  # fmt: skip
            assert part in shown
        assert "FAILED" in row_text(app, "header")


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": Phase.FAILED, "failure": (EVIL, EVIL, EVIL)},
        {"model": EVIL, "hardware": EVIL, "version": EVIL},
        {"notices": (Notice(time.monotonic() + 3600, "error", EVIL),)},
        {"errors": 1, "last_error": EVIL},
        {"facts": replace(FACTS, live=False, why_not_live=EVIL)},
        {"coach": Coach(outcome=EVIL)},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_text_from_elsewhere_is_shown_as_it_is(changes: dict[str, Any], written: list[str]) -> None:
    app, _ = make_app(live(**changes))
    async with app.run_test(size=(200, 50)) as pilot:
        await until(pilot, lambda: "red]x[/]" in screen_text(app))
        await until(pilot, lambda: "red]x[/]" in "".join(written))
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", screen_text(app))
        sent = "".join(written)
        assert "\x1b]0;title" not in sent
        assert "\x1b[31mred" not in sent
        assert "\x9b" not in sent


def test_control_characters_keep_their_place() -> None:
    assert visible("a\x1b[31m\tb\nc") == "a\u241b[31m b\nc"
    assert len(visible(EVIL)) == len(EVIL)
    text = Text("\x1b\x1bred", spans=[])
    text.stylize("bold", 2, 5)
    segments = [(s.text, bool(s.style and s.style.bold)) for s in strips_of(text, 5, 1)[0]]
    assert segments == [("\u241b\u241b", False), ("red", True)]


# -- what is sent -------------------------------------------------------------------------------------------------


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the app writes to its terminal: run_test's own driver drops it before it is made."""
    out: list[str] = []

    class Terminal(headless_driver.HeadlessDriver):
        is_headless = False  # type: ignore[assignment]

        def write(self, data: str) -> None:
            out.append(data)

    monkeypatch.setattr(headless_driver, "HeadlessDriver", Terminal)
    return out


@pytest.mark.parametrize(("size", "budget"), [((120, 36), 8_000), ((80, 24), 2_200)])
async def test_an_update_stays_inside_its_budget(size: tuple[int, int], budget: int, written: list[str]) -> None:
    """One second in which every figure moves and the charts scroll; STYLE allows 8 kB at 120x40."""
    app, driver = make_app(live())
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "-60 s" in screen_text(app))
        await until(pilot, lambda: "quit" in "".join(written))
        await pilot.pause()
        sizes = []
        for tick in range(12):
            before = len(written)
            now_s = driver.state.chart[-1].time_s + 1
            new = replace(
                measurement(), judged=100 + tick, ttft_s=0.4 + tick / 100, tpot_s=0.06 + tick / 1000,
                output_tokens_per_s=2000.0 + 7 * tick, goodput_rps=13 + tick / 10,
            )  # fmt: skip
            driver.put(
                chart=chart(61 + tick, now_s), measurement=new, in_flight=40 + tick % 3,
                engine=EngineView(50 + tick, tick, 0.6 + tick / 100, 1024, 0, tick, 0.1),
                    coach=Coach(FOUND, replace(ADVICE, reason=f"requests wait for a slot on {60 + tick}% of steps")),
                rows=(Row(1, POINT, Load(14.0), new, kv_blocks=1024),),
            )  # fmt: skip
            shown = f"EPISODE {100 + tick}/400"
            await until(pilot, lambda shown=shown: row_text(app, "episode").startswith(shown))
            await pilot.pause()
            sizes.append(len("".join(written[before:]).encode()))
        print(f"bytes per update at {size[0]}x{size[1]}: {sizes}")
        assert max(sizes) < budget, sizes


async def test_painting_sends_nothing_where_nothing_changed(written: list[str], monkeypatch: Any) -> None:
    moment = time.monotonic()
    monkeypatch.setattr("tunetui.ui.app.time", SimpleNamespace(monotonic=lambda: moment))
    app, _ = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: len(written) > 3)
        await pilot.pause()
        refreshed: list[Any] = []
        monkeypatch.setattr(Rows, "refresh", lambda self, *regions, **_: refreshed.append((self.id, regions)))
        for _ in range(3):
            app._paint()
        assert refreshed == []


async def test_only_changed_rows_are_refreshed(monkeypatch: Any) -> None:
    app, driver = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "-60 s" in screen_text(app))
        refreshed: list[tuple[str | None, tuple[Region, ...]]] = []
        real = Rows.refresh

        def refresh(self: Rows, *regions: Region, **options: Any) -> Rows:
            refreshed.append((self.id, regions))
            return real(self, *regions, **options)

        monkeypatch.setattr(Rows, "refresh", refresh)
        driver.put(point=replace(POINT, max_num_seqs=128))
        app._paint()
        regions = dict(refreshed)
        assert [(r.y, r.height) for r in regions["knobs"]] == [(1, 1)]
        assert "ttft" not in regions
        assert "engine" not in regions


async def test_ctrl_l_sends_every_row_again(written: list[str]) -> None:
    app, _ = make_app(live())
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "-60 s" in screen_text(app))
        await pilot.pause()
        before = len(written)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: "KNOBS" in "".join(written[before:]))
        again = "".join(written[before:])
        for word in ("tunetui", "KNOBS", "max-num-seqs", "EPISODE", "ENGINE", "POINTS", "quit"):
            assert word in again


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_real_terminal_without_colours_still_shows_the_choice(no_color: str, tmp_path: Path) -> None:
    """In a pty: NO_COLOR leaves greys, the mark and the reversed line; nothing is written to the other stream."""
    main, side = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color"}
    environment |= {"NO_COLOR": no_color} if no_color else {}
    code = (
        "import fcntl, struct, sys, termios\n"
        "fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack('HHHH', 36, 120, 0, 0))\n"
        "from ui.stub import live, make_app\n"
        "app, _ = make_app(live())\n"
        "app.run()\n"
        "sys.exit(app.return_code)\n"
    )
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=side, stdout=subprocess.PIPE, stderr=side, env=environment, cwd=tmp_path
    )
    os.close(side)
    seen = b""
    ends_s = time.monotonic() + 30
    while b"quit" not in seen and time.monotonic() < ends_s:
        if select.select([main], [], [], 0.1)[0]:
            seen += os.read(main, 65536)
    child.terminate()
    while True:  # until the app has put the terminal back, which it cannot while nobody reads
        try:
            if not os.read(main, 65536):
                break
        except OSError:
            break
    assert child.wait(timeout=20) == 143
    os.close(main)
    assert child.stdout is not None
    assert child.stdout.read() == b""
    child.stdout.close()
    assert b"> max-num-seqs" in seen
    colours = {m for m in re.findall(rb"38;2;(\d+;\d+;\d+)|38;5;(\d+)", seen)}
    greys = all(len(set(rgb.split(b";"))) == 1 for rgb, _ in colours if rgb)
    if no_color:
        assert greys
        assert all(int(n) in (0, 7, 8, 15, 16) or int(n) >= 231 for _, n in colours if n), colours
