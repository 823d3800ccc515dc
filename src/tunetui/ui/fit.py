"""One line made of parts: it fits a width by dropping its least important parts, and its right end never moves off.

It knows nothing of sessions or widgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

GAP = "   "


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a line. The lowest `rank` is dropped first; the part of rank 0 is the one shortened instead."""

    text: Text
    rank: int


def part(rank: int, text: str | Text, style: str = "") -> Part:
    return Part(text if isinstance(text, Text) else Text(text, style), rank)


def fitted(parts: Sequence[Part], right: Text, width: int, gap: str = GAP) -> Text:
    """`parts` in their order with `right` at the right end, in exactly `width` cells (fewer where `right` is empty)."""
    room = width - (right.cell_len + len(gap) if right.cell_len else 0)
    kept = list(parts)
    while len(kept) > 1 and _cells(kept, gap) > room:
        kept.remove(_least(kept))
    line = Text(gap, end="").join([p.text for p in kept])
    line.truncate(max(room, 0), overflow="ellipsis", pad=bool(right.cell_len))
    return Text.assemble(line, gap if room >= 0 else "", right) if right.cell_len else line


def _cells(parts: Sequence[Part], gap: str) -> int:
    return sum(p.text.cell_len for p in parts) + len(gap) * (len(parts) - 1)


def fits(parts: Sequence[Part], room: int, gap: str = GAP) -> bool:
    """Whether `parts` have their place in `room` cells as they are."""
    return _cells(parts, gap) <= room


def _least(parts: Sequence[Part]) -> Part:
    """The one to drop next."""
    return min((p for p in parts if p.rank), key=lambda p: p.rank, default=parts[-1])


def shortened(parts: Sequence[Part], room: int, gap: str = GAP, least: int = 12) -> list[Part]:
    """`parts` with the one of rank 0 cut to what the others leave. Where that would be fewer than `least` cells others
    are dropped first, so that nothing is cut for the sake of one that does not stay."""
    kept, whole = list(parts), sum(p.text.cell_len for p in parts if p.rank == 0)
    while any(p.rank for p in kept) and whole - min(least, whole) < _cells(kept, gap) - room:
        kept.remove(_least(kept))
    left = max(whole - max(_cells(kept, gap) - room, 0), min(least, whole))
    return [p if p.rank else Part(_cut(p.text, left), 0) for p in kept]


def _cut(text: Text, cells: int) -> Text:
    cut = text.copy()
    cut.truncate(cells, overflow="ellipsis")
    return cut
