"""A baseline's episode measured again: on a server started with exactly its flags, or on one that runs.

It judges nothing (`core.holding` does) and ends no server (its caller does).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace

from tunetui.core.edge import Trial
from tunetui.core.episode import Measurement
from tunetui.core.knobs import Point
from tunetui.core.session import Phase
from tunetui.core.workload import EpisodePlan, turnover
from tunetui.drive.driver import Driver
from tunetui.drive.live_rig import LiveRig, RigError
from tunetui.drive.measure import InterruptedMeasurement, MeasureError, Measuring, NothingDueError, Progress
from tunetui.drive.settings import Settings
from tunetui.engine.server_api import ApiError, ServerApi
from tunetui.load.generator import GeneratorGoneError


class CheckError(Exception):
    """The episode could not be measured; the message is one sentence."""


async def measured_on_a_start(driver: Driver, point: Point, cut: int | None) -> tuple[Measurement, EpisodePlan]:
    """The session's episode at `point`, on a server that is started with exactly its flags. Raises CheckError."""
    await driver.start_as_deployed(point)
    settings, state = driver.settings, driver.state
    if state.phase is not Phase.CONFIRMED:
        raise CheckError("  ".join(state.failure[:2]) or "the server did not start")
    requests = settings.episode_requests
    left_out = turnover(settings.load, driver.loop.mean_e2el_s, requests) if cut is None else cut
    trial = Trial(point, settings.load, requests, left_out, whole=True)
    try:
        seen, _ = await LiveRig(driver).measure(trial)
    except RigError as error:
        raise CheckError(str(error)) from None
    return seen.measurement, driver.loop.plan()


async def measured_there(
    settings: Settings, cut: int | None, show: Callable[[Progress], None]
) -> tuple[Measurement, EpisodePlan]:
    """The session's episode on the server at its URL. Raises CheckError."""
    api = ServerApi(settings.url, os.environ.get("TUNETUI_API_KEY", "").strip() or None)
    measuring: Measuring | None = None
    try:
        models = await api.models()
        if not models:
            raise CheckError(f"{settings.url} serves no model: see the server's log")
        card = next((m for m in models if m.id == settings.model), models[0])
        measuring = Measuring(replace(settings, model=card.id, cut=cut), api, show)
        await measuring.start(warm=True)
        result = await measuring.measure(settings.load, settings.episode_requests)
    except (ApiError, GeneratorGoneError, MeasureError, NothingDueError) as error:
        raise CheckError(str(error)) from None
    except InterruptedMeasurement:
        raise asyncio.CancelledError from None
    finally:
        if measuring is not None:
            await measuring.close()
        await api.aclose()
    return result.seen, result.episode.plan
