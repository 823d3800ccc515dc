"""The table of points: its columns as data, and the text of as many rows as fit. It measures and sorts nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from tunetui.core.knobs import EngineFacts, Knob, Point
from tunetui.core.session import Row, Session
from tunetui.ui import format as fmt
from tunetui.ui.panels import DIM, VERDICT_STYLE


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head, its width in cells in the wide and the narrow table (0: left out), and its value."""

    head: str
    wide: int
    narrow: int
    value: Callable[[Row, EngineFacts | None], str]
    left: bool = False

    def cell(self, text: str, wide: bool) -> str:
        width = self.wide if wide else self.narrow
        return f"{text[:width]:<{width}}" if self.left else f"{text:>{width}}"


def _knob(render: Callable[[Point, EngineFacts | None], str]) -> Callable[[Row, EngineFacts | None], str]:
    return lambda row, facts: "-" if row.point is None else render(row.point, facts)


COLUMNS = (
    Column("#", 3, 2, lambda row, _: str(row.number)),
    Column("seqs", 5, 5, _knob(lambda point, _: str(point.max_num_seqs))),
    Column("chunk", 5, 5, _knob(lambda point, _: "on" if point.chunked_prefill else "off")),
    Column("tokens", 6, 6, _knob(lambda point, _: str(point.max_num_batched_tokens))),
    Column("memory", 8, 8, _knob(lambda point, facts: fmt.knob_value(Knob.MEMORY, point, facts))),
    Column("load", 22, 0, lambda row, _: str(row.load), left=True),
    Column("tok/s", 7, 6, lambda row, _: f"{row.measurement.output_tokens_per_s:,.0f}"),
    Column("goodput", 7, 7, lambda row, _: f"{row.measurement.goodput_rps:.2f}"),
    Column("TTFT", 7, 7, lambda row, _: fmt.bare_ms(row.measurement.ttft_s)),
    Column("TPOT", 6, 5, lambda row, _: fmt.bare_ms(row.measurement.tpot_s)),
    Column("verdict", 9, 9, lambda row, _: row.measurement.verdict.value, left=True),
    Column("blocks", 6, 0, lambda row, _: str(row.kv_blocks or "-")),
    Column("", 9, 4, lambda row, _: "confirmed" if row.confirmed else "live", left=True),
)


def points(state: Session, width: int, height: int) -> Text:
    """The newest rows that fit into `height` lines, newest last; `>` marks the present point and load."""
    wide = width >= 100
    columns = [c for c in COLUMNS if (c.wide if wide else c.narrow)]
    head = " ".join(c.cell(c.head, wide) for c in columns)
    lines = [Text("  " + head, DIM)]
    if wide:
        lines.insert(0, Text.assemble(("POINTS", "bold"), (f"  P{state.slo.percentile} in ms, goodput in req/s", DIM)))
    for row in state.rows[-max(height - len(lines), 1) :]:
        present = row.point == state.point and row.load == state.load
        line = Text("> " if present else "  ", no_wrap=True)
        for column in columns:
            style = VERDICT_STYLE[row.measurement.verdict] if column.head == "verdict" else ""
            line.append(column.cell(column.value(row, state.facts), wide), style).append(" ")
        lines.append(line)
    if not state.rows:
        lines.append(Text("  none yet: a point gets its line when its episode has a verdict", DIM))
    return Text("\n").join(lines)
