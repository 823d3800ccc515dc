"""Readings of the NVIDIA GPUs of this machine through NVML: memory and utilization.

It changes no setting of a card, and a machine without a card, a driver or the library is an empty reading, no error.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One card now. `utilization_percent` is None where the card does not tell (MIG)."""

    index: int
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    utilization_percent: int | None


@functools.cache
def _nvml() -> Any:
    """The NVML binding, initialised once; None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a missing driver shows as several kinds of error
        return None
    return pynvml


def read_gpus(indices: Sequence[int] | None = None) -> tuple[GpuReading, ...]:
    """The cards with these NVML indices, all by default. Never raises: what cannot be read is left out."""
    nvml = _nvml()
    if nvml is None:
        return ()
    try:
        wanted = range(nvml.nvmlDeviceGetCount()) if indices is None else indices
    except Exception:
        return ()
    return tuple(reading for reading in (_read(nvml, index) for index in wanted) if reading is not None)


def _read(nvml: Any, index: int) -> GpuReading | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = nvml.nvmlDeviceGetName(handle)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        return GpuReading(index, text, int(memory.total), int(memory.used), _utilization(nvml, handle))
    except Exception:
        return None


def _utilization(nvml: Any, handle: Any) -> int | None:
    try:
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except Exception:
        return None
