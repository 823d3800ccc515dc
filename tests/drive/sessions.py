"""Sessions against the fake server without a screen, and the looking whether anything of one is left."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.fakes import FAKE, free_port

from tunetui.core.knobs import Knob, Point
from tunetui.core.load import Load
from tunetui.core.session import Phase, StepState
from tunetui.core.slo import parse_slo
from tunetui.core.workload import Workload, parse_lengths
from tunetui.drive.driver import Driver
from tunetui.drive.settings import Settings
from tunetui.engine import warden
from tunetui.engine.command import VllmCommand, read_flags

WORDS = (sys.executable, str(FAKE))
NO_HELLO = ("env", "-u", "TUNETUI_CONTROL_BLOCK", *WORDS)


def settings(tmp_path: Path, *flags: str, words: tuple[str, ...] = WORDS, **changed: Any) -> Settings:
    """A managed session of short requests; `flags` are vLLM's."""
    given: dict[str, Any] = {
        "slo": parse_slo(["ttft:150", "tpot:60"]), "load": Load(rate_rps=50.0),
        "workload": Workload(parse_lengths("16"), parse_lengths("8")), "episode_requests": 20, "sessions_dir": tmp_path,
        "model": "fake/model", "command": VllmCommand(words, "test"), "given": read_flags(flags),
        "port": free_port(), "grace_s": 1.0,
    }  # fmt: skip
    return Settings(**given | changed)


class Sessions:
    """Makes drivers, and ends what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Driver] = []

    def driver(self, *flags: str, env: dict[str, str] | None = None, **changed: Any) -> Driver:
        folder = self.folder / f"session-{len(self.made)}"
        folder.mkdir()
        environment = {**os.environ, "FAKE_VLLM_START_S": "0.05", **(env or {})}
        made = Driver(settings(self.folder, *flags, **changed), folder, environment)
        self.made.append(made)
        return made

    async def live(self, *flags: str, env: dict[str, str] | None = None, **changed: Any) -> Driver:
        """A driver that has started; the test fails where the start did."""
        made = self.driver(*flags, env=env, **changed)
        await made.start()
        assert made.state.phase is Phase.LIVE, made.state.failure
        return made

    async def end(self, driver: Driver) -> None:
        await driver.close()
        assert await asyncio.to_thread(driver.stop_server) == ()


async def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """The first true value of `condition`; the test fails when there is none in time."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "the condition did not come true in time"
        await asyncio.sleep(0.01)
    return value


async def settled(driver: Driver) -> None:
    await until(lambda: driver.state.step_state is StepState.SETTLED)


def offspring() -> set[int]:
    """What this process has started, directly or not, and what is not over yet."""
    table = warden.process_table()
    found = {os.getpid()}
    while more := {row.pid for row in table if row.ppid in found and row.state not in "ZX"} - found:
        found |= more
    return found - {os.getpid()}


def said(driver: Driver, words: str) -> bool:
    return any(words in notice.text for notice in driver.state.notices)


def with_seqs(driver: Driver, count: int) -> Point:
    assert driver.state.point is not None
    return driver.state.point.with_value(Knob.SEQS, count)
