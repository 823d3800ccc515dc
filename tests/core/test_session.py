"""Operators' stories as tables of events: what the screen would say after each."""

from dataclasses import replace

from tunetui.core import events
from tunetui.core.advice import Advice
from tunetui.core.ceilings import Lowering, Shortage, ShortageKind
from tunetui.core.coach import Applied
from tunetui.core.coaching import look
from tunetui.core.episode import ChartPoint, Measurement, ObjectiveResult
from tunetui.core.expectation import Expectation, Figure, Learned, Observed
from tunetui.core.fold import fold
from tunetui.core.knobs import EngineFacts, How, MemoryFlag, Point, Step
from tunetui.core.limits import Finding, Limit
from tunetui.core.load import Load
from tunetui.core.rows import row_of
from tunetui.core.session import (
    CHART_POINTS,
    NOTICES,
    EngineView,
    Notice,
    Phase,
    Row,
    Session,
    StepState,
    usage_without_held,
)
from tunetui.core.slo import Metric, Verdict, parse_slo
from tunetui.core.step_figures import StepFigures

A = Point(64, 2048, True, 0.9, True)
B = replace(A, max_num_seqs=8)
C = replace(A, max_num_seqs=16)
START = Session(model="m", slo=parse_slo(["ttft:600"]), load=Load(4.0), point=A, phase=Phase.LIVE)


def measurement(verdict: Verdict, judged: int = 10) -> Measurement:
    result = ObjectiveResult(Metric.TTFT, 0.6, verdict, 9, 1, 10, 0, 0.9)
    return Measurement(
        episode=1, counted=10, judged=judged, objectives=(result,), verdict=verdict, on_the_line=False, good=9,
        attainment=0.9,
        ttft_s=0.5, tpot_s=None, ttft_from_send_s=0.5, mean_e2el_s=1.0, output_tokens_per_s=10.0, requests_per_s=1.0,
        goodput_rps=0.9, goodput_tokens_per_s=9.0, window_s=10.0, failed=0, cancelled=0, one_token_answers=0,
        lateness_p99_s=0.0,
    )  # fmt: skip


def after(*happened: events.Event, start: Session = START) -> Session:
    for event in happened:
        start = fold(start, event)
    return start


def test_a_step_is_asked_accepted_and_settled_and_leaves_a_mark() -> None:
    asked = after(events.StepAsked(1.0, B))
    assert (asked.point, asked.step_state, asked.history) == (B, StepState.ASKED, (A,))
    done = after(events.StepMoved(1.02, StepState.ACCEPTED), events.StepMoved(1.5, StepState.SETTLED), start=asked)
    assert (done.step_state, done.step_accepted_s, done.step_settled_s) == (StepState.SETTLED, 1.02, 1.5)
    assert done.marks == (1.5,)


def test_undo_goes_back_over_points_that_were_reached_only() -> None:
    state = after(events.StepAsked(1.0, B), events.StepAsked(1.1, C), events.StepMoved(2.0, StepState.SETTLED))
    assert state.history == (A,)
    undone = after(events.StepAsked(3.0, A, undo=True), start=state)
    assert (undone.point, undone.history) == (A, ())


def test_a_step_takes_down_the_figures_of_the_point_before() -> None:
    tick = events.Ticked(ChartPoint(1.0, 0.5, None), measurement(Verdict.FAIL), EngineView(), 3, 0, "")
    state = after(tick)
    assert state.decided is not None
    assert after(events.StepAsked(2.0, B), start=state).decided is None


def test_a_row_is_replaced_by_a_newer_measurement_of_the_same_point_load_and_kind() -> None:
    first = Row(0, A, Load(4.0), measurement(Verdict.FAIL))
    state = after(
        events.Measured(first),
        events.Measured(replace(first, point=B)),
        events.Measured(replace(first, confirmed=True)),
        events.Measured(replace(first, measurement=measurement(Verdict.PASS))),
    )
    assert [(r.number, r.point, r.confirmed, r.measurement.verdict) for r in state.rows] == [
        (1, A, False, Verdict.PASS),
        (2, B, False, Verdict.FAIL),
        (3, A, True, Verdict.FAIL),
    ]


def test_a_start_clears_what_belonged_to_the_server_before() -> None:
    offered = after(events.RestartOffered(Step(B, How.RESTART, "why")))
    started = after(events.StartBegan(9.0, Phase.STARTING, B, 30.0), events.StartReached("loading", 1.0), start=offered)
    assert (started.restart, started.point, started.start_expected_s) == (None, B, 30.0)
    failed = after(events.Failed(("no memory", "lower it")), start=started)
    assert (failed.phase, failed.failure) == (Phase.FAILED, ("no memory", "lower it"))


def test_a_lowered_ceiling_is_said_and_starts_the_phases_again_until_the_server_is_ready() -> None:
    rungs = [
        Lowering(replace(A, max_num_seqs=n), replace(A, max_num_seqs=n // 2), Shortage(ShortageKind.SAMPLER),
                 MemoryFlag.UTILIZATION) for n in (512, 256)
    ]  # fmt: skip
    began = after(events.StartBegan(1.0, Phase.STARTING, A, None), events.StartReached("loading", 2.0))
    lowered = after(*(events.CeilingLowered(3.0 + n, rung) for n, rung in enumerate(rungs)), start=began)
    assert (lowered.starting, lowered.starting_since_s, lowered.lowered) == ((), 4.0, tuple(rungs))
    assert [(n.time_s, n.severity, n.text) for n in lowered.notices] == [
        (3.0, "warning", rungs[0].sentence), (4.0, "warning", rungs[1].sentence)
    ]  # fmt: skip
    assert after(events.Failed(("no",)), start=lowered).lowered == tuple(rungs)
    assert after(events.StartBegan(9.0, Phase.STARTING, A, None), start=lowered).lowered == ()
    facts = EngineFacts(version="0.32.0", model="m", ceiling=rungs[1].ceiling, live=True)
    ready = after(events.EngineReady(facts, 5.0, C), start=lowered)
    assert (ready.lowered, ready.point, ready.history) == ((), C, lowered.history)
    assert after(events.EngineReady(facts), start=lowered).point == A


def test_a_restart_at_another_point_is_a_step_that_can_be_undone() -> None:
    restarted = after(events.StartBegan(1.0, Phase.STARTING, B, None))
    assert restarted.history == (A,)
    assert after(events.StartBegan(2.0, Phase.STARTING, B, None), start=restarted).history == (A,)
    assert after(events.StartBegan(3.0, Phase.STARTING, A, None), start=restarted).history == ()


def advised(target: Point) -> Advice:
    promise = Expectation(Figure.GOODPUT, True)
    return Advice("more sequences", Step(target, How.LIVE), "max-num-seqs", "they wait", promise, "more sequences +")


FIGURES = StepFigures(100, 0.8, 0.8, 0.8, 0.0, 0.0, 0.0, 64.0, 9.0, 0.3, 0.4, 0)
FOUND = Finding(Limit.SEQ_CAP, 0.8, "they wait", FIGURES)


def test_an_advice_is_taken_measured_and_judged() -> None:
    seen = Observed(measurement(Verdict.FAIL))
    state = after(events.Coached(FOUND, advised(B), "hint", seen))
    assert (state.coach.finding, state.coach.advice, state.coach.seen) == (FOUND, advised(B), seen)
    applied = Applied(advised(B), A, seen, Load(4.0))
    state = after(events.AdviceApplied(applied), events.StepAsked(1.0, B), events.EpisodeReset(), start=state)
    assert (state.coach.applied, state.coach.advice, state.coach.finding) == (applied, None, None)
    better = Observed(replace(measurement(Verdict.PASS), goodput_rps=15.8))
    outcome = applied.judged(better)
    state = after(events.AdviceJudged(9.0, outcome), start=state)
    assert state.coach.outcome == "max-num-seqs 64 -> 8: goodput 0.9 -> 15.8 req/s, and the SLO is met, as expected"
    assert state.notices[-1] == Notice(9.0, "coach", state.coach.outcome)
    assert (state.coach.applied, state.coach.learned) == (None, Learned())
    assert after(events.StepAsked(10.0, A), start=state).coach.outcome == ""


def test_an_operator_who_goes_elsewhere_leaves_the_advice() -> None:
    applied = Applied(advised(B), A, Observed(measurement(Verdict.FAIL)), Load(4.0))
    taken = after(events.AdviceApplied(applied))
    assert after(events.StepAsked(1.0, C), start=taken).coach.applied is None
    assert after(events.StartBegan(1.0, Phase.STARTING, B, None), start=taken).coach.applied == applied
    assert after(events.StartBegan(1.0, Phase.STARTING, C, None), start=taken).coach.applied is None


def test_what_failed_is_learned_for_the_session() -> None:
    applied = Applied(advised(B), A, Observed(measurement(Verdict.PASS)), Load(4.0))
    state = START
    for _ in range(2):
        worse = applied.judged(Observed(replace(measurement(Verdict.PASS), goodput_rps=0.5)))
        state = after(events.AdviceApplied(applied), events.StepAsked(1.0, B), start=state)
        state = after(events.AdviceJudged(2.0, worse), start=state)
    assert state.coach.learned.silences(applied.advice.key)
    assert after(events.StepAsked(3.0, A), start=state).coach.learned.silences(applied.advice.key)


def test_points_are_compared_on_their_first_episode() -> None:
    first, later = (Observed(replace(measurement(Verdict.PASS), episode=n, ttft_s=0.1 * n)) for n in (1, 2))
    again = Observed(replace(first.measurement, judged=9))
    state = after(events.Coached(FOUND, None), events.Coached(FOUND, None, "", first))
    state = after(events.Coached(FOUND, None, "", again), events.Coached(FOUND, None, "", later), start=state)
    assert state.coach.seen == again
    assert after(events.EpisodeReset(), start=state).coach.seen is None


def coached(
    verdict: Verdict, step_state: StepState = StepState.SETTLED, suspect: str = "", phase: Phase = Phase.LIVE
) -> events.Coached:
    seen = replace(measurement(verdict), suspect=suspect)
    facts = EngineFacts(version="", model="m", ceiling=replace(A, max_num_seqs=512), live=True)
    figures = replace(FIGURES, waits_for_seqs=1.0)
    decided = seen if verdict is not Verdict.UNDECIDED else None
    state = replace(
        START, facts=facts, measurement=seen, decided=decided, step_state=step_state, phase=phase,
        point_view=None,
    )  # fmt: skip
    return look(state, figures, {}, follows=False)


def test_advice_waits_for_a_verdict_and_the_limit_does_not() -> None:
    said = coached(Verdict.PASS)
    assert said.finding is not None
    assert said.finding.limit is Limit.SEQ_CAP
    assert said.advice is not None
    assert said.advice.target == replace(A, max_num_seqs=128)
    undecided = coached(Verdict.UNDECIDED)
    assert (undecided.finding is not None, undecided.advice) == (True, None)
    assert coached(Verdict.PASS, StepState.ACCEPTED).finding is None
    assert coached(Verdict.PASS, phase=Phase.CONFIRMING).finding is None


def test_a_late_client_and_an_attached_server_get_no_advice() -> None:
    late = coached(Verdict.PASS, suspect="the load generator was late")
    assert late.finding is not None
    assert (late.finding.limit, late.advice) == (Limit.CLIENT, None)
    attached = coached(Verdict.PASS, phase=Phase.ATTACHED)
    assert attached.finding is not None
    assert (attached.finding.limit, attached.advice) == (Limit.SEQ_CAP, None)


def test_notices_and_charts_are_bounded() -> None:
    state = START
    for number in range(1000):
        state = fold(state, Notice(float(number), "information", "x"))
        state = fold(state, events.Ticked(ChartPoint(float(number), 1.0, 1.0), None, EngineView(), 0, 0, ""))
    assert len(state.notices) == NOTICES
    assert len(state.chart) == CHART_POINTS


def test_load_is_measured_only_when_allowed_and_not_paused() -> None:
    assert START.measuring
    assert not after(events.LoadChanged(Load(4.0), paused=True, allowed=True)).measuring
    assert not after(events.LoadChanged(Load(4.0), paused=False, allowed=False)).measuring
    assert not after(events.PhaseChanged(Phase.CONFIRMING)).measuring


def test_usage_leaves_out_held_blocks_and_the_null_block() -> None:
    assert usage_without_held(free_blocks=127, num_blocks=128, held_blocks=0) == 0.0
    assert usage_without_held(free_blocks=0, num_blocks=128, held_blocks=27) == 1.0
    assert usage_without_held(free_blocks=50, num_blocks=101, held_blocks=0) == 0.5
    assert usage_without_held(free_blocks=0, num_blocks=1, held_blocks=0) is None


def test_an_episode_that_ended_between_two_ticks_is_what_stands_for_the_point() -> None:
    row = Row(0, A, START.load, measurement(Verdict.PASS))
    ended = after(events.Measured(row))
    assert ended.decided == row.measurement
    following = after(events.Ticked(None, measurement(Verdict.UNDECIDED), EngineView(), 0, 0, ""), start=ended)
    assert following.decided == row.measurement
    elsewhere = after(events.Measured(replace(row, point=B)), events.Measured(replace(row, load=Load(8.0))))
    assert elsewhere.decided is None
    assert after(events.Measured(replace(row, measurement=measurement(Verdict.UNDECIDED)))).decided is None


def test_a_capacity_that_was_found_stands_in_the_rows_of_its_point_and_in_those_to_come() -> None:
    row = Row(0, A, START.load, measurement(Verdict.PASS))
    found = after(events.Measured(row), events.Measured(replace(row, point=B)), events.CapacityFound(A, 14.0))
    assert [r.capacity_rps for r in found.rows] == [14.0, None]
    assert found.capacity_of(A) == 14.0
    assert found.capacity_of(B) is None
    newer = after(events.CapacityFound(A, 16.5), start=found)
    assert newer.capacities == ((A, 16.5),)
    assert row_of(newer, measurement(Verdict.PASS)).capacity_rps == 16.5
