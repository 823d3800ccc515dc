"""The widget that all panels are: rows of text of which only the changed ones are sent again (STYLE, Terminal facts).

It wraps only where asked to, reads no markup, and lets no control character through to the terminal.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

CONSOLE = Console(color_system="truecolor", force_terminal=True, width=1000)

_VISIBLE = {code: chr(0x2400 + code) for code in range(32) if code != 10}
_VISIBLE |= {0x09: " ", 0x7F: "\u2421", 0x2028: " ", 0x2029: " "}
_VISIBLE |= dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], "\ufffd")
# Marks that reorder or hide what follows.
_VISIBLE |= dict.fromkeys([0x061C, 0x200B, 0x200E, 0x200F, 0xFEFF, *range(0x202A, 0x202F)], "\ufffd")
_VISIBLE |= dict.fromkeys([*range(0x2066, 0x206A), *range(0xE0000, 0xE0080)], "\ufffd")


def visible(text: str) -> str:
    """`text` with every control character replaced by a sign for it, one for one; line feeds stay."""
    return text.translate(_VISIBLE)


def is_up(screen: Screen[Any]) -> bool:
    """Whether `screen` may be painted: while it or the app goes down its timers still ring, and widgets are missing."""
    return screen.app.is_running and screen in screen.app.screen_stack


def strips_of(text: Text, width: int, height: int, wrap: bool = False) -> list[Strip]:
    """`text` as exactly `height` strips of `width` cells; lines that are too long end in an ellipsis, or wrap."""
    safe = text.copy()
    # One for one, so the styles stay in place.
    safe.plain = visible(text.plain)
    lines = list(safe.wrap(CONSOLE, max(width, 1)) if wrap else safe.split("\n"))
    strips = []
    for line in lines[:height]:
        line.truncate(width, overflow="ellipsis")
        segments = [Segment(s.text, s.style or Style.null()) for s in line.render(CONSOLE, end="")]
        strips.append(Strip(segments).adjust_cell_length(width))
    return strips + [Strip.blank(width)] * (height - len(strips))


class Rows(Widget):
    """Text in rows. `show` sends only the rows that differ from those on the screen."""

    DEFAULT_CSS = "Rows { height: 1; }"

    def __init__(self, *, id: str, wrap: bool = False) -> None:  # noqa: A002  (Textual's own name)
        super().__init__(id=id)
        self._wrap = wrap
        self._strips: list[Strip] = []
        self.text = Text()

    def show(self, text: Text) -> None:
        """Show `text` from now on; does nothing where it is what is shown."""
        if text != self.text or text.spans != self.text.spans:
            self.text = text
            self._rebuild()

    def on_resize(self) -> None:
        self._rebuild()

    def make_strips(self, width: int, height: int) -> list[Strip]:
        """The rows for this size."""
        return strips_of(self.text, width, height, self._wrap)

    def _rebuild(self) -> None:
        width, height = self.size
        if width < 1 or height < 1:
            return
        old, self._strips = self._strips, self.make_strips(width, height)
        if len(old) != len(self._strips):
            self.refresh()
            return
        changed = [Region(0, y, width, 1) for y, strip in enumerate(self._strips) if strip != old[y]]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        if y < len(self._strips):
            return self._strips[y].apply_style(self.rich_style)
        return Strip.blank(self.size.width, self.rich_style)
