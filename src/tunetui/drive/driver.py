"""The one driver: what an operator can do, as methods; the app calls them by key, scripts and tests call them directly.

It draws nothing. Every change of state leaves here as an event that `core.session.fold` takes in.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tunetui.core import session as events
from tunetui.core.episode import Measurement
from tunetui.core.knobs import EngineFacts, How, Knob, Point, Step, plan_step, start_ceiling, stepped
from tunetui.core.session import Phase, Session, StepState, fold
from tunetui.core.slo import Verdict
from tunetui.core.workload import Load
from tunetui.drive.confirm import save_baseline
from tunetui.drive.engine import EngineFailed, ManagedEngine
from tunetui.drive.loop import LoadLoop
from tunetui.drive.observe import EngineObserver
from tunetui.drive.settings import Settings, ceiling_of, first_point
from tunetui.drive.stepping import LiveControlLost, until_in_force, until_settled
from tunetui.engine.gpu import read_gpus
from tunetui.engine.server_api import ApiError, ServerApi
from tunetui.store.baselines import StoreError

TICK_S = 1.0


class Driver:
    """One session. `start` it, then ask; `state` is what is known, `log` the server's log; `close` ends the load."""

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
        self.gpus = read_gpus()
        self.on_change = on_change
        self.state = Session(
            model=settings.model or settings.url,
            slo=settings.slo,
            load=settings.load,
            began_s=time.monotonic(),
            load_allowed=not settings.attached,
        )
        self.engine = ManagedEngine(settings, folder, self.gpus, self.environment, self.emit)
        self.loop = LoadLoop(settings)
        self._attached_api: ServerApi | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._change: asyncio.Task[None] | None = None
        self._ask = 0
        self._observer = EngineObserver()
        self._closed = False

    # -- events ---------------------------------------------------------------------------------------------------

    def emit(self, event: events.Event) -> None:
        self.state = fold(self.state, event)
        self.on_change()

    def say(self, text: str, severity: str = "information") -> None:
        self.emit(events.Notice(time.monotonic(), severity, text))

    @property
    def api(self) -> ServerApi | None:
        return self._attached_api if self.settings.attached else self.engine.api

    # -- start and end --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start or attach, warm up, and begin the first episode. A failed start is state, not an exception."""
        self._background(self._ticking())
        self._background(self._watching())
        if self.settings.attached:
            await self._attach()
            return
        ceiling = ceiling_of(self.settings, self.gpus)
        await self._start_live(first_point(self.settings, ceiling, self.gpus), ceiling)

    async def _start_live(self, point: Point, ceiling: Point) -> bool:
        return await self._start_server(point, ceiling, Phase.STARTING, live=not self.settings.given.parallel)

    async def _start_server(self, point: Point, ceiling: Point, phase: Phase, live: bool) -> bool:
        """Start with `ceiling` as the flags, go to `point`, warm up, and leave the load stopped. False if it failed."""
        self.emit(events.StartBegan(time.monotonic(), phase, point, self.engine.start_s))
        try:
            facts = await self.engine.start(ceiling if live else point, live)
            self.emit(events.EngineReady(facts, self.engine.start_s))
            if facts.live:
                self._write_targets(point, facts)
            assert self.engine.api is not None
            await self.loop.point_at(self.engine.url, facts.model, self.engine.api)
            self.emit(events.PhaseChanged(phase if phase is Phase.CONFIRMING else Phase.WARMING, "warming up"))
            await self.loop.warm_up(point.max_num_seqs)
            self.engine.raise_if_dead()
        except (EngineFailed, ApiError) as error:
            lines = error.lines if isinstance(error, EngineFailed) else (str(error),)
            self.emit(events.Failed(lines))
            return False
        if phase is not Phase.CONFIRMING:
            self.emit(events.PhaseChanged(Phase.LIVE))
            await self._begin_episodes()
        return True

    async def _attach(self) -> None:
        self._attached_api = ServerApi(self.settings.url, os.environ.get("TUNETUI_API_KEY"))
        try:
            models = await self._attached_api.models()
            version = await self._attached_api.version() or ""
        except ApiError as error:
            self.emit(events.Failed((str(error),)))
            return
        model = self.settings.model or models[0].id
        facts = EngineFacts(
            version=version,
            model=model,
            ceiling=Point(0, 0, True, 0.0, True),
            max_model_len=models[0].max_model_len or 0,
            why_not_live="attached: this server was not started by tunetui, so its knobs cannot be changed from here",
        )
        self.emit(events.EngineReady(facts))
        self.emit(events.PhaseChanged(Phase.ATTACHED))

    async def allow_load(self) -> None:
        """The operator has confirmed that load may be sent to the attached server."""
        facts = self.state.facts
        if facts is None or self.state.load_allowed or self._attached_api is None:
            return
        try:
            await self.loop.point_at(self.settings.url, facts.model, self._attached_api)
        except ApiError as error:
            self.say(str(error), "error")
            return
        self.emit(events.LoadChanged(self.state.load, False, True))
        await self.loop.warm_up(self.loop.most_streams(self.state.load))
        await self._begin_episodes()

    async def close(self) -> None:
        """End the load process and the driver's tasks. The server is ended by `stop_server` or `leave_server`."""
        self._closed = True
        for task in [*self._tasks, *([self._change] if self._change else [])]:
            task.cancel()
        for task in [*self._tasks, *([self._change] if self._change else [])]:
            with suppress(asyncio.CancelledError, Exception):
                await task
        await self.loop.close()
        for api in (self.engine.api, self._attached_api):
            if api is not None:
                await api.aclose()

    def stop_server(self) -> tuple[int, ...]:
        """Stop the server; plain, for use after the event loop has ended. Returns pids that would not go."""
        self.loop.kill()
        return self.engine.stop()

    def leave_server(self) -> None:
        """Leave the server running."""
        self.loop.kill()
        self.engine.detach()

    def _background(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)

    # -- knobs ----------------------------------------------------------------------------------------------------

    def step_knob(self, knob: Knob, direction: int, fine: bool = False) -> None:
        """One key press on a knob."""
        if self._may_step():
            assert self.state.point is not None
            assert self.state.facts is not None
            base = self.state.restart.target if self.state.restart else self.state.point
            self.go(stepped(base, knob, direction, fine, self.state.facts))

    def set_knob(self, knob: Knob, value: float) -> None:
        """A typed value."""
        if self._may_step():
            assert self.state.point is not None
            self.go(self.state.point.with_value(knob, value))

    def undo(self) -> None:
        """Back to the point before."""
        if not self._may_step():
            return
        if not self.state.history:
            self.say("nothing to undo: this is the first point")
            return
        self.go(self.state.history[-1], undo=True)

    def _may_step(self) -> bool:
        facts = self.state.facts
        if facts is None or self.state.point is None or self.state.phase in (Phase.STARTING, Phase.WARMING):
            if facts is not None and self.settings.attached:
                self.say(facts.why_not_live, "warning")
            else:
                self.say("the knobs can be stepped once the server is live")
            return False
        if self.state.phase in (Phase.CONFIRMING, Phase.STOPPED):
            self.say("wait until the confirmation is done")
            return False
        return True

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
            self._write_targets(target, state.facts)
            self.emit(events.StepAsked(time.monotonic(), target, undo))
            self._replace_change(self._settle())

    def _write_targets(self, point: Point, facts: EngineFacts) -> None:
        if self.engine.control is not None:
            self._ask = self.engine.control.ask(point, facts)

    def drop_restart(self) -> None:
        """The operator declined the offered restart."""
        self.emit(events.RestartOffered(None))

    def confirm_restart(self) -> None:
        """Do the offered restart, or start again after a failure."""
        state = self.state
        if state.restart is not None and state.facts is not None:
            target, ceiling = state.restart.target, start_ceiling(state.restart.target, state.facts.ceiling)
        elif state.phase is Phase.FAILED and state.point is not None and not self.settings.attached:
            target = state.point
            ceiling = start_ceiling(
                target, state.facts.ceiling if state.facts else ceiling_of(self.settings, self.gpus)
            )
        else:
            return
        self._leave_point()
        self._replace_change(self._restart(target, ceiling))

    async def _restart(self, target: Point, ceiling: Point) -> None:
        self.emit(events.StartBegan(time.monotonic(), Phase.STARTING, target, self.engine.start_s))
        await self.loop.drain("all")
        await asyncio.to_thread(self.engine.stop)
        await self._start_live(target, ceiling)

    def _replace_change(self, work: object) -> None:
        """Only the newest change counts: one under way is given up."""
        if self._change is not None:
            self._change.cancel()
        self._change = asyncio.ensure_future(work)  # type: ignore[call-overload]

    async def _settle(self) -> None:
        """A step, in order (MEASURES): arrivals stop, the backlog goes, the batch gets there, the episode starts."""
        control, ask = self.engine.control, self._ask
        assert control is not None
        await self.loop.drain("unstarted")
        try:
            reached = await until_settled(control, ask, self.emit)
        except LiveControlLost as lost:
            self.say(f"live control has stopped ({lost}): a restart brings it back", "error")
            return
        await self._begin_episodes()
        if reached is StepState.IDLE:
            await until_in_force(control, ask, self.emit)

    # -- load -----------------------------------------------------------------------------------------------------

    def set_load(self, load: Load) -> None:
        """Change the rate or the concurrency; the backlog goes and a new episode starts."""
        self._leave_point()
        self.emit(events.LoadChanged(load, self.state.paused, self.state.load_allowed))
        self.loop.load = load
        if self.state.measuring:
            self._replace_change(self._reload())

    def step_load(self, direction: int) -> None:
        """One key press up or down."""
        self.set_load(self.state.load.stepped(direction))

    def toggle_pause(self) -> None:
        """Stop or go on with the load; going on starts a new episode."""
        paused = not self.state.paused
        self._leave_point()
        self.emit(events.LoadChanged(self.state.load, paused, self.state.load_allowed))
        if self.state.phase in (Phase.LIVE, Phase.ATTACHED, Phase.CONFIRMED):
            self._replace_change(self._pause() if paused else self._reload())

    async def _pause(self) -> None:
        await self.loop.drain("unstarted")
        self.emit(events.EpisodeReset())

    async def _reload(self) -> None:
        await self.loop.drain("unstarted")
        await self._begin_episodes()

    async def _begin_episodes(self) -> None:
        self.emit(events.EpisodeReset())
        if self.state.measuring or self.state.phase is Phase.CONFIRMING:
            await self._observer.mark(self.api)
            await self.loop.begin()

    # -- ticks ----------------------------------------------------------------------------------------------------

    async def _ticking(self) -> None:
        """Once a second: the figures; and the load goes on where an episode ends."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._tick()
            except Exception as error:  # a tick that fails must not end the session, and must not be silent
                self.say(f"a tick failed: {error!r}", "error")

    async def _tick(self) -> None:
        now_s = time.monotonic()
        meter = self.loop.meter
        running = self.state.phase is not Phase.FAILED and self.state.facts is not None
        view = await self._observer.view(
            self.state.engine, self.api if running else None, self.state.facts, self.engine.control
        )
        measurement = self.loop.measurement(now_s)
        active = self.state.phase in (Phase.LIVE, Phase.ATTACHED, Phase.CONFIRMED, Phase.CONFIRMING)
        self.emit(
            events.Ticked(
                meter.chart(now_s) if active and self.state.load_allowed else None,
                measurement,
                view,
                meter.in_flight,
                meter.errors,
                meter.last_error,
            )
        )
        if active:
            self._record_rows(now_s)
            await self.loop.go_on(now_s)

    async def _watching(self) -> None:
        """Notice a server or a load process that ends by itself."""
        while True:
            await asyncio.sleep(0.5)
            self.engine.read_log()
            if self.state.phase in (Phase.LIVE, Phase.CONFIRMED):
                try:
                    self.engine.raise_if_dead()
                except EngineFailed as failure:
                    self._leave_point()
                    await self.loop.drain("all")
                    await asyncio.to_thread(self.engine.stop)
                    self.emit(events.Failed(failure.lines))
            if self.loop.died and not self._closed:
                self.say(f"the load process ended ({self.loop.died}): it is started again", "error")
                await self._respawn_load()

    async def _respawn_load(self) -> None:
        facts = self.state.facts
        if facts is not None and self.api is not None and self.state.phase is not Phase.FAILED:
            url = self.settings.url if self.settings.attached else self.engine.url
            with suppress(ApiError):
                await self.loop.point_at(url, facts.model, self.api)
                await self._begin_episodes()

    # -- rows -----------------------------------------------------------------------------------------------------

    def _row(self, measurement: Measurement, confirmed: bool) -> events.Row:
        view = self.state.engine
        return events.Row(
            number=0,
            point=self.state.point,
            load=self.state.load,
            measurement=measurement,
            confirmed=confirmed,
            kv_blocks=view.kv_blocks,
            prefix_hit_rate=view.prefix_hit_rate,
            preemptions=view.preemptions,
        )

    def _record_rows(self, now_s: float) -> None:
        """Put what is certain into the table: a complete episode, or one whose verdict is."""
        confirmed = self.state.phase in (Phase.CONFIRMED, Phase.CONFIRMING)
        shown = self.loop.measurement(now_s)
        candidates = self.loop.meter.completed(now_s)[-1:]
        if not candidates and shown is not None and shown.verdict is not Verdict.UNDECIDED:
            candidates = [shown]
        for measurement in candidates:
            self.emit(events.Measured(self._row(measurement, confirmed)))

    def _leave_point(self) -> None:
        """The point or the load changes: keep what was measured, and count nothing of it any more."""
        self._record_leaving()
        self.loop.hold()

    def _record_leaving(self) -> None:
        """An undecided measurement is kept where there is no better one."""
        shown = self.state.measurement
        known = any((r.point, r.load) == (self.state.point, self.state.load) for r in self.state.rows)
        if shown is not None and shown.judged and not known:
            self.emit(events.Measured(self._row(shown, self.state.phase is Phase.CONFIRMED)))

    # -- accept ---------------------------------------------------------------------------------------------------

    def current_row(self, confirmed: bool = False) -> events.Row | None:
        """The row of the present point and load, live or confirmed."""
        return next(
            (
                r
                for r in reversed(self.state.rows)
                if (r.point, r.load, r.confirmed) == (self.state.point, self.state.load, confirmed)
            ),
            None,
        )

    def accept(self, confirm: bool) -> None:
        """Accept the present point: by a restart with exactly its flags, or unconfirmed."""
        if self.state.point is None or self.settings.attached:
            self.say("nothing to accept: the knobs of an attached server are not known", "warning")
            return
        if self.state.phase not in (Phase.LIVE, Phase.CONFIRMED):
            self.say("a point can be accepted while the server is live", "warning")
            return
        self._record_leaving()
        if self.current_row() is None and self.current_row(confirmed=True) is None:
            self.say("nothing has been measured at this point yet: wait for its episode", "warning")
            return
        if confirm:
            self._replace_change(self._confirm())
        else:
            self._save()

    async def _confirm(self) -> None:
        """A fresh server with exactly these flags and none of our classes, the same episode, and the baseline."""
        point = self.state.point
        assert point is not None
        self._leave_point()
        self.emit(events.StartBegan(time.monotonic(), Phase.CONFIRMING, point, self.engine.start_s))
        await self.loop.drain("all")
        await asyncio.to_thread(self.engine.stop)
        if not await self._start_server(point, point, Phase.CONFIRMING, live=False):
            return
        self.emit(events.PhaseChanged(Phase.CONFIRMING, "measuring the same episode"))
        await self._begin_episodes()
        while not self.loop.meter.completed(time.monotonic()):
            try:
                self.engine.raise_if_dead()
            except EngineFailed as failure:
                self.emit(events.Failed(failure.lines))
                return
            await asyncio.sleep(0.2)
        self._record_rows(time.monotonic())
        self.emit(events.PhaseChanged(Phase.CONFIRMED))
        self._save()

    def _save(self) -> None:
        try:
            path = save_baseline(self)
        except StoreError as error:
            self.say(str(error), "error")
            return
        self.emit(events.BaselineSaved(str(path)))
        self.say(f"baseline saved: {path}")
