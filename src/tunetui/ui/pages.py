"""The pages that are read over the session: help, events, and the server's log. They change nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Log, Static

from tunetui.core.session import Notice
from tunetui.engine.logs import LogFollower
from tunetui.ui import format as fmt
from tunetui.ui.commands import COMMANDS, HELP_FIGURES
from tunetui.ui.rows import Rows, is_up, visible
from tunetui.ui.styles import DIM

FOLLOW_S = 0.5
LOG_LINES = 10_000
READS = 8  # of at most 1 MiB each: an old log of many MiB comes in over a few rounds


class Page(ModalScreen[None]):
    """Text to read, scrolled by the arrows; escape goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,o,e,question_mark", "back", show=False),
        Binding("down,j", "scroll(1)", show=False, priority=True),
        Binding("up,k", "scroll(-1)", show=False, priority=True),
    ]

    def __init__(self, title: str, text: Callable[[int], Text]) -> None:
        """`text` gives the page for a width in cells."""
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(classes="page"):
            yield Rows(id="page-title")
            with VerticalScroll():
                yield Static(id="page-text")

    def on_resize(self, event: events.Resize) -> None:
        self.query_one("#page-title", Rows).show(
            Text.assemble((self._title, "bold"), ("   \u2191\u2193 scroll   esc goes back", DIM))
        )
        text = self._text(max(event.size.width - 4, 20))
        text.plain = visible(text.plain)
        self.query_one("#page-text", Static).update(text)

    def action_scroll(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_back(self) -> None:
        self.dismiss(None)


class LogPage(ModalScreen[None]):
    """The server's log, following its end until it is scrolled up; after a restart it goes on with the new file."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,o", "back", show=False),
        Binding("end,G", "follow", show=False, priority=True),
        Binding("home,g", "top", show=False, priority=True),
        Binding("down,j", "scroll(1)", show=False, priority=True),
        Binding("up,k", "scroll(-1)", show=False, priority=True),
    ]

    def __init__(self, path: Callable[[], Path]) -> None:
        """`path` gives the present server's log file."""
        super().__init__()
        self._path = path
        self._follower: LogFollower | None = None
        self._shown_path: Path | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="page"):
            yield Rows(id="page-title")
            yield Log(highlight=False, auto_scroll=False)

    def on_mount(self) -> None:
        self.query_one(Log).focus()
        self.set_interval(FOLLOW_S, self._read_on)
        self.call_after_refresh(self._read_on)

    def _read_on(self) -> None:
        """Show what the log has got since the last look."""
        if not is_up(self):
            return
        path = self._path()
        lines: list[str] = []
        if path != self._shown_path:
            if self._shown_path is not None:
                lines.append(f"---- {path.name} ----")
            self._shown_path, self._follower = path, LogFollower(path)
        assert self._follower is not None
        for _ in range(READS):
            more = self._follower.read()
            if not more:
                break
            lines.extend(visible(line) for line in more)
        widget = self.query_one(Log)
        following = widget.is_vertical_scroll_end
        if lines:
            self._add(lines[-LOG_LINES:], following)
        self._show_title(following or not lines)

    def _add(self, lines: list[str], following: bool) -> None:
        """Append `lines`. Of too many, the oldest go; Log's own limit leaves the rows of before on the screen."""
        widget = self.query_one(Log)
        over = widget.line_count + len(lines) - 2 * LOG_LINES
        if over > 0:
            kept = [*widget.lines, *lines][-LOG_LINES:]
            dropped = widget.line_count + len(lines) - len(kept)
            at = max(widget.scroll_y - dropped, 0)
            widget.clear()
            widget.write_lines(kept, scroll_end=following)
            if not following:
                widget.scroll_to(y=at, animate=False)
            return
        widget.write_lines(lines, scroll_end=following)

    def _show_title(self, following: bool) -> None:
        at_end = following and self.query_one(Log).is_vertical_scroll_end
        state = "following" if at_end else "scrolled up, end follows"
        self.query_one("#page-title", Rows).show(
            Text.assemble(("SERVER LOG", "bold"), (f"   {state}   esc goes back   ", DIM), (str(self._path()), DIM))
        )

    def action_follow(self) -> None:
        self._scrolled(lambda log: log.scroll_end(animate=False, immediate=True))

    def action_top(self) -> None:
        self._scrolled(lambda log: log.scroll_home(animate=False, immediate=True))

    def action_scroll(self, rows: int) -> None:
        self._scrolled(lambda log: log.scroll_relative(y=rows, animate=False, immediate=True))

    def _scrolled(self, scroll: Callable[[Log], None]) -> None:
        scroll(self.query_one(Log))
        self.call_after_refresh(self._show_title, True)

    def action_back(self) -> None:
        self.dismiss(None)


def _entry(head: str, text: str, indent: int, width: int) -> Text:
    """`head`, then `text` hung at `indent`."""
    lines = textwrap.wrap(text, max(width - indent, 10)) or [""]
    return Text.assemble((f"{head:<{indent}}", "bold"), ("\n" + " " * indent).join(lines), "\n")


def help_text(width: int) -> Text:
    """The keys and what the figures mean."""
    text = Text()
    for command in COMMANDS:
        text.append_text(_entry(command.shown, command.text, 9, width))
    text.append("\n")
    for name, meaning in HELP_FIGURES:
        text.append_text(_entry(name, meaning, len(name) + 2 if len(name) > 12 else 13, width))
    return text


def events_text(notices: Sequence[Notice], began_s: float, width: int) -> Text:
    """What happened, newest last."""
    if not notices:
        return Text("nothing yet")
    return Text().join(_entry(fmt.clock(n.time_s - began_s), n.text, 10, width) for n in notices)
