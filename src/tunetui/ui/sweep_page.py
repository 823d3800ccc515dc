"""The page of a sweep: its plan, the best point so far, what it does now, and all that it tried and left out.

It follows the session while it is open, and steers nothing: `s` on the board does.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen

from tunetui.core.candidates import Stage
from tunetui.core.knobs import EngineFacts, Knob, Point
from tunetui.core.progress import STAGES, Progress
from tunetui.core.session import Session
from tunetui.ui import format as fmt
from tunetui.ui.fit import fitted, part
from tunetui.ui.rows import Rows, is_up
from tunetui.ui.styles import DIM
from tunetui.ui.trials import entries, trials

FOLLOW_S = 0.25
BESIDE = 4  # cells of padding and scrollbar
WIDE = 100  # cells from which the plan says what was tried in each stage
WIDER = 140  # ... and has its full names
SHORT = 20  # rows below which the plan is one line
MARK, TRIED, GAP = 11, 22, 3
NAMES = {
    Stage.BASELINE: "baseline",
    Stage.SEQS: "max-num-seqs",
    Stage.PREFILL: "prefill",
    Stage.MEMORY: "memory",
    Stage.FINE: "seqs, fine",
    Stage.EDGE: "edge",
    Stage.CONFIRM: "confirm",
}
WHAT = {
    Stage.BASELINE: "the edge of the present point",
    Stage.SEQS: "a ladder up to the ceiling",
    Stage.PREFILL: "chunked or whole, the token budget, a limit to long prefills",
    Stage.MEMORY: "more of it where the KV cache was nearly full; prefix caching where prompts share prefixes",
    Stage.FINE: "max-num-seqs once more, by half steps",
    Stage.EDGE: "by trials, only where predictions cannot be trusted",
    Stage.CONFIRM: "a fresh server with exactly the flags of the best point; episodes of other seeds must meet the SLO",
}
BEFORE_ANY = (
    "no sweep has begun in this session: s on the board begins one. It looks by itself for the point with the highest "
    "capacity, which is the highest request rate inside the SLO:"
)
HOW = (
    "Points that are predicted to be no better are left out; the others are tried for an episode each. A key that "
    "changes something takes over, and s goes on where the sweep stood."
)


def before_any(width: int) -> Text:
    """What `s` does, for as long as nothing has been swept."""
    lines = [*fmt.wrapped(BEFORE_ANY, width), ""]
    for stage in STAGES:
        first, *rest = fmt.wrapped(WHAT[stage], width - 16)
        lines += [f"  {NAMES[stage]:<14}{first}", *(" " * 16 + line for line in rest)]
    return Text("\n".join([*lines, "", *fmt.wrapped(HOW, width)]))


def mark(progress: Progress, stage: Stage) -> str:
    """Where a stage of the plan stands, in a word."""
    if stage is progress.stage:
        if progress.outcome is not None:
            return "ended" if progress.outcome.reason else "done"
        if not progress.running:
            return "stopped"
        return "now again" if stage in progress.done else "now"
    if stage in progress.done:
        return "done"
    if progress.outcome is not None or STAGES.index(stage) < STAGES.index(progress.stage):
        return "no need" if stage is Stage.EDGE else "left out"
    return "if needed" if stage is Stage.EDGE else "to come"


def plan(progress: Progress, width: int) -> Text:
    """The stages, one a line, each with its mark; where there is room with what was tried."""
    wide = width >= WIDE
    lines = []
    for stage in STAGES:
        word = mark(progress, stage)
        name = stage.value if width >= WIDER else NAMES[stage]
        tried = (_tried(progress, stage) or ("nothing to try" if word == "done" else "")) if wide else ""
        style = "bold" if word.startswith(("now", "stopped")) else "" if word == "done" else DIM
        lines.append(Text(f"{word:<{MARK}}{name:<{_name_cells(width)}}  {tried}".rstrip(), style))
    return Text("\n").join(lines)


def _name_cells(width: int) -> int:
    return max(map(len, STAGES if width >= WIDER else NAMES.values()))


def _tried(progress: Progress, stage: Stage) -> str:
    """`3 trials, 6 left out`."""
    found = [entry for entry in entries(progress) if entry.stage is stage]
    tried = sum(entry.seen is not None for entry in found)
    out = sum(not entry.number for entry in found)
    counts = ((_trials(tried), tried), (f"{out} left out", out))
    return ", ".join(words for words, count in counts if count)


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count or 'no'} trials"


def point_words(point: Point, facts: EngineFacts | None) -> str:
    """`320 seqs, 8192 tokens, chunked prefill on, memory 0.92, prefix caching on`."""
    words = [f"{point.max_num_seqs} seqs", f"{point.max_num_batched_tokens} tokens"]
    words.append(f"chunked prefill {fmt.knob_value(Knob.CHUNKED, point, facts)}")
    if point.long_prefill_token_threshold:
        words.append(f"long prefills at most {point.long_prefill_token_threshold}")
    words.append(f"memory {fmt.knob_value(Knob.MEMORY, point, facts)}")
    return ", ".join([*words, f"prefix caching {fmt.knob_value(Knob.PREFIX, point, facts)}"])


def standing(state: Session, progress: Progress, width: int) -> Text:
    """The best point so far, what is done now, and the time, each wrapped beside its name."""
    said = {"best": _best(progress, state.facts), "now": _now(state, progress), "time": _time(progress)}
    lines = []
    for name, words in said.items():
        first, *rest = fmt.wrapped(words, width - 6)
        lines.append(Text.assemble((f"{name:<6}", "bold"), first))
        lines += [Text(" " * 6 + line) for line in rest]
    return Text("\n").join(lines)


def _best(progress: Progress, facts: EngineFacts | None) -> str:
    """The best point, its capacity, and the load that it was accepted for."""
    outcome = progress.outcome
    point = (outcome.point if outcome is not None else None) or progress.best
    if point is None:
        return "not known yet"
    capacity_rps = (outcome.capacity_rps if outcome is not None else 0.0) or progress.capacity_rps
    words = point_words(point, facts)
    return f"{words}; capacity {capacity_rps:.2f} req/s" if capacity_rps else words


def _now(state: Session, progress: Progress) -> str:
    outcome = progress.outcome
    if outcome is not None:
        if outcome.reason:
            return f"ended: {outcome.reason}"
        held = fmt.load(outcome.load, wide=False) if outcome.load is not None else "it"
        return "ended: the edge is found" if progress.edge_only else f"ended: {held} held on a fresh server"
    if not progress.running:
        return f"stopped before its end: {'f looks' if progress.edge_only else 's goes on'}, e says why"
    seen = state.measurement
    if progress.trial is None or seen is None:
        return progress.doing or "the stage begins"
    return f"{progress.doing}; {seen.judged} of {seen.counted} requests judged"


def _time(progress: Progress) -> str:
    """What had passed when the present task began, and what was left."""
    if progress.running and not progress.trials:
        return "known once a trial has ended"
    left = progress.left_s if progress.running else None
    words = f"{fmt.clock(progress.elapsed_s)} for {_trials(progress.trials)}"
    return words if left is None else f"{words}, about {fmt.clock(left)} left"


def head(state: Session, progress: Progress, width: int, height: int) -> Text:
    """What stands above the table: plan and standing beside each other, or in few rows the present stage's line."""
    if progress.edge_only:
        return standing(state, progress, width)
    if height < SHORT:
        at = f"stage {STAGES.index(progress.stage) + 1} of {len(STAGES)}, {mark(progress, progress.stage)}: "
        return Text("\n").join((Text(f"{at}{NAMES[progress.stage]}", "bold"), standing(state, progress, width)))
    cells = MARK + _name_cells(width) + (TRIED if width >= WIDE else 0) + GAP
    left, right = plan(progress, width).split("\n"), standing(state, progress, width - cells).split("\n")
    pairs = zip_longest(left, right, fillvalue=Text())
    return Text("\n").join(Text.assemble(a, " " * (cells - a.cell_len), b) for a, b in pairs)


class SweepPage(ModalScreen[None]):
    """The sweep as it stands. Its table follows its end until it is scrolled up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,w", "back", show=False),
        Binding("end,G", "end", show=False, priority=True),
        Binding("home,g", "top", show=False, priority=True),
        Binding("down,j", "scroll(1)", show=False, priority=True),
        Binding("up,k", "scroll(-1)", show=False, priority=True),
    ]

    def __init__(self, state: Callable[[], Session]) -> None:
        """`state` gives the session as it is."""
        super().__init__()
        self._state = state
        self._painted: Session | None = None
        self._painted_size = (0, 0)
        self._following = True

    def compose(self) -> ComposeResult:
        with Vertical(classes="page"):
            for name in ("page-title", "sweep-head", "sweep-columns"):
                yield Rows(id=name)
            with VerticalScroll():
                yield Rows(id="sweep-lines")

    def on_mount(self) -> None:
        self.set_interval(FOLLOW_S, self._paint)
        self.watch(self.query_one(VerticalScroll), "scroll_y", self._scrolled, init=False)

    def on_resize(self) -> None:
        self._paint()

    def _paint(self) -> None:
        """Show the state as it is; nothing is done where it is what is shown."""
        if not is_up(self):
            return
        state, (width, height) = self._state(), self.size
        if state is self._painted and (width, height) == self._painted_size:
            return
        self._painted, self._painted_size = state, (width, height)
        progress, room = state.progress, max(width - BESIDE, 20)
        above = columns = Text()
        if progress is None:
            lines = before_any(room)
        else:
            above = head(state, progress, room, height)
            if height >= SHORT:
                above.append("\n")
            columns, lines = trials(progress, state.facts, state.slo.percentile, room)
        with self.app.batch_update():
            self._show_title()
            for name, text in (("sweep-head", above), ("sweep-columns", columns), ("sweep-lines", lines)):
                self._show(name, text)
        if self._following and progress is not None:
            self.call_after_refresh(self.action_end)

    def _show(self, name: str, text: Text) -> None:
        rows = self.query_one(f"#{name}", Rows)
        rows.display = bool(text.plain)
        rows.styles.height = text.plain.count("\n") + 1
        rows.show(text)

    def _show_title(self) -> None:
        progress = self._state().progress
        name = "EDGE OF ONE POINT" if progress is not None and progress.edge_only else "SWEEP"
        follows = "" if progress is None else "following" if self._following else "scrolled up, end follows"
        hints = (
            part(9, name, "bold"),
            part(3, follows, DIM),
            part(1, "\u2191\u2193 scroll", DIM),
            part(2, "esc goes back", DIM),
        )
        self.query_one("#page-title", Rows).show(fitted([p for p in hints if p.text], Text(), self.size.width - BESIDE))

    def _scrolled(self) -> None:
        """By keys, the mouse or the table itself."""
        if is_up(self):
            self._following = self.query_one(VerticalScroll).is_vertical_scroll_end
            self._show_title()

    def action_end(self) -> None:
        if is_up(self):
            self.query_one(VerticalScroll).scroll_end(animate=False, immediate=True)

    def action_top(self) -> None:
        self.query_one(VerticalScroll).scroll_home(animate=False, immediate=True)

    def action_scroll(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False, immediate=True)

    def action_back(self) -> None:
        self.dismiss(None)
