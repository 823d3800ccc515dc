"""The main job on a real vLLM, in a real terminal. Needs TUNETUI_TEST_VLLM; see the README."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import tomllib
import urllib.request
from pathlib import Path

import pytest
from end_to_end.terminal import (
    HAS_TMUX,
    TUNETUI,
    Terminal,
    below,
    free_port,
    gone_within,
    judged,
    point_rows,
    wait_for_whole_episode,
)

VLLM = os.environ.get("TUNETUI_TEST_VLLM", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.tmux,
    pytest.mark.skipif(not VLLM, reason="TUNETUI_TEST_VLLM is not set: no real vLLM to test with"),
    pytest.mark.skipif(not HAS_TMUX, reason="tmux is not installed"),
]
START_S = 240.0


def command(model: Path, port: int, sessions: Path) -> list[str]:
    return [
        *TUNETUI, "--model", str(model), "--vllm", VLLM, "--port", str(port), "--sessions-dir", str(sessions),
        "--concurrency", "64", "--prompt-tokens", "256", "--output-tokens", "16-48", "--episode-requests", "100",
        "--slo", "ttft:6000", "tpot:80", "--",
        "--enforce-eager", "--max-num-seqs", "64", "--kv-cache-memory-bytes", "512M",
    ]  # fmt: skip


def accepted_ms(terminal: Terminal, seqs: str) -> int:
    """Step to so many sequences: how long the scheduler took to read it. A shared machine stalls now and then."""
    terminal.keys(seqs, "Enter")
    screen = terminal.wait(lambda s: re.search(rf"> max-num-seqs +{seqs} ", s) and "accepted in" in s, 5, "ACCEPTED")
    found = re.search(r"accepted in ([\d,]+) ms", screen)
    assert found is not None
    return int(found[1].replace(",", ""))


def test_the_main_job(toy_model: Path, tmp_path: Path, terminals: list[Terminal]) -> None:
    port = free_port()
    terminal = Terminal(command(toy_model, port, tmp_path), HF_HUB_OFFLINE="1")
    terminals.append(terminal)

    # It shows the phases of the start, goes live when it is warm, and the load is on.
    terminal.wait_for("Starting vLLM", 15)
    terminal.wait(lambda s: re.search(r"loading weights +\d+\.\d s", s), START_S, "the phases of the start")
    terminal.wait_for("LIVE 00:", START_S)
    wait_for_whole_episode(terminal, 120)
    before = wait_for_whole_episode(terminal, 120)  # the second, so that the engine is warm beyond doubt

    # 64 -> 8 by key under overload: ACCEPTED within a second, SETTLED after, and P95 TPOT at least halved. Not in the
    # first turnover: there one step prefills thousands of tokens, which takes seconds on a slow machine.
    terminal.wait(lambda s: judged(s) >= 5, 60, "the episode counts")
    assert accepted_ms(terminal, "8") < 1000 or accepted_ms(terminal, "9") < 1000 or accepted_ms(terminal, "8") < 1000
    terminal.wait(lambda s: "step SETTLED" in s, 60, "SETTLED")
    terminal.wait(lambda s: re.search(r"running [0-8] ", s), 10, "at most 8 running")
    after = wait_for_whole_episode(terminal, 180)
    wide = next(r for r in point_rows(before) if r.seqs == 64)
    narrow = next(r for r in point_rows(after) if r.seqs == 8)
    print(f"P95 TPOT {wide.tpot_ms:.0f} ms at 64, {narrow.tpot_ms:.0f} ms at 8")
    assert narrow.tpot_ms <= wide.tpot_ms / 2, (wide, narrow)

    # Chunked prefill off, live.
    terminal.keys("Down", "Down", "Left")
    terminal.wait(lambda s: re.search(r"> chunked prefill +off +live", s), 5, "chunked prefill off")
    terminal.wait(lambda s: "step SETTLED" in s, 60, "SETTLED")

    # Back to 64 and KV blocks held until the engine waits for them.
    terminal.keys("Up", "Up", "6", "4", "Enter")
    terminal.wait(lambda s: re.search(r"> max-num-seqs +64 +live", s) and "step SETTLED" in s, 60, "64 again")
    terminal.keys("Down", "Down", "Down", "Down", *["Left"] * 8)  # each a tenth of the 256 blocks
    terminal.wait(lambda s: re.search(r"> KV cache memory +96 MiB +live", s), 10, "the KV cache stepped down")
    terminal.wait(
        lambda s: re.search(r"of 48 blocks", s) and ("KV BLOCKS" in s or re.search(r"preempted [1-9]", s)),
        90,
        "the engine queues for blocks or preempts",
    )
    terminal.wait(lambda s: "step SETTLED" in s, 60, "SETTLED")
    wait_for_whole_episode(terminal, 180)

    # Accept, confirmed by a restart with exactly these flags.
    terminal.keys("a")
    terminal.wait_for("confirm by a restart", 5)
    terminal.keys("c")
    terminal.wait_for("CONFIRMING", 15)
    screen = terminal.wait(
        lambda s: "CONFIRMED" in s and any(r.kind == "conf" for r in point_rows(s)), START_S + 180, "CONFIRMED"
    )
    rows = {r.kind: r for r in point_rows(screen) if not r.chunked and r.seqs == 64}
    assert rows["live"].blocks == rows["conf"].blocks, rows

    (path,) = tmp_path.glob("*/baseline.toml")
    baseline = tomllib.loads(path.read_text("utf-8"))
    assert baseline["result"]["confirmed"] is True
    assert baseline["result"]["requests"] == baseline["result"]["live"]["requests"] == 100
    assert baseline["knobs"]["max-num-seqs"] == 64
    assert baseline["knobs"]["enable-chunked-prefill"] is False
    argv = baseline["launch"]["argv"]
    assert "--scheduler-cls" not in argv
    assert {"--no-enable-chunked-prefill", "--kv-cache-memory-bytes", "--enable-prefix-caching"} <= set(argv)

    # q: nothing of the server is left.
    processes = below(terminal.pane_pid)
    assert len(processes) >= 4  # tunetui, the warden, the server, its engine core
    terminal.keys("q")
    terminal.wait_for("stop the server and leave", 5)
    terminal.keys("s")
    assert terminal.exit_code(40) == 0
    assert gone_within({p for p in processes if p.pid != terminal.pane_pid}, 10) == set()

    # And the command in the baseline starts a server.
    environment = {**os.environ, **baseline["launch"]["environment"]}
    server = subprocess.Popen(
        argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    started = {p for p in below(os.getpid()) if p.pid == server.pid}
    try:
        wait_healthy(port, server)
    finally:
        started |= below(server.pid)
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
        for process in started:
            if process.alive:
                os.kill(process.pid, signal.SIGKILL)


def wait_healthy(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        assert server.poll() is None, "the server of the baseline's command ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.25)
    raise AssertionError("the server of the baseline's command never answered")


@pytest.mark.parametrize("moment", ["starting the engine", "LIVE 00:"])
def test_sigkill_leaves_no_server(moment: str, toy_model: Path, tmp_path: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal(command(toy_model, free_port(), tmp_path), HF_HUB_OFFLINE="1")
    terminals.append(terminal)
    terminal.wait_for(moment, START_S)
    processes = below(terminal.tunetui_pid)
    assert len(processes) >= 2  # the warden and the server at least
    os.kill(terminal.tunetui_pid, signal.SIGKILL)
    assert gone_within(processes, 10) == set()
