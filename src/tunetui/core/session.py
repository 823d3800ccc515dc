"""The session's state and the one function that folds an event into it: all that the screen shows is in here.

It reads no clock and starts nothing; the driver makes the events.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from tunetui.core.advice import Advice
from tunetui.core.ceilings import Lowering
from tunetui.core.coach import Applied, Coach
from tunetui.core.episode import ChartPoint, Measurement
from tunetui.core.expectation import Observed, Outcome
from tunetui.core.knobs import EngineFacts, Point, Step
from tunetui.core.limits import Finding
from tunetui.core.load import Load
from tunetui.core.point_statistics import PointView
from tunetui.core.progress import Progress
from tunetui.core.slo import Slo, Verdict

CHART_POINTS = 900
NOTICES = 200


class Phase(StrEnum):
    """Where the session is; the word is shown."""

    STARTING = "STARTING"
    WARMING = "WARMING UP"
    LIVE = "LIVE"
    ATTACHED = "ATTACHED"
    CONFIRMING = "CONFIRMING"
    CONFIRMED = "CONFIRMED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"


class StepState(StrEnum):
    """How far a step has come: written, read by the scheduler, and reached by the batch."""

    NONE = ""
    ASKED = "ASKED"
    ACCEPTED = "ACCEPTED"
    SETTLED = "SETTLED"
    IDLE = "IDLE"


SIMULATED = "+simulated"  # ends the version of a server that is a demo


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase of the server's start and when it began, in seconds since the command."""

    label: str
    began_s: float


@dataclass(frozen=True, slots=True)
class EngineView:
    """The engine at one moment. `kv_usage` is of the capacity in force, held blocks taken out (DESIGN, Knobs)."""

    running: int = 0
    waiting: int = 0
    kv_usage: float | None = None
    kv_blocks: int | None = None
    held_blocks: int = 0
    preemptions: int = 0
    prefix_hit_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table of points: a point under a load, and what was last measured there."""

    number: int
    point: Point | None
    load: Load
    measurement: Measurement
    confirmed: bool = False
    kv_blocks: int | None = None
    prefix_hit_rate: float | None = None
    preemptions: int = 0
    capacity_rps: float | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence for the operator, kept in the log of events. The coach's have a line of their own on the screen."""

    time_s: float
    severity: str  # information, warning, error, coach
    text: str


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that is known now. Times are monotonic seconds."""

    model: str
    slo: Slo
    load: Load
    phase: Phase = Phase.STARTING
    began_s: float = 0.0
    detail: str = ""
    version: str = ""
    hardware: str = ""
    facts: EngineFacts | None = None
    point: Point | None = None
    history: tuple[Point, ...] = ()
    step_state: StepState = StepState.NONE
    step_asked_s: float | None = None
    step_accepted_s: float | None = None
    step_settled_s: float | None = None
    restart: Step | None = None
    start_expected_s: float | None = None
    starting: tuple[PhaseTime, ...] = ()
    starting_since_s: float = 0.0
    lowered: tuple[Lowering, ...] = ()
    failure: tuple[str, ...] = ()
    load_allowed: bool = True
    paused: bool = False
    in_flight: int = 0
    errors: int = 0
    last_error: str = ""
    measurement: Measurement | None = None
    point_view: PointView | None = None
    decided: Measurement | None = None
    chart: tuple[ChartPoint, ...] = ()
    marks: tuple[float, ...] = ()
    engine: EngineView = EngineView()
    rows: tuple[Row, ...] = ()
    baseline_path: str = ""
    notices: tuple[Notice, ...] = ()
    coach: Coach = field(default_factory=Coach)
    progress: Progress | None = None
    capacities: tuple[tuple[Point, float], ...] = ()
    demo: bool = False

    @property
    def simulated(self) -> bool:
        """Whether the server is a demo, ours or one that was attached to: it says so in its version."""
        return self.demo or self.version.endswith(SIMULATED)

    def capacity_of(self, point: Point | None) -> float | None:
        """Requests per second, as far as it was looked for."""
        return next((rps for other, rps in self.capacities if other == point), None)

    @property
    def measuring(self) -> bool:
        return self.phase in (Phase.LIVE, Phase.ATTACHED, Phase.CONFIRMED) and self.load_allowed and not self.paused


# -- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    phase: Phase
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StartBegan:
    time_s: float
    phase: Phase
    point: Point | None
    expected_s: float | None


@dataclass(frozen=True, slots=True)
class StartReached:
    label: str
    began_s: float


@dataclass(frozen=True, slots=True)
class CeilingLowered:
    """The start that was under way ended for want of memory; one with a lower ceiling takes its place."""

    time_s: float
    lowering: Lowering


@dataclass(frozen=True, slots=True)
class EngineReady:
    """`start_s`: how long this start took, which is what the next one is expected to take. `point`: what the server is
    at, where that may differ from what was asked for."""

    facts: EngineFacts
    start_s: float | None = None
    point: Point | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepAsked:
    """A step to `point`. `undo` takes the last point off the history instead of adding to it."""

    time_s: float
    point: Point
    undo: bool = False


@dataclass(frozen=True, slots=True)
class StepMoved:
    time_s: float
    state: StepState


@dataclass(frozen=True, slots=True)
class RestartOffered:
    step: Step | None


@dataclass(frozen=True, slots=True)
class LoadChanged:
    load: Load
    paused: bool
    allowed: bool


@dataclass(frozen=True, slots=True)
class EpisodeReset:
    """The load starts over: figures of the episode before no longer stand for what is in force."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """One data tick."""

    chart: ChartPoint | None
    measurement: Measurement | None
    engine: EngineView
    in_flight: int
    errors: int
    last_error: str
    point_view: PointView | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A row to add, or to put in place of the one for the same point, load and kind."""

    row: Row


@dataclass(frozen=True, slots=True)
class BaselineSaved:
    path: str


@dataclass(frozen=True, slots=True)
class Coached:
    """What limits the engine now, what to try, and what is certain of the point so far; None: nothing to say."""

    finding: Finding | None
    advice: Advice | None
    hint: str = ""
    seen: Observed | None = None


@dataclass(frozen=True, slots=True)
class AdviceApplied:
    """The operator takes the advice; the step itself follows."""

    applied: Applied


@dataclass(frozen=True, slots=True)
class AdviceJudged:
    """The point that an advice led to has its verdict."""

    time_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Piloted:
    """A sweep or an edge search has come so far."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class CapacityFound:
    """The highest request rate at which a point meets the SLO."""

    point: Point
    capacity_rps: float


Event = (
    PhaseChanged
    | StartBegan
    | StartReached
    | CeilingLowered
    | EngineReady
    | Failed
    | StepAsked
    | StepMoved
    | RestartOffered
    | LoadChanged
    | EpisodeReset
    | Ticked
    | Measured
    | BaselineSaved
    | Coached
    | AdviceApplied
    | AdviceJudged
    | Piloted
    | CapacityFound
    | Notice
)


def fold(session: Session, event: Event) -> Session:
    """The state after `event`."""
    match event:
        case PhaseChanged(phase, detail):
            return replace(session, phase=phase, detail=detail)
        case StartBegan(time_s, phase, point, expected_s):
            return replace(
                session,
                phase=phase,
                point=point or session.point,
                history=_history_of_start(session, point),
                starting=(),
                starting_since_s=time_s,
                lowered=(),
                start_expected_s=expected_s,
                failure=(),
                measurement=None,
                point_view=None,
                decided=None,
                restart=None,
                step_state=StepState.NONE,
                engine=EngineView(),
                in_flight=0,
                coach=session.coach.away(point or session.point),
            )
        case StartReached(label, began_s):
            return replace(session, starting=(*session.starting, PhaseTime(label, began_s)))
        case CeilingLowered(time_s, lowering):
            warning = Notice(time_s, "warning", lowering.sentence)
            lowered = (*session.lowered, lowering)
            return fold(replace(session, starting=(), starting_since_s=time_s, lowered=lowered), warning)
        case EngineReady(facts, start_s, point):
            return replace(
                session,
                facts=facts,
                point=point or session.point,
                lowered=(),
                version=facts.version or session.version,
                hardware=facts.hardware,
                start_expected_s=start_s or session.start_expected_s,
            )
        case Failed(lines):
            return replace(session, phase=Phase.FAILED, failure=lines, in_flight=0)
        case StepAsked(time_s, point, undo):
            return _asked(session, time_s, point, undo)
        case StepMoved(time_s, state):
            return _moved(session, time_s, state)
        case RestartOffered(step):
            return replace(session, restart=step)
        case LoadChanged(load, paused, allowed):
            return replace(session, load=load, paused=paused, load_allowed=allowed)
        case EpisodeReset():
            return replace(session, measurement=None, point_view=None, decided=None, coach=session.coach.unseen())
        case Ticked():
            return _ticked(session, event)
        case Measured(row):
            return replace(session, rows=_with_row(session.rows, row), decided=_decided(session, row))
        case BaselineSaved(path):
            return replace(session, baseline_path=path)
        case Coached(finding, advice, hint, seen):
            return replace(session, coach=session.coach.looked(finding, advice, hint, seen))
        case AdviceApplied(applied):
            return replace(session, coach=replace(session.coach, applied=applied, outcome=""))
        case AdviceJudged(time_s, outcome):
            judged = replace(session, coach=session.coach.after(outcome))
            return fold(judged, Notice(time_s, "coach", outcome.sentence))
        case Piloted(progress):
            return replace(session, progress=progress)
        case CapacityFound(point, capacity_rps):
            known = tuple((other, rps) for other, rps in session.capacities if other != point)
            rows = tuple(replace(r, capacity_rps=capacity_rps) if r.point == point else r for r in session.rows)
            return replace(session, capacities=(*known, (point, capacity_rps)), rows=rows)
        case Notice():
            return replace(session, notices=(*session.notices, event)[-NOTICES:])


def _asked(session: Session, time_s: float, point: Point, undo: bool) -> Session:
    history = session.history[:-1] if undo else session.history
    # Several keys on the way to one point are one step for undo: only a point that was reached is remembered.
    if not undo and session.point is not None and session.step_state in (StepState.NONE, StepState.SETTLED):
        history = (*history, session.point)
    return replace(
        session,
        point=point,
        history=history,
        coach=session.coach.away(point),
        step_state=StepState.ASKED,
        step_asked_s=time_s,
        step_accepted_s=None,
        step_settled_s=None,
        restart=None,
        measurement=None,
        point_view=None,
        decided=None,
    )


def _history_of_start(session: Session, point: Point | None) -> tuple[Point, ...]:
    """A restart at another point is a step too; one that goes back to the last point takes it off the history."""
    if point is None or session.point is None or point == session.point:
        return session.history
    if session.history and session.history[-1] == point:
        return session.history[:-1]
    return (*session.history, session.point)


def _moved(session: Session, time_s: float, state: StepState) -> Session:
    changed = replace(session, step_state=state)
    if state is StepState.ACCEPTED:
        changed = replace(changed, step_accepted_s=time_s)
    if state is StepState.SETTLED:
        changed = replace(changed, step_settled_s=time_s, marks=(*session.marks, time_s)[-CHART_POINTS:])
    return changed


def _ticked(session: Session, tick: Ticked) -> Session:
    chart = session.chart if tick.chart is None else (*session.chart, tick.chart)[-CHART_POINTS:]
    decided = session.decided
    if tick.measurement is not None and tick.measurement.verdict is not Verdict.UNDECIDED:
        decided = tick.measurement
    return replace(
        session,
        chart=chart,
        measurement=tick.measurement,
        point_view=tick.point_view,
        decided=decided,
        engine=tick.engine,
        in_flight=tick.in_flight,
        errors=tick.errors,
        last_error=tick.last_error or session.last_error,
    )


def _decided(session: Session, row: Row) -> Measurement | None:
    """The last measurement of the present point that has a verdict: an episode may end between two ticks."""
    present = (row.point, row.load) == (session.point, session.load)
    return row.measurement if present and row.measurement.verdict is not Verdict.UNDECIDED else session.decided


def _with_row(rows: tuple[Row, ...], row: Row) -> tuple[Row, ...]:
    """Rows with `row` put in: one row for each point, load and kind, the newest measurement in it."""
    for index, old in enumerate(rows):
        if (old.point, old.load, old.confirmed) == (row.point, row.load, row.confirmed):
            return (*rows[:index], replace(row, number=old.number), *rows[index + 1 :])
    return (*rows, replace(row, number=len(rows) + 1))


def usage_without_held(free_blocks: int, num_blocks: int, held_blocks: int) -> float | None:
    """KV usage of the capacity in force: (used - held) / (blocks - 1 - held); the null block never counts."""
    capacity = num_blocks - 1 - held_blocks
    if capacity <= 0:
        return None
    return min(max((num_blocks - 1 - free_blocks - held_blocks) / capacity, 0.0), 1.0)
