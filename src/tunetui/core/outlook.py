"""What each step from the present point would bring, as it is predicted before a key is pressed.

It predicts nothing (`drive.outlook` does) and takes no step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tunetui.core.knobs import EngineFacts, How, Knob, Point, plan_step, stepped
from tunetui.core.load import Load
from tunetui.core.predictions import Predicted, PredictionErrors, Range
from tunetui.core.slo import Verdict

SWITCHES = (Knob.CHUNKED, Knob.PREFIX)  # both ways are the same step


@dataclass(frozen=True, slots=True)
class Option:
    """A step that a key would take from here: the knob, the direction +1 or -1, and where it leads."""

    knob: Knob
    direction: int
    point: Point
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """What is predicted of a point: output tokens per second, seconds at the SLO's percentile, and the verdict where
    the intervals leave no doubt. `overload` says why waiting would grow without bound; `flags` why not to rely on it.
    """

    point: Point
    load: Load
    throughput: Range
    ttft_s: Range | None
    tpot_s: Range | None
    verdict: Verdict
    overload: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outlook:
    """Every step from `origin` under `load`, with what is predicted of each; `here` is the prediction of the point
    itself, and `errors` how far predictions were off in this session."""

    origin: Point
    load: Load
    here: Expected | None = None
    steps: tuple[tuple[Option, Expected], ...] = ()
    errors: PredictionErrors = field(default_factory=PredictionErrors)

    def of(self, knob: Knob) -> tuple[tuple[Option, Expected], ...]:
        """The steps of one knob, the one upwards first."""
        return tuple((option, expected) for option, expected in self.steps if option.knob is knob)

    @property
    def error_words(self) -> str:
        """`off by 4 % (throughput), 12 % (TTFT), 3 % (TPOT) over 5 points`; empty before anything was compared."""
        figures = (Predicted.THROUGHPUT, Predicted.TTFT, Predicted.TPOT)
        known = [(figure.value, error) for figure in figures if (error := self.errors.error(figure)) is not None]
        if not known:
            return ""
        count = max(self.errors.count(figure) for figure in figures)
        off = ", ".join(f"{error * 100:.0f} % ({name})" for name, error in known)
        return f"off by {off} over {count} {'point' if count == 1 else 'points'}"

    @property
    def poor_words(self) -> str:
        """Why a step should be measured rather than predicted here, or empty."""
        poor = [figure.value for figure in self.errors.poor]
        return f"predictions of {' and '.join(poor)} are poor here: step, and measure" if poor else ""


def options(origin: Point, facts: EngineFacts) -> tuple[Option, ...]:
    """The steps of each knob from `origin` by a wide key, both ways; those that vLLM would refuse are left out."""
    found: dict[Point, Option] = {}
    for knob in Knob:
        for direction in (1,) if knob in SWITCHES else (1, -1):
            target = stepped(origin, knob, direction, False, facts)
            how = plan_step(origin, target, facts).how
            if target != origin and how is not How.REFUSED:
                found.setdefault(target, Option(knob, direction, target, how is How.RESTART))
    return tuple(found.values())


def load_at(point: Point, load: Load, follows: bool) -> Load:
    """The load that a point would be under: with `follows` as many streams as it has slots."""
    return Load(concurrency=point.max_num_seqs) if follows else load
