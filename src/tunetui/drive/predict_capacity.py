"""The highest rate at which a point would meet the SLO over a long run, searched for in virtual time.

It measures nothing real: the search under a real load is `core.edge`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.load import MOST_RPS, Load
from tunetui.core.predictions import Predicted, PredictionErrors, Range
from tunetui.core.slo import Slo, Verdict
from tunetui.core.step_model import StepModel
from tunetui.core.workload import Workload
from tunetui.drive.predict import fitted, flags_of, unknown_share
from tunetui.drive.virtual_episode import MOST_STEPS, TimesOf, VirtualRun, virtual_episode

LONG, SHORT = 4000, 600  # requests of an episode that decides, and of one that only finds where to look
WITHIN = 1.02  # the capacity lies between a rate that held and one that did not, so many times higher
NEAR, STRIDE = 1.06, 1.04  # ... in the first, short search; the width of the first step of the long one from there
WIDEST = 2.0  # ... and of its last
FARTHEST = 8.0  # below what held in a short episode: a long one that fails still lower fails anywhere
HALVINGS = 10  # below the saturated rate: then no rate holds
CLEARLY = 0.9  # of the rate that is of interest: capacities below are not told exactly
CUT = 0.1  # of the requests, before those that are counted: the engine is empty at first
REPORT_S = 4.0  # virtual: seldom, for every report costs


@dataclass(frozen=True, slots=True)
class CapacityPrediction:
    """Requests per second; 0 where no rate meets the SLO. `modelled_rps` is what the model says, uncorrected, `rps`
    with the session's bias and errors. Not `exact`: the search ended early, for it lies below what was of interest."""

    point: Point
    modelled_rps: float
    rps: Range
    exact: bool
    extrapolated: float
    flags: tuple[str, ...]
    episodes: int
    steps: int

    @property
    def trusted(self) -> bool:
        return not self.flags


def predict_capacity(
    model: StepModel,
    facts: EngineFacts,
    point: Point,
    workload: Workload,
    load: Load,
    slo: Slo,
    errors: PredictionErrors | None = None,
    above_rps: float = 0.0,
    requests: int = LONG,
    seed: int | None = None,
) -> CapacityPrediction:
    """The capacity of `point` as the model has it. `load` says how requests arrive, its rate does not matter; a closed
    loop becomes Poisson arrivals. Capacities clearly below `above_rps` need not be told exactly."""
    known = errors or PredictionErrors()
    found = virtual_capacity(
        fitted(model), facts, point, workload if seed is None else replace(workload, seed=seed), load, slo,
        above_rps, requests,
    )  # fmt: skip
    return CapacityPrediction(
        point=point,
        modelled_rps=found.rate_rps,
        rps=known.range_of(Predicted.CAPACITY, found.rate_rps, 1 + found.unknown),
        exact=found.exact,
        extrapolated=found.unknown,
        flags=flags_of(model, found.unknown, False, known, (Predicted.CAPACITY,)),
        episodes=found.episodes,
        steps=found.steps,
    )


@dataclass(frozen=True, slots=True)
class VirtualCapacity:
    """What a search found; `unknown` is the share of time in steps unlike any seen, in the last run that held."""

    rate_rps: float
    exact: bool
    unknown: float
    episodes: int
    steps: int


def virtual_capacity(
    times_of: TimesOf,
    facts: EngineFacts,
    point: Point,
    workload: Workload,
    load: Load,
    slo: Slo,
    above_rps: float = 0.0,
    requests: int = LONG,
    within: float = WITHIN,
) -> VirtualCapacity:
    """The highest rate that holds over `requests` requests, with any step times: fitted, or a machine's; one that is
    `within` times as high does not hold.

    A closed loop with every slot taken gives the rate to begin below; a bisection with short episodes finds the
    neighbourhood, and long ones decide there.
    """
    search = _Search(times_of, facts, point, workload, load, slo)
    low, high = _near(search, search.saturated_rps())
    if not low or high < CLEARLY * above_rps:
        return search.result(low, exact=not low)
    return search.result(_exact(lambda rate_rps: search.holds(rate_rps, requests), low, within), exact=True)


def _near(search: _Search, saturated_rps: float) -> tuple[float, float]:
    """A rate that held in a short episode and one that did not; (0, rate) where none held."""
    high = saturated_rps * 1.1
    low = high / 2
    for _ in range(HALVINGS):
        if search.holds(low, SHORT):
            break
        low, high = low / 2, low
    else:
        return 0.0, high
    while high > low * NEAR:
        middle = (low * high) ** 0.5
        if search.holds(middle, SHORT):
            low = middle
        else:
            high = middle
    return low, high


def _exact(holds: Callable[[float], bool], near_rps: float, within: float) -> float:
    """From a rate nearby: ever wider steps up or down until it held at one end and not at the other, then bisection."""
    low = high = near_rps
    stride = STRIDE
    if holds(near_rps):
        while holds(high := high * stride) and high < MOST_RPS / stride:
            low, stride = high, min(stride**2, WIDEST)
    else:
        while not holds(low := low / stride):
            high, stride = low, min(stride**2, WIDEST)
            if low < near_rps / FARTHEST:
                return 0.0
    while high > low * within:
        middle = (low * high) ** 0.5
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


class _Search:
    """Runs episodes of one point at the rates that it is asked for, and counts what they take."""

    def __init__(
        self, times_of: TimesOf, facts: EngineFacts, point: Point, workload: Workload, load: Load, slo: Slo
    ) -> None:
        self._times_of, self._facts, self._point = times_of, facts, point
        self._workload, self._load, self._slo = workload, load, slo
        self._episodes = self._steps = 0
        self._held: VirtualRun | None = None

    def saturated_rps(self) -> float:
        """Requests per second with every slot taken."""
        seqs = self._point.max_num_seqs
        run = self._run(Load(concurrency=seqs), Slo(()), seqs, max(seqs, 200))
        return max(run.measurement.requests_per_s, 1e-3)

    def holds(self, rate_rps: float, requests: int) -> bool:
        """Whether the SLO is met at `rate_rps`."""
        load = _at_rate(self._load, self._workload, min(rate_rps, MOST_RPS))
        run = self._run(load, self._slo, round(CUT * requests), requests)
        passed = run.measurement.verdict is Verdict.PASS
        if passed:
            self._held = run
        return passed

    def _run(self, load: Load, slo: Slo, cut: int, counted: int) -> VirtualRun:
        self._episodes += 1
        run = virtual_episode(
            self._times_of, self._facts, self._point, self._workload, load, slo, cut, counted,
            until_certain=True, most_steps=MOST_STEPS, report_s=REPORT_S,
        )  # fmt: skip
        self._steps += run.steps
        return run

    def result(self, rate_rps: float, exact: bool) -> VirtualCapacity:
        unknown = unknown_share(self._held) if self._held is not None else 0.0
        return VirtualCapacity(rate_rps, exact, unknown, self._episodes, self._steps)


def _at_rate(load: Load, workload: Workload, rate_rps: float) -> Load:
    """`load` at another rate: the same arrivals, or the trace's moments at another speed; no ramp."""
    if load.speed is not None and workload.trace is not None and workload.trace.mean_rps:
        return Load(speed=rate_rps / workload.trace.mean_rps)
    if load.rate_rps is None:
        return Load(rate_rps)
    return replace(load, rate_rps=rate_rps, ramp=None)
