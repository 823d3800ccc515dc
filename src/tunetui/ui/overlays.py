"""The commands that open something over the session: pages to read, and questions whose answers go to the driver.

What they open is imported with the first use, for the first screen has none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import App

from tunetui.core.session import Phase
from tunetui.ui import panels

if TYPE_CHECKING:
    from tunetui.drive.driver import Driver


EXIT_SERVER = 3  # the command's exit code of a session whose server is not there


class Overlays(App[int]):
    """The part of the app that pushes screens."""

    driver: Driver
    leave_running = False

    def action_log(self) -> None:
        from tunetui.ui.pages import LogPage

        self.push_screen(LogPage(lambda: self.driver.engine.log_path))

    def action_events(self) -> None:
        from tunetui.ui.pages import Page, events_text

        self.push_screen(
            Page("EVENTS", lambda width: events_text(self.driver.state.notices, self.driver.state.began_s, width))
        )

    def action_statistics(self, key: str) -> None:
        from tunetui.ui.statistics import StatisticsPage

        self.push_screen(StatisticsPage(key, lambda: self.driver.state))

    def action_sweep_page(self) -> None:
        from tunetui.ui.sweep_page import SweepPage

        self.push_screen(SweepPage(lambda: self.driver.state))

    def action_help(self) -> None:
        from tunetui.ui.pages import Page, help_text

        self.push_screen(Page("HELP", help_text))

    def action_accept(self) -> None:
        from tunetui.ui.dialogs import Question

        state = self.driver.state
        if state.phase not in (Phase.LIVE, Phase.CONFIRMED):
            self.driver.accept(confirm=False)  # says why not
            return
        body = panels.accept_text(state).append(
            "\n\nConfirming stops this server and starts a fresh one with exactly these flags "
            f"({panels.expected(state)} to start), and measures the same episode there.",
            "not bold",
        )
        answers = (
            ("c", "confirm", "confirm by a restart, then save the baseline"),
            ("s", "save", "save the baseline unconfirmed, now"),
            ("esc", "", "go on tuning"),
        )
        self.push_screen(Question("Accept this point", body, answers), self._accepted)

    def _accepted(self, answer: str | None) -> None:
        if answer:
            self.driver.accept(confirm=answer == "confirm")

    def action_allow_load(self) -> None:
        from tunetui.ui.dialogs import TypedConfirmation

        settings, state = self.driver.settings, self.driver.state
        if not settings.attached or state.load_allowed:
            self.driver.say("load is being sent already")
            return
        body = f"{settings.url} may be somebody's production server. tunetui would send it {state.load}."
        self.push_screen(TypedConfirmation(body, "yes"), self._load_allowed)

    def _load_allowed(self, yes: bool | None) -> None:
        if yes:
            self.run_worker(self._allow_load(), exit_on_error=False)

    async def _allow_load(self) -> None:
        try:
            await self.driver.allow_load()
        except Exception as error:  # shown, for a worker's traceback would cover the screen
            self.driver.say(f"load could not be sent: {error!r}", "error")

    def action_leave(self) -> None:
        """Ask, whatever is open; a second press on the question changes nothing."""
        from tunetui.ui.dialogs import Question

        if any(screen.has_class("leaving") for screen in self.screen_stack):
            return
        engine = self.driver.engine
        if self.driver.settings.attached or engine.pid is None:
            self.end(0)
            return
        answers = (
            ("s", "stop", "stop the server and leave"),
            ("l", "leave", "leave it running"),
            ("esc", "", "stay"),
        )
        question = Question("Leave tunetui", f"vLLM (pid {engine.pid}) is running on {engine.url}.", answers)
        question.add_class("leaving")
        self.push_screen(question, self._left)

    def _left(self, answer: str | None) -> None:
        if answer:
            self.leave_running = answer == "leave"
            self.end(0)

    def end(self, code: int) -> None:
        """End the app; a session without a server ends with its own code."""
        if self.driver.state.phase is Phase.FAILED and code == 0:
            code = EXIT_SERVER
        self.exit(code, return_code=code)
