"""The table of points: its columns as data, and the text of as many rows as fit. It measures and sorts nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.text import Text

from tunetui.core.knobs import EngineFacts, Knob, Point
from tunetui.core.session import Row, Session
from tunetui.ui import format as fmt
from tunetui.ui.styles import DIM, VERDICT_STYLE

MARK = 2  # cells before the first column
Of = TypeVar("Of")


@dataclass(frozen=True, slots=True)
class Column(Generic[Of]):
    """One column: its head, its width in cells, how long it is kept as the table gets narrower, and its value."""

    head: str
    width: int
    rank: int
    value: Callable[[Of, EngineFacts | None], str]
    left: bool = False

    def cell(self, text: str) -> str:
        return f"{text[: self.width]:<{self.width}}" if self.left else f"{text:>{self.width}}"


def _knob(render: Callable[[Point, EngineFacts | None], str]) -> Callable[[Row, EngineFacts | None], str]:
    return lambda row, facts: "-" if row.point is None else render(row.point, facts)


COLUMNS: tuple[Column[Row], ...] = (
    Column("#", 2, 9, lambda row, _: str(row.number)),
    Column("seqs", 5, 9, _knob(lambda point, _: str(point.max_num_seqs))),
    Column("tokens", 6, 8, _knob(lambda point, _: str(point.max_num_batched_tokens))),
    Column("chunk", 6, 6, _knob(lambda point, _: fmt.chunking(point))),
    Column("memory", 8, 5, _knob(lambda point, facts: fmt.knob_value(Knob.MEMORY, point, facts))),
    Column("prefix", 6, 2, _knob(lambda point, _: "on" if point.prefix_caching else "off")),
    Column("load", 23, 1, lambda row, _: str(row.load), left=True),
    Column("tok/s", 6, 7, lambda row, _: f"{row.measurement.output_tokens_per_s:,.0f}"),
    Column("goodput", 7, 8, lambda row, _: f"{row.measurement.goodput_rps:.2f}"),
    Column("TTFT", 6, 9, lambda row, _: fmt.bare_ms(row.measurement.ttft_s)),
    Column("TPOT", 6, 9, lambda row, _: fmt.bare_ms(row.measurement.tpot_s, 1)),
    Column("verdict", 9, 10, lambda row, _: row.measurement.verdict.value, left=True),
    Column("cap", 6, 4, lambda row, _: "-" if row.capacity_rps is None else f"{row.capacity_rps:.2f}"),
    Column("blocks", 6, 3, lambda row, _: str(row.kv_blocks or "-")),
    Column("kind", 4, 10, lambda row, _: "conf" if row.confirmed else "live", left=True),
)


def that_fit(columns: Sequence[Column[Of]], width: int) -> list[Column[Of]]:
    """The columns that fit into `width` cells, in their order; those of the lowest rank go first."""
    kept = list(columns)
    while len(kept) > 1 and sum(c.width + 1 for c in kept) - 1 > width:
        kept.remove(min(kept, key=lambda c: c.rank))
    return kept


def columns_for(width: int) -> list[Column[Row]]:
    """The table's columns at this width."""
    return that_fit(COLUMNS, width - MARK)


def _is_present(row: Row, state: Session) -> bool:
    return row.point == state.point and row.load == state.load


def _shown(state: Session, room: int) -> list[Row]:
    """The newest rows, and the present point's in place of the oldest of them where it is older still."""
    newest = list(state.rows[-room:])
    if room > 1 and not any(_is_present(r, state) for r in newest):
        newest = [r for r in state.rows if _is_present(r, state)][-1:] + newest[-(room - 1) :]
    return newest


def points(state: Session, width: int, height: int) -> Text:
    """The newest rows that fit into `height` lines, newest last; `>` marks the present point and load."""
    columns = columns_for(width)
    lines = [Text(" " * MARK + " ".join(c.cell(c.head) for c in columns), DIM)]
    if height > 5:
        lines.insert(0, Text.assemble(("POINTS", "bold"), (f"  P{state.slo.percentile} in ms, goodput in req/s", DIM)))
    room = max(height - len(lines), 1)
    for row in _shown(state, room):
        present = _is_present(row, state)
        line = Text("> " if present else "  ", style="bold" if present else "")
        for column in columns:
            style = VERDICT_STYLE[row.measurement.verdict] if column.head == "verdict" else ""
            line.append(column.cell(column.value(row, state.facts)), style)
            if column is not columns[-1]:
                line.append(" ")
        lines.append(line)
    if not state.rows:
        lines.append(Text("  none yet: a point gets its line when its episode has a verdict", DIM))
    return Text("\n").join(lines)
