"""A terminal for the tests: tunetui in tmux, its keys and screen, and the processes below it. It asserts nothing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TUNETUI = [sys.executable, "-m", "tunetui"]
# A wait ends when what it waits for is there; only a failure takes this much longer, and shared machines stall.
PATIENCE = 4.0


@dataclass(frozen=True)
class Process:
    """One process, told from a later one with the same pid by when it started."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        return stat_of(self.pid) is not None and self.started == (stat_of(self.pid) or ("", "", ""))[2]


def stat_of(pid: int) -> tuple[str, str, str] | None:
    """State, parent's pid and start time; None for one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (fields[0], fields[1], fields[19])


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def below(pid: int) -> set[Process]:
    """All processes below `pid`."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := stat_of(int(entry))) is not None:
            parents.setdefault(int(stat[1]), []).append(int(entry))
    found: set[Process] = set()
    queue = [pid]
    while queue:
        for child in parents.get(queue.pop(), []):
            stat = stat_of(child)
            if stat is not None:
                found.add(Process(child, stat[2]))
                queue.append(child)
    return found


class Terminal:
    """One command in a tmux session of its own server."""

    def __init__(self, command: list[str], width: int = 120, height: int = 36, **environment: str) -> None:
        self._socket = f"tunetui-test-{uuid.uuid4().hex[:8]}"
        # COLUMNS and LINES of the test runner's own terminal (readline exports them) are not this one's.
        words = [
            "env",
            "-u",
            "COLUMNS",
            "-u",
            "LINES",
            "TERM=xterm-256color",
            *(f"{k}={v}" for k, v in environment.items()),
            *command,
        ]
        # The exit code stays on the screen, and the pane open, after the command has ended.
        script = f"{shlex.join(words)}; code=$?; echo; echo EXIT-CODE=$code; exec sleep 600"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), "sh", "-c", script)
        self.began_s = time.monotonic()
        self.pane_pid = int(self._tmux("display-message", "-p", "#{pane_pid}"))

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-L", self._socket, *words], capture_output=True, text=True, timeout=120)
        return done.stdout.strip("\n")

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def keys(self, *names: str) -> None:
        """Send keys by tmux's names, one after the other as a person would."""
        for name in names:
            self._tmux("send-keys", name)
            time.sleep(0.05)

    def keys_at_once(self, *names: str) -> None:
        """Send keys in one packet, as a slow link delivers what was typed ahead."""
        self._tmux("send-keys", *names)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def wait(self, seen: Callable[[str], object], timeout_s: float, what: str) -> str:
        """Poll the screen until `seen` is true of it; returns it. Fails with the last screen."""
        deadline_s = time.monotonic() + PATIENCE * timeout_s
        while True:
            screen = self.screen()
            if seen(screen):
                return screen
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not seen in {timeout_s:.0f} s: {what}\n{screen}")
            time.sleep(0.05)

    def wait_for(self, text: str, timeout_s: float = 10) -> str:
        return self.wait(lambda screen: text in screen, timeout_s, text)

    def exit_code(self, timeout_s: float = 30) -> int:
        """Wait for the command to end."""
        screen = self.wait(lambda s: "EXIT-CODE=" in s, timeout_s, "the command's end")
        found = re.search(r"EXIT-CODE=(\d+)", screen)
        assert found is not None
        return int(found[1])

    @property
    def tunetui_pid(self) -> int:
        """The pid of the tunetui process itself: the one child of the pane's shell."""
        return min(p.pid for p in below(self.pane_pid) if (stat_of(p.pid) or ("", "", ""))[1] == str(self.pane_pid))

    def hang_up(self) -> None:
        """Close the terminal, as a dropped SSH connection does."""
        self._tmux("kill-server")

    def close(self) -> None:
        """End everything that the terminal still has."""
        leftovers = below(self.pane_pid)
        self._tmux("kill-server")
        for process in leftovers:
            if process.alive:
                os.kill(process.pid, signal.SIGKILL)


def gone_within(processes: set[Process], timeout_s: float) -> set[Process]:
    """Wait until none of `processes` is alive; returns those that still are."""
    deadline_s = time.monotonic() + PATIENCE * timeout_s
    while alive := {p for p in processes if p.alive}:
        if time.monotonic() > deadline_s:
            return alive
        time.sleep(0.05)
    return set()


HAS_TMUX = shutil.which("tmux") is not None


@dataclass(frozen=True)
class PointRow:
    """One line of the table of points at 120 columns."""

    seqs: int
    chunked: bool
    tokens: int
    ttft_ms: float
    tpot_ms: float
    verdict: str
    blocks: int
    kind: str  # live or conf


def point_rows(screen: str) -> list[PointRow]:
    """The rows of the table of points on a wide screen, read by the places of its heads."""
    lines = screen.split("\n")
    top = next((i for i, line in enumerate(lines) if " seqs " in line and "verdict" in line), None)
    if top is None:
        return []
    head = lines[top]

    def number(line: str, name: str) -> float:
        text = line[: head.index(name) + len(name)].split()[-1]  # numbers stand flush right under their heads
        return float("nan") if text == "-" else float(text.replace(",", ""))

    def word(line: str, name: str) -> str:
        return line[: head.index(name) + len(name)].split()[-1]

    rows = []
    for line in lines[top + 1 :]:
        if not re.match(r"[> ]\s+\d+\s+\d+ ", line):
            break
        rows.append(
            PointRow(
                seqs=int(number(line, "seqs")),
                chunked=word(line, "chunk") == "on",
                tokens=int(number(line, "tokens")),
                ttft_ms=number(line, "TTFT"),
                tpot_ms=number(line, "TPOT"),
                verdict=line[head.index("verdict") :].split()[0],
                blocks=int(number(line, "blocks")),
                kind=line.split()[-1],
            )
        )
    return rows


def judged(screen: str) -> int:
    """How many requests of the shown episode have been judged; -1 where none is shown."""
    found = re.search(r"EPISODE (\d+)/\d+", screen)
    return int(found[1]) if found else -1


def wait_for_whole_episode(terminal: Terminal, timeout_s: float) -> str:
    """Wait until the episode under way is over: the next one has begun to count."""
    most = judged(terminal.screen())
    deadline_s = time.monotonic() + PATIENCE * timeout_s
    while time.monotonic() < deadline_s:
        screen = terminal.screen()
        now = judged(screen)
        if 0 <= now < most:
            return screen
        most = max(most, now)
        time.sleep(0.2)
    raise AssertionError(f"no episode ended in {timeout_s:.0f} s\n{terminal.screen()}")
