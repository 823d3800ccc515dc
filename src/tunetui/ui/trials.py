"""The table of a sweep's trials and of the points that it left out: its columns as data, and its lines as text.

It judges nothing: verdicts and reasons are the core's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.text import Text

from tunetui.core.candidates import Stage
from tunetui.core.episode import Measurement
from tunetui.core.knobs import EngineFacts, Knob, Point
from tunetui.core.progress import Line, Progress
from tunetui.core.slo import Metric, Verdict
from tunetui.ui import format as fmt
from tunetui.ui.fit import fitted, part
from tunetui.ui.points import Column, that_fit
from tunetui.ui.styles import BAD, DIM, VERDICT_STYLE, WARN

LEFT_OUT, NOW = "left out", "now"
LEAST_WHY = 15  # cells of the last column, which takes what the others leave
GIVES_WAY = 10  # ranks that a knob's column falls by while all of its cells agree
SHORT_STAGES = {
    Stage.SEQS: "max-seqs",
    Stage.PREFILL: "prefill",
    Stage.MEMORY: "memory",
    Stage.FINE: "fine",
    Stage.CONFIRM: "confirm",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the table. `number` counts the trials, 0: left out. `seen` is None too while a trial is under way."""

    number: int
    stage: Stage
    point: Point | None
    rate_rps: float
    text: str
    seen: Measurement | None = None

    @property
    def verdict(self) -> str:
        if self.seen is not None:
            return self.seen.verdict.value
        return NOW if self.number else LEFT_OUT

    @property
    def style(self) -> str:
        """How the verdict is decorated."""
        if self.seen is not None:
            return VERDICT_STYLE[self.seen.verdict]
        return "bold" if self.number else DIM


def entries(progress: Progress) -> list[Entry]:
    """Every trial and every point left out in their order; the trial that is under way last."""
    found: list[Entry] = []
    trials = 0
    for line in progress.lines:
        trials += line.seen is not None
        found.append(_entry(line, trials))
    trial = progress.trial
    if trial is not None and progress.running:
        found.append(Entry(trials + 1, progress.stage, trial.point, trial.rate_rps, trial.why))
    return found


def _entry(line: Line, trials: int) -> Entry:
    if line.seen is not None:
        return Entry(trials, line.stage, line.point, line.rate_rps, line.text, line.seen.measurement)
    reason = line.text.removeprefix(f"{LEFT_OUT}: ")
    if reason == "predicted" and line.rate_rps:  # a capacity here, which is not tried
        reason = f"predicted {line.rate_rps:.2f} req/s"
    return Entry(0, line.stage, line.point, 0.0, reason)


def _knob(render: Callable[[Point, EngineFacts | None], str]) -> Callable[[Entry, EngineFacts | None], str]:
    return lambda entry, facts: "-" if entry.point is None else render(entry.point, facts)


def _seen(render: Callable[[Measurement], str]) -> Callable[[Entry, EngineFacts | None], str]:
    return lambda entry, _: "-" if entry.seen is None else render(entry.seen)


KNOBS: tuple[Column[Entry], ...] = (
    Column("seqs", 5, 9, _knob(lambda point, _: str(point.max_num_seqs))),
    Column("tokens", 6, 8, _knob(lambda point, _: str(point.max_num_batched_tokens))),
    Column("chunk", 6, 7, _knob(lambda point, _: fmt.chunking(point))),
    Column("memory", 8, 6, _knob(lambda point, facts: fmt.knob_value(Knob.MEMORY, point, facts))),
    Column("prefix", 6, 2, _knob(lambda point, _: "on" if point.prefix_caching else "off")),
)
BEFORE: tuple[Column[Entry], ...] = (
    Column("#", 3, 3, lambda entry, _: str(entry.number or "")),
    Column("stage", 8, 5, lambda entry, _: SHORT_STAGES.get(entry.stage, entry.stage.value), left=True),
)
AFTER: tuple[Column[Entry], ...] = (
    Column("req/s", 6, 10, lambda entry, _: f"{entry.rate_rps:.2f}" if entry.rate_rps else "-"),
    Column("TTFT", 6, 10, _seen(lambda seen: fmt.bare_ms(seen.ttft_s))),
    Column("TPOT", 6, 10, _seen(lambda seen: fmt.bare_ms(seen.tpot_s, 1))),
    Column("verdict", 9, 11, lambda entry, _: entry.verdict, left=True),
)
METRICS = {"TTFT": Metric.TTFT, "TPOT": Metric.TPOT}


def trials(progress: Progress, facts: EngineFacts | None, percentile: int, width: int) -> tuple[Text, Text]:
    """The two lines that head the table, and its lines, newest last, in `width` cells."""
    found = entries(progress)
    knobs = [replace(c, rank=c.rank - GIVES_WAY) if _agreed(c, found, facts) else c for c in KNOBS]
    columns = that_fit([*BEFORE, *knobs, *AFTER], width - LEAST_WHY - 1)
    room = max(width - sum(c.width + 1 for c in columns), 1)
    out = sum(not entry.number for entry in found)
    agreed = [f"{c.head} {_agreed(c, found, facts)}" for c in knobs if c.rank < 0 and c not in columns]
    parts = [
        part(9, "TRIALS", "bold"),
        part(8, f"P{percentile} in ms, rates in req/s", DIM),
        part(6, f"{progress.trials} tried, {out} left out", DIM),
        *([part(7, "all with " + ", ".join(agreed), DIM)] if agreed else []),
    ]
    heads = Text(" ".join([*(c.cell(c.head) for c in columns), "why"]), DIM)
    if not found:
        return Text("\n").join((fitted(parts, Text(), width, "  "), heads)), Text("none yet", DIM)
    lines = [_line(entry, columns, facts, room) for entry in found]
    return Text("\n").join((fitted(parts, Text(), width, "  "), heads)), Text("\n").join(lines)


def _agreed(column: Column[Entry], found: list[Entry], facts: EngineFacts | None) -> str:
    """What all cells of a column say, or nothing."""
    cells = {column.value(entry, facts) for entry in found if entry.point is not None}
    return cells.pop() if len(cells) == 1 else ""


def _line(entry: Entry, columns: list[Column[Entry]], facts: EngineFacts | None, room: int) -> Text:
    line = Text("", "bold" if entry.verdict == NOW else "")
    for column in columns:
        line.append(column.cell(column.value(entry, facts)), _style(entry, column.head)).append(" ")
    return line.append_text(why(entry, room))


def _style(entry: Entry, head: str) -> str:
    """Decoration: of the verdict, and of the latency that was missed."""
    if head == "verdict":
        return entry.style
    results = entry.seen.objectives if entry.seen is not None else ()
    missed = [result.metric for result in results if result.verdict is Verdict.FAIL]
    return BAD if METRICS.get(head) in missed else ""


def why(entry: Entry, room: int) -> Text:
    """What is to be known of the verdict, and why the point was tried or left out, in `room` cells."""
    seen, flags = entry.seen, []
    if seen is not None:
        said = (("ON THE LINE", seen.on_the_line), ("overloaded", seen.overload), ("SUSPECT", seen.suspect))
        flags = [word for word, holds in said if holds]
    text = entry.text
    if len(", ".join([*flags, text])) > room:
        text = text.replace(" to hold ", " ").removeprefix("on a ").removesuffix(" req/s")
    words = _at_a_word(", ".join([*flags, text]), room)
    shown = Text(words, DIM if not entry.number else "")
    shown.stylize(WARN, 0, min(len(", ".join(flags)), len(words)))
    return shown


def _at_a_word(text: str, room: int) -> str:
    """`text`, or as many of its words as fit with an ellipsis."""
    if len(text) <= room:
        return text
    head = text[:room].rpartition(" ")[0] or text[: room - 1]
    return f"{head.rstrip(',:;')}\u2026"
