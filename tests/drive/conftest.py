"""The fixture that makes sessions; after each test nothing that it started may be left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from drive.sessions import Sessions, offspring, until


@pytest.fixture
async def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sessions]:
    monkeypatch.setattr("tunetui.drive.watch.TICK_S", 0.2)
    monkeypatch.setattr("tunetui.drive.watch.WATCH_S", 0.1)
    before = offspring()
    made = Sessions(tmp_path)
    yield made
    for driver in made.made:
        await made.end(driver)
    await until(lambda: not offspring() - before)
