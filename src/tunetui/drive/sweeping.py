"""Carries out a sweep's plan on an engine, real or virtual: trials, predictions, the fresh server at its end.

It plans nothing (`core.sweep` does), draws nothing and stops no server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tunetui.core.edge import Seen, Trial
from tunetui.core.knobs import Point
from tunetui.core.progress import Progress, began, ended, timed
from tunetui.core.steps import EngineStep
from tunetui.core.tasks import Ask, Confirm, Outcome, Plan, Task, Told
from tunetui.drive.forecaster import Forecaster


class Rig(Protocol):
    """An engine that trials are measured on."""

    async def measure(self, trial: Trial) -> tuple[Seen, Sequence[EngineStep]]:
        """One trial, and the steps that the engine took in it."""

    async def confirm(self, point: Point) -> None:
        """A fresh server with exactly the flags of `point`."""

    @property
    def elapsed_s(self) -> float:
        """Seconds that have passed on this rig."""

    @property
    def start_s(self) -> float:
        """Seconds that a start takes."""


class Sweeping:
    """One sweep. `run` goes on from where the run before was cancelled: the task that was under way is done again."""

    def __init__(self, plan: Plan, rig: Rig, forecaster: Forecaster, show: Callable[[Progress], None]) -> None:
        self._plan, self._rig, self._forecaster, self._show = plan, rig, forecaster, show
        self._task: Task | None = None
        self._began_s = rig.elapsed_s
        self._in_trials_s = 0.0
        self.progress = Progress()
        self.trials: list[Seen] = []

    async def run(self) -> Outcome:
        """Carry out what is left of the plan. What a rig raises comes through, and the task stays to be done."""
        if self.progress.outcome is not None:
            return self.progress.outcome
        self._update(replace(self.progress, running=True))
        try:
            while True:
                if self._task is None:
                    self._task = next(self._plan)
                answer = await self._carry_out(self._task)
                self._task = self._plan.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            self._update(replace(self.progress, running=False, outcome=outcome, doing=""))
            return outcome
        except BaseException:
            self._update(replace(self.progress, running=False))
            raise

    async def _carry_out(self, task: Task) -> Any:
        rig = self._rig
        self._update(began(self.progress, task))
        match task:
            case Trial():
                before_s = rig.elapsed_s
                seen, steps = await rig.measure(task)
                self._in_trials_s += rig.elapsed_s - before_s
                await asyncio.to_thread(self._forecaster.see, seen, steps)
                self.trials.append(seen)
                self._update(ended(self.progress, seen))
                return seen
            case Ask():
                return await asyncio.to_thread(self._forecaster.answer, task)
            case Confirm(point):
                await rig.confirm(point)
                self._forecaster.restarted()
            case Told():
                return rig.elapsed_s - self._began_s

    def _update(self, progress: Progress) -> None:
        mean_s = self._in_trials_s / progress.trials if progress.trials else 0.0
        self.progress = timed(progress, self._rig.elapsed_s - self._began_s, self._rig.start_s, mean_s)
        self._show(self.progress)
