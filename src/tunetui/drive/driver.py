"""The one driver: what an operator can do, as methods; the app calls them by key, scripts and tests call them directly.

It draws nothing. Every change of state leaves here as an event that `core.session.fold` takes in.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunetui.core import events
from tunetui.core.coaching import applied_now
from tunetui.core.edge import Trial
from tunetui.core.fold import fold
from tunetui.core.knobs import How, Knob, Point, Step, plan_step, stepped
from tunetui.core.load import Load
from tunetui.core.rows import compared, current_row
from tunetui.core.session import Notice, Phase, Session, StepState
from tunetui.drive.autopilot import Autopilot
from tunetui.drive.confirm import save_baseline
from tunetui.drive.engine import EngineFailed
from tunetui.drive.figures import Figures
from tunetui.drive.outlook import Foresight
from tunetui.drive.serving import ATTACHED, Serving
from tunetui.drive.settings import Settings
from tunetui.drive.stepping import LiveControlLost, until_in_force, until_settled
from tunetui.drive.watch import ticking, watching
from tunetui.engine.gpu import GpuReading, read_gpus
from tunetui.engine.server_api import ApiError
from tunetui.load.generator import GeneratorGoneError
from tunetui.store.baselines import StoreError

POLL_S = 0.1


class Driver:
    """One session. `start` it, then ask; `state` is what is known; `close` ends the load, `stop_server` the server.

    A change (a start, a step, a load, a confirmation) runs in one task: a newer one takes the place of the one before.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.environment = dict(environment if environment is not None else os.environ)
        self.gpus: tuple[GpuReading, ...] = ()  # read at the start: the first paint does not wait for a driver
        self.on_change = on_change
        self.state = Session(
            model=settings.model or settings.url,
            slo=settings.slo,
            load=settings.load,
            began_s=time.monotonic(),
            load_allowed=not settings.attached,
            demo=settings.simulated,
        )
        self.follows_seqs = settings.follows_seqs
        self.serving = Serving(settings, folder, self.environment, self.emit)
        self.engine = self.serving.engine
        self.loop = self.serving.loop
        self.figures = Figures(lambda: self.state, self.emit, self.loop, lambda: self.follows_seqs)
        self.autopilot = Autopilot(self)
        self._background: list[asyncio.Task[None]] = []
        self._change: asyncio.Task[None] | None = None

    # -- events ---------------------------------------------------------------------------------------------------

    def emit(self, event: events.Event) -> None:
        self.state = fold(self.state, event)
        self.on_change()

    def say(self, text: str, severity: str = "information") -> None:
        self.emit(Notice(time.monotonic(), severity, text))

    # -- start and end --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start or attach, warm up, and begin the first episode. A failed start is state, not an exception."""
        self._run_background()
        if self.settings.attached:
            await asyncio.wait({self._change_to(self.serving.attach)})
        else:
            await asyncio.wait({self._change_to(self._serve_first)})

    async def start_as_deployed(self, point: Point) -> None:
        """Start a server with exactly the flags of `point`, to be measured as it is. A failed start is state."""
        self._run_background()
        cards = self.settings.cards
        self.gpus = await asyncio.to_thread(read_gpus) if cards is None else cards
        self.serving.first_point(self.gpus)
        await asyncio.wait({self.begin_confirmation(point)})

    def _run_background(self) -> None:
        running = (ticking(self), watching(self), Foresight(self).run())
        self._background = [asyncio.create_task(one) for one in running]

    async def _serve_first(self) -> None:
        cards = self.settings.cards
        self.gpus = await asyncio.to_thread(read_gpus) if cards is None else cards
        await self._serve(self.serving.first_point(self.gpus))

    async def _serve(self, point: Point) -> None:
        """A server with live control, where there can be, at `point`, and the load on it."""
        await self.serving.start(point, Phase.STARTING)
        self.emit(events.PhaseChanged(Phase.LIVE))
        await self._begin_episodes()

    async def allow_load(self) -> None:
        """The operator has confirmed that load may be sent to the attached server."""
        if self.state.phase is Phase.ATTACHED and not self.state.load_allowed:
            await asyncio.wait({self._change_to(self._load_attached)})

    async def _load_attached(self) -> None:
        assert self.state.facts is not None
        await self.serving.load_attached(self.state.facts.model, self.state.load, self.state.paused)
        await self._begin_episodes()

    async def close(self) -> None:
        """End the load process and the driver's tasks. The server is ended by `stop_server` or `leave_server`."""
        await self.autopilot.close()
        tasks = [*self._background, *([self._change] if self._change else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError, Exception):
                await task
        await self.serving.close()

    def stop_server(self) -> tuple[int, ...]:
        """Stop the server; plain, for use after the event loop has ended. Returns pids that would not go."""
        self.loop.kill()
        return self.engine.stop()

    def leave_server(self) -> None:
        """Leave the server running."""
        self.loop.kill()
        self.engine.detach()

    # -- changes --------------------------------------------------------------------------------------------------

    def _change_to(self, change: Callable[..., Coroutine[Any, Any, None]], *what: Any) -> asyncio.Task[None]:
        """Only the newest change counts: one under way is given up."""
        if self._change is not None:
            self._change.cancel()
        self._change = asyncio.create_task(self._guarded(change, *what))
        return self._change

    async def _guarded(self, change: Callable[..., Coroutine[Any, Any, None]], *what: Any) -> None:
        """What goes wrong in a change is said; where it leaves no server in use, nothing of one is left running."""
        try:
            await change(*what)
        except EngineFailed as failure:
            await self._fail(failure.lines)
        except LiveControlLost as lost:
            await self._lose_control(str(lost))
        except Exception as error:
            sentence = str(error) if isinstance(error, ApiError | GeneratorGoneError) else f"this failed: {error!r}"
            if self.state.phase in (Phase.STARTING, Phase.WARMING, Phase.CONFIRMING):
                await self._fail((sentence,))
            else:
                self.say(sentence, "error")

    def server_ended(self, lines: tuple[str, ...]) -> None:
        """The server has ended by itself; `lines` are its diagnosis."""
        self._change_to(self._fail, lines)

    def control_lost(self, reason: str) -> None:
        """The scheduler class has switched itself off, or its block cannot be read."""
        self._change_to(self._lose_control, reason)

    async def _fail(self, lines: tuple[str, ...]) -> None:
        """No server is in use any more: say why, and leave nothing of it running."""
        self._leave_point()
        self.emit(events.Failed(lines))
        await self.loop.drain("all")
        await self.serving.stop()

    async def _lose_control(self, reason: str) -> None:
        """The scheduler class is off, and vLLM runs with the flags it was started with: say so, and measure that."""
        facts, target = self.state.facts, self.state.point
        assert facts is not None
        why = f"live control has stopped ({reason}): a restart brings it back"
        self._leave_point()
        self.engine.drop_control()
        self.emit(events.EngineReady(replace(facts, live=False, why_not_live=why)))
        self.say(why, "error")
        if target is not None and target != facts.ceiling:
            self.emit(events.StepAsked(time.monotonic(), facts.ceiling))
            self.emit(events.RestartOffered(Step(target, How.RESTART, why)))
        self.emit(events.StepMoved(time.monotonic(), StepState.NONE))
        await self._reach()

    def _leave_point(self) -> None:
        """The point or the load changes: keep what was measured, and count nothing of it any more."""
        self.figures.record_leaving()
        self.loop.hold()

    # -- knobs ----------------------------------------------------------------------------------------------------

    def step_knob(self, knob: Knob, direction: int, fine: bool = False) -> None:
        """One key press on a knob."""
        self.autopilot.make_way()
        facts, base = self.state.facts, self._base()
        if base is not None and facts is not None:
            self.go(stepped(base, knob, direction, fine, facts))

    def set_knob(self, knob: Knob, value: float) -> None:
        """A typed value."""
        self.autopilot.make_way()
        base = self._base()
        if base is not None:
            self.go(base.with_value(knob, value))

    def undo(self) -> None:
        """Back to the point before."""
        self.autopilot.make_way()
        if self._base() is None:
            return
        if not self.state.history:
            self.say("nothing to undo: this is the first point")
            return
        self.go(self.state.history[-1], undo=True)

    def apply_advice(self) -> None:
        """Take the coach's advice as a step; what comes of it is said when the new point has its verdict."""
        self.autopilot.make_way()
        applied = applied_now(self.state, self.follows_seqs)
        target = applied.advice.target if applied is not None else None
        if applied is not None and target is not None and self._base() is not None:
            self.emit(events.AdviceApplied(applied))
            self.go(target)

    def _base(self) -> Point | None:
        """The point that a key starts from, an offered one included; None where no step can be made, and it is said."""
        facts, phase = self.state.facts, self.state.phase
        if self.settings.attached:
            self.say(ATTACHED, "warning")
        elif facts is None or self.state.point is None or phase in (Phase.STARTING, Phase.WARMING):
            self.say("the knobs can be stepped once the server is live")
        elif phase in (Phase.CONFIRMING, Phase.STOPPED):
            self.say("wait until the confirmation is done")
        else:
            return self.state.origin
        return None

    def go(self, target: Point, undo: bool = False) -> None:
        """Step to `target`: at once where that is live, offered as a restart where it is not, or refused and why."""
        state = self.state
        assert state.point is not None
        assert state.facts is not None
        if target == state.point:
            self.emit(events.RestartOffered(None))
            return
        step = plan_step(state.point, target, state.facts)
        if state.phase is Phase.FAILED and step.how is How.LIVE:
            step = Step(target, How.RESTART, "the server is not running")
        if step.how is How.REFUSED:
            self.say(step.reason, "warning")
        elif step.how is How.RESTART:
            self.emit(events.RestartOffered(step))
        else:
            self._leave_point()
            self._follow(target)
            self.serving.write_targets(target, state.facts)
            self.emit(events.StepAsked(time.monotonic(), target, undo))
            self._change_to(self._reach)

    @property
    def _accepted(self) -> bool:
        """Whether the scheduler has read the step that is on its way."""
        return self.state.step_accepted_s is not None

    def drop_restart(self) -> None:
        """The operator declined the offered restart."""
        self.emit(events.RestartOffered(None))

    def confirm_restart(self) -> None:
        """Do the offered restart, or start again after a failure."""
        self.autopilot.make_way()
        state = self.state
        target = state.restart.target if state.restart is not None else state.point
        if target is None or self.settings.attached or not (state.restart is not None or state.phase is Phase.FAILED):
            return
        self._leave_point()
        self._follow(target)
        self._change_to(self._serve, target)

    def _follow(self, target: Point) -> None:
        """The load of the point to come, where it is as many streams as there are slots."""
        if self.follows_seqs and self.state.load.concurrency != target.max_num_seqs:
            load = Load(concurrency=target.max_num_seqs)
            self.emit(events.LoadChanged(load, self.state.paused, self.state.load_allowed))
            self.loop.load = load

    async def _reach(self) -> None:
        """A step, in order (MEASURES): arrivals stop, the backlog goes, the batch gets there, the episode starts.

        Also the way on when the load changed or was paused, for a step may still be on its way. Raises LiveControlLost.
        """
        await self.loop.drain("unstarted")
        control, ask = self.engine.control, self.serving.ask
        if control is None or self.state.steady:
            await self._begin_episodes()
            return
        reached = await until_settled(control, ask, self.emit, self._accepted)
        await self._begin_episodes()
        if reached is StepState.IDLE:
            await until_in_force(control, ask, self.emit, self._accepted)

    # -- load -----------------------------------------------------------------------------------------------------

    def set_load(self, load: Load) -> None:
        """Change the rate or the concurrency; the backlog goes and a new episode starts."""
        self.autopilot.take_over()
        self.keep_load(load)

    def keep_load(self, load: Load) -> None:
        """The load that a plan has ended with."""
        self.follows_seqs = False
        self._change_load(load, self.state.paused)

    def step_load(self, direction: int) -> None:
        """One key press up or down."""
        self.set_load(self.state.load.stepped(direction))

    def toggle_pause(self) -> None:
        """Stop or go on with the load; going on starts a new episode."""
        self.autopilot.take_over()
        self._change_load(self.state.load, not self.state.paused)

    def _change_load(self, load: Load, paused: bool) -> None:
        if self.state.phase is Phase.CONFIRMING:
            self.say("wait until the confirmation is done: it measures the same load")
            return
        serving = self.state.phase in (Phase.LIVE, Phase.ATTACHED, Phase.CONFIRMED) and self.state.load_allowed
        if serving:
            self._leave_point()
            self.emit(events.EpisodeReset())
        self.emit(events.LoadChanged(load, paused, self.state.load_allowed))
        self.loop.load = load
        if serving:
            self._change_to(self._reach)

    # -- by itself --------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Find the best point by a plan, or go on with the one that was taken over."""
        self.autopilot.sweep()

    def find_edge(self) -> None:
        """Find the present point's capacity, and that of every point from now on; asked again, no more."""
        self.autopilot.find_edge()

    def take_over(self) -> bool:
        """End what goes by itself; False where nothing does."""
        return self.autopilot.take_over()

    # -- trials -------------------------------------------------------------------------------------------------------

    def begin_trial(self, trial: Trial) -> asyncio.Task[None]:
        """Go to a trial's point and load in one change, by a restart where that must be; then its episode begins. The
        operator's own episodes come back with `end_trials`."""
        state = self.state
        assert state.point is not None
        assert state.facts is not None
        self.follows_seqs = False
        self._leave_point()
        self.loop.trial, self.loop.load = trial, trial.load
        self.emit(events.LoadChanged(trial.load, False, state.load_allowed))
        self.emit(events.EpisodeReset())
        if trial.point == state.point:
            return self._change_to(self._reach)
        if plan_step(state.point, trial.point, state.facts).how is not How.LIVE:
            return self._change_to(self._serve, trial.point)
        self.serving.write_targets(trial.point, state.facts)
        self.emit(events.StepAsked(time.monotonic(), trial.point))
        return self._change_to(self._reach)

    def begin_confirmation(self, point: Point) -> asyncio.Task[None]:
        """A fresh server with exactly the flags of `point`, for trials to confirm it on."""
        self._leave_point()
        return self._change_to(self._serve_as_deployed, point)

    async def _serve_as_deployed(self, point: Point) -> None:
        await self.serving.start(point, Phase.CONFIRMING)
        self.emit(events.PhaseChanged(Phase.CONFIRMED))

    def end_trials(self) -> None:
        """The next episode is the operator's own again; what is being measured goes on."""
        self.loop.trial = None

    async def _begin_episodes(self) -> None:
        self.emit(events.EpisodeReset())
        if self.state.measuring or self.state.phase is Phase.CONFIRMING:
            await self.figures.mark(self.serving.api)
            await self.loop.begin()

    async def revive_load(self) -> None:
        """Start a load process in place of one that has ended, and the episode again. Raises GeneratorGoneError."""
        await self.loop.revive()
        if self.loop.sending:
            await self._begin_episodes()

    # -- accept ---------------------------------------------------------------------------------------------------

    def accept(self, confirm: bool) -> None:
        """Accept the present point: by a restart with exactly its flags, or unconfirmed."""
        self.autopilot.take_over()
        if self.settings.attached:
            self.say("nothing to accept: the knobs of an attached server are not known", "warning")
            return
        if self.state.phase not in (Phase.LIVE, Phase.CONFIRMED):
            self.say("a point can be accepted while the server is live", "warning")
            return
        self.figures.record_leaving()
        if current_row(self.state) is None and current_row(self.state, confirmed=True) is None:
            self.say("nothing has been measured at this point yet: wait for its episode", "warning")
        elif confirm:
            self._leave_point()
            self._change_to(self._confirm)
        else:
            self._save()

    async def _confirm(self) -> None:
        """A fresh server with exactly these flags and none of our classes, the same episode, and the baseline."""
        point, live = self.state.point, current_row(self.state)
        assert point is not None
        await self.serving.start(point, Phase.CONFIRMING)
        self.emit(events.PhaseChanged(Phase.CONFIRMING, "measuring the same episode"))
        await self._begin_episodes()
        while not self.figures.complete:
            self.engine.raise_if_dead()
            await asyncio.sleep(POLL_S)
        await self.figures.tick(self.serving.api, None)
        self.emit(events.PhaseChanged(Phase.CONFIRMED))
        confirmed = current_row(self.state, confirmed=True)
        if confirmed is not None:
            same = live is None or live.measurement.verdict is confirmed.measurement.verdict
            self.say(compared(self.state.slo.percentile, live, confirmed), "information" if same else "warning")
        self._save()
        if self.state.paused:
            self.loop.hold()
            await self.loop.drain("all")

    def _save(self) -> None:
        try:
            path = save_baseline(self)
        except StoreError as error:
            self.say(str(error), "error")
            return
        self.emit(events.BaselineSaved(str(path)))
        self.say(f"baseline saved: {path}")
