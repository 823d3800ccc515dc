"""A session's own server as the engine that trials are measured on: what an operator's keys would do, done by a plan.

It plans no trial and judges nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunetui.core.edge import Seen, Trial, seen_with
from tunetui.core.knobs import Point
from tunetui.core.session import Phase
from tunetui.core.slo import Verdict
from tunetui.core.steps import EngineStep
from tunetui.engine.control import engine_step

if TYPE_CHECKING:
    from tunetui.drive.driver import Driver

POLL_S = 0.1
MOST_STEPS = 20_000  # of one trial: more than a model needs
USUAL_START_S = 60.0


class RigError(Exception):
    """The server or the load is gone; the message is one sentence."""


class LiveRig:
    """The server of `driver`, which must be live."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @property
    def elapsed_s(self) -> float:
        return time.monotonic()

    @property
    def start_s(self) -> float:
        return self._driver.engine.start_s or USUAL_START_S

    async def measure(self, trial: Trial) -> tuple[Seen, Sequence[EngineStep]]:
        """Raises RigError where the server does not survive it."""
        driver = self._driver
        await asyncio.wait({driver.begin_trial(trial)})
        self._raise_if_gone()
        steps: list[EngineStep] = []
        number: int | None = None
        while True:
            await asyncio.sleep(POLL_S)
            self._raise_if_gone()
            number = self._read_steps(number, steps)
            seen = driver.loop.measurement(time.monotonic())
            completed = driver.loop.meter.completed(time.monotonic())
            if completed:
                seen = completed[0]
            if seen is not None and (completed or (not trial.whole and seen.verdict is not Verdict.UNDECIDED)):
                await driver.figures.tick(driver.serving.api, driver.engine.control)
                return seen_with(trial, seen, steps), steps[-MOST_STEPS:]

    def _read_steps(self, number: int | None, steps: list[EngineStep]) -> int | None:
        control, facts = self._driver.engine.control, self._driver.state.facts
        if control is None or facts is None:
            return number
        following, records = control.records_since(number)
        steps += [engine_step(record, facts.num_blocks) for record in records]
        return following

    async def confirm(self, point: Point) -> None:
        """Raises RigError where the server does not start so."""
        await asyncio.wait({self._driver.begin_confirmation(point)})
        self._raise_if_gone()

    def _raise_if_gone(self) -> None:
        state = self._driver.state
        if state.phase is Phase.FAILED:
            raise RigError(state.failure[0] if state.failure else "the server has ended")
        if state.phase not in (Phase.LIVE, Phase.CONFIRMED):
            raise RigError(f"the server is {state.phase.value.lower()}, so nothing can be measured")
