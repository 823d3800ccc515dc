"""The one function that folds an event into a session's state.

It reads no clock and starts nothing.
"""

from __future__ import annotations

from dataclasses import replace

from tunetui.core.episode import Measurement
from tunetui.core.events import (
    AdviceApplied,
    AdviceJudged,
    BaselineSaved,
    CapacityFound,
    CeilingLowered,
    Coached,
    EngineReady,
    EpisodeReset,
    Event,
    Failed,
    Foreseen,
    LoadChanged,
    Measured,
    PhaseChanged,
    Piloted,
    RestartOffered,
    Rides,
    StartBegan,
    StartReached,
    StepAsked,
    StepMoved,
    Ticked,
)
from tunetui.core.knobs import Point
from tunetui.core.session import CHART_POINTS, NOTICES, EngineView, Notice, Phase, PhaseTime, Row, Session, StepState
from tunetui.core.slo import Verdict


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
        case Rides(riding):
            return replace(session, riding=riding)
        case Foreseen(outlook):
            return replace(session, outlook=outlook)
        case Notice():
            return replace(session, notices=(*session.notices, event)[-NOTICES:])


def _asked(session: Session, time_s: float, point: Point, undo: bool) -> Session:
    history = session.history[:-1] if undo else session.history
    # Several keys on the way to one point are one step for undo: only a point that was reached is remembered.
    if not undo and session.point is not None and session.steady:
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
