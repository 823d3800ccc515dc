"""One request as the load generator saw it: the four moments, and the latencies computed from them (MEASURES).

It holds no statistics over requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from tunetui.core.slo import Metric, Slo

ITL_BINS_PER_E = 100  # bins are 1 % wide
LEAST_ITL_S = 1e-6  # tokens of one packet


def itl_bin(gap_s: float) -> int:
    """The bin of an inter-token latency; `itl_of` gives it back to within half a percent."""
    return round(math.log(max(gap_s, LEAST_ITL_S)) * ITL_BINS_PER_E)


def itl_of(bin_number: int) -> float:
    """Seconds in the middle of a bin."""
    return math.exp(bin_number / ITL_BINS_PER_E)


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    FAILED = "failed"  # refused, error, timed out, truncated, dropped: it counts as bad
    CANCELLED = "cancelled"  # by tunetui itself: left out of every share, but counted openly


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times are seconds on the machine's monotonic clock; None where the moment never came.

    `scheduled_s` is when it should have left (closed loop: when it was sent), `sent_s` when its bytes went to the
    socket, `first_s` / `last_s` the arrival of the first / last chunk with a token.
    """

    episode: int
    index: int
    scheduled_s: float
    sent_s: float | None
    first_s: float | None
    last_s: float | None
    prompt_tokens: int
    output_tokens: int
    outcome: Outcome
    ended_s: float
    error: str = ""
    retries: int = 0
    itl_bins: tuple[tuple[int, int], ...] = ()  # inter-token latencies: bin and count, see `itl_bin`

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.scheduled_s

    @property
    def ttft_from_send_s(self) -> float | None:
        return None if self.first_s is None or self.sent_s is None else self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for answers of fewer than two tokens."""
        if self.first_s is None or self.last_s is None or self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1)

    @property
    def e2el_s(self) -> float | None:
        return None if self.last_s is None else self.last_s - self.scheduled_s

    @property
    def lateness_s(self) -> float | None:
        return None if self.sent_s is None else self.sent_s - self.scheduled_s

    def value(self, metric: Metric) -> float | None:
        """The latency that an objective of `metric` bounds, in seconds, or None where the request has none."""
        match metric:
            case Metric.TTFT:
                return self.ttft_s
            case Metric.TPOT:
                return self.tpot_s
            case Metric.E2EL:
                return self.e2el_s

    def meets(self, metric: Metric, limit_s: float) -> bool | None:
        """Whether the objective is met; None where it does not apply (the TPOT of a one-token answer)."""
        if self.outcome is not Outcome.OK:
            return False
        value = self.value(metric)
        if value is None:
            return None if metric is Metric.TPOT and self.output_tokens == 1 else False
        return value <= limit_s

    def good(self, slo: Slo) -> bool:
        """No error, and every objective that applies was met by this request."""
        return self.outcome is Outcome.OK and all(self.meets(o.metric, o.limit_s) is not False for o in slo.objectives)
