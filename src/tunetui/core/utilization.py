"""How busy an engine was, from its running requests and its KV cache, as the general statement needs it.

It reads no metrics (`engine` does).
"""

from __future__ import annotations


class Utilization:
    """The mean share in use of what is used most: KV cache, or the most requests that were seen running at a time.

    The most that was seen is at most what the engine can run. So the share is rather too high than too low, and what is
    said on it rather too careful: an engine that slows down long before its slots are full counts as busy, too.
    """

    def __init__(self) -> None:
        self._looks = 0
        self._running = 0.0
        self._most_running = 0.0
        self._kv_usage = 0.0

    def add(self, running: float, kv_usage: float | None) -> None:
        """One look, at regular times: requests running, and the share of KV blocks in use."""
        self._looks += 1
        self._running += running
        self._most_running = max(self._most_running, running)
        self._kv_usage += kv_usage or 0.0

    @property
    def mean(self) -> float | None:
        """0 to 1; None before anything was seen to run."""
        if not self._most_running:
            return None
        return max(self._running / self._most_running, self._kv_usage) / self._looks
