"""The pages of statistics: distributions, TTFT by prompt length, what holds in general, points against each other, and
what each step would bring.

They follow the session while they are open; what they say is made in `histograms`, `by_length`, `in_general`,
`tradeoff` and `outlook`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen

from tunetui.core.session import Session
from tunetui.ui.by_length import by_length
from tunetui.ui.fit import fitted, part
from tunetui.ui.histograms import histograms
from tunetui.ui.in_general import in_general
from tunetui.ui.outlook import outlook
from tunetui.ui.rows import Rows, is_up
from tunetui.ui.styles import DIM
from tunetui.ui.tradeoff import tradeoff

FOLLOW_S = 0.25
TALL = 30  # rows from which a blank one stands under the title
BESIDE = 4  # cells of padding and scrollbar
VIEWS: dict[str, tuple[str, str, Callable[[Session, int, int], Text]]] = {
    "d": ("DISTRIBUTIONS", "distributions", histograms),
    "n": ("TTFT BY PROMPT LENGTH", "by prompt length", by_length),
    "g": ("IN GENERAL", "in general", in_general),
    "p": ("POINTS AGAINST EACH OTHER", "points", tradeoff),
    "x": ("WHAT EACH STEP WOULD BRING", "steps", outlook),
}


class StatisticsPage(ModalScreen[None]):
    """One view of the statistics. Its own key or escape goes back, the keys of the others go there."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "back", show=False),
        *(Binding(key, f"view('{key}')", show=False) for key in VIEWS),
        Binding("down,j", "scroll(1)", show=False, priority=True),
        Binding("up,k", "scroll(-1)", show=False, priority=True),
    ]

    def __init__(self, key: str, state: Callable[[], Session]) -> None:
        """`key` of VIEWS; `state` gives the session as it is."""
        super().__init__()
        self._key, self._state = key, state
        self._painted: Session | None = None
        self._look = ("", 0, 0)

    def compose(self) -> ComposeResult:
        with Vertical(classes="page"):
            yield Rows(id="page-title")
            with VerticalScroll():
                yield Rows(id="figures")

    def on_mount(self) -> None:
        self.set_interval(FOLLOW_S, self._paint)

    def on_resize(self) -> None:
        self._paint()

    def _paint(self) -> None:
        """Show the state as it is; nothing is done where it is what is shown."""
        if not is_up(self):
            return
        state, (width, height) = self._state(), self.size
        look = (self._key, width, height)
        if state is self._painted and look == self._look:
            return
        self._painted, self._look = state, look
        tall = height >= TALL
        self.query_one("#page-title", Rows).show(self._title(width - BESIDE))
        text = VIEWS[self._key][2](state, max(width - BESIDE, 20), height - (2 if tall else 1))
        figures = self.query_one("#figures", Rows)
        self.set_class(tall, "tall")
        figures.styles.height = text.plain.count("\n") + 1
        figures.show(text)

    def _title(self, width: int) -> Text:
        parts = [part(9, VIEWS[self._key][0], "bold"), part(8, "esc goes back", DIM)]
        parts += [part(1, f"{key} {hint}", DIM) for key, (_, hint, _) in VIEWS.items() if key != self._key]
        return fitted(parts, Text(), width)

    def action_view(self, key: str) -> None:
        if key == self._key:
            self.dismiss(None)
            return
        self._key = key
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._paint()

    def action_scroll(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_back(self) -> None:
        self.dismiss(None)
