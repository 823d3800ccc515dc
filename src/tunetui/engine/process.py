"""The server as a process, seen from tunetui: started, watched, stopped or left running, through its warden.

It knows nothing of vLLM: no flags, no log lines, no HTTP. Nothing here needs an event loop, so that the server can be
stopped after the loop has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunetui.engine import warden

START_TIMEOUT_S = 20.0
EXIT_UNKNOWN = 256
"""`poll()` when the server is gone and its warden was killed, so that nobody saw the exit code."""
TOKEN_NAME = "TUNETUI_SERVER_TOKEN"
"""Marks the server's environment, so that its descendants are found even when their parents and the warden are gone."""


class ServerStartError(Exception):
    """The server could not be started at all; the message is one sentence."""


class ServerProcess:
    """One server and its warden. Made by `start`; every method may be called from any thread, none needs a loop."""

    def __init__(self, process: subprocess.Popen[bytes], grace_s: float, token: str) -> None:
        self._process = process
        self._grace_s = grace_s
        self._token = token
        self._changed = threading.Condition()
        self._pid = 0
        self._born: int | None = None
        self._failure: str | None = None
        self._exit_code: int | None = None
        self._left: tuple[int, ...] | None = None
        self._warden_over = False
        self._detached = False
        self._reader = threading.Thread(target=self._read_events, name="warden-events", daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls, argv: Sequence[str], env: Mapping[str, str], log_path: Path, cwd: Path, grace_s: float = 10.0
    ) -> ServerProcess:
        """Start `argv` with exactly `env` in `cwd`, its output appended to `log_path` (mode 0600).

        `grace_s` is how long a stop waits between TERM and KILL, also the one after tunetui's own death.
        Raises ServerStartError when the command, the directory or the log is not to be had.
        """
        token = os.urandom(8).hex()
        script = str(Path(warden.__file__).resolve())
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={"PATH": os.defpath},
            cwd="/",
            close_fds=True,
            start_new_session=True,
        )
        server = cls(process, grace_s, token)
        log = str(Path(log_path).absolute())
        environment = {**env, TOKEN_NAME: token}
        server._send({"argv": list(argv), "env": environment, "cwd": str(cwd), "log": log, "grace_s": grace_s})
        server._wait_for_start()
        return server

    @property
    def pid(self) -> int:
        """The server's pid, which is also its process group."""
        return self._pid

    @property
    def gone(self) -> bool:
        """Whether nothing of the server is left: the exit, and the cleanup of what outlived it, are over."""
        with self._changed:
            return self._left == ()

    @property
    def left(self) -> tuple[int, ...]:
        """The pids that survived the cleanup, once it is over."""
        with self._changed:
            return self._left or ()

    def poll(self) -> int | None:
        """None while it runs, else its exit code: negative for a signal, EXIT_UNKNOWN when nobody saw it."""
        with self._changed:
            if self._exit_code is None and self._warden_over and not self._server_lives():
                self._exit_code = EXIT_UNKNOWN
            return self._exit_code

    def stop(self, grace_s: float | None = None) -> tuple[int, ...]:
        """Stop it and everything it started: TERM, at most `grace_s` seconds, KILL. Blocks; returns the pids left.

        A second call, from another thread, with a smaller grace shortens the first. When the warden does not answer or
        was killed, the same is done from here.
        """
        if self._detached:
            return self.left
        grace_s = self._grace_s if grace_s is None else grace_s
        self._send({"op": "stop", "grace_s": grace_s})
        patience_s = grace_s + warden.LEFTOVER_GRACE_S + warden.KILL_WAIT_S + 5.0
        with self._changed:
            self._changed.wait_for(lambda: self._left is not None or self._warden_over, patience_s)
            if self._left is not None:
                return self._left
        with contextlib.suppress(OSError):
            self._process.kill()
        left = self._stop_without_warden(grace_s)
        with self._changed:
            self._left = left
        return left

    async def stop_async(self, grace_s: float | None = None) -> tuple[int, ...]:
        """`stop` in a thread, for callers that have an event loop."""
        return await asyncio.to_thread(self.stop, grace_s)

    def detach(self) -> None:
        """Leave the server running and let the warden go. Afterwards `stop` does nothing; `poll` still tells."""
        self._detached = True
        self._send({"op": "detach"})
        with self._changed:
            self._changed.wait_for(lambda: self._warden_over, 5.0)

    def _send(self, message: Mapping[str, object]) -> None:
        """One line to the warden; that it is gone shows at its output."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        stdin = self._process.stdin
        with contextlib.suppress(OSError, ValueError):
            while stdin is not None and data:
                data = data[stdin.write(data) or 0 :]

    def _wait_for_start(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._pid or self._failure or self._warden_over, START_TIMEOUT_S)
            if self._pid:
                return
        with contextlib.suppress(OSError):
            self._process.kill()
        raise ServerStartError(self._failure or "the warden process did not start the server")

    def _read_events(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        buffer = b""
        with contextlib.suppress(OSError, ValueError):
            while chunk := stdout.read(65536):
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    self._note(json.loads(line))
        self._process.wait()
        with self._changed:
            self._warden_over = True
            self._changed.notify_all()
        for pipe in (self._process.stdin, stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _note(self, event: dict[str, Any]) -> None:
        with self._changed:
            match event["event"]:
                case "started":
                    self._pid = int(event["pid"])
                    row = warden.read_proc(self._pid)
                    self._born = row.born if row else None
                case "failed":
                    self._failure = str(event["reason"])
                case "exited":
                    self._exit_code = int(event["code"])
                case "gone":
                    self._left = tuple(event["left"])
            self._changed.notify_all()

    def _server_lives(self) -> bool:
        row = warden.read_proc(self._pid)
        return row is not None and row.state not in "ZX" and row.born == self._born

    def _stop_without_warden(self, grace_s: float) -> tuple[int, ...]:
        if not self._pid:
            return ()
        self._signal_group(signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        while self._remains() and time.monotonic() < deadline_s:
            time.sleep(warden.TICK_S)
        left = warden.kill_all(self._remains, self._pid, warden.KILL_WAIT_S, lambda: time.sleep(warden.TICK_S))
        return tuple(left)

    def _signal_group(self, number: int) -> None:
        """To the group only while it is known to be ours: not when its pid now belongs to somebody else's process."""
        row = warden.read_proc(self._pid)
        if row is None or row.born == self._born:
            warden.send_group(self._pid, number)

    def _remains(self) -> list[warden.Proc]:
        """What is left of the server without a warden to adopt it: its group, its session, the token, all below."""
        table = warden.process_table()
        leader = next((row for row in table if row.pid == self._pid), None)
        group = self._pid if leader is None or leader.born == self._born else None
        marked = {row.pid for row in table if row.born >= (self._born or 0) and _has_token(row.pid, self._token)}
        below = warden.family(table, marked, group)
        return below + [row for row in table if row.pid in marked - {r.pid for r in below} and row.state not in "ZX"]


def _has_token(pid: int, token: str) -> bool:
    try:
        return f"{TOKEN_NAME}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class PortHolder:
    """Who listens on a port. `pid` is None when the process belongs to another user and cannot be seen."""

    pid: int | None
    name: str


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there. vLLM sets SO_REUSEPORT, so two would share a port without an error."""
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    for kind, _, _, _, address in addresses:
        try:
            with socket.socket(kind, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closed connection's port is free
                probe.bind(address)
        except OSError:
            return False
    return True


def pick_port(host: str, start: int, tries: int = 100) -> int:
    """The first free port from `start` on. Raises ServerStartError when `tries` in a row are taken."""
    for port in range(start, min(start + tries, 65536)):
        if port_is_free(host, port):
            return port
    raise ServerStartError(f"no port from {start} to {min(start + tries, 65536) - 1} is free on {host}")


def holder_of_port(host: str, port: int) -> PortHolder | None:
    """The process that listens on `port` at an address that clashes with `host`, or None. Source: proc(5), net/tcp."""
    wanted = _addresses_of(host)
    inodes = {inode for address, inode in _listeners(port) if not wanted or address in wanted or not any(address)}
    if not inodes:
        return None
    names = {f"socket:[{inode}]" for inode in inodes}
    for row in warden.process_table():
        if names & set(_open_links(row.pid)):
            with contextlib.suppress(OSError):
                return PortHolder(row.pid, Path(f"/proc/{row.pid}/comm").read_text(errors="replace").strip())
    return PortHolder(None, "a process of another user")


def _addresses_of(host: str) -> set[bytes]:
    """The host's addresses, IPv4 ones also as IPv6 has them; empty for a wildcard, which clashes with all."""
    found: set[bytes] = set()
    with contextlib.suppress(OSError):
        for kind, _, _, _, address in socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM):
            packed = socket.inet_pton(kind, str(address[0]).partition("%")[0])
            if not any(packed):
                return set()
            found |= {packed, bytes(10) + b"\xff\xff" + packed} if len(packed) == 4 else {packed}
    return found


def _listeners(port: int) -> Iterator[tuple[bytes, str]]:
    """Address and inode of each listening socket on the port."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                address, _, local_port = fields[1].partition(":")
                if fields[3] == "0A" and int(local_port, 16) == port:
                    words = bytes.fromhex(address)  # 32-bit words in the byte order of the machine
                    swap = sys.byteorder == "little"
                    yield (
                        b"".join(
                            words[at : at + 4][::-1] if swap else words[at : at + 4] for at in range(0, len(words), 4)
                        ),
                        fields[9],
                    )


def _open_links(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(entry.path)
