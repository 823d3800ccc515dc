"""How far a live step has come: waits for ACCEPTED and SETTLED (or IDLE) and says so. It chooses no points."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tunetui.core.session import Event, StepMoved, StepState
from tunetui.engine.control import LiveControl

POLL_S = 0.02


class LiveControlLost(Exception):
    """The scheduler class has switched itself off, or its block cannot be read; the message says why."""


async def until_settled(control: LiveControl, ask: int, emit: Callable[[Event], None]) -> StepState:
    """Wait until the step numbered `ask` has SETTLED with nothing waiting, or the engine is IDLE.

    Arrivals must have been stopped before. Raises LiveControlLost.
    """
    accepted = False
    while True:
        now = control.in_force()
        if now is None or now.disabled:
            raise LiveControlLost(now.error if now is not None else control.lost or "nothing in the control block")
        if now.step >= ask and not accepted:
            accepted = True
            emit(StepMoved(now.time_s, StepState.ACCEPTED))
        if accepted and now.settled and not now.waiting:
            emit(StepMoved(time.monotonic(), StepState.SETTLED))
            return StepState.SETTLED
        if not accepted and not now.running and not now.waiting:
            # No request, so no step: the first request of the episode brings it into force.
            emit(StepMoved(time.monotonic(), StepState.IDLE))
            return StepState.IDLE
        await asyncio.sleep(POLL_S)


async def until_in_force(control: LiveControl, ask: int, emit: Callable[[Event], None]) -> None:
    """After an idle step: say ACCEPTED and SETTLED when the first requests have brought it into force."""
    accepted = False
    while (now := control.in_force()) is not None and not now.disabled:
        if now.step >= ask:
            if not accepted:
                accepted = True
                emit(StepMoved(now.time_s, StepState.ACCEPTED))
            if now.settled:
                emit(StepMoved(time.monotonic(), StepState.SETTLED))
                return
        await asyncio.sleep(POLL_S)
