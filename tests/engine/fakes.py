"""Fake servers for the tests of the engine room, and the waiting for a condition that replaces sleeping."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunetui.engine import warden
from tunetui.engine.process import ServerProcess

FAKE = Path(__file__).parents[1] / "fake_vllm.py"


def wait_until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """The first true value of `condition`; the test fails when there is none in time."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "the condition did not come true in time"
        time.sleep(0.02)
    return value


def lives(pid: int) -> bool:
    row = warden.read_proc(pid)
    return row is not None and row.state not in "ZX"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fake_argv(*flags: str) -> list[str]:
    return [sys.executable, str(FAKE), *flags]


def fake_env(fault: str = "", **more: str) -> dict[str, str]:
    return {**os.environ, "FAKE_VLLM_FAULT": fault, "FAKE_VLLM_START_S": "0.05", **more}


class Fakes:
    """Starts fake servers in one folder and ends what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self.started: list[ServerProcess] = []
        self.pids: set[int] = set()

    def start(self, *flags: str, fault: str = "", grace_s: float = 5.0, **env: str) -> ServerProcess:
        argv = fake_argv("--port", str(free_port()), *flags)
        server = ServerProcess.start(argv, fake_env(fault, **env), self.log, self.folder, grace_s)
        self.started.append(server)
        return server

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log_text())

    def children(self, count: int) -> set[int]:
        """The pids that the fake announced, once there are `count` of them."""

        def announced() -> set[int]:
            lines = [line for line in self.log_text().split("\n")[:-1] if "fake child pid " in line]
            return {int(line.rsplit(" ", 1)[1]) for line in lines}

        wait_until(lambda: len(announced()) == count)
        self.pids |= announced()
        return announced()
