"""The app: it shows the session's state, and turns keys into calls of the driver. It decides nothing about points."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType

from tunetui.core.knobs import Knob, MemoryFlag, parse_value
from tunetui.core.session import Phase
from tunetui.ui import commands
from tunetui.ui import format as fmt
from tunetui.ui.board import Board, Shown
from tunetui.ui.overlays import Overlays
from tunetui.ui.rows import is_up
from tunetui.ui.startup import TAIL, is_starting

if TYPE_CHECKING:
    from tunetui.drive.driver import Driver

PAINT_S = 0.25
LONGEST_TYPED = 12
OVER_ALL = ("leave", "redraw")  # the actions that are there whatever is open


class TunetuiApp(Overlays):
    """One session on the screen. After `run`, `leave_running` says what the operator wants of the server."""

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [*commands.bindings()]

    def __init__(
        self,
        make_driver: Callable[[Callable[[], None]], Driver],
        on_signal: Callable[[int], None] = lambda code: None,
    ) -> None:
        """`make_driver` gets the function to call after each change of state; `on_signal` hears of a signal that ends
        the app, with the exit code, before the app begins to end."""
        super().__init__()
        self.driver = make_driver(self._changed)
        self._dirty = True
        self._chosen = Knob.SEQS
        self._typed = ""
        self._on_signal = on_signal

    # -- layout and life ------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Board()

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        # The handler only ends the app: the server is stopped after run() has returned (DESIGN, Leaving).
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end_by_signal, 128 + number)
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
        except Exception as error:  # shown, for a worker's traceback would cover the screen
            self.driver.say(f"the session could not start: {error!r}", "error")

    def _end_by_signal(self, code: int) -> None:
        self._on_signal(code)
        self.end(code)

    async def on_unmount(self) -> None:
        await self.driver.close()

    # -- painting -------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._dirty = True

    def _paint_if_changed(self) -> None:
        if self._dirty:
            self._paint()

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._paint)

    def _paint(self) -> None:
        self._dirty = False
        board = next(iter(self.screen_stack[0].query(Board)), None) if self.screen_stack else None
        if board is None or not board.is_mounted or not is_up(self.screen_stack[0]):
            return
        state = self.driver.state
        tail = list(self.driver.engine.log)[-TAIL:] if is_starting(state) else ()
        board.show(Shown(state, time.monotonic(), self._chosen, self._typed, tail))

    def action_redraw(self) -> None:
        """Send every cell again: something else has written on the terminal."""
        self.refresh(layout=True)
        self.screen.refresh(layout=True)
        for widget in self.screen.walk_children():
            widget.refresh()

    # -- keys -----------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The session's own commands wait while something is open over it."""
        return action in OVER_ALL or len(self.screen_stack) < 2

    def on_key(self, event: events.Key) -> None:
        """Digits type a value; enter and escape finish it, or answer an offered restart."""
        if len(self.screen_stack) > 1:
            # Typed ahead of a question that was not there yet, as over a slow link: it is meant for the question.
            answer = getattr(self.screen, "answer", None)
            if answer is not None:
                answer(event.key)
            return
        if event.character and event.character in "0123456789." and len(self._typed) < LONGEST_TYPED:
            self._typed += event.character
        elif event.key == "backspace" and self._typed:
            self._typed = self._typed[:-1]
        elif event.key == "escape":
            self._escape()
        elif event.key == "enter":
            self._enter()
        else:
            return
        event.stop()
        self._paint()

    def _escape(self) -> None:
        if self._typed:
            self._typed = ""
        elif self.driver.take_over():
            pass
        elif self.driver.state.restart is not None:
            self.driver.drop_restart()

    def _enter(self) -> None:
        if self._typed:
            self._apply_typed()
        elif self.driver.state.restart is not None or self.driver.state.phase is Phase.FAILED:
            self.driver.confirm_restart()
        elif self.driver.state.coach.advice is not None:
            self.driver.apply_advice()

    def _apply_typed(self) -> None:
        typed, self._typed = self._typed, ""
        state = self.driver.state
        try:
            value = parse_value(self._chosen, typed)
        except ValueError as error:
            self.driver.say(str(error), "warning")
            return
        if self._chosen is Knob.MEMORY and fmt.memory_flag(state.point, state.facts) is MemoryFlag.KV_BYTES:
            value = round(value * 2**30)  # typed in the unit that is shown
        self.driver.set_knob(self._chosen, value)

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
        self._paint()

    def action_load(self, direction: int) -> None:
        self.driver.step_load(direction)
        self._paint()

    def action_edge(self) -> None:
        self.driver.find_edge()
        self._paint()

    def action_sweep(self) -> None:
        self.driver.sweep()
        self._paint()

    def action_pause(self) -> None:
        self.driver.toggle_pause()
        self._paint()
