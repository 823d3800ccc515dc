"""Time from the command to its first painted screen: tunetui beside an empty Textual app and a bare Python, in one run.

`uv run python benchmarks/first_paint.py [RUNS]`. The server is the fake of the tests; the screen is a pty of 120x36.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
EMPTY_APP = """
from textual.app import App
from textual.widgets import Static
class Empty(App):
    def compose(self):
        yield Static("KNOBS")
Empty().run()
"""


def painted_s(command: list[str], sign: bytes, limit_s: float = 30.0) -> float:
    """Seconds until `command` has written `sign` to its terminal. The process is killed then."""
    began_s = time.monotonic()
    pid, master = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "LINES": "36", "COLUMNS": "120"}
        os.execv(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
    seen = b""
    try:
        while sign not in seen:
            if time.monotonic() - began_s > limit_s:
                raise SystemExit(f"nothing painted in {limit_s:.0f} s by {command}: {seen[-300:]!r}")
            if select.select([master], [], [], 0.05)[0]:
                seen += os.read(master, 65536)
        return time.monotonic() - began_s
    finally:
        os.kill(pid, signal.SIGTERM)
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if select.select([master], [], [], 0.05)[0]:
                try:
                    os.read(master, 65536)
                except OSError:
                    time.sleep(0.01)
        os.close(master)


def main(runs: int) -> None:
    python = sys.executable
    fake = f"{python} {ROOT / 'tests' / 'fake_vllm.py'}"
    with tempfile.TemporaryDirectory() as sessions:
        ours = [
            python,
            "-m",
            "tunetui",
            "--model",
            "fake/model",
            "--vllm",
            fake,
            "--port",
            "8471",
            "--sessions-dir",
            sessions,
        ]
        commands = {
            "tunetui": (ours, b"KNOBS"),
            "an empty Textual app": ([python, "-c", EMPTY_APP], b"KNOBS"),
            "bare Python": ([python, "-c", "print('KNOBS')"], b"KNOBS"),
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(runs):  # interleaved, so that a noisy moment hits all of them
            for name, (command, sign) in commands.items():
                times[name].append(painted_s(command, sign))
    for name, values in times.items():
        print(f"{name:<24} median {statistics.median(values):.2f} s   {min(values):.2f} to {max(values):.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
