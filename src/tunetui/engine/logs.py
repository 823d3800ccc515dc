"""The server's log: followed, made safe for a terminal, and read for start-up phases and facts.

It does not say why a start failed (`diagnose` does), and it never writes to the log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from tunetui.core.memory import MemoryParts

LINE_CAP = 4000
"""Characters of a line that are kept."""
READ_CAP_BYTES = 1 << 20
"""At most this much of the log is read per call."""

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # the short ones
)
_VISIBLE: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(32) if code != 10}
_VISIBLE |= {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
_VISIBLE |= {0x09: "    ", 0x7F: "\u2421", 0x2028: " ", 0x2029: " "}
# Marks that reorder or hide text, and the invisible tag characters.
_HIDDEN = [0x061C, 0x200B, 0x200E, 0x200F, 0xFEFF]
_HIDDEN += [*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xE0000, 0xE0080)]
_VISIBLE |= dict.fromkeys(_HIDDEN)
_VISIBLE |= {code: "\ufffd" for code in range(0xD800, 0xE000)}


def clean(text: str) -> str:
    """Text that a terminal shows as it is: escape sequences and bidi overrides dropped, other controls made visible.

    Line feeds stay; each line is cut at LINE_CAP characters, with the number of those left out.
    """
    return "\n".join(_clean_line(line) for line in text.split("\n"))


def _clean_line(line: str) -> str:
    over = len(line) - 4 * LINE_CAP
    if over > 0:
        line = line[: 4 * LINE_CAP]
    line = _ESCAPES.sub("", line).translate(_VISIBLE)
    over = max(over, 0) + len(line) - LINE_CAP
    return line if over <= 0 else f"{line[:LINE_CAP]} … ({over:,} more characters)"


class LogFollower:
    """Reads what was appended to a log since the last call; survives a missing, truncated or replaced file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = 0
        self._tail = b""

    @property
    def partial(self) -> str:
        """The last line as far as it was written, cleaned: a progress bar is one until it ends."""
        return _last_of_progress(self._tail)

    def read(self) -> list[str]:
        """New complete lines, cleaned, at most READ_CAP_BYTES of them; call again for more. [] when there is none.

        Of a progress bar that redraws itself with carriage returns, the last state is kept.
        """
        data = self._read_bytes()
        if not data:
            return []
        *lines, tail = (self._tail + data).split(b"\n")
        self._tail = tail[tail.rfind(b"\r", 0, len(tail) - 1) + 1 :]
        if len(self._tail) > 8 * LINE_CAP:  # no end of line in sight: hand over what there is
            lines.append(self._tail)
            self._tail = b""
        return [_last_of_progress(line) for line in lines]

    def _read_bytes(self) -> bytes:
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset, self._tail = status.st_ino, 0, b""
                file.seek(self._offset)
                data = file.read(READ_CAP_BYTES)
        except OSError:
            return b""
        self._offset += len(data)
        return data


def _last_of_progress(line: bytes) -> str:
    parts = [part for part in line.split(b"\r") if part]
    return clean(parts[-1].decode("utf-8", "replace")) if parts else ""


class Phase(IntEnum):
    """The steps of a start, in the order in which they happen. Not every start shows all of them."""

    STARTING = 0
    CONFIG = 1
    ENGINE = 2
    WEIGHTS = 3
    MEMORY = 4
    COMPILE = 5
    KV = 6
    GRAPHS = 7
    SERVING = 8
    READY = 9

    @property
    def label(self) -> str:
        """What is being done in this phase, for the screen."""
        return _LABELS[self]


_LABELS = {
    Phase.STARTING: "starting python",
    Phase.CONFIG: "reading the model's config",
    Phase.ENGINE: "starting the engine",
    Phase.WEIGHTS: "loading weights",
    Phase.MEMORY: "profiling memory",
    Phase.COMPILE: "compiling",
    Phase.KV: "allocating the KV cache",
    Phase.GRAPHS: "capturing CUDA graphs",
    Phase.SERVING: "opening the server",
    Phase.READY: "ready",
}
# Compilation comes before the KV cache on a GPU (it is part of the memory profile) and after it on older CPU builds.
_PHASE_MARKS: tuple[tuple[Phase, tuple[str, ...]], ...] = (
    (Phase.READY, ("Application startup complete",)),
    (Phase.SERVING, ("init engine (", "Starting vLLM server on", "Starting vLLM API server")),
    (Phase.GRAPHS, ("Capturing CUDA graph", "Graph capturing finished")),
    (Phase.KV, ("KV cache size:", "Available KV cache memory", "GiB for KV cache on node")),
    (Phase.COMPILE, ("torch.compile took", "torch.compile takes", "Dynamo bytecode transform")),
    (Phase.MEMORY, ("Loading weights took", "Model loading took")),
    (Phase.WEIGHTS, ("Starting to load model",)),
    (Phase.ENGINE, ("Initializing a V1 LLM engine",)),
    (Phase.CONFIG, ("Resolved architecture", "non-default args", "vLLM API server version")),
)


def phase_of(line: str) -> Phase | None:
    """The phase that this line begins, or None. Source: the log calls of vLLM 0.10 to 0.32."""
    for phase, marks in _PHASE_MARKS:
        if any(mark in line for mark in marks):
            return phase
    return None


@dataclass(frozen=True, slots=True)
class Phases:
    """How far a start has come: each phase seen and the moment, in seconds of the caller's clock, it was seen at."""

    marks: tuple[tuple[Phase, float], ...]

    @classmethod
    def begin(cls, at_s: float) -> Phases:
        return cls(((Phase.STARTING, at_s),))

    @property
    def current(self) -> Phase:
        return self.marks[-1][0]

    def fold(self, line: str, at_s: float) -> Phases:
        """Phases only advance: a line of an earlier one (a second worker's, say) changes nothing."""
        phase = phase_of(line)
        return self if phase is None or phase <= self.current else replace(self, marks=(*self.marks, (phase, at_s)))

    def durations_s(self, now_s: float) -> tuple[tuple[Phase, float], ...]:
        """Seconds spent in each phase seen; the current one lasts until `now_s`, and READY has none."""
        ends = [at_s for _, at_s in self.marks[1:]] + [now_s]
        return tuple((p, end - at) for (p, at), end in zip(self.marks, ends, strict=True) if p is not Phase.READY)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a start-up log says of the engine; None where it does not. Of several engines or workers, the least memory
    for the KV cache, the most of everything else. `total_memory_bytes` is the card's, or the CPU build's memory node;
    `consumed_bytes` weights and all that is not PyTorch's; vLLM logs GiB with two decimals."""

    version: str | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    available_kv_bytes: int | None = None
    total_memory_bytes: int | None = None
    weights_bytes: int | None = None
    load_s: float | None = None
    init_s: float | None = None
    max_model_len: int | None = None
    activations_bytes: int | None = None
    non_torch_bytes: int | None = None
    consumed_bytes: int | None = None
    graphs_bytes: int | None = None
    graphs_estimate_bytes: int | None = None
    worker_bytes: int | None = None

    def memory_parts(self, per_card: bool = False) -> MemoryParts:
        """Where the device's memory goes, as far as the log says."""
        non_torch = self.non_torch_bytes
        if non_torch is None and self.consumed_bytes is not None and self.weights_bytes is not None:
            non_torch = max(self.consumed_bytes - self.weights_bytes, 0)
        return MemoryParts(
            total_bytes=self.total_memory_bytes,
            weights_bytes=self.weights_bytes,
            activations_bytes=self.activations_bytes,
            non_torch_bytes=non_torch,
            graphs_bytes=self.graphs_estimate_bytes if self.graphs_bytes is None else self.graphs_bytes,
            worker_bytes=self.worker_bytes,
            kv_bytes=self.available_kv_bytes,
            per_card=per_card,
        )


_NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
_FACTS: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...] = (
    ("LLM engine (v", re.compile(r"LLM engine \(v([^)\s]+)\)"), ("version",)),
    ("API server version", re.compile(r"API server version (\S+)"), ("version",)),
    ("█  version ", re.compile(r"█  version (\S+)"), ("version",)),
    ("KV cache size:", re.compile(rf"KV cache size: {_NUMBER} tokens"), ("kv_tokens",)),
    ("Maximum concurrency for", re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: {_NUMBER}x"),
     ("max_model_len", "max_concurrency")),
    ("max model len", re.compile(rf"Using max model len {_NUMBER}"), ("max_model_len",)),
    ("Available KV cache memory", re.compile(rf"Available KV cache memory: {_NUMBER} GiB"), ("available_kv_bytes",)),
    ("for KV cache on node", re.compile(rf"\({_NUMBER}/{_NUMBER}\) GiB for KV cache on node"),
     ("available_kv_bytes", "total_memory_bytes")),
    ("Loading weights took", re.compile(rf"Loading weights took {_NUMBER} s"), ("load_s",)),
    ("Model loading took", re.compile(rf"Model loading took {_NUMBER} GiB(?: memory)? and {_NUMBER} s"),
     ("weights_bytes", "load_s")),
    ("Free memory on device", re.compile(rf"[\d.]/{_NUMBER} GiB\) on startup\. Desired GPU"), ("total_memory_bytes",)),
    ("Actual usage is", re.compile(rf"Actual usage is {_NUMBER} GiB for weight, {_NUMBER} GiB for peak activation, "
                                   rf"{_NUMBER} GiB for non-torch memory, and {_NUMBER} GiB for CUDAGraph"),
     ("weights_bytes", "activations_bytes", "non_torch_bytes", "graphs_bytes")),
    ("Actual usage is", re.compile(rf"Actual usage is {_NUMBER} GiB for consumed memory \(weights \+ non-torch\), "
                                   rf"{_NUMBER} GiB for peak activation, and {_NUMBER} GiB for CUDAGraph"),
     ("consumed_bytes", "activations_bytes", "graphs_bytes")),
    ("Graph capturing finished", re.compile(rf"Graph capturing finished in \d+ secs, took {_NUMBER} GiB"),
     ("graphs_bytes",)),
    ("Estimated CUDA graph", re.compile(rf"Estimated CUDA graph memory: {_NUMBER} GiB"), ("graphs_estimate_bytes",)),
    ("consumed by non-kv", re.compile(rf" {_NUMBER} GiB memory was consumed by non-kv"), ("worker_bytes",)),
    ("init engine (", re.compile(rf"init engine \([^)]*\) took {_NUMBER} s"), ("init_s",)),
)  # fmt: skip
_LEAST = {"kv_tokens", "max_concurrency", "available_kv_bytes", "max_model_len", "total_memory_bytes"}


def facts_from_log(lines: Iterable[str]) -> LogFacts:
    """The facts in these lines, in the formats of vLLM 0.10 to 0.32. One pass; every pattern is linear."""
    found: dict[str, str | float] = {}
    for line in lines:
        for mark, pattern, names in _FACTS:
            match = pattern.search(line[:LINE_CAP]) if mark in line else None
            if match is not None:
                for name, text in zip(names, match.groups(), strict=True):
                    _keep(found, name, text)
    return LogFacts(**found)  # type: ignore[arg-type]


def _keep(found: dict[str, str | float], name: str, text: str) -> None:
    if name == "version":
        found.setdefault(name, text)
        return
    number = float(text.replace(",", ""))
    if name.endswith("_bytes"):
        number = round(number * 2**30)
    elif name in ("kv_tokens", "max_model_len"):
        number = int(number)
    seen = found.get(name)
    if isinstance(seen, int | float):
        number = min(seen, number) if name in _LEAST else max(seen, number)
    found[name] = number
