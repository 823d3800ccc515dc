"""What the server runs on, in a few words and bytes: the cards, or the processor where there is no card."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from tunetui.engine.gpu import GpuReading


def cards_name(gpus: tuple[GpuReading, ...]) -> str:
    """The cards for the screen: `2x NVIDIA A100 80GB`, or `CPU`."""
    if not gpus:
        return "CPU"
    return gpus[0].name if len(gpus) == 1 else f"{len(gpus)}x {gpus[0].name}"


def hardware_name(gpus: tuple[GpuReading, ...], cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The cards for a baseline, or the processor's model; `CPU` where it does not say."""
    return cards_name(gpus) if gpus else _cpu_model(cpuinfo) or platform.processor() or "CPU"


def _cpu_model(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2] for line in lines if line.partition(":")[0].strip() == "model name")
    return " ".join(next(values, "").split())


def memory_bytes(gpus: tuple[GpuReading, ...]) -> int:
    """The smallest card's memory, or the machine's where there is no card; 0 where it does not say."""
    if gpus:
        return min(gpu.memory_total_bytes for gpu in gpus)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
