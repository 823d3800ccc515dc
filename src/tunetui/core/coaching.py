"""The coach at work on a session: the situation that it is in, what to say of it, and when an advice has its verdict.

Plain functions of the session; they read no clock and no ring, and emit nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunetui.core import events
from tunetui.core.advice import advise, budget_hint
from tunetui.core.coach import Applied
from tunetui.core.episode import Measurement
from tunetui.core.expectation import observed
from tunetui.core.limits import Finding, find_limit
from tunetui.core.session import Phase, Session
from tunetui.core.situation import Situation
from tunetui.core.slo import Verdict
from tunetui.core.step_figures import StepFigures

Features = Mapping[str, float | int | str]


def look(
    session: Session,
    figures: StepFigures | None,
    workload: Features,
    follows: bool,
    certain: Measurement | None = None,
) -> events.Coached:
    """What the coach says of the present point, whose steps gave `figures`; nothing while a step is on its way.

    Advice waits for a verdict: what is undecided may need none. `certain` is the measurement that has one, or None for
    the one that was shown last.
    """
    if figures is None or not session.steady or not session.measuring:
        return events.Coached(None, None)
    late = session.measurement.suspect if session.measurement is not None else ""
    finding = find_limit(figures, late)
    situation = situation_of(session, finding, workload, follows, certain or session.decided)
    if situation is None:
        return events.Coached(finding, None)
    advice = None if late or session.phase is Phase.ATTACHED else advise(situation, session.coach.learned)
    return events.Coached(finding, advice, budget_hint(situation), observed(situation.measurement, figures))


def situation_of(
    session: Session,
    finding: Finding,
    workload: Features,
    follows: bool,
    decided: Measurement | None,
) -> Situation | None:
    """The situation of the present point, or None before it has a verdict."""
    if session.point is None or session.facts is None or decided is None:
        return None
    view = session.point_view
    return Situation(
        point=session.point,
        facts=session.facts,
        slo=session.slo,
        measurement=decided,
        finding=finding,
        load=session.load,
        workload=workload,
        blocked_short=view.by_length.finding if view is not None else "",
        capacity_rps=session.capacity_of(session.point),
        cap_follows=follows and session.load.concurrency is not None,
    )


def applied_now(session: Session, follows: bool) -> Applied | None:
    """The present advice as it is taken now, or None where there is none that is a step."""
    coach = session.coach
    if coach.advice is None or coach.advice.target is None or session.point is None or session.facts is None:
        return None
    if coach.seen is None:
        return None
    return Applied(coach.advice, session.point, coach.seen, session.load, session.facts.memory_flag, follows)


def came_of_it(session: Session, time_s: float) -> events.AdviceJudged | None:
    """What came of the advice that was taken, once its point's verdict is certain; None until then."""
    applied, seen = session.coach.applied, session.coach.seen
    if applied is None or seen is None or applied.advice.target != session.point:
        return None
    if not applied.comparable(session.load) or not _comparable(session, applied.before.measurement, seen.measurement):
        return None
    return events.AdviceJudged(time_s, applied.judged(seen))


def _comparable(session: Session, before: Measurement, seen: Measurement) -> bool:
    """Whether as much of the episode is known as of the one before, or the rest of it changes nothing."""
    won = seen.verdict is Verdict.PASS and before.verdict is Verdict.FAIL
    shown = session.measurement
    over = shown is not None and shown.episode != seen.episode
    return won or over or seen.complete or bool(seen.overload) or not before.complete
