"""How far a live step has come: waits for ACCEPTED and SETTLED (or IDLE) and says so. It chooses no points."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tunetui.core.events import Event, StepMoved
from tunetui.core.session import StepState
from tunetui.engine.control import LiveControl
from tunetui.live.tunetui_live.block import InForce

POLL_S = 0.02
IDLE_POLLS = 10
TORN_READS = 10  # each takes a tenth of a second; a busy machine can stop the writer in the middle for a moment


class LiveControlLost(Exception):
    """The scheduler class has switched itself off, or its block cannot be read; the message says why."""


def loss(control: LiveControl, now: InForce | None) -> str:
    """Why `now`, just read from `control`, cannot be relied on, or an empty string."""
    if now is None:
        return control.lost or "nothing in the control block"
    return (now.error or "it switched itself off") if now.disabled else ""


async def _in_force(control: LiveControl) -> InForce:
    """What is in force. Raises LiveControlLost."""
    now = control.in_force()
    for _ in range(TORN_READS):
        if now is not None:
            break
        await asyncio.sleep(POLL_S)
        now = control.in_force()
    if now is None or now.disabled:
        raise LiveControlLost(loss(control, now))
    return now


async def until_settled(
    control: LiveControl, ask: int, emit: Callable[[Event], None], accepted: bool = False
) -> StepState:
    """Wait until the step numbered `ask` has SETTLED with nothing waiting, or the engine is IDLE.

    Arrivals must have been stopped before; `accepted`: that much was said before. Raises LiveControlLost.
    """
    idle_polls = 0
    while True:
        now = await _in_force(control)
        if now.step >= ask and not accepted:
            accepted = True
            emit(StepMoved(now.time_s, StepState.ACCEPTED))
        if accepted and now.settled and not now.waiting:
            emit(StepMoved(time.monotonic(), StepState.SETTLED))
            return StepState.SETTLED
        idle_polls = 0 if now.running or now.waiting else idle_polls + 1
        # No request, so no step: the first request of the episode brings it into force, or finishes it where the last
        # of the batch ended before the scheduler looked again.
        if idle_polls > (IDLE_POLLS if accepted else 0):
            emit(StepMoved(time.monotonic(), StepState.IDLE))
            return StepState.IDLE
        await asyncio.sleep(POLL_S)


async def until_in_force(control: LiveControl, ask: int, emit: Callable[[Event], None], accepted: bool = False) -> None:
    """After an idle step: say ACCEPTED and SETTLED when the first requests have brought it into force.

    Raises LiveControlLost.
    """
    while True:
        now = await _in_force(control)
        if now.step >= ask:
            if not accepted:
                accepted = True
                emit(StepMoved(now.time_s, StepState.ACCEPTED))
            if now.settled:
                emit(StepMoved(time.monotonic(), StepState.SETTLED))
                return
        await asyncio.sleep(POLL_S)
