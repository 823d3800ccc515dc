"""The data tick: reads the engine and the load, says what is seen, and puts what is certain into the table of points.

It changes no knob and no load.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tunetui.core import session as events
from tunetui.core.point_statistics import PointView
from tunetui.core.rows import certain, row_of, row_on_leaving
from tunetui.core.session import EngineView, Phase, Session
from tunetui.drive.loop import LoadLoop
from tunetui.drive.observe import EngineObserver
from tunetui.engine.control import LiveControl
from tunetui.engine.server_api import ServerApi

ACTIVE = (Phase.LIVE, Phase.ATTACHED, Phase.CONFIRMED, Phase.CONFIRMING)
UNANSWERED_TICKS = 3


class Figures:
    """What is seen of one session. `session` gives its present state, which `emit` changes."""

    def __init__(self, session: Callable[[], Session], emit: Callable[[events.Event], None], loop: LoadLoop) -> None:
        self._session = session
        self._emit = emit
        self._loop = loop
        self._observer = EngineObserver()

    async def mark(self, api: ServerApi | None) -> None:
        """The engine's counters count from here: an episode begins."""
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
            self._emit(events.Notice(now_s, "warning", f"no metrics from {state.model}: is the server still there?"))
        if active:
            self.record()

    def _point_view(self, view: EngineView) -> PointView:
        """Everything of the present point beyond its episode; in general only of an open loop (a closed one has no
        queue whose busy periods the utilization could tell)."""
        meter = self._loop.meter
        if not self._observer.unanswered:
            meter.utilization.add(view.running, view.kv_usage)
        return meter.statistics.view(meter.utilization.mean if self._loop.load.open_loop else None)

    def record(self) -> None:
        """Put what is certain of the present point into the table: a complete episode, or one whose verdict is."""
        if self._loop.sending:
            now_s = time.monotonic()
            found = certain(self._loop.meter.completed(now_s), self._loop.measurement(now_s))
            if found is not None:
                self._emit(events.Measured(row_of(self._session(), found)))

    def record_leaving(self) -> None:
        """The present point or load is about to be left: keep even what is undecided, as the last tick saw it."""
        row = row_on_leaving(self._session()) if self._loop.sending else None
        if row is not None:
            self._emit(events.Measured(row))

    @property
    def complete(self) -> bool:
        """Whether an episode of the present point is complete."""
        return self._loop.sending and bool(self._loop.meter.completed(time.monotonic()))
