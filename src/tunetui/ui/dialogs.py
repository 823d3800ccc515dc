"""The questions the app asks. They answer with a value; the app acts on it."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tunetui.ui.rows import visible


def _plain(text: str | Text) -> Text:
    """Text that came from elsewhere, with its control characters made visible."""
    safe = text.copy() if isinstance(text, Text) else Text(text)
    safe.plain = visible(safe.plain)
    return safe


class Question(ModalScreen[str]):
    """A question with answers by key; the last of them is escape with an empty value, which changes nothing."""

    def __init__(self, title: str, body: str | Text, answers: tuple[tuple[str, str, str], ...]) -> None:
        """`answers` are (key, value, text)."""
        super().__init__()
        self._title, self._body, self._answers = title, _plain(body), answers
        self._answered = False

    def compose(self) -> ComposeResult:
        text = Text.assemble((self._title, "bold"), "\n\n", self._body, "\n")
        for key, _, meaning in self._answers:
            text.append(f"\n  {key:<6}", "bold").append(meaning, "not bold")
        with Vertical(classes="dialog"):
            yield Static(text)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.answer(event.key)

    def answer(self, key: str) -> None:
        """Give the answer of `key`; other keys, and a second answer, change nothing."""
        for name, value, _ in self._answers:
            if key == {"esc": "escape"}.get(name, name) and not self._answered:
                self._answered = True
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
            yield Static(_plain(f"{self._body}\n\nType {self._word} and press enter, or escape to send nothing.\n"))
            yield Input()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip().lower() == self._word)

    def action_no(self) -> None:
        self.dismiss(False)
