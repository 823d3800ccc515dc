"""A timer that is closer than the event loop's own, whose moments are whole milliseconds.

It knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

EARLY_S = 0.0012  # the loop's timers round to a millisecond: wake before, then look again
SLICE_S = 0.0001  # sleeping this long between looks costs little CPU and stamps no arrival later than that


class Alarm:
    """One call at one moment of `time.monotonic()`; setting it anew replaces the former."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._handle: asyncio.Handle | None = None
        self._due_s = 0.0

    def set(self, due_s: float) -> None:
        """Call at `due_s`, a fraction of a millisecond late at most where the machine is free."""
        self.cancel()
        self._due_s = due_s
        self._arm(due_s - time.monotonic())

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

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
