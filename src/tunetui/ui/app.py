"""The app: it shows the session's state, and turns keys into calls of the driver. It decides nothing about points."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from math import nan
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from tunetui.core.knobs import Knob, parse_value
from tunetui.core.session import Phase
from tunetui.core.slo import Metric
from tunetui.drive.driver import Driver
from tunetui.ui import commands, panels
from tunetui.ui import format as fmt
from tunetui.ui.dialogs import LogPage, Page, Question, TypedConfirmation, help_text
from tunetui.ui.plot import Chart, Series, window_for
from tunetui.ui.points import points

PAINT_S = 0.25
SMALLEST = (60, 15)
CHARTS = ((Metric.TTFT, "ttft"), (Metric.TPOT, "tpot"))

# Exit codes of the app: what the command returns.
EXIT_SERVER = 3


class TunetuiApp(App[int]):
    """One session on the screen. After `run`, `leave_running` says what the operator wants of the server."""

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [*commands.bindings()]

    def __init__(self, make_driver: Callable[[Callable[[], None]], Driver]) -> None:
        """`make_driver` gets the function to call after each change of state."""
        super().__init__()
        self.driver = make_driver(self._changed)
        self.leave_running = False
        self._dirty = True
        self._chosen = Knob.SEQS
        self._typed = ""
        self._chart_shown: tuple[object, ...] = ()

    # -- layout and life ------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Static(id="header")
        with Horizontal(id="body"):
            yield Static(id="knobs")
            with Vertical(id="charts"):
                for _, name in CHARTS:
                    yield Static(id=f"{name}-title", classes="title")
                    yield Chart(id=name)
            yield Static(id="startup")
        for name in ("episode", "engine", "message", "points", "footer", "small"):
            yield Static(id=name)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        # The handler only ends the app: the server is stopped after run() has returned (DESIGN, Leaving).
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end, 128 + number)
        self.app_resume_signal.subscribe(self, lambda _: self.action_redraw())
        self.set_interval(PAINT_S, self._paint_if_changed)
        self.set_interval(1.0, self._changed)
        self._paint()
        self.call_after_refresh(self._start)

    def _start(self) -> None:
        self.run_worker(self._run_driver(), exit_on_error=False)

    async def _run_driver(self) -> None:
        try:
            await self.driver.start()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # shown, for a worker's traceback would cover the screen
            self.driver.say(f"the session could not start: {error!r}", "error")

    def _end(self, code: int) -> None:
        if self.driver.state.phase is Phase.FAILED and code == 0:
            code = EXIT_SERVER
        self.exit(code, return_code=code)

    async def on_unmount(self) -> None:
        await self.driver.close()

    # -- painting -------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._dirty = True

    def _paint_if_changed(self) -> None:
        if self._dirty:
            self._paint()

    def on_resize(self, _: events.Resize) -> None:
        self._paint()

    def _paint(self) -> None:
        self._dirty = False
        screen = self.screen_stack[0] if self.screen_stack else None
        if screen is None or not screen.is_mounted:
            return
        width, height = self.size
        small = width < SMALLEST[0] or height < SMALLEST[1]
        state, now_s = self.driver.state, time.monotonic()
        starting = state.phase in (Phase.STARTING, Phase.WARMING, Phase.FAILED) or (
            state.phase is Phase.CONFIRMING and state.detail != "measuring the same episode"
        )
        with self.batch_update():
            screen.set_class(small, "small")
            screen.set_class(width < 100, "narrow")
            screen.set_class(starting, "starting")
            if small:
                verdict = state.measurement.verdict.value if state.measurement else state.phase.value
                self._write("small", Text(f"{verdict}\n\nneeds {SMALLEST[0]}x{SMALLEST[1]}, is {width}x{height}"))
                return
            knob_width = 34 if width < 100 else 44
            self._write("header", panels.header(state, now_s, width))
            self._write("knobs", panels.knobs(state, self._chosen, self._typed, knob_width))
            self._write("episode", panels.episode(state, width))
            self._write("engine", panels.engine(state))
            self._write("message", panels.message(state, now_s))
            self._write("points", points(state, width, 5 if width < 100 else 9))
            self._write("footer", Text(commands.footer(width)))
            if starting:
                self._write("startup", panels.startup(state, now_s))
            else:
                self._paint_charts(now_s)

    def _write(self, name: str, text: Text) -> None:
        """Change a panel's text, and nothing where it stays as it was."""
        widget = self.screen_stack[0].query_one(f"#{name}", Static)
        if getattr(widget, "shown_text", None) != text:
            widget.shown_text = text  # type: ignore[attr-defined]
            widget.update(text)

    def _paint_charts(self, now_s: float) -> None:
        state = self.driver.state
        for metric, name in CHARTS:
            self._write(f"{name}-title", panels.chart_title(state, metric))
        if not state.chart or self._chart_shown == (state.chart[-1], state.marks):
            return
        self._chart_shown = (state.chart[-1], state.marks)
        window_s = window_for(now_s - state.chart[0].time_s)
        for metric, name in CHARTS:
            kept = [
                (p.time_s - now_s, nan if value is None else value * 1000)
                for p in state.chart
                for value in [p.ttft_s if metric is Metric.TTFT else p.tpot_s]
                if p.time_s > now_s - window_s
            ]
            objective = state.slo.objective(metric)
            self.screen_stack[0].query_one(f"#{name}", Chart).show(
                Series(
                    times_s=tuple(t for t, _ in kept),
                    values_ms=tuple(v for _, v in kept),
                    limit_ms=objective.limit_s * 1000 if objective else None,
                    marks_s=tuple(m - now_s for m in state.marks),
                    window_s=window_s,
                )
            )

    # -- keys -----------------------------------------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        """Digits type a value; enter and escape finish it, or answer an offered restart."""
        if len(self.screen_stack) > 1:
            return
        state = self.driver.state
        if event.character and event.character in "0123456789." and len(self._typed) < 12:
            self._typed += event.character
        elif event.key == "backspace" and self._typed:
            self._typed = self._typed[:-1]
        elif event.key == "escape":
            if self._typed:
                self._typed = ""
            elif state.restart is not None:
                self.driver.drop_restart()
        elif event.key == "enter":
            if self._typed:
                self._apply_typed()
            elif state.restart is not None or state.phase is Phase.FAILED:
                self.driver.confirm_restart()
        else:
            return
        event.stop()
        self._paint()

    def _apply_typed(self) -> None:
        typed, self._typed = self._typed, ""
        try:
            self.driver.set_knob(self._chosen, parse_value(self._chosen, typed))
        except ValueError as error:
            self.driver.say(str(error), "warning")

    def action_choose(self, direction: int) -> None:
        knobs = list(Knob)
        self._typed = ""
        self._chosen = knobs[(knobs.index(self._chosen) + direction) % len(knobs)]
        self._paint()

    def action_step(self, direction: int, fine: bool) -> None:
        self._typed = ""
        self.driver.step_knob(self._chosen, direction, fine)
        self._paint()

    def action_undo(self) -> None:
        self.driver.undo()

    def action_load(self, direction: int) -> None:
        self.driver.step_load(direction)

    def action_pause(self) -> None:
        self.driver.toggle_pause()

    def action_redraw(self) -> None:
        self.refresh(layout=True)
        for widget in self.screen.walk_children():
            widget.refresh()

    def action_log(self) -> None:
        self.driver.engine.read_log()
        where = str(self.driver.engine.log_path)
        self.push_screen(LogPage(f"SERVER LOG  {where}", lambda: list(self.driver.engine.log)))

    def action_events(self) -> None:
        state = self.driver.state
        lines = [Text(f"{fmt.clock(n.time_s - state.began_s)}  {n.text}\n") for n in state.notices]
        self.push_screen(Page("EVENTS", Text.assemble(*lines) if lines else Text("nothing yet")))

    def action_help(self) -> None:
        self.push_screen(Page("HELP", help_text()))

    def action_accept(self) -> None:
        state = self.driver.state
        if state.phase not in (Phase.LIVE, Phase.CONFIRMED):
            self.driver.accept(confirm=False)  # says why not
            return
        usual = panels.expected(state)
        self.push_screen(
            Question(
                "Accept this point",
                f"Confirming stops the live server and starts a fresh one with exactly these flags ({usual} to start, "
                "then one episode), and measures the same episode there.",
                (
                    ("c", "confirm", "confirm by a restart, then save the baseline"),
                    ("s", "save", "save the baseline unconfirmed, now"),
                    ("esc", "", "go on tuning"),
                ),
            ),
            self._accepted,
        )

    def _accepted(self, answer: str | None) -> None:
        if answer:
            self.driver.accept(confirm=answer == "confirm")

    def action_allow_load(self) -> None:
        state = self.driver.state
        if not self.driver.settings.attached or state.load_allowed:
            self.driver.say("load is being sent already")
            return
        self.push_screen(
            TypedConfirmation(
                f"{self.driver.settings.url} may be somebody's production server. tunetui would send it {state.load}.",
                "yes",
            ),
            self._load_allowed,
        )

    def _load_allowed(self, yes: bool | None) -> None:
        if yes:
            self.run_worker(self.driver.allow_load(), exit_on_error=False)

    def action_leave(self) -> None:
        if len(self.screen_stack) > 1:
            return
        if self.driver.settings.attached or self.driver.engine.pid is None:
            self._end(0)
            return
        self.push_screen(
            Question(
                "Leave tunetui",
                f"vLLM (pid {self.driver.engine.pid}) is running on {self.driver.engine.url}.",
                (
                    ("s", "stop", "stop the server and leave"),
                    ("l", "leave", "leave it running"),
                    ("esc", "", "stay"),
                ),
            ),
            self._left,
        )

    def _left(self, answer: str | None) -> None:
        if answer:
            self.leave_running = answer == "leave"
            self._end(0)
