"""What the screen and the log are told of a sweep, from its tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core.test_candidates import BEST
from core.test_edge import LENGTH, measured
from core.test_sweep import GOAL, World, carried_out, hill

from tunetui.core.candidates import Stage
from tunetui.core.edge import Seen
from tunetui.core.load import Load
from tunetui.core.progress import Line, Progress, began, ended, timed
from tunetui.core.sweep import sweep
from tunetui.core.tasks import Ask, Confirm, Task, Told

TRIAL = LENGTH.trial(BEST, Load(8.0), "bracket its edge")
OTHER = replace(BEST, max_num_seqs=320)


def test_a_stage_that_begins_ends_the_one_before_and_names_the_best_so_far() -> None:
    first = began(Progress(), Told(Stage.BASELINE))
    assert (first.stage, first.done, first.best) == (Stage.BASELINE, (), None)
    second = began(first, Told(Stage.SEQS, "", BEST, 8.0))
    assert (second.stage, second.done, second.best, second.capacity_rps) == (Stage.SEQS, (Stage.BASELINE,), BEST, 8.0)
    third = began(second, Told(Stage.PREFILL))
    assert (third.done, third.best, third.capacity_rps) == ((Stage.BASELINE, Stage.SEQS), BEST, 8.0)
    again = began(third, Told(Stage.SEQS, "", OTHER, 9.0))  # a second round
    assert (again.stage, again.best) == (Stage.SEQS, OTHER)
    assert len(again.done) == len(set(again.done))


def test_what_is_left_out_is_a_line_and_no_stage() -> None:
    left_out = began(Progress(), Told(Stage.SEQS, "left out: predicted", OTHER, 7.0))
    assert left_out.lines == (Line(Stage.SEQS, OTHER, 7.0, "left out: predicted"),)
    assert (left_out.stage, left_out.best) == (Stage.BASELINE, None)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (TRIAL, "trial 3: bracket its edge"),
        (Ask((BEST, OTHER)), "predicting 2 points"),
        (Confirm(BEST), "a fresh server with exactly these flags"),
    ],
)
def test_what_is_being_done_is_said(task: Task, words: str) -> None:
    assert began(Progress(trials=2), task).doing == words


def test_a_trial_that_ended_is_a_line_with_what_was_seen() -> None:
    seen = Seen(TRIAL, measured(True))
    progress = ended(began(Progress(stage=Stage.SEQS), TRIAL), seen)
    assert progress.lines == (Line(Stage.SEQS, BEST, 8.0, "bracket its edge", seen),)
    assert progress.trials == 1


def test_the_trial_that_is_under_way_is_known_until_it_has_ended() -> None:
    under_way = began(Progress(stage=Stage.SEQS), TRIAL)
    assert under_way.trial == TRIAL
    assert ended(under_way, Seen(TRIAL, measured(True))).trial is None
    for task in (Ask((BEST,)), Confirm(BEST), Told(Stage.FINE), Told(Stage.SEQS, "left out: predicted", OTHER, 7.0)):
        assert began(under_way, task).trial is None


def test_a_search_for_one_edge_is_told_from_a_sweeps_edge() -> None:
    assert began(Progress(), Told(Stage.EDGE, "", BEST)).edge_only
    swept = began(began(began(Progress(), Told(Stage.SEQS)), Told(Stage.FINE)), Told(Stage.EDGE))
    assert not swept.edge_only
    assert not Progress().edge_only


def test_time_left_is_unknown_before_the_first_trial_and_falls_with_the_stages() -> None:
    assert timed(Progress(), 3.0, 60.0, 0.0).left_s is None
    left_s = [timed(Progress(stage=stage, trials=1), 3.0, 60.0, 40.0).left_s for stage in Stage]
    assert None not in left_s
    assert left_s == sorted(left_s, reverse=True, key=lambda s: s or 0.0)
    assert left_s[-1] == 3 * 40.0  # the restart is behind
    assert timed(Progress(), 3.0, 60.0, 0.0).elapsed_s == 3.0


def test_a_whole_sweep_leaves_a_line_for_every_trial_and_for_all_that_was_left_out() -> None:
    world, progress = World(hill(320.0)), Progress()

    def answer(task: Task) -> object:
        nonlocal progress
        progress = began(progress, task)
        answered = world.answer(task)
        progress = ended(progress, answered) if isinstance(answered, Seen) else progress
        return answered

    outcome = carried_out(sweep(GOAL), answer)
    assert progress.trials == len(world.trials) + len(world.confirmations)
    assert len(progress.lines) == progress.trials + len(world.left_out)
    assert (progress.stage, progress.best) == (Stage.CONFIRM, outcome.point)
    assert progress.stages_left == 0
    assert set(progress.done) == {Stage.BASELINE, Stage.SEQS, Stage.PREFILL, Stage.MEMORY, Stage.FINE}
