"""Keys, leaving and bad input in a real terminal, on the fake server: seconds where the real one takes minutes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from end_to_end.terminal import HAS_TMUX, TUNETUI, Terminal, below, free_port, gone_within, judged, point_rows

pytestmark = [pytest.mark.tmux, pytest.mark.skipif(not HAS_TMUX, reason="tmux is not installed")]
FAKE = f"{sys.executable} {Path(__file__).parents[1] / 'fake_vllm.py'}"


def command(port: int, sessions: Path, *more: str) -> list[str]:
    return [
        *TUNETUI, "--model", "fake/model", "--vllm", FAKE, "--port", str(port), "--sessions-dir", str(sessions),
        "--concurrency", "32", "--prompt-tokens", "64-256", "--output-tokens", "16-48", "--episode-requests", "100",
        *more, "--", "--max-num-seqs", "64", "--kv-cache-memory-bytes", "2G",
    ]  # fmt: skip


@pytest.fixture
def live(tmp_path: Path, terminals: list[Terminal]) -> Terminal:
    terminal = Terminal(command(free_port(), tmp_path))
    terminals.append(terminal)
    terminal.wait_for("LIVE 00:", 30)
    return terminal


def test_step_undo_pause_and_leave(live: Terminal) -> None:
    live.wait(lambda s: point_rows(s), 30, "a row for the first point")
    live.keys("Left")
    live.wait(lambda s: re.search(r"> max-num-seqs +32 +live", s) and "step SETTLED" in s, 15, "32 settled")
    live.keys("[", "[")
    live.wait(lambda s: re.search(r"> max-num-seqs +16 +live", s) and "step SETTLED" in s, 15, "16 settled")
    live.keys("u")
    live.wait(lambda s: re.search(r"> max-num-seqs +(24|32) +live", s), 5, "undone")
    live.keys("Space")
    live.wait_for("PAUSED", 5)
    live.wait(lambda s: re.search(r"running 0 ", s), 15, "nothing runs while paused")
    live.keys("Space")
    live.wait(lambda s: "PAUSED" not in s and re.search(r"running [1-9]", s), 15, "the load is on again")
    processes = below(live.pane_pid)
    live.keys_at_once("q", "s")
    assert live.exit_code() == 0
    assert gone_within({p for p in processes if p.pid != live.pane_pid}, 5) == set()


def test_leave_running_leaves_it(live: Terminal) -> None:
    tunetui = live.tunetui_pid
    processes = below(tunetui)
    live.keys_at_once("q", "l")
    assert live.exit_code() == 0
    screen = live.screen()
    found = re.search(r"left running: pid (\d+)", screen)
    assert found is not None, screen
    server = next(p for p in processes if p.pid == int(found[1]))
    try:
        assert server.alive
        assert gone_within(processes - {server}, 5) == set()  # the warden and the load process are not needed
    finally:
        os.kill(server.pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["hangup", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_any_other_end_stops_the_server(live: Terminal, how: str) -> None:
    processes = below(live.pane_pid)
    tunetui = live.tunetui_pid
    if how == "hangup":
        live.hang_up()
    else:
        os.kill(tunetui, getattr(signal, how))
        if how != "SIGKILL":
            assert live.exit_code() == 128 + getattr(signal, how)
    assert gone_within({p for p in processes if p.pid != live.pane_pid}, 10) == set()


def test_a_crash_under_load_is_explained_and_can_be_started_again(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal(command(free_port(), tmp_path), FAKE_VLLM_FAULT="crash_after:6")
    terminals.append(terminal)
    terminal.wait_for("LIVE 00:", 30)
    screen = terminal.wait_for("The server is not running", 30)
    assert "enter" in screen
    terminal.keys("Enter")
    terminal.wait_for("LIVE 00:", 30)


def test_a_failed_start_says_why_and_what_to_do(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal(command(free_port(), tmp_path), FAKE_VLLM_FAULT="oom")
    terminals.append(terminal)
    terminal.wait_for("The server is not running", 30)
    screen = terminal.wait_for("No available memory for the cache blocks", 5)
    assert "Traceback" not in screen
    terminal.keys("q")
    assert terminal.exit_code() == 3


def test_the_log_is_one_key_away(live: Terminal) -> None:
    live.keys("o")
    live.wait_for("SERVER LOG", 5)
    live.wait_for("Application startup complete", 5)
    live.keys("Escape")
    live.wait_for("EPISODE", 5)


def test_small_and_smaller(live: Terminal) -> None:
    live.resize(80, 24)
    words = ("max-num-seqs", "P95 TTFT", "P95 TPOT", "EPISODE", "ENGINE", "verdict", "q quit")
    live.wait(lambda s: all(word in s for word in words) and max(map(len, s.split("\n"))) <= 80, 10, "80x24")
    live.resize(50, 12)
    live.wait_for("needs 60x15", 5)
    live.resize(120, 36)
    live.wait_for("POINTS", 5)


BAD = [
    (["--model", "/nowhere/model", "--vllm", FAKE], 2, "no model at /nowhere/model"),
    (["--model", "m", "--vllm", FAKE, "--slo", "ttft=600"], 2, "KEY:MS"),
    (["--model", "m", "--vllm", "/nowhere/vllm"], 3, "no command"),
    (["--model", "m", "--url", "http://127.0.0.1:1"], 2, "--model MODEL"),
]


@pytest.mark.parametrize(("options", "code", "said"), BAD)
def test_bad_input_is_one_sentence(
    options: list[str], code: int, said: str, terminals: list[Terminal], tmp_path: Path
) -> None:
    terminal = Terminal([*TUNETUI, *options, "--sessions-dir", str(tmp_path)])
    terminals.append(terminal)
    assert terminal.exit_code(20) == code
    screen = terminal.screen()
    assert said in screen
    assert "Traceback" not in screen
    assert screen.count("tunetui:") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_busy_port_names_its_holder(tmp_path: Path, terminals: list[Terminal]) -> None:
    port = free_port()
    holder = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], stderr=subprocess.DEVNULL
    )
    try:
        deadline_s = time.monotonic() + 10
        while True:
            terminal = Terminal(command(port, tmp_path))
            terminals.append(terminal)
            code, screen = terminal.exit_code(40), terminal.screen()
            if code == 3 or time.monotonic() > deadline_s:
                break
        assert code == 3
        assert f"port {port} is held by pid {holder.pid}" in screen.replace("\n", "")
    finally:
        holder.kill()
        holder.wait()


def test_a_terminal_that_is_dumb_or_too_small_is_refused(tmp_path: Path, terminals: list[Terminal]) -> None:
    dumb = Terminal(command(free_port(), tmp_path), TERM="dumb")
    terminals.append(dumb)
    assert dumb.exit_code(20) == 2
    assert "TERM=xterm-256color" in dumb.screen()
    small = Terminal(command(free_port(), tmp_path), width=50, height=12)
    terminals.append(small)
    assert small.exit_code(20) == 2
    assert "60x15" in small.screen().replace("\n", "")


def test_the_demo_needs_nothing_and_says_what_it_is(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal(
        [*TUNETUI, "--demo", "--port", str(free_port()), "--sessions-dir", str(tmp_path)], width=80, height=24
    )
    terminals.append(terminal)
    screen = terminal.wait(lambda s: "LIVE 00:" in s and judged(s) > 20, 40, "the case is measured")
    assert "SIMULATED" in screen
    assert "256 streams" in screen
    terminal.keys("3", "8", "4", "Enter")
    screen = terminal.wait(lambda s: "384 streams" in s and "FAIL" in s, 60, "at 384 TTFT fails")
    processes = below(terminal.pane_pid)
    terminal.keys_at_once("q", "s")
    assert terminal.exit_code() == 0
    assert gone_within({p for p in processes if p.pid != terminal.pane_pid}, 10) == set()
