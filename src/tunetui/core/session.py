"""The session's state: all that the screen shows is in here.

It does not say how it changes: `fold` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tunetui.core.ceilings import Lowering
from tunetui.core.coach import Coach
from tunetui.core.episode import ChartPoint, Measurement
from tunetui.core.knobs import EngineFacts, Point, Step
from tunetui.core.load import Load
from tunetui.core.outlook import Outlook
from tunetui.core.point_statistics import PointView
from tunetui.core.progress import Progress
from tunetui.core.slo import Slo

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
class Riding:
    """The load is kept at the edge of whatever point is in force. `capacity_rps` is that of `point`, which it was found
    for last, and `before_rps` that of the point before; None: not found yet."""

    point: Point | None = None
    capacity_rps: float | None = None
    before_rps: float | None = None

    @property
    def words(self) -> str:
        """`14.00 -> 16.50 req/s`."""
        now = "" if self.capacity_rps is None else f"{self.capacity_rps:.2f} req/s"
        return now if self.before_rps is None else f"{self.before_rps:.2f} -> {now}"

    def to(self, point: Point, capacity_rps: float) -> Riding:
        """With the edge found at `point`."""
        before_rps = self.before_rps if point == self.point else self.capacity_rps
        return Riding(point, capacity_rps, before_rps)


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
    riding: Riding | None = None
    outlook: Outlook | None = None
    demo: bool = False

    @property
    def simulated(self) -> bool:
        """Whether the server is a demo, ours or one that was attached to: it says so in its version."""
        return self.demo or self.version.endswith(SIMULATED)

    def capacity_of(self, point: Point | None) -> float | None:
        """Requests per second, as far as it was looked for."""
        return next((rps for other, rps in self.capacities if other == point), None)

    @property
    def origin(self) -> Point | None:
        """Where a key on a knob starts from: an offered point, or the present one."""
        return self.restart.target if self.restart is not None else self.point

    @property
    def outlook_here(self) -> Outlook | None:
        """The outlook, where it is of where a key starts from now."""
        found = self.outlook
        return found if found is not None and (found.origin, found.load) == (self.origin, self.load) else None

    @property
    def steady(self) -> bool:
        """Whether no step is on its way."""
        return self.step_state in (StepState.NONE, StepState.SETTLED)

    @property
    def measuring(self) -> bool:
        return self.phase in (Phase.LIVE, Phase.ATTACHED, Phase.CONFIRMED) and self.load_allowed and not self.paused


def usage_without_held(free_blocks: int, num_blocks: int, held_blocks: int) -> float | None:
    """KV usage of the capacity in force: (used - held) / (blocks - 1 - held); the null block never counts."""
    capacity = num_blocks - 1 - held_blocks
    if capacity <= 0:
        return None
    return min(max((num_blocks - 1 - free_blocks - held_blocks) / capacity, 0.0), 1.0)
