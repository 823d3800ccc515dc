"""The questions the app asks and the pages it shows over itself. They answer with a value; the app acts on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Log, Static

from tunetui.ui.commands import COMMANDS, HELP_FIGURES


class Question(ModalScreen[str]):
    """A question with answers by key; escape is always the last, which changes nothing."""

    def __init__(self, title: str, body: str, answers: tuple[tuple[str, str, str], ...]) -> None:
        """`answers` are (key, value, text)."""
        super().__init__()
        self._title, self._body, self._answers = title, body, answers

    def compose(self) -> ComposeResult:
        text = Text(self._title, "bold").append(f"\n\n{self._body}\n", "not bold")
        for key, _, meaning in self._answers:
            text.append(f"\n  {key:<6}", "bold").append(meaning, "not bold")
        with Vertical(classes="dialog"):
            yield Static(text)

    def on_key(self, event: object) -> None:
        key = getattr(event, "key", "")
        for name, value, _ in self._answers:
            if key == {"esc": "escape"}.get(name, name):
                self.dismiss(value)
                return


class TypedConfirmation(ModalScreen[bool]):
    """A question that is answered by typing a word, so that no stray key sends load to somebody's server."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "no", show=False)]

    def __init__(self, body: str, word: str) -> None:
        super().__init__()
        self._body, self._word = body, word

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(f"{self._body}\n\nType {self._word} and press enter, or escape to send nothing.\n"))
            yield Input()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip().lower() == self._word)

    def action_no(self) -> None:
        self.dismiss(False)


class Page(ModalScreen[None]):
    """Lines to read, scrolled by the arrows; escape goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,o,e,question_mark", "back", show=False)]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="page"):
            yield Static(Text(f"{self._title}   (esc goes back)\n", "bold"))
            yield Static(self._text)

    def action_back(self) -> None:
        self.dismiss(None)


class LogPage(ModalScreen[None]):
    """The server's log, following its end until it is scrolled up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,o", "back", show=False),
        Binding("end,G", "follow", show=False),
    ]

    def __init__(self, title: str, lines: Callable[[], list[str]]) -> None:
        """`lines` gives the whole log as it is now, safe for a terminal."""
        super().__init__()
        self._title, self._lines, self._shown = title, lines, 0
        self._last = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="page"):
            yield Static(Text(f"{self._title}   (arrows scroll, end follows, esc goes back)", "bold"))
            yield Log(highlight=False, auto_scroll=True)

    def on_mount(self) -> None:
        self.query_one(Log).focus()
        self._update()
        self.set_interval(0.5, self._update)

    def _update(self) -> None:
        lines = self._lines()
        widget = self.query_one(Log)
        # The log is a ring: once it turns, the place of the last line shown says what is new.
        new = lines[self._shown :] if len(lines) >= self._shown and self._shown else lines
        if self._shown and len(lines) == self._shown and lines and lines[-1] != self._last:
            widget.clear()
            new = lines
        if new:
            following = widget.is_vertical_scroll_end
            widget.write_lines(new, scroll_end=following)
            self._shown, self._last = len(lines), lines[-1]

    def action_follow(self) -> None:
        self.query_one(Log).scroll_end(animate=False)

    def action_back(self) -> None:
        self.dismiss(None)


def help_text() -> Text:
    """The keys and what the figures mean."""
    text = Text()
    for command in COMMANDS:
        text.append(f"  {command.shown:<8}", "bold").append(f"{command.text}\n", "not bold")
    text.append("  0-9 .   ", "bold").append(
        "Type a value for the chosen knob; enter applies it, escape drops it.\n", "not bold"
    )
    text.append("  enter   ", "bold").append(
        "Apply the typed value, do the offered restart, or start again.\n\n", "not bold"
    )
    for name, meaning in HELP_FIGURES:
        text.append(f"  {name}: ", "bold").append(f"{meaning}\n", "not bold")
    return text
