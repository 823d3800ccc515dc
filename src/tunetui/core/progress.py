"""How far a sweep or an edge search has come, as the screen and the log show it. It plans nothing (`sweep` does)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunetui.core.candidates import Stage
from tunetui.core.edge import Seen, Trial
from tunetui.core.knobs import Point
from tunetui.core.tasks import Ask, Confirm, Outcome, Task, Told

STAGES = tuple(Stage)
TRIALS_PER_STAGE = 2  # as long as nothing better is known


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the plan's log: a trial and what was `seen`, or what was left out, and why."""

    stage: Stage
    point: Point | None
    rate_rps: float
    text: str
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """`best` and its capacity are as known when the stage began; `trial` is under way; `left_s` is a guess."""

    stage: Stage = Stage.BASELINE
    done: tuple[Stage, ...] = ()
    best: Point | None = None
    capacity_rps: float = 0.0
    doing: str = ""
    trial: Trial | None = None
    lines: tuple[Line, ...] = ()
    trials: int = 0
    elapsed_s: float = 0.0
    left_s: float | None = None
    running: bool = True
    outcome: Outcome | None = None

    @property
    def stages_left(self) -> int:
        """Stages after the present one, each taken once."""
        return len(STAGES) - 1 - STAGES.index(self.stage)

    @property
    def edge_only(self) -> bool:
        """Whether one point's edge is looked for, and nothing else: a sweep gets there through other stages."""
        return self.stage is Stage.EDGE and Stage.SEQS not in self.done


def began(progress: Progress, task: Task) -> Progress:
    """A task is about to be carried out."""
    progress = replace(progress, trial=task if isinstance(task, Trial) else None)
    match task:
        case Told(stage, text, point, capacity_rps) if not text:
            done = progress.done if stage is progress.stage else (*progress.done, progress.stage)
            return replace(
                progress,
                stage=stage,
                done=tuple(dict.fromkeys(done)),
                best=point or progress.best,
                capacity_rps=capacity_rps or progress.capacity_rps,
                doing="",
            )
        case Told(stage, text, point, capacity_rps):
            return replace(progress, lines=(*progress.lines, Line(stage, point, capacity_rps, text)))
        case Trial():
            return replace(progress, doing=f"trial {progress.trials + 1}: {task.why}")
        case Ask():
            return replace(progress, doing=f"predicting {len(task.points)} points")
        case Confirm():
            return replace(progress, doing="a fresh server with exactly these flags")


def ended(progress: Progress, seen: Seen) -> Progress:
    """A trial has ended."""
    line = Line(progress.stage, seen.trial.point, seen.trial.rate_rps, seen.trial.why, seen)
    return replace(progress, lines=(*progress.lines, line), trials=progress.trials + 1, trial=None)


def timed(progress: Progress, elapsed_s: float, start_s: float, trial_s: float) -> Progress:
    """With the time since the beginning, and what is left of it: some trials a stage, a restart and the confirmation.
    `trial_s` is what trials took on average."""
    confirming = progress.stage is Stage.CONFIRM
    trials = 0 if confirming else TRIALS_PER_STAGE * max(progress.stages_left - 1, 0) + 1
    left_s = (trials + 3) * trial_s + (0.0 if confirming else start_s)
    return replace(progress, elapsed_s=elapsed_s, left_s=left_s if progress.trials else None)
