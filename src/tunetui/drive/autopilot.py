"""A session's sweep and edge search on its own server: begun by a key, ended by any other that changes something.

It plans nothing and draws nothing; where it stands goes into the session.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from tunetui.core import events
from tunetui.core.progress import Progress
from tunetui.core.session import Phase
from tunetui.core.tasks import Outcome
from tunetui.drive.live_rig import LiveRig, RigError
from tunetui.drive.sweep_plan import Asked, sweeping
from tunetui.drive.sweeping import Sweeping

if TYPE_CHECKING:
    from tunetui.drive.driver import Driver


class Autopilot:
    """What carries out plans on `driver`. One at a time; a sweep that was taken over goes on where it stood."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._task: asyncio.Task[None] | None = None
        self._sweep: Sweeping | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def sweep(self) -> None:
        """Begin the sweep, or go on with the one that was taken over."""
        if self._refused() or self.running:
            return
        if self._sweep is None or self._sweep.progress.outcome is not None:
            self._sweep = self._made(edge_only=False)
            self._driver.say("the sweep has begun: a key that changes something takes over")
        self._task = asyncio.create_task(self._carry_out(self._sweep))

    def find_edge(self) -> None:
        """Find the capacity of the present point; the load stays at it."""
        if not (self._refused() or self.running):
            self._task = asyncio.create_task(self._carry_out(self._made(edge_only=True)))

    def take_over(self) -> bool:
        """The operator has pressed a key: what runs is ended, the point stays. False where nothing ran."""
        if not self.running or self._task is None:
            return False
        self._task.cancel()
        self._task = None
        self._driver.say("you have taken over" + (": s goes on with the sweep" if self._sweep is not None else ""))
        return True

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._task

    def _refused(self) -> bool:
        """Whether there is nothing to steer, and it is said."""
        driver, phase = self._driver, self._driver.state.phase
        if driver.settings.attached:
            driver.say("the knobs of an attached server cannot be stepped, so there is nothing to sweep", "warning")
        elif phase not in (Phase.LIVE, Phase.CONFIRMED):
            driver.say("a sweep can begin once the server is live")
        elif not driver.state.slo.objectives:
            driver.say("a sweep needs an SLO: start with --slo", "warning")
        else:
            return False
        return True

    def _made(self, edge_only: bool) -> Sweeping:
        driver, state = self._driver, self._driver.state
        assert state.facts is not None
        assert state.point is not None
        seen = state.measurement
        rate_rps = state.load.rate_rps if state.load.rate_rps else (seen.requests_per_s if seen is not None else 0.0)
        mean_e2el_s = (seen.mean_e2el_s if seen is not None else None) or driver.loop.mean_e2el_s
        asked = Asked(driver.settings.episode_requests, edge_only=edge_only, rate_rps=rate_rps or None)
        return sweeping(
            asked, driver.settings, state.facts, state.point, mean_e2el_s, LiveRig(driver), self._show
        )  # fmt: skip

    async def _carry_out(self, plan: Sweeping) -> None:
        driver = self._driver
        try:
            outcome = await plan.run()
            self._finish(plan, outcome)
        except RigError as error:
            driver.say(f"the sweep has ended: {error}", "error")
            self._sweep = None
        except asyncio.CancelledError:
            driver.end_trials()
            raise
        except Exception as error:  # shown: a task's traceback would be lost
            driver.say(f"the sweep has failed: {error!r}", "error")
            self._sweep = None
        driver.end_trials()

    def _finish(self, plan: Sweeping, outcome: Outcome) -> None:
        driver = self._driver
        self._task = None  # what follows is no longer the plan's
        driver.end_trials()
        if outcome.reason or outcome.point is None or outcome.load is None:
            driver.say(f"the sweep has ended: {outcome.reason}", "warning")
        elif plan is self._sweep:
            driver.emit(events.CapacityFound(outcome.point, outcome.capacity_rps))
            driver.say(f"swept: {outcome.load} confirmed on a fresh server, capacity {outcome.capacity_rps:.2f} req/s")
            driver.accept(confirm=False)
        else:
            driver.emit(events.CapacityFound(outcome.point, outcome.capacity_rps))
            driver.say(f"this point holds {outcome.capacity_rps:.2f} req/s")
            driver.set_load(outcome.load)

    def _show(self, progress: Progress) -> None:
        self._driver.emit(events.Piloted(progress))
