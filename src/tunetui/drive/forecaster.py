"""Answers a sweep's questions about points not yet tried: fits this engine's step times, and keeps what it got wrong.

It tries no point itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunetui.core.edge import Seen
from tunetui.core.fixed_load import margin_of
from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.load import Load
from tunetui.core.predictions import Predicted, PredictionErrors
from tunetui.core.slo import Slo
from tunetui.core.step_model import StepModel, StepModelFit
from tunetui.core.steps import EngineStep
from tunetui.core.tasks import Ask, Forecast
from tunetui.core.workload import Workload
from tunetui.drive.predict import LOOSE, learned, predict
from tunetui.drive.predict_capacity import predict_capacity

REQUESTS = 3000  # of the long virtual episode that tells a capacity
ALIKE = 0.005  # two models whose step times differ by less on average tell the same capacities
SOME = 200  # steps to compare them on


class Forecaster:
    """Predictions for one engine. `see` every trial with its steps, then `answer`. A capacity is not asked of the model
    twice while it stays the same."""

    def __init__(self, facts: EngineFacts, workload: Workload, load: Load, slo: Slo, requests: int = REQUESTS) -> None:
        """`load` says how requests arrive."""
        self.facts, self._workload, self._load, self._slo = facts, workload, load, slo
        self._requests = requests
        self._fit = StepModelFit(facts.block_size)
        self._model: StepModel | None = None
        self._capacities: dict[Point, Forecast] = {}
        self.errors = PredictionErrors()

    def restarted(self) -> None:
        """The engine is another process now."""
        self._fit.restart()

    def see(self, seen: Seen, steps: Sequence[EngineStep]) -> None:
        """A trial has ended; `steps` are those that the engine took in it. What was predicted of it is compared."""
        trial = seen.trial
        if self._model is not None and not seen.measurement.overload:
            said = predict(
                self._model, self.facts, trial.point, self._workload, trial.load, self._slo, trial.cut, trial.requests,
                self.errors,
            )  # fmt: skip
            self.errors = learned(self.errors, said, seen.measurement)
        self._fit.add(steps)
        before, self._model = self._model, self._fit.model()
        if before is None or self._model is None or _differ(before, self._model, steps, self.facts.block_size):
            self._capacities.clear()

    def answer(self, ask: Ask) -> tuple[Forecast, ...]:
        """A forecast for each point that was asked for."""
        if self._model is None:
            return tuple(Forecast(point) for point in ask.points)
        if ask.load is not None:
            return tuple(self._at(self._model, point, ask.load) for point in ask.points)
        return tuple(self._capacity(self._model, point, ask.points[0]) for point in ask.points)

    @property
    def _trusted(self) -> bool:
        """Whether step times fit and gave what was measured. A point that was never tried needs steps that were never
        seen, and a TTFT near the edge is one of chance: that is no reason for distrust: what wins is tried."""
        physical = (Predicted.THROUGHPUT, Predicted.TPOT)
        return self._model is not None and self._model.error <= LOOSE and not any(map(self.errors.is_poor, physical))

    def _at(self, model: StepModel, point: Point, load: Load) -> Forecast:
        cut, counted = self._requests // 10, self._requests
        said = predict(model, self.facts, point, self._workload, load, self._slo, cut, counted, self.errors)
        return Forecast(point, None, margin_of(said.measurement, self._slo), self._trusted)

    def _capacity(self, model: StepModel, point: Point, best: Point) -> Forecast:
        if point not in self._capacities:
            known = self._capacities.get(best)
            above_rps = (known.capacity_rps or 0.0) if known is not None and point != best else 0.0
            found = predict_capacity(
                model, self.facts, point, self._workload, self._load, self._slo, self.errors, above_rps, self._requests
            )
            self._capacities[point] = Forecast(point, found.rps.value, None, self._trusted)
        return self._capacities[point]


def _differ(before: StepModel, after: StepModel, steps: Sequence[EngineStep], block_size: int) -> bool:
    """Whether two models tell these steps' times apart."""
    apart = []
    for step in steps[:: max(len(steps) // SOME, 1)]:
        work = (step.tokens, step.requests, step.used_blocks * block_size)
        apart.append(abs(after.step_s(*work) / max(before.step_s(*work), 1e-9) - 1))
    return not apart or sum(apart) / len(apart) > ALIKE
