"""The fixture that starts fake servers and ends what is left of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.fakes import Fakes, lives


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[Fakes]:
    made = Fakes(tmp_path)
    yield made
    for server in made.started:
        server.stop(0.0)
    for pid in made.pids:
        if lives(pid):
            os.kill(pid, signal.SIGKILL)
