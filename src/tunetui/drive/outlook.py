"""Keeps a session's outlook: fits step times to the engine's ring, and predicts what every step from here would bring.

It takes no step and measures nothing; the predicting itself goes on in a process of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunetui.core import events
from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.load import Load
from tunetui.core.outlook import Expected, Option, Outlook, load_at, options
from tunetui.core.predictions import PredictionErrors
from tunetui.core.session import Phase, Session
from tunetui.core.slo import Slo
from tunetui.core.step_model import StepModel, StepModelFit
from tunetui.core.workload import Workload, turnover
from tunetui.drive.elsewhere import elsewhere
from tunetui.drive.predict import Prediction, learned, predict
from tunetui.engine.control import LiveControl, engine_step

if TYPE_CHECKING:
    from tunetui.drive.driver import Driver

LOOK_S = 1.0
MOST_REQUESTS = 400  # of a virtual episode: about as many as an episode has
MOST_STEPS = 40_000
MORE_STEPS = 2.0  # times the steps that a model was fitted to, before it is fitted again at the same point
KEPT = 64  # predictions that wait for what is measured

At = tuple[Point, Load]


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of predictions needs: the points with their loads and the requests that are cut off each."""

    model: StepModel
    facts: EngineFacts
    workload: Workload
    slo: Slo
    errors: PredictionErrors
    counted: int
    asked: tuple[tuple[Point, Load, int], ...]


def predicted(asked: Round) -> tuple[Prediction, ...]:
    """The predictions of a round, in its order."""
    return tuple(
        predict(
            asked.model, asked.facts, point, asked.workload, load, asked.slo, cut, asked.counted, asked.errors,
            most_steps=MOST_STEPS,
        )
        for point, load, cut in asked.asked
    )  # fmt: skip


class Foresight:
    """The outlook of `driver`'s session. `run` it as long as the session lasts."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._control: LiveControl | None = None
        self._next_step: int | None = None
        self._fit: StepModelFit | None = None
        self._fitted = 0  # steps that the last model was fitted to
        self._made_of: tuple[Point, Load, PredictionErrors] | None = None
        self._said: dict[At, Prediction] = {}
        self._errors = PredictionErrors()

    async def run(self) -> None:
        """Look once a second, until cancelled. What fails in here is said once, and the session goes on without."""
        said = ""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except Exception as error:
                if repr(error) != said:
                    said = repr(error)
                    self._driver.say(f"predictions failed: {error}", "warning")

    async def _look(self) -> None:
        state, control = self._driver.state, self._driver.engine.control
        self._read(control, state.facts)
        self._learn(state)
        if self._fit is None or not _may_predict(state):
            return
        origin = state.origin
        assert origin is not None
        made_of = origin, state.load, self._errors
        if made_of == self._made_of and self._fit.taken < MORE_STEPS * self._fitted:
            return
        model = await asyncio.to_thread(self._fit.model)
        if model is not None:
            self._fitted, self._made_of = self._fit.taken, made_of
            await self._foresee(model, origin)

    def _read(self, control: LiveControl | None, facts: EngineFacts | None) -> None:
        """The steps since the look before. A new engine does not go on where the old one was, but has its times too."""
        if control is None or facts is None:
            return
        if self._fit is None:
            self._fit = StepModelFit(facts.block_size)
        if control is not self._control:
            self._control, self._next_step = control, None
            self._fit.restart()
        before = self._next_step
        self._next_step, records = control.records_since(before)
        if before is not None and self._next_step is not None and self._next_step - before > len(records):
            self._fit.restart()  # some were lost
        self._fit.add([engine_step(record, facts.num_blocks) for record in records])

    def _learn(self, state: Session) -> None:
        """A point that was predicted has a complete episode: what it says of the prediction."""
        for row in state.rows:
            if row.point is None or row.confirmed or not row.measurement.complete:
                continue
            prediction = self._said.pop((row.point, row.load), None)
            if prediction is not None:
                self._errors = learned(self._errors, prediction, row.measurement)

    async def _foresee(self, model: StepModel, origin: Point) -> None:
        """One round; given up where the session moves on meanwhile."""
        driver, state = self._driver, self._driver.state
        assert state.facts is not None
        settings, follows = driver.settings, driver.follows_seqs
        counted = min(settings.episode_requests, MOST_REQUESTS)
        steps = options(origin, state.facts)
        at = [(point, load_at(point, state.load, follows)) for point in (origin, *(option.point for option in steps))]
        asked = tuple((point, load, self._cut(load, counted)) for point, load in at)
        round_ = Round(model, state.facts, settings.workload, settings.slo, self._errors, counted, asked)
        working = asyncio.create_task(elsewhere(predicted, round_))
        try:
            while not working.done():
                await asyncio.wait({working}, timeout=LOOK_S / 4)
                if not self._holds(state):
                    self._made_of = None
                    return
        finally:
            if not working.done():
                working.cancel()
                await asyncio.wait({working})
        self._tell(state, origin, steps, working.result())

    def _cut(self, load: Load, counted: int) -> int:
        cut = self._driver.settings.cut
        return cut if cut is not None else turnover(load, self._driver.loop.mean_e2el_s, counted)

    def _holds(self, then: Session) -> bool:
        now = self._driver.state
        return (now.origin, now.load) == (then.origin, then.load) and _may_predict(now)

    def _tell(self, state: Session, origin: Point, steps: tuple[Option, ...], found: tuple[Prediction, ...]) -> None:
        here, *others = found
        known = {(row.point, row.load) for row in state.rows if row.measurement.complete}
        for prediction in found:  # the first one said of a point counts: later ones know what was measured there
            if (at := (prediction.point, prediction.load)) not in known:
                self._said.setdefault(at, prediction)
        for at in list(self._said)[:-KEPT]:
            del self._said[at]
        slo = state.slo
        told = tuple((option, _expected(one, slo)) for option, one in zip(steps, others, strict=True))
        self._driver.emit(events.Foreseen(Outlook(origin, state.load, _expected(here, slo), told, self._errors)))


def _may_predict(state: Session) -> bool:
    """Whether keys step something now, and the steps that are seen are those of the present point."""
    busy = state.progress is not None and state.progress.running
    live = state.phase is Phase.LIVE and state.facts is not None and state.facts.live
    return live and state.measuring and not busy and state.steady and state.origin is not None


def _expected(prediction: Prediction, slo: Slo) -> Expected:
    return Expected(
        prediction.point, prediction.load, prediction.throughput, prediction.ttft_s, prediction.tpot_s,
        prediction.verdict(slo), prediction.overload, prediction.flags,
    )  # fmt: skip
