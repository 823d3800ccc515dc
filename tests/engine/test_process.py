"""A server is started, watched, stopped, left running; and nothing of it stays when tunetui or the warden is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from engine.fakes import Fakes, fake_argv, fake_env, free_port, lives, wait_until

from tunetui.engine.process import (
    EXIT_UNKNOWN,
    PortHolder,
    ServerProcess,
    ServerStartError,
    holder_of_port,
    pick_port,
    port_is_free,
)

READY = "Application startup complete"
SOURCE = Path(__file__).parents[2] / "src"


def test_stop_with_grace_lets_the_server_end_by_itself(fakes: Fakes) -> None:
    server = fakes.start()
    fakes.wait_for_log(READY)
    assert server.poll() is None
    assert not server.gone
    assert server.stop(10.0) == ()
    assert server.poll() == 0
    assert server.gone
    assert "Shutting down" in fakes.log_text()
    assert server.stop(10.0) == ()  # again: nothing to do


def test_the_log_is_private_and_appended_to(fakes: Fakes) -> None:
    fakes.log.write_text("earlier\n")
    fakes.start()
    fakes.wait_for_log(READY)
    assert fakes.log_text().startswith("earlier\n")
    assert stat.S_IMODE(fakes.log.stat().st_mode) == 0o600


def test_a_server_that_ignores_term_is_killed_after_the_grace(fakes: Fakes) -> None:
    server = fakes.start(fault="ignore_term")
    fakes.wait_for_log(READY)
    assert server.stop(0.3) == ()
    assert server.poll() == -signal.SIGKILL


def test_a_slow_stop_within_the_grace_is_waited_for_and_a_second_stop_shortens_it(fakes: Fakes) -> None:
    server = fakes.start(fault="slow_stop")
    fakes.wait_for_log(READY)
    first = threading.Thread(target=server.stop, args=(60.0,))
    began_s = time.monotonic()
    first.start()
    assert server.stop(0.2) == ()
    first.join(5.0)
    assert not first.is_alive()
    assert time.monotonic() - began_s < 3.0
    assert server.poll() == -signal.SIGKILL


def test_what_left_the_session_is_stopped_too(fakes: Fakes) -> None:
    server = fakes.start(fault="grandchild,orphan")
    children = fakes.children(3)
    fakes.wait_for_log(READY)
    assert server.stop(5.0) == ()
    assert not [pid for pid in children if lives(pid)]


def test_an_exit_of_its_own_is_reported_and_cleaned_up_after(fakes: Fakes) -> None:
    server = fakes.start(fault="grandchild,orphan,crash_after:0.05")
    children = fakes.children(3)
    assert wait_until(lambda: server.poll() is not None)
    assert server.poll() == 1
    wait_until(lambda: server.gone)
    assert not [pid for pid in children if lives(pid)]


def test_a_signal_shows_as_a_negative_code(fakes: Fakes) -> None:
    server = fakes.start()
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: server.gone)
    assert server.poll() == -signal.SIGKILL


def test_a_start_that_hangs_can_be_stopped(fakes: Fakes) -> None:
    server = fakes.start(fault="hang_start")
    fakes.wait_for_log("Resolved architecture")
    assert server.stop(5.0) == ()


async def test_stop_async_leaves_the_loop_free(fakes: Fakes) -> None:
    server = fakes.start()
    stopping = asyncio.create_task(server.stop_async(5.0))
    await asyncio.sleep(0)
    assert not stopping.done()
    assert await stopping == ()


def test_detach_leaves_it_running(fakes: Fakes) -> None:
    server = fakes.start()
    fakes.wait_for_log(READY)
    server.detach()
    fakes.pids.add(server.pid)
    assert server._process.poll() == 0  # the warden is gone
    assert server.stop() == ()  # and a stop does nothing any more
    assert lives(server.pid)
    assert server.poll() is None
    os.kill(server.pid, signal.SIGTERM)
    wait_until(lambda: not lives(server.pid))
    assert server.poll() == EXIT_UNKNOWN


@pytest.mark.parametrize("fault", ["", "ignore_term", "grandchild", "grandchild,orphan,ignore_term"])
def test_sigkill_of_tunetui_leaves_nothing(fakes: Fakes, fault: str) -> None:
    argv = [sys.executable, str(Path(__file__).with_name("parent.py")), str(fakes.log), "0.5", *fake_argv()]
    argv += ["--port", str(free_port())]
    environment = fake_env(fault, PYTHONPATH=str(SOURCE))
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        fakes.pids |= set(pids.values())
        everything = fakes.children(2 * ("grandchild" in fault) + ("orphan" in fault)) | set(pids.values())
        fakes.wait_for_log(READY)
        assert all(lives(pid) for pid in everything)
        parent.kill()
    wait_until(lambda: not [pid for pid in everything if lives(pid)])


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_the_warden_is_deaf_to_the_terminal_and_the_server_is_not(fakes: Fakes, number: signal.Signals) -> None:
    server = fakes.start()
    fakes.wait_for_log(READY)
    os.kill(server._process.pid, number)
    os.kill(server.pid, number)
    wait_until(lambda: server.gone)
    assert server.poll() in (0, -signal.SIGHUP)


def test_sigterm_of_the_warden_is_a_stop(fakes: Fakes) -> None:
    server = fakes.start()
    fakes.wait_for_log(READY)
    server._process.terminate()
    wait_until(lambda: server.gone)
    assert server.poll() == 0


def test_the_server_is_stopped_when_the_warden_was_killed(fakes: Fakes) -> None:
    server = fakes.start(fault="grandchild,orphan,ignore_term")
    everything = fakes.children(3) | {server.pid}
    fakes.wait_for_log(READY)
    server._process.kill()
    wait_until(lambda: server._warden_over)
    assert server.poll() is None  # the server itself runs on
    assert server.stop(0.3) == ()
    assert server.gone
    assert server.poll() == EXIT_UNKNOWN
    assert not [pid for pid in everything if lives(pid)]


def test_the_server_gets_exactly_its_environment_and_no_descriptor_of_ours(tmp_path: Path) -> None:
    script = "import os, sys; print(sorted(os.listdir('/proc/self/fd')), dict(os.environ), os.getcwd(), flush=True)"
    kept = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        environment = {"PATH": os.defpath, "WORD": "ünïcode"}
        server = ServerProcess.start([sys.executable, "-c", script], environment, tmp_path / "log", tmp_path, 1.0)
        wait_until(lambda: server.gone)
    finally:
        os.close(kept)
    text = (tmp_path / "log").read_text()
    assert text.startswith("['0', '1', '2', '3'] ")  # the fourth is the listing's own
    assert "'WORD': 'ünïcode'" in text
    assert str(tmp_path) in text


@pytest.mark.parametrize(
    ("argv", "log", "cwd", "says"),
    [
        (["no-such-command-here"], "log", ".", "the command no-such-command-here was not found"),
        (["/etc/hostname-none/x"], "log", ".", "was not found"),
        ([], "log", ".", "the command is empty"),
        ([os.devnull], "log", ".", "may not be executed"),
        (["true"], "log", "nowhere", "nowhere does not exist"),
        (["true"], "nowhere/log", ".", "cannot be written"),
    ],
)
def test_what_cannot_be_started_says_why(tmp_path: Path, argv: list[str], log: str, cwd: str, says: str) -> None:
    with pytest.raises(ServerStartError, match=says):
        ServerProcess.start(argv, os.environ, tmp_path / log, tmp_path / cwd, 1.0)


def test_a_port_that_is_held_names_its_holder() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        name = Path("/proc/self/comm").read_text().strip()
        assert not port_is_free("127.0.0.1", port)
        assert not port_is_free("0.0.0.0", port)
        for host in ("127.0.0.1", "localhost", "0.0.0.0", ""):
            assert holder_of_port(host, port) == PortHolder(os.getpid(), name)
        assert holder_of_port("127.0.0.77", port) is None
        assert pick_port("127.0.0.1", port) > port
    assert port_is_free("127.0.0.1", port)
    assert holder_of_port("127.0.0.1", port) is None


def test_a_port_shared_with_reuseport_is_not_free() -> None:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("0.0.0.0", 0))
        held.listen()
        port = held.getsockname()[1]
        assert not port_is_free("127.0.0.1", port)
        assert holder_of_port("127.0.0.1", port) is not None


def test_no_free_port_says_which_were_tried() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"no port from {port} to {port} is free"):
            pick_port("127.0.0.1", port, tries=1)


def test_shared_memory_is_unlinked_after_a_kill(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time; from multiprocessing.shared_memory import SharedMemory\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(SharedMemory(create=True, size=4096).name, flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"
    server = ServerProcess.start([sys.executable, "-c", script], os.environ, log, tmp_path, 0.1)
    name = wait_until(lambda: log.read_text().partition("\n")[0])
    assert Path("/dev/shm", name).exists()
    assert server.stop(0.1) == ()
    assert server.poll() == -signal.SIGKILL
    assert not Path("/dev/shm", name).exists()
