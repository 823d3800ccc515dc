"""A session's sweep and edge search on its own server: begun by a key, ended by any other that changes something.

It plans nothing and draws nothing; where it stands goes into the session.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from tunetui.core import events
from tunetui.core.knobs import EngineFacts
from tunetui.core.load import Load
from tunetui.core.progress import Progress
from tunetui.core.session import Phase, Riding
from tunetui.core.tasks import Outcome
from tunetui.drive.forecaster import Forecaster
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
        self._ending: asyncio.Task[None] | None = None  # cancelled, and perhaps not over yet
        self._sweep: Sweeping | None = None
        self._forecaster: Forecaster | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def sweep(self) -> None:
        """Begin the sweep, or go on with the one that was taken over."""
        if self._driver.state.riding is not None:
            self.take_over()
        if self._refused() or self.running:
            return
        if self._sweep is None or self._sweep.progress.outcome is not None:
            self._sweep = self._made(edge_only=False)
            self._driver.say("the sweep has begun: a key that changes something takes over")
        self._task = asyncio.create_task(self._carry_out(self._sweep))

    def find_edge(self) -> None:
        """Find the capacity of the present point and keep the load there, and at that of every point to come; where
        that goes on already, end it: the load stays as it is."""
        if self._driver.state.riding is not None:
            self.take_over()
        elif not (self._refused() or self.running):
            self._driver.emit(events.Rides(Riding()))
            self._seek()

    def follow(self) -> None:
        """Called every tick: where the load rides the edge and the point is another one, its edge is looked for."""
        state = self._driver.state
        riding = state.riding
        if riding is None or self.running or riding.point == state.point or state.restart is not None:
            return
        if state.measuring and state.steady and state.phase in (Phase.LIVE, Phase.CONFIRMED):
            self._seek()

    def _seek(self) -> None:
        self._task = asyncio.create_task(self._carry_out(self._made(edge_only=True)))

    def make_way(self) -> None:
        """A step by hand: what runs is ended. Where the load rides the edge, that goes on with the point to come."""
        if self._driver.state.riding is not None:
            self._cancel()
        else:
            self.take_over()

    def take_over(self) -> bool:
        """The operator has pressed a key: what goes by itself is ended, the point stays. False where nothing did."""
        driver, ran = self._driver, self._cancel()
        if driver.state.riding is not None:
            driver.emit(events.Rides(None))
            driver.say("the edge is no longer looked for: the load stays as it is")
        elif ran:
            driver.say("you have taken over" + (": s goes on with the sweep" if self._sweep is not None else ""))
        else:
            return False
        return True

    def _cancel(self) -> bool:
        """End what runs; False where nothing does."""
        ran = self.running
        if ran and self._task is not None:
            self._task.cancel()
            self._ending = self._task
        self._task = None
        return ran

    async def close(self) -> None:
        self._cancel()
        if self._ending is not None:
            with suppress(asyncio.CancelledError, Exception):
                await self._ending

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
        found_rps = state.riding.capacity_rps if state.riding is not None else None
        rate_rps = found_rps or state.load.rate_rps or (seen.requests_per_s if seen is not None else 0.0)
        mean_e2el_s = (seen.mean_e2el_s if seen is not None else None) or driver.loop.mean_e2el_s
        asked = Asked(driver.settings.episode_requests, edge_only=edge_only, rate_rps=rate_rps or None)
        return sweeping(
            asked, driver.settings, state.facts, state.point, mean_e2el_s, LiveRig(driver), self._show,
            self._known(state.facts) if edge_only else None,
        )  # fmt: skip

    def _known(self, facts: EngineFacts) -> Forecaster:
        """What searches before have found out of this engine's step times: the next one begins near its edge."""
        if self._forecaster is None or self._forecaster.facts != facts:
            settings = self._driver.settings
            load = settings.load if settings.load.open_loop else Load(1.0)
            self._forecaster = Forecaster(facts, settings.workload, load, settings.slo)
        return self._forecaster

    async def _carry_out(self, plan: Sweeping) -> None:
        driver = self._driver
        if self._ending is not None:  # what it says and undoes at its end must not come after our beginning
            await asyncio.wait({self._ending})
        try:
            outcome = await plan.run()
            self._finish(plan, outcome)
        except RigError as error:
            driver.say(f"the sweep has ended: {error}", "error")
            driver.emit(events.Rides(None))
            self._sweep = None
        except asyncio.CancelledError:
            driver.end_trials()
            raise
        except Exception as error:  # shown: a task's traceback would be lost
            driver.say(f"the sweep has failed: {error!r}", "error")
            driver.emit(events.Rides(None))
            self._sweep = None
        driver.end_trials()

    def _finish(self, plan: Sweeping, outcome: Outcome) -> None:
        driver = self._driver
        self._task = None  # what follows is no longer the plan's
        driver.end_trials()
        if outcome.reason or outcome.point is None or outcome.load is None:
            what = "the sweep has ended" if plan is self._sweep else "no edge was found"
            driver.emit(events.Rides(None))
            driver.say(f"{what}: {outcome.reason}", "warning")
        elif plan is self._sweep:
            driver.emit(events.CapacityFound(outcome.point, outcome.capacity_rps))
            driver.say(f"swept: {outcome.load} confirmed on a fresh server, capacity {outcome.capacity_rps:.2f} req/s")
            driver.accept(confirm=False)
        else:
            driver.emit(events.CapacityFound(outcome.point, outcome.capacity_rps))
            riding = (driver.state.riding or Riding()).to(outcome.point, outcome.capacity_rps)
            driver.emit(events.Rides(riding))
            driver.say(f"this point holds {riding.words}: a step looks for the next one's edge, f ends that")
            driver.keep_load(outcome.load)

    def _show(self, progress: Progress) -> None:
        self._driver.emit(events.Piloted(progress))
