"""A timer that is closer than the event loop's own, whose moments are whole milliseconds.

It knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from collections.abc import Callable

EARLY_S = 0.0012  # the loop's timers round to a millisecond: wake before, then look again
SLICE_S = 0.0001  # sleeping this long between looks costs little CPU and stamps no arrival later than that
CLOCK_MONOTONIC, ABSOLUTE = 1, 1  # of Linux's timerfd_create(2) and timerfd_settime(2)


class Alarm:
    """One call at one moment of `time.monotonic()`; setting it anew replaces the former.

    On Linux the kernel wakes the loop at that moment, through a timer that is a file; elsewhere the loop's own timer
    comes early, and the rest is waited for in slices.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._handle: asyncio.Handle | None = None
        self._due_s = 0.0
        self._timer = KernelTimer.made()
        if self._timer is not None:
            self._loop.add_reader(self._timer.fd, self._ring)

    def set(self, due_s: float) -> None:
        """Call at `due_s`, a fraction of a millisecond late at most where the machine is free."""
        if self._timer is not None:
            self._timer.set(due_s)
            return
        self.cancel()
        self._due_s = due_s
        self._arm(due_s - time.monotonic())

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        assert self._timer is not None
        if self._timer.rang():
            self._call()

    def _look(self) -> None:
        remaining_s = self._due_s - time.monotonic()
        if remaining_s <= 0:
            self._handle = None
            self._call()
        else:
            if remaining_s <= 2 * EARLY_S:
                time.sleep(min(remaining_s, SLICE_S))
            self._arm(remaining_s)

    def _arm(self, remaining_s: float) -> None:
        if remaining_s > 2 * EARLY_S:
            self._handle = self._loop.call_later(remaining_s - EARLY_S, self._look)
        else:
            self._handle = self._loop.call_soon(self._look)


class _Moment(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("it_interval", _Moment), ("it_value", _Moment))


class KernelTimer:
    """A Linux timer whose file `fd` becomes readable when it rings (Python has it itself from 3.13 on)."""

    def __init__(self, library: ctypes.CDLL, fd: int) -> None:
        self._settime = library.timerfd_settime
        self._setting = _Setting()
        self._reference = ctypes.byref(self._setting)
        self._is_set = False
        self.fd = fd

    @classmethod
    def made(cls) -> KernelTimer | None:
        """A new timer, or None where the system has none."""
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            fd = library.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            return cls(library, fd) if fd >= 0 else None
        return None

    def set(self, due_s: float) -> None:
        """Ring at `due_s` of `time.monotonic()`, at once where that has passed."""
        self._put(max(int(due_s * 1e9), 1))

    def cancel(self) -> None:
        if self._is_set:
            self._put(0)

    def rang(self) -> bool:
        """Whether it has; it must be set again to ring once more."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:  # it was set anew or cancelled after the loop had seen it ring
            return False
        self._is_set = False
        return True

    def _put(self, moment_ns: int) -> None:
        value = self._setting.it_value
        value.tv_sec, value.tv_nsec = divmod(moment_ns, 1_000_000_000)
        self._settime(self.fd, ABSOLUTE, self._reference, None)
        self._is_set = bool(moment_ns)
