"""What happens in a session, each as a value: the driver makes them, `fold` takes them in.

They hold no behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunetui.core.advice import Advice
from tunetui.core.ceilings import Lowering
from tunetui.core.coach import Applied
from tunetui.core.episode import ChartPoint, Measurement
from tunetui.core.expectation import Observed, Outcome
from tunetui.core.knobs import EngineFacts, Point, Step
from tunetui.core.limits import Finding
from tunetui.core.load import Load
from tunetui.core.outlook import Outlook
from tunetui.core.point_statistics import PointView
from tunetui.core.progress import Progress
from tunetui.core.session import EngineView, Notice, Phase, Riding, Row, StepState


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


@dataclass(frozen=True, slots=True)
class Rides:
    """Riding the edge has begun, has come to another point's edge, or has ended (None)."""

    riding: Riding | None


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What every step from here would bring has been predicted."""

    outlook: Outlook


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
    | Foreseen
    | Rides
    | Notice
)
