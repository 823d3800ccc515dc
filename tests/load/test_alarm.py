"""The alarm rings once, not before its moment, and not when it was cancelled; with and without the kernel's timer."""

import asyncio
import time
from itertools import pairwise

import pytest

from tunetui.load.alarm import Alarm, KernelTimer


@pytest.fixture(params=["kernel", "slices"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "slices":
        monkeypatch.setattr(KernelTimer, "made", classmethod(lambda cls: None))


async def test_it_rings_once_and_never_early() -> None:
    rang: list[float] = []
    alarm = Alarm(lambda: rang.append(time.monotonic()))
    late_s = []
    for wait_s in (0.0, 0.0003, 0.004, 0.0201, -1.0):
        due_s = time.monotonic() + wait_s
        alarm.set(due_s)
        rang.clear()
        await asyncio.sleep(0.06)
        assert len(rang) == 1
        late_s.append(rang[0] - max(due_s, rang[0] - 0.06))
    assert min(late_s) >= 0


async def test_setting_it_anew_replaces_and_cancelling_silences() -> None:
    rang: list[float] = []
    alarm = Alarm(lambda: rang.append(time.monotonic()))
    began_s = time.monotonic()
    alarm.set(began_s + 0.01)
    alarm.set(began_s + 0.05)
    await asyncio.sleep(0.03)
    assert not rang
    await asyncio.sleep(0.05)
    assert len(rang) == 1
    assert rang[0] >= began_s + 0.05
    alarm.set(time.monotonic() + 0.01)
    alarm.cancel()
    await asyncio.sleep(0.03)
    assert len(rang) == 1


async def test_it_can_be_cancelled_between_the_ring_and_the_call() -> None:
    rang: list[float] = []
    alarm = Alarm(lambda: rang.append(time.monotonic()))
    alarm.set(time.monotonic() + 0.001)
    time.sleep(0.01)  # it has rung, and the loop has not looked yet
    alarm.cancel()
    await asyncio.sleep(0.03)
    assert not rang


async def test_it_can_be_set_by_what_it_calls() -> None:
    rang: list[float] = []

    def again() -> None:
        rang.append(time.monotonic())
        if len(rang) < 5:
            alarm.set(time.monotonic() + 0.002)

    alarm = Alarm(again)
    alarm.set(time.monotonic())
    async with asyncio.timeout(2):
        while len(rang) < 5:
            await asyncio.sleep(0.005)
    assert all(later - earlier >= 0.002 for earlier, later in pairwise(rang))
