"""Terminals that are closed, with all that still runs in them, when a test ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from end_to_end.terminal import Terminal


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for terminal in started:
        terminal.close()
