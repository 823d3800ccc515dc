"""The requests of one episode as numpy columns, filled as they come in, and their latencies as arrays.

It judges nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunetui.core.sample import Outcome, Sample
from tunetui.core.slo import Metric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Seconds = NDArray[np.float64]
    Mask = NDArray[np.bool_]

OPEN, OK, FAILED, CANCELLED = range(4)  # of `outcome`; OPEN: it has not ended
_CODES = {Outcome.OK: OK, Outcome.FAILED: FAILED, Outcome.CANCELLED: CANCELLED}


class Requests:
    """`size` requests, one entry each in arrays of shape (size,); moments in seconds, NaN where they have not come."""

    def __init__(self, size: int) -> None:
        import numpy as np  # here, not above: the first paint must not wait for it

        def unknown() -> Seconds:
            return np.full(size, np.nan)

        def zeros() -> NDArray[np.int64]:
            return np.zeros(size, dtype=np.int64)

        self.scheduled_s, self.sent_s, self.first_s, self.last_s, self.ended_s = (unknown() for _ in range(5))
        self.prompt_tokens, self.output_tokens, self.retries = zeros(), zeros(), zeros()
        self.outcome: NDArray[np.int8] = np.zeros(size, dtype=np.int8)
        self.ended = 0
        self.errors: dict[int, str] = {}  # of those that failed

    @property
    def known(self) -> int:
        """How many are known to have been scheduled, from the first on."""
        import numpy as np

        return int((~np.isnan(self.scheduled_s)).sum())

    def sent(self, index: int, scheduled_s: float) -> None:
        self.scheduled_s[index] = scheduled_s

    def first_token(self, index: int, first_s: float) -> None:
        self.first_s[index] = first_s

    def add(self, sample: Sample) -> None:
        """A request that ended; its other moments come with it."""
        i = sample.index
        if not self.outcome[i]:
            self.ended += 1
        self.scheduled_s[i] = sample.scheduled_s
        self.sent_s[i] = _nan(sample.sent_s)
        self.first_s[i] = _nan(sample.first_s)
        self.last_s[i] = _nan(sample.last_s)
        self.ended_s[i] = sample.ended_s
        self.prompt_tokens[i] = sample.prompt_tokens
        self.output_tokens[i] = sample.output_tokens
        self.retries[i] = sample.retries
        self.outcome[i] = _CODES[sample.outcome]
        if sample.outcome is Outcome.FAILED:
            self.errors[i] = sample.error

    def ttft_s(self, rows: slice) -> Seconds:
        return self.first_s[rows] - self.scheduled_s[rows]

    def ttft_from_send_s(self, rows: slice) -> Seconds:
        return self.first_s[rows] - self.sent_s[rows]

    def lateness_s(self, rows: slice) -> Seconds:
        return self.sent_s[rows] - self.scheduled_s[rows]

    def tpot_s(self, rows: slice) -> Seconds:
        """NaN for answers of fewer than two tokens."""
        import numpy as np

        tokens = self.output_tokens[rows]
        spread: Seconds = self.last_s[rows] - self.first_s[rows]
        return np.where(tokens >= 2, spread / np.maximum(tokens - 1, 1), np.nan)

    def e2el_s(self, rows: slice) -> Seconds:
        return self.last_s[rows] - self.scheduled_s[rows]

    def value_s(self, metric: Metric, rows: slice) -> Seconds:
        """The latency that an objective of `metric` bounds."""
        of: dict[Metric, Any] = {Metric.TTFT: self.ttft_s, Metric.TPOT: self.tpot_s, Metric.E2EL: self.e2el_s}
        values: Seconds = of[metric](rows)
        return values

    def met(self, metric: Metric, limit_s: float, rows: slice) -> Mask:
        """Which requests have ended well and met the objective, or have none (the TPOT of a one-token answer)."""
        within: Mask = self.value_s(metric, rows) <= limit_s  # False for NaN
        if metric is Metric.TPOT:
            within |= self.output_tokens[rows] == 1
        within &= self.outcome[rows] == OK
        return within

    def is_over(self, limit_s: float, now_s: float, rows: slice) -> Mask:
        """Which requests waited for their first token longer than `limit_s`: until now, or until they ended without."""
        import numpy as np

        first_s, ended_s = self.first_s[rows], self.ended_s[rows]
        until_s = np.where(np.isnan(first_s), np.where(np.isnan(ended_s), now_s, ended_s), first_s)
        waited_s = until_s - self.scheduled_s[rows]
        over: Mask = waited_s > limit_s  # False for what has not been sent
        return over


def _nan(moment_s: float | None) -> float:
    return float("nan") if moment_s is None else moment_s
