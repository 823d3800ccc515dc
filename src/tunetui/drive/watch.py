"""What goes by itself: the data tick, and the watch on server, live control and load process.

It only looks and calls: what follows is the driver's.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tunetui.core.session import Phase
from tunetui.drive.engine import EngineFailed
from tunetui.drive.stepping import loss
from tunetui.load.generator import GeneratorGoneError

if TYPE_CHECKING:
    from tunetui.drive.driver import Driver

TICK_S = 1.0
WATCH_S = 0.5
LOST_ROUNDS = 4  # a writer that the machine stopped in the middle goes on before
RETRY_S = 10.0


async def ticking(driver: Driver) -> None:
    """Once a second, until cancelled: the figures; and the load goes on where an episode ends."""
    said = ""
    while True:
        await asyncio.sleep(TICK_S)
        try:
            if driver.engine.ended:  # the watch says so: what a dead server answers is no figure of the point
                continue
            await driver.figures.tick(driver.serving.api if driver.state.facts else None, driver.engine.control)
            if driver.state.measuring:  # a confirmation is one episode, to its end
                await driver.loop.go_on(time.monotonic())
            driver.autopilot.follow()
        except Exception as error:  # a tick that fails must not end the session, and must not be silent
            if repr(error) != said:
                said = repr(error)
                driver.say(f"a tick failed: {said}", "error")


async def watching(driver: Driver) -> None:
    """Look twice a second, until cancelled. What fails in here is said once, and the watch goes on."""
    lost_rounds, retry_s, said = 0, 0.0, ""
    while True:
        await asyncio.sleep(WATCH_S)
        try:
            driver.engine.read_log()
            _watch_server(driver)
            lost_rounds = _watch_control(driver, lost_rounds)
            retry_s = await _watch_load(driver, retry_s)
        except Exception as error:
            if repr(error) != said:
                said = repr(error)
                driver.say(f"the watch failed: {said}", "error")


def _watch_server(driver: Driver) -> None:
    # While it starts, whoever starts it looks.
    if driver.state.phase in (Phase.LIVE, Phase.CONFIRMED):
        try:
            driver.engine.raise_if_dead()
        except EngineFailed as failure:
            driver.server_ended(failure.lines)


def _watch_control(driver: Driver, lost_rounds: int) -> int:
    """How many rounds in a row live control could not be relied on."""
    control = driver.engine.control
    if control is None or driver.state.phase is not Phase.LIVE:
        return 0
    now = control.in_force()
    reason = loss(control, now)
    if not reason:
        return 0
    if now is None and lost_rounds + 1 < LOST_ROUNDS:
        return lost_rounds + 1
    driver.control_lost(reason)
    return 0


async def _watch_load(driver: Driver, retry_s: float) -> float:
    """When a load process that does not start may be tried again, on the monotonic clock."""
    loop = driver.loop
    loop.check()
    if not loop.died or driver.state.phase is Phase.FAILED or time.monotonic() < retry_s:
        return retry_s
    driver.say(f"the load process ended ({loop.died}): it is started again", "error")
    try:
        await driver.revive_load()
    except GeneratorGoneError as error:
        driver.say(f"{error}: tried again in {RETRY_S:g} s", "error")
        return time.monotonic() + RETRY_S
    return 0.0
