"""TTFT by prompt length as text: a table with a bar a bucket, the SLO across the bars, and the finding.

It judges nothing: counts, percentiles, shares and the finding are the core's.
"""

from __future__ import annotations

from rich.text import Text

from tunetui.core.lengths import Bucket
from tunetui.core.session import Session
from tunetui.core.slo import Metric
from tunetui.ui import format as fmt
from tunetui.ui.panels import met_all, nothing_yet
from tunetui.ui.styles import BAD, DIM, WARN, WITHIN

ROOMY = 76  # cells from which the heads are written out
LEAST_BAR = 8
FAR = 4.0  # times the highest P95: an SLO beyond that would leave bars of one cell
LEGEND = "█ to P50  ▒ to P95"


def by_length(state: Session, width: int, _height: int) -> Text:
    """The table in `width` cells and what it shows in a sentence."""
    view = state.point_view
    if view is None:
        return Text(nothing_yet(state), DIM)
    buckets = view.by_length.buckets
    if not buckets:
        return Text("no request of this point has ended yet", DIM)
    total = sum(bucket.count for bucket in buckets)
    lines = [Text(f"newest {total:,} requests, TTFT in ms", DIM), Text()]
    lines += [*_Table(state, buckets, width).lines(), Text()]
    if view.by_length.finding:
        lines += [Text(line, WARN) for line in fmt.wrapped(view.by_length.finding, width)]
    elif len(buckets) == 1:
        lines.append(Text("one range of lengths: nothing to compare", DIM))
    else:
        lines.append(Text("short prompts are not seen to wait behind long ones", DIM))
    return Text("\n").join(lines)


class _Table:
    """Columns and bars of the buckets; bars share one linear axis from zero to the highest P95, or to the limit
    where that is in sight."""

    def __init__(self, state: Session, buckets: tuple[Bucket, ...], width: int) -> None:
        self._buckets = buckets
        objective = state.slo.objective(Metric.TTFT)
        self._limit_s = objective.limit_s if objective else None
        self._share = state.slo.share
        met = met_all(state) if width >= ROOMY else "met"
        self._heads = ("prompt tokens" if width >= ROOMY else "tokens", "requests", "P50", "P95", met)
        self._widths = (13 if width >= ROOMY else 11, 8, 7, 7, max(len(met), 7))
        self._room = width - sum(self._widths) - len(self._widths) - 1
        highest_s = max(b.ttft_p95_s or 0.0 for b in buckets)
        self._digits = fmt.digits(highest_s)
        self._far = self._limit_s is not None and self._limit_s > FAR * highest_s
        self._top_s = (highest_s if self._limit_s is None or self._far else max(highest_s, self._limit_s)) * 1.1

    def lines(self) -> list[Text]:
        """Head, one line a bucket, and the bars' axis."""
        head = self._columns(self._heads)
        rows = [self._row(bucket) for bucket in self._buckets]
        if self._room < LEAST_BAR or not self._top_s:
            return [Text(head, DIM), *rows]
        if self._room < len(LEGEND):
            return [Text(head, DIM), *rows, self._axis(), Text(LEGEND, DIM)]
        return [Text(f"{head}  {LEGEND}", DIM), *rows, self._axis()]

    def _columns(self, cells: tuple[str, ...]) -> str:
        return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, self._widths, strict=True))

    def _row(self, bucket: Bucket) -> Text:
        latencies = (fmt.bare_ms(seconds, self._digits) for seconds in (bucket.ttft_p50_s, bucket.ttft_p95_s))
        cells = (str(bucket), f"{bucket.count:,}", *latencies)
        line = Text(" ".join(f"{cell:>{width}}" for cell, width in zip(cells, self._widths, strict=False)))
        met = f"{fmt.percent(bucket.attainment, 1):>{self._widths[-1]}}"
        line.append(" ").append(met, BAD if bucket.attainment < self._share else "")
        return line.append("  ").append_text(self._bar(bucket)) if self._room >= LEAST_BAR and self._top_s else line

    def _cell(self, latency_s: float | None) -> int:
        return 0 if latency_s is None else min(int(latency_s / self._top_s * self._room), self._room - 1)

    def _bar(self, bucket: Bucket) -> Text:
        """Full to P50, shaded to P95, at least one cell; the SLO's line where no bar is."""
        ends = self._cell(bucket.ttft_p50_s), self._cell(bucket.ttft_p95_s)
        cells = ["█" if n <= ends[0] else "▒" if n <= ends[1] else " " for n in range(self._room)]
        if bucket.ttft_p50_s is None:
            cells = [" "] * self._room
        if self._limit_s is None or self._far:
            return Text("".join(cells), WITHIN)
        limit, beyond = self._cell(self._limit_s), (bucket.ttft_p95_s or 0.0) > self._limit_s
        if cells[limit] == " ":
            cells[limit] = "┊"
        bar = Text("".join(cells), WITHIN)
        if beyond or cells[limit] == "┊":
            bar.stylize(BAD, limit)
        return bar

    def _axis(self) -> Text:
        """`SLO 600 ms` under the limit's line, or at the right end where it is far."""
        indent = sum(self._widths) + len(self._widths) + 1
        if self._limit_s is None:
            return Text(" " * indent + f"0 to {fmt.ms(self._top_s)}, no objective", DIM)
        label = f"SLO {self._limit_s * 1000:g} ms"
        if self._far:
            return Text(" " * indent + f"{label + ' ▸':>{self._room}}", BAD)
        at = min(max(self._cell(self._limit_s) - len(label) // 2, 0), self._room - len(label))
        return Text(" " * (indent + max(at, 0)) + label, BAD)
