"""Builds the baseline of the accepted point from what the session knows, and saves it.

It measures nothing.
"""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunetui import __version__
from tunetui.core.baseline import Baseline, episode_table, result_figures
from tunetui.core.knobs import knob_flags
from tunetui.core.rows import current_row
from tunetui.core.workload import features
from tunetui.drive.hardware import hardware_name, memory_bytes
from tunetui.engine.command import kept_environment, serve_argv, without_secrets
from tunetui.store.baselines import StoreError, write_baseline

if TYPE_CHECKING:
    from tunetui.drive.driver import Driver


def save_baseline(driver: Driver) -> Path:
    """Write `baseline.toml` of the present point into the session's folder. Raises StoreError; nothing is lost then."""
    state, settings = driver.state, driver.settings
    live, confirmed = current_row(state), current_row(state, confirmed=True)
    best = confirmed or live
    if state.point is None or state.facts is None or best is None or settings.command is None:
        raise StoreError("nothing to save yet: wait for an episode at this point")
    facts, plan = state.facts, driver.loop.plan()
    argv, left_out = without_secrets(
        serve_argv(
            settings.command,
            settings.model,
            settings.host,
            settings.port,
            state.point,
            settings.memory_flag,
            settings.given.rest,
            live=False,
        )
    )
    result: dict[str, Any] = {
        "confirmed": confirmed is not None,
        "tunetui_version": __version__,
        **result_figures(best),
    }
    if live is not None:
        result["live"] = result_figures(live)
    if confirmed is not None:
        result["confirmation"] = result_figures(confirmed)
    baseline = Baseline(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model={"name": settings.model, "served_as": facts.model, "max_model_len": facts.max_model_len},
        engine={"name": "vllm", "version": state.version, **({"simulated": True} if state.simulated else {})},
        hardware={
            "name": hardware_name(driver.gpus),
            "cards": len(driver.gpus),
            "memory_bytes": memory_bytes(driver.gpus),
            "machine": platform.machine(),
        },
        knobs=knob_flags(state.point, settings.memory_flag),
        launch={
            "argv": list(argv),
            **({"left_out": list(left_out)} if left_out else {}),
            "environment": kept_environment(driver.environment),
        },
        workload={**features(plan), **settings.workload.asked},
        episode=episode_table(plan.load, settings.workload.asked, plan.cut, plan.counted),
        slo={
            "percentile": state.slo.percentile,
            **{f"{o.metric.value}_ms": o.limit_s * 1000 for o in state.slo.objectives},
        },
        result=result,
    )  # fmt: skip
    return write_baseline(driver.folder, baseline)
