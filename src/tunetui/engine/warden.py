"""The warden: a small parent of the server that outlives tunetui, to leave no process and no card behind.

It refuses everything else: standard library only, no import of ours, no reading of the log, no judgement of the exit.

It runs as a script of its own session. Standard input brings one JSON line with the job,
`{"argv": [...], "env": {...}, "cwd": "...", "log": "path", "grace_s": 10}`, then commands, one JSON line each:
`{"op": "stop", "grace_s": 10}` or `{"op": "detach"}`. End of input means that tunetui is gone, by whatever signal, and
is a stop. Standard output carries `started` (pid), `failed` (reason), `exited` (code, negative for a signal) and `gone`
(left: the pids that are still alive). vLLM's engine core and workers outlive its API server, so an exit of the server
is followed by the same cleanup as a stop.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

PR_SET_CHILD_SUBREAPER = 36
TICK_S = 0.05
LEFTOVER_GRACE_S = 2.0
"""What outlives the server gets this long between TERM and KILL, or the grace of the stop where that is shorter."""
TRACKER_GRACE_S = 3.0
KILL_WAIT_S = 15.0
"""A killed process that is freeing a card can take seconds to disappear; after this it is reported as left."""


@dataclass(frozen=True)
class Proc:
    """One row of the process table. `born` is the start time in clock ticks since boot: with the pid, an identity."""

    pid: int
    ppid: int
    pgrp: int
    session: int
    state: str
    born: int


def read_proc(pid: int) -> Proc | None:
    """The row of one process, or None when there is none (or no /proc). Source: proc(5), /proc/PID/stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
        fields = text[text.rindex(b")") + 2 :].split()
        return Proc(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0].decode("ascii"), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def process_table() -> list[Proc]:
    """Every process that can be seen, zombies included; empty where there is no /proc."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    return [row for row in (read_proc(int(name)) for name in names if name.isdigit()) if row is not None]


def family(table: Iterable[Proc], roots: set[int], group: int | None) -> list[Proc]:
    """What lives (no zombies) below `roots`, in the process group or session `group`, or below any of those."""
    rows = list(table)
    inside = {row.pid for row in rows if group is not None and group in (row.pgrp, row.session)}
    frontier = roots | inside
    while frontier:
        frontier = {row.pid for row in rows if row.ppid in frontier} - inside
        inside |= frontier
    return [row for row in rows if row.pid in inside and row.state not in "ZX" and row.pid != os.getpid()]


def send(pid: int, number: int) -> None:
    """Signal one process; that it is already gone, or is not ours, is not an error."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def send_group(group: int, number: int) -> None:
    """Signal a whole process group; that it is already empty is not an error."""
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def is_resource_tracker(pid: int) -> bool:
    """Whether this is Python's own tracker, which unlinks shared memory and semaphores when its users are gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read(4096)
    except OSError:
        return False


def kill_all(find: Callable[[], list[Proc]], group: int, wait_s: float, tick: Callable[[], object]) -> list[int]:
    """KILL what `find` still finds, again and again as it may spawn, until nothing is left or `wait_s` has passed.

    Resource trackers come last: killed with the rest they would leave vLLM's shared memory in /dev/shm.
    """
    if not process_table():  # no /proc: the group is all that can be reached
        send_group(group, signal.SIGKILL)
    deadline_s = time.monotonic() + wait_s
    trackers_due_s = deadline_s
    while True:
        alive = find()
        others = [row for row in alive if not is_resource_tracker(row.pid)]
        now_s = time.monotonic()
        if not others:
            trackers_due_s = min(trackers_due_s, now_s + TRACKER_GRACE_S)
        for row in alive if now_s >= trackers_due_s else others:
            send(row.pid, signal.SIGKILL)
        if not alive or now_s >= deadline_s:
            return [row.pid for row in alive]
        tick()


class Warden:
    """One server, from its start to the moment when nothing of it is left."""

    def __init__(self) -> None:
        self.server_pid = 0
        self.exit_code: int | None = None
        self.grace_s = 10.0
        self.stop_at_s: float | None = None  # when KILL is due; None: no stop was asked for
        self.detached = False
        self.input_open = True
        self.buffer = b""
        self.wake_fd = -1

    def listen(self) -> None:
        """Own session, adopter of orphans, deaf to the terminal; SIGTERM is a stop, SIGCHLD ends a wait."""
        with contextlib.suppress(OSError):
            os.setsid()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.wake_fd, write_fd = os.pipe()
        for fd in (self.wake_fd, write_fd):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: an ignored signal would stay ignored in the server after its exec.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.ask_stop(self.grace_s))

    def say(self, **event: object) -> None:
        """One line to tunetui, which may be gone."""
        with contextlib.suppress(OSError):
            os.write(1, json.dumps(event).encode() + b"\n")

    def ask_stop(self, grace_s: float) -> None:
        """Begin a stop, or shorten the one under way."""
        kill_at_s = time.monotonic() + max(0.0, grace_s)
        if self.stop_at_s is None:
            self.stop_at_s = kill_at_s
            if self.server_pid:
                send_group(self.server_pid, signal.SIGTERM)
        else:
            self.stop_at_s = min(self.stop_at_s, kill_at_s)

    def read_lines(self, wait_s: float) -> list[bytes]:
        """Whole lines from tunetui, after at most `wait_s` seconds; end of input asks for a stop."""
        fds = [self.wake_fd, 0] if self.input_open else [self.wake_fd]
        ready = select.select(fds, [], [], wait_s)[0]
        if self.wake_fd in ready:
            with contextlib.suppress(OSError):
                os.read(self.wake_fd, 4096)
        if 0 in ready:
            try:
                chunk = os.read(0, 1 << 20)
            except OSError:
                chunk = b""
            self.buffer += chunk
            if not chunk:
                self.input_open = False
                if not self.detached:
                    self.ask_stop(self.grace_s)
        *lines, self.buffer = self.buffer.split(b"\n")
        return lines

    def obey(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            try:
                command = json.loads(line)
                if command["op"] == "stop":
                    self.ask_stop(float(command.get("grace_s", self.grace_s)))
                elif command["op"] == "detach" and self.stop_at_s is None:
                    self.detached = True
            except (ValueError, KeyError, TypeError):
                continue

    def reap(self) -> None:
        """Collect dead children. The server itself stays a zombie to the end, so that its pid cannot be reused."""
        while self.exit_code is None:
            try:
                status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if status is None:
                    return
                if status.si_pid != self.server_pid:
                    os.waitpid(status.si_pid, os.WNOHANG)
                    continue
            except OSError:
                return
            killed = status.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            self.exit_code = -status.si_status if killed else status.si_status
            self.say(event="exited", code=self.exit_code)
        for row in process_table():
            if row.ppid == os.getpid() and row.state == "Z" and row.pid != self.server_pid:
                with contextlib.suppress(OSError):
                    os.waitpid(row.pid, os.WNOHANG)

    def tick(self) -> None:
        self.obey(self.read_lines(TICK_S))
        self.reap()

    def alive(self) -> list[Proc]:
        return family(process_table(), {os.getpid()}, self.server_pid)

    def launch(self, job: dict[str, object]) -> str | None:
        """Start the server; returns the reason when it could not be started."""
        argv = [str(part) for part in job["argv"]]  # type: ignore[attr-defined]
        try:
            log_fd = os.open(str(job["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.fchmod(log_fd, 0o600)
        except OSError as error:
            return f"the log {job['log']} cannot be written: {error.strerror}"
        try:
            process = subprocess.Popen(
                argv,
                env=job["env"],
                cwd=str(job["cwd"]),
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                start_new_session=True,
                close_fds=True,
            )  # type: ignore[call-overload]
        except (OSError, ValueError, IndexError, TypeError) as error:
            return _why_not(argv, str(job["cwd"]), error)
        finally:
            os.close(log_fd)
        self.server_pid = process.pid
        process.returncode = 0  # this object is done: the warden waits for the pid itself
        self.say(event="started", pid=self.server_pid)
        return None

    def clean_up(self) -> list[int]:
        """TERM was sent or the server has exited: wait, then KILL, and return the pids that would not go."""
        leftover_at_s: float | None = None
        while True:
            self.tick()
            alive = self.alive()
            if not alive:
                return []
            now_s = time.monotonic()
            if self.exit_code is not None and leftover_at_s is None:
                for row in alive:
                    send(row.pid, signal.SIGTERM)
                leftover_at_s = now_s + min(LEFTOVER_GRACE_S, self.grace_s)
            if any(due_s is not None and now_s >= due_s for due_s in (self.stop_at_s, leftover_at_s)):
                return kill_all(self.alive, self.server_pid, KILL_WAIT_S, self.tick)

    def run(self) -> int:
        """The whole life; returns the exit status of the warden."""
        self.listen()
        lines: list[bytes] = []
        while not lines:
            if not self.input_open or self.stop_at_s is not None:
                return 1
            lines = self.read_lines(60.0)
        try:
            job = json.loads(lines[0])
            self.grace_s = float(job["grace_s"])
            reason = self.launch(job)
        except (ValueError, KeyError, TypeError) as error:
            reason = f"the job cannot be read: {error!r}"
        if reason is not None:
            self.say(event="failed", reason=reason)
            return 1
        if self.stop_at_s is not None:  # asked for while the server was being started
            send_group(self.server_pid, signal.SIGTERM)
        self.obey(lines[1:])
        while self.exit_code is None and self.stop_at_s is None:
            if self.detached:
                return 0
            self.obey(self.read_lines(60.0))
            self.reap()
        left = self.clean_up()
        self.reap()  # the exit code of a server that was killed last
        self.say(event="gone", left=left)
        return 0


def _why_not(argv: list[str], cwd: str, error: Exception) -> str:
    """One sentence for a command that did not start."""
    name = argv[0] if argv else ""
    if not name:
        return "the command is empty"
    if not os.path.isdir(cwd):
        return f"the working directory {cwd} does not exist"
    if isinstance(error, FileNotFoundError):
        return f"the command {name} was not found"
    if isinstance(error, PermissionError):
        return f"the command {name} may not be executed"
    return f"the command {name} did not start: {error}"


if __name__ == "__main__":
    raise SystemExit(Warden().run())
