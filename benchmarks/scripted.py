"""What the benchmarks of the load generator share: the scripted server, its log as truth, the cost of process trees.

It sends no request and compares nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

SERVER = Path(__file__).parents[1] / "tests/load/scripted_server.py"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class ScriptedServer:
    """The server as a child process; `stop` ends it and returns its log, in the order in which the requests came.

    Then `cpu_s` is what it took, and `others_percent` how much of a core went to what is not of this benchmark.
    """

    def __init__(self, *options: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        command = [sys.executable, str(SERVER), "--log", str(self._log), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.cpu_s = self.others_percent = 0.0
        self._began = self._look()

    def _look(self) -> tuple[float, ...]:
        """Now: the moment, the server's CPU, that of this process and its ended children, and that of the machine."""
        pid = self._process.pid
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.monotonic(), cpu_s(pid), sum(one.ru_utime + one.ru_stime for one in used), machine_cpu_s()

    def stop(self) -> list[dict]:
        wall_s, self.cpu_s, ours_s, machine_s = (
            now - then for now, then in zip(self._look(), self._began, strict=True)
        )
        self.others_percent = 100 * max(0.0, machine_s - ours_s - self.cpu_s) / wall_s
        self._process.terminate()
        self._process.wait(20)
        records = [json.loads(line) for line in self._log.read_text().splitlines()]
        self._folder.cleanup()
        return sorted(records, key=lambda record: record["received_s"])

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, slots=True)
class Truth:
    """What the server did with the requests of one run."""

    p95_ttft_ms: float
    p95_tpot_ms: float
    requests: int
    tokens: int
    duration_s: float
    p99_late_ms: float

    @classmethod
    def of(cls, records: list[dict], requests: int) -> Truth:
        """Of the last `requests` whole streams: what came before was the client's own trial."""
        done = [record for record in records if record["ended"] == "done"][-requests:]
        if not done:
            raise ValueError("the server answered nothing whole")
        ttft_s = [record["first_s"] - record["received_s"] for record in done]
        tpot_s = [(r["last_s"] - r["first_s"]) / (r["tokens"] - 1) for r in done if r["tokens"] > 1]
        duration_s = max(r["last_s"] for r in done) - done[0]["received_s"]
        late_ms = percentile_ms([record["late_s"] for record in done], 99)
        tokens = sum(record["tokens"] for record in done)
        return cls(percentile_ms(ttft_s, 95), percentile_ms(tpot_s, 95), len(done), tokens, duration_s, late_ms)


def percentile_ms(values_s: list[float], percent: float) -> float:
    return float(np.percentile(values_s, percent)) * 1e3 if values_s else float("nan")


def cpu_s(pid: int) -> float:
    """CPU seconds of the threads that a process has now, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def machine_cpu_s() -> float:
    """CPU seconds that all processes of the machine have taken."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command did and took: CPU of the whole tree that it started, peak of the sum of resident memory."""

    returncode: int
    output: str
    errors: str
    cpu_s: float
    peak_mb: float
    wall_s: float


def run_tree(command: list[str], timeout_s: float, environment: dict[str, str] | None = None) -> Cost:
    """Run a command to its end, and wait for all that it leaves behind, so that the CPU of all is counted.

    Other children of this process must not end meanwhile. Raises subprocess.TimeoutExpired.
    """
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {})
    )
    others = set(_children(os.getpid())) - {process.pid}
    watch = _Watch(process.pid)
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    finally:
        watch.stop()
    _wait_for(set(_children(os.getpid())) - others)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(process.returncode, output, errors, used_s, watch.peak_bytes / 1e6, time.monotonic() - began_s)


def _wait_for(orphans: set[int]) -> None:
    """What the command left behind ends within ten seconds, or is killed."""
    deadline_s = time.monotonic() + 10
    for orphan in orphans:
        while os.waitpid(orphan, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline_s:
                os.kill(orphan, signal.SIGKILL)
            time.sleep(0.02)


class _Watch(threading.Thread):
    """The resident memory of a tree, twenty times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.peak_bytes = 0
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.05):
            self.peak_bytes = max(self.peak_bytes, tree_bytes(self._pid))

    def stop(self) -> None:
        self._over.set()
        self.join()


def tree_bytes(pid: int) -> int:
    """Sum of the resident memory of a process and its descendants (pages that they share count for each)."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0
    return own + sum(tree_bytes(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue
    return found
