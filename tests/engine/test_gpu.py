"""GPU readings never raise, whatever the driver does."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tunetui.engine import gpu


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    gpu._nvml.cache_clear()
    yield
    gpu._nvml.cache_clear()


class FakeNvml:
    """Two cards, of which the second does not tell its utilization."""

    def __init__(self) -> None:
        self.inits = 0

    def nvmlInit(self) -> None:
        self.inits += 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index > 1:
            raise RuntimeError("invalid argument")
        return index

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return b"Card A" if handle == 0 else "Card B"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80, used=30 + handle)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle:
            raise RuntimeError("not supported")
        return SimpleNamespace(gpu=97, memory=12)


def test_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    first, second = gpu.read_gpus()
    assert first == gpu.GpuReading(0, "Card A", 80, 30, 97)
    assert second == gpu.GpuReading(1, "Card B", 80, 31, None)
    assert gpu.read_gpus([1, 7]) == (second,)
    assert fake.inits == 1


def test_without_a_driver_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise OSError("libnvidia-ml.so.1 not found")

    monkeypatch.setitem(__import__("sys").modules, "pynvml", SimpleNamespace(nvmlInit=no_driver))
    assert gpu.read_gpus() == ()
    assert gpu.read_gpus([0]) == ()
