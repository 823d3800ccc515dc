"""What a point would do before it is tried: its episode in virtual time, with step times fitted to this engine.

It applies nothing and measures nothing real; what its predictions were worth is `core.predictions`' to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunetui.core.episode import Measurement
from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.load import Load
from tunetui.core.predictions import Predicted, PredictionErrors, Range
from tunetui.core.slo import Metric, Slo, Verdict
from tunetui.core.step_model import StepModel
from tunetui.core.workload import Workload
from tunetui.demo.engine import BLOCK_SIZE, Engine, Step
from tunetui.drive.virtual_episode import LEAST_S, MOST_STEPS, TimesOf, VirtualRun, virtual_episode

STRANGE = 0.1  # share of the time in steps unlike any that was seen: more of it is said
LOOSE = 0.2  # median error of the step times, likewise


class FittedTimes:
    """The times of a fitted model on `engine`, whose blocks in use are the KV that a step reads, as the ring has it."""

    def __init__(self, model: StepModel, engine: Engine) -> None:
        self._model, self._engine, self._span = model, engine, model.span
        self._all_s = self._unknown_s = 0.0

    def step_s(self, step: Step) -> float:
        """Seconds that `step` takes."""
        pool = self._engine.pool
        kv_tokens = (pool.num_blocks - 1 - pool.free - len(self._engine.held)) * BLOCK_SIZE
        sequences = step.decodes + len(step.prefills)
        tokens = step.tokens if step.prefills else step.decodes
        took_s = max(self._model.step_s(tokens, sequences, kv_tokens), LEAST_S)
        self._all_s += took_s
        # As in `StepModel.known`, whose limits are worked out once here: this runs ten thousand times a prediction.
        (least_t, most_t), (least_s, most_s), (least_kv, most_kv) = self._span
        if not (least_t <= tokens <= most_t and least_s <= sequences <= most_s and least_kv <= kv_tokens <= most_kv):
            self._unknown_s += took_s
        return took_s

    @property
    def unknown(self) -> float:
        """The share of the time in steps unlike those that the model was fitted to."""
        return self._unknown_s / self._all_s if self._all_s else 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is predicted of a point under a load.

    `measurement` is what the model says, uncorrected: it is to be compared with the real one to know its errors. The
    ranges are corrected by the session's bias: output tokens per second, and seconds at the SLO's percentile. `flags`
    are sentences on why not to rely on it; where there is one, measure instead.
    """

    point: Point
    load: Load
    measurement: Measurement
    throughput: Range
    ttft_s: Range | None
    tpot_s: Range | None
    extrapolated: float  # share of the time in steps unlike any that was seen
    flags: tuple[str, ...]
    steps: int

    @property
    def overload(self) -> str:
        """Why waiting would grow without bound, or empty."""
        return self.measurement.overload

    @property
    def trusted(self) -> bool:
        return not self.flags

    def verdict(self, slo: Slo) -> Verdict:
        """PASS or FAIL where the whole of each interval says so, else UNDECIDED. An E2EL has none: it is undecided."""
        if self.overload and slo.objectives:
            return Verdict.FAIL
        ranges = {Metric.TTFT: self.ttft_s, Metric.TPOT: self.tpot_s}
        known = [(ranges.get(objective.metric), objective.limit_s) for objective in slo.objectives]
        if any(found is not None and found.low > limit_s for found, limit_s in known):
            return Verdict.FAIL
        if known and all(found is not None and found.high <= limit_s for found, limit_s in known):
            return Verdict.PASS
        return Verdict.UNDECIDED


def learned(errors: PredictionErrors, prediction: Prediction, measured: Measurement) -> PredictionErrors:
    """`errors` with what `measured`, a complete episode of the same point and load, says of `prediction`.

    Nothing where either was overloaded: latencies grow with time there, and so say nothing.
    """
    said = prediction.measurement
    if said.overload or measured.overload or not measured.complete:
        return errors
    errors = errors.after(Predicted.THROUGHPUT, said.output_tokens_per_s, measured.output_tokens_per_s)
    errors = errors.after(Predicted.TTFT, said.ttft_s or 0.0, measured.ttft_s or 0.0)
    return errors.after(Predicted.TPOT, said.tpot_s or 0.0, measured.tpot_s or 0.0)


def predict(
    model: StepModel,
    facts: EngineFacts,
    point: Point,
    workload: Workload,
    load: Load,
    slo: Slo,
    cut: int,
    counted: int,
    errors: PredictionErrors | None = None,
    seed: int | None = None,
    most_steps: int = MOST_STEPS,
) -> Prediction:
    """The episode of `cut` + `counted` requests at `point` under `load`, as the model has it. `seed` None is the
    workload's own: the very requests that a real episode would send.

    An overloaded one ends as soon as that is certain, any after `most_steps` steps. Raises WorkloadError for a load
    that the workload has no times for.
    """
    known = errors or PredictionErrors()
    workload = workload if seed is None else replace(workload, seed=seed)
    run = virtual_episode(fitted(model), facts, point, workload, load, slo, cut, counted, most_steps=most_steps)
    seen = run.measurement
    unknown = unknown_share(run)
    flags = flags_of(model, unknown, run.cut_short, known, (Predicted.THROUGHPUT, Predicted.TTFT, Predicted.TPOT))

    def around(figure: Predicted, value: float | None) -> Range | None:
        return None if value is None else known.range_of(figure, value, 1 + unknown)

    return Prediction(
        point=point,
        load=load,
        measurement=seen,
        throughput=known.range_of(Predicted.THROUGHPUT, seen.output_tokens_per_s, 1 + unknown),
        ttft_s=around(Predicted.TTFT, seen.ttft_s),
        tpot_s=around(Predicted.TPOT, seen.tpot_s),
        extrapolated=unknown,
        flags=flags,
        steps=run.steps,
    )


def fitted(model: StepModel) -> TimesOf:
    """The model's step times on any engine."""
    return lambda engine: FittedTimes(model, engine)


def unknown_share(run: VirtualRun) -> float:
    """The share of a run's time in steps unlike any that was seen; 0 where nothing was fitted."""
    return run.times.unknown if isinstance(run.times, FittedTimes) else 0.0


def flags_of(
    model: StepModel, unknown: float, cut_short: bool, errors: PredictionErrors, figures: tuple[Predicted, ...]
) -> tuple[str, ...]:
    """Why not to rely on a prediction, a sentence each."""
    found = []
    if unknown > STRANGE:
        found.append(f"{unknown:.0%} of its time would be steps unlike any that was seen")
    if model.error > LOOSE:
        found.append(f"the step times fit only within {model.error:.0%}")
    if cut_short:
        found.append("the virtual episode took too many steps and was cut short")
    for figure in figures:
        error = errors.error(figure)
        if errors.is_poor(figure) and error is not None:
            found.append(f"predictions of {figure.value} were off by {error:.0%} here")
    return tuple(found)
