"""The pages over the session: the log follows its file, whatever grows, turns or is replaced; nothing is markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.containers import VerticalScroll
from textual.widgets import Log
from ui.stub import live, make_app, row_text, screen_text, until

from tunetui.core.session import Notice
from tunetui.ui.app import TunetuiApp
from tunetui.ui.rows import Rows


def log_lines(app: TunetuiApp) -> list[str]:
    return list(app.screen.query_one(Log).lines)


def title(app: TunetuiApp) -> str:
    return app.screen.query_one("#page-title", Rows).text.plain


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


async def test_the_log_follows_far_beyond_what_the_engine_keeps(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    append(path, *(f"line {n}" for n in range(7000)))
    app, _ = make_app(live(), path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("o")
        await until(pilot, lambda: log_lines(app)[-1:] == ["line 6999"])
        assert log_lines(app) == [f"line {n}" for n in range(7000)]
        await until(pilot, lambda: "line 6999" in screen_text(app))
        for turn in range(8):
            append(path, *(f"same {turn}" for _ in range(2000)))
            await until(pilot, lambda turn=turn: log_lines(app)[-1:] == [f"same {turn}"])
            await until(pilot, lambda turn=turn: f"same {turn}" in screen_text(app))
        assert log_lines(app).count("same 7") == 2000
        assert len(log_lines(app)) <= 20_000


async def test_scrolled_up_it_stays_and_end_follows_again(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    append(path, *(f"line {n}" for n in range(200)))
    app, _ = make_app(live(), path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("o")
        await until(pilot, lambda: "line 199" in screen_text(app))
        await until(pilot, lambda: "   following" in title(app))
        await pilot.press("home")
        await until(pilot, lambda: "line 0 " in screen_text(app))
        await until(pilot, lambda: "scrolled up, end follows" in title(app))
        append(path, "new")
        await until(pilot, lambda: log_lines(app)[-1] == "new")
        assert "line 0 " in screen_text(app)
        await pilot.press("j", "down", "k")
        await until(pilot, lambda: "line 1 " in screen_text(app) and "line 0 " not in screen_text(app))
        await pilot.press("G")
        await until(pilot, lambda: "new" in screen_text(app).split())
        append(path, "newer")
        await until(pilot, lambda: "newer" in screen_text(app).split())
        await pilot.press("q")
        assert len(app.screen_stack) == 1


async def test_after_a_restart_it_goes_on_with_the_new_file(tmp_path: Path) -> None:
    path, second = tmp_path / "server.log", tmp_path / "server-2.log"
    append(path, "old server")
    app, driver = make_app(live(), path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("o")
        await until(pilot, lambda: log_lines(app) == ["old server"])
        append(second, "new server")
        driver.engine.log_path = second
        await until(pilot, lambda: log_lines(app) == ["old server", "---- server-2.log ----", "new server"])
        assert "server-2.log" in title(app)


async def test_a_log_that_is_not_there_yet_is_an_empty_page(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    app, _ = make_app(live(), path)
    async with app.run_test(size=(60, 15)) as pilot:
        await pilot.press("o")
        await pilot.pause()
        append(path, "there")
        await until(pilot, lambda: log_lines(app) == ["there"])


async def test_the_servers_words_are_not_markup_and_no_escapes(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    append(path, "[bold red]x[/]", "\x1b[2J\x1b[31mred\x1b[0m", "a\x07b\x1b]0;t\x07c", "ta\tb \u202eback")
    app, _ = make_app(live(notices=(Notice(0.0, "error", "[bold red]x[/] \x1b[31mred"),)), path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("o")
        await until(pilot, lambda: len(log_lines(app)) == 4)
        await until(pilot, lambda: "[bold red]x[/]" in screen_text(app))
        assert log_lines(app)[:3] == ["[bold red]x[/]", "red", "a\u2407bc"]
        await pilot.press("escape", "e")
        await until(pilot, lambda: "[bold red]x[/] \u241b[31mred" in screen_text(app))


@pytest.mark.parametrize("size", [(80, 24), (60, 15)])
async def test_help_is_readable_to_its_end(size: tuple[int, int]) -> None:
    app, _ = make_app(live())
    async with app.run_test(size=size) as pilot:
        await pilot.press("question_mark")
        await until(pilot, lambda: "Choose the knob above." in screen_text(app))
        for _ in range(90):
            await pilot.press("j")
        await until(pilot, lambda: "conf on a freshly started" in " ".join(screen_text(app).split()))
        assert app.screen.query_one(VerticalScroll).max_scroll_x == 0
        await pilot.press("question_mark")
        assert "KNOBS" in row_text(app, "knobs")
