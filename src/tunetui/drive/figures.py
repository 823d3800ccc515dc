"""The data tick: reads the engine and the load, says what is seen and what the coach makes of it, and puts what is
certain into the table of points.

It changes no knob and no load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from tunetui.core import coaching, events
from tunetui.core.episode import Measurement
from tunetui.core.load import Load
from tunetui.core.point_statistics import PointView
from tunetui.core.rows import certain, row_of, row_on_leaving
from tunetui.core.session import EngineView, Notice, Phase, Session
from tunetui.core.workload import features
from tunetui.drive.loop import LoadLoop
from tunetui.drive.observe import EngineObserver
from tunetui.engine.control import LiveControl
from tunetui.engine.server_api import ServerApi

ACTIVE = (Phase.LIVE, Phase.ATTACHED, Phase.CONFIRMED, Phase.CONFIRMING)
UNANSWERED_TICKS = 3


class Figures:
    """What is seen of one session. `session` gives its present state, which `emit` changes."""

    def __init__(
        self,
        session: Callable[[], Session],
        emit: Callable[[events.Event], None],
        loop: LoadLoop,
        follows: Callable[[], bool] = lambda: False,
    ) -> None:
        """`follows`: whether the load has as many streams as max-num-seqs."""
        self._session = session
        self._emit = emit
        self._loop = loop
        self._observer = EngineObserver()
        self._follows = follows
        self._features: tuple[Load, dict[str, float | int | str]] | None = None
        self._said: set[str] = set()  # what the coach has said of the present point

    async def mark(self, api: ServerApi | None) -> None:
        """The engine's counters count from here: an episode begins."""
        self._said.clear()
        await self._observer.mark(api)

    async def tick(self, api: ServerApi | None, control: LiveControl | None) -> None:
        """Say what is seen now; `api` is None where no server runs."""
        before = self._session()
        view = await self._observer.view(before.engine, api, before.facts, control)
        now_s, meter, state = time.monotonic(), self._loop.meter, self._session()
        active = state.phase in ACTIVE
        self._emit(
            events.Ticked(
                meter.chart(now_s) if active and state.load_allowed else None,
                self._loop.measurement(now_s),
                view if active else state.engine,
                meter.in_flight,
                meter.errors,
                meter.last_error,
                self._point_view(view) if active and self._loop.sending else None,
            )
        )
        if self._observer.unanswered == UNANSWERED_TICKS and state.phase is Phase.ATTACHED:
            self._emit(Notice(now_s, "warning", f"no metrics from {state.model}: is the server still there?"))
        if active:
            self._coach(now_s, control, self.record())

    def _coach(self, now_s: float, control: LiveControl | None, seen: Measurement | None) -> None:
        """What limits the engine, what to try, and what came of what was tried. Each is kept once in the log."""
        before = self._session()
        figures = self._observer.figures(before.point, before.facts, control) if self._loop.sending else None
        said = coaching.look(before, figures, self._workload, self._follows(), seen)
        if before.progress is not None and before.progress.running:  # a plan needs no advice
            self._emit(replace(said, advice=None, hint=""))
            return
        self._emit(said)
        if (outcome := coaching.came_of_it(self._session(), now_s)) is not None:
            self._emit(outcome)
        if said.finding is None or said.seen is None:
            return
        found = f"limit {said.finding.limit.value}: {said.finding.sentence}"
        advised = (said.advice.key, f"advice: {said.advice.sentence}") if said.advice is not None else ("", "")
        for key, text in ((said.finding.limit.value, found), advised):
            if key and key not in self._said:
                self._said.add(key)
                self._emit(Notice(now_s, "coach", text))

    @property
    def _workload(self) -> dict[str, float | int | str]:
        """The features of the load that is being sent, worked out once for each."""
        load = self._loop.load
        if self._features is None or self._features[0] != load:
            self._features = (load, features(self._loop.plan()) if self._loop.sending else {})
        return self._features[1]

    def _point_view(self, view: EngineView) -> PointView:
        """Everything of the present point beyond its episode; in general only of an open loop (a closed one has no
        queue whose busy periods the utilization could tell)."""
        meter = self._loop.meter
        if not self._observer.unanswered:
            meter.utilization.add(view.running, view.kv_usage)
        return meter.statistics.view(meter.utilization.mean if self._loop.load.open_loop else None)

    def record(self) -> Measurement | None:
        """Put what is certain of the present point into the table: a complete episode, or one whose verdict is."""
        if not self._loop.sending:
            return None
        now_s = time.monotonic()
        found = certain(self._loop.meter.completed(now_s), self._loop.measurement(now_s))
        if found is not None:
            self._emit(events.Measured(row_of(self._session(), found)))
        return found

    def record_leaving(self) -> None:
        """The present point or load is about to be left: keep even what is undecided, as the last tick saw it."""
        row = row_on_leaving(self._session()) if self._loop.sending else None
        if row is not None:
            self._emit(events.Measured(row))

    @property
    def complete(self) -> bool:
        """Whether an episode of the present point is complete."""
        return self._loop.sending and bool(self._loop.meter.completed(time.monotonic()))
