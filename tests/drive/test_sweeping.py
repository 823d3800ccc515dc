"""A sweep carried out on a rig: cancelled and gone on with, on a rig that raises, and what is shown of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from core.test_sweep import GOAL, START_S, TRIAL_S, World, hill

from tunetui.core.candidates import Stage
from tunetui.core.edge import Seen, Trial
from tunetui.core.knobs import Point
from tunetui.core.progress import Progress
from tunetui.core.steps import EngineStep
from tunetui.core.sweep import sweep
from tunetui.core.tasks import Ask, Confirm, Forecast
from tunetui.drive.forecaster import Forecaster
from tunetui.drive.sweeping import Sweeping

STEPS = (EngineStep(0.0, 1, 0, 1, 1, 1, 100, 0, 0, 8192),)


class Rig:
    """A world as a rig. Trial number `hangs_at` waits for ever, number `raises_at` raises, each once."""

    start_s = START_S

    def __init__(self, world: World, hangs_at: int = 0, raises_at: int = 0) -> None:
        self.world, self.hangs_at, self.raises_at = world, hangs_at, raises_at
        self.begun: list[Trial] = []
        self.hangs = asyncio.Event()

    @property
    def elapsed_s(self) -> float:
        return self.world.elapsed_s

    async def measure(self, trial: Trial) -> tuple[Seen, Sequence[EngineStep]]:
        self.begun.append(trial)
        if len(self.begun) == self.hangs_at:
            self.hangs.set()
            await asyncio.Event().wait()
        if len(self.begun) == self.raises_at:
            raise OSError("the server went away")
        return self.world.answer(trial), STEPS

    async def confirm(self, point: Point) -> None:
        self.world.answer(Confirm(point))


class Oracle:
    """The forecasts of a world, and what it was shown."""

    def __init__(self, world: World) -> None:
        self.world, self.seen, self.restarts = world, list[Seen](), 0

    def see(self, seen: Seen, steps: Sequence[EngineStep]) -> None:
        assert steps is STEPS
        self.seen.append(seen)

    def answer(self, ask: Ask) -> tuple[Forecast, ...]:
        return cast(tuple[Forecast, ...], self.world.answer(ask))

    def restarted(self) -> None:
        self.restarts += 1


class Carried:
    """A sweep of the same world each time, for trusted forecasts or none."""

    def __init__(self, bias: float | None = 1.0, hangs_at: int = 0, raises_at: int = 0) -> None:
        self.world = World(hill(400.0), bias)
        self.rig, self.oracle = Rig(self.world, hangs_at, raises_at), Oracle(self.world)
        self.shown: list[Progress] = []
        forecaster = cast(Forecaster, self.oracle)
        self.sweeping = Sweeping(sweep(GOAL), self.rig, forecaster, self.shown.append)


@pytest.mark.parametrize("bias", [1.0, None])
async def test_a_sweep_runs_to_its_outcome_and_shows_how_far_it_is(bias: float | None) -> None:
    carried = Carried(bias)
    outcome = await carried.sweeping.run()
    assert outcome.point is not None
    assert not outcome.reason
    assert carried.sweeping.trials == carried.oracle.seen
    assert [seen.trial for seen in carried.oracle.seen] == carried.rig.begun
    assert carried.oracle.restarts == 1
    last = carried.shown[-1]
    assert (last.running, last.outcome, last.stage, last.trials) == (
        False,
        outcome,
        Stage.CONFIRM,
        len(carried.rig.begun),
    )
    assert last.elapsed_s == carried.world.elapsed_s
    assert last == carried.sweeping.progress
    assert all(progress.running for progress in carried.shown[:-1])
    trials = [progress.trials for progress in carried.shown]
    assert trials == sorted(trials)
    assert last.left_s == 3 * TRIAL_S


@pytest.mark.parametrize("bias", [1.0, None])
@pytest.mark.parametrize("at", [1, 2, 4, 6])
async def test_a_sweep_cancelled_in_a_trial_does_that_trial_again_and_ends_alike(bias: float | None, at: int) -> None:
    whole, cut = Carried(bias), Carried(bias, hangs_at=at)
    outcome = await whole.sweeping.run()
    running = asyncio.create_task(cut.sweeping.run())
    await cut.rig.hangs.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not cut.sweeping.progress.running
    assert len(cut.sweeping.trials) == at - 1
    assert await cut.sweeping.run() == outcome
    assert cut.rig.begun[at - 1] == cut.rig.begun[at]
    assert cut.sweeping.trials == whole.sweeping.trials
    assert cut.oracle.seen == whole.oracle.seen
    assert cut.sweeping.progress == whole.sweeping.progress


async def test_what_a_rig_raises_comes_through_and_leaves_the_trial_to_be_done() -> None:
    whole, broken = Carried(), Carried(raises_at=3)
    outcome = await whole.sweeping.run()
    with pytest.raises(OSError, match="went away"):
        await broken.sweeping.run()
    assert not broken.sweeping.progress.running
    assert broken.sweeping.progress.outcome is None
    assert await broken.sweeping.run() == outcome
    assert broken.sweeping.trials == whole.sweeping.trials


async def test_a_sweep_that_has_ended_keeps_its_outcome() -> None:
    carried = Carried()
    outcome = await carried.sweeping.run()
    begun = len(carried.rig.begun)
    assert await carried.sweeping.run() == outcome
    assert len(carried.rig.begun) == begun
