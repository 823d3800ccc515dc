"""How requests arrive: open loop at a rate, closed loop with a number of streams, or at the moments of a trace.

It draws moments and no lengths (`workload` does).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MOST_RPS = 100_000


class WorkloadError(ValueError):
    """A length or load that does not parse; the message names the part and the form."""


class Arrival(StrEnum):
    """The gaps between arrivals at a rate of 1."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Ramp:
    """The rate goes from the load's to `to_rps` over the whole episode, linearly or exponentially."""

    to_rps: float
    exponential: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """One of three: open loop at `rate_rps`, closed loop with `concurrency` streams, or a trace's moments at `speed`.

    `burstiness` is that of gamma arrivals as in vLLM: gaps ~ Gamma(burstiness, 1 / (rate * burstiness)).
    """

    rate_rps: float | None = None
    concurrency: int | None = None
    speed: float | None = None
    arrival: Arrival = Arrival.POISSON
    burstiness: float = 1.0
    ramp: Ramp | None = None

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.rate_rps, self.concurrency, self.speed)) != 1:
            raise WorkloadError("give either a request rate or a concurrency, not both")
        for rate in (self.rate_rps, self.ramp.to_rps if self.ramp else None):
            if rate is not None and not 0 < rate <= MOST_RPS:
                raise WorkloadError(f"cannot send {rate:g} requests/s: the rate must be above 0 and at most {MOST_RPS}")
        if self.concurrency is not None and not 0 < self.concurrency <= 100_000:
            raise WorkloadError(f"cannot keep {self.concurrency} streams: the concurrency must be 1 or more")
        if self.speed is not None and not 0 < self.speed <= 1_000_000:
            raise WorkloadError(f"cannot replay at a speed of {self.speed:g}: it must be above 0, and 1 is as recorded")
        if not 0.001 <= self.burstiness <= 1_000_000:
            raise WorkloadError(f"cannot use a burstiness of {self.burstiness:g}: it must be above 0, and 1 is Poisson")
        if self.rate_rps is None and (self.ramp is not None or self.arrival is not Arrival.POISSON):
            raise WorkloadError("arrivals and ramps need a request rate: give --rate or --ramp FROM:TO")

    @property
    def open_loop(self) -> bool:
        return self.concurrency is None

    def mean_rps(self, trace_rps: float | None = None) -> float | None:
        """Requests per second over the episode; None in a closed loop. `trace_rps` is that of the trace replayed."""
        if self.speed is not None:
            return None if trace_rps is None else trace_rps * self.speed
        if self.rate_rps is None or self.ramp is None:
            return self.rate_rps
        low, high = self.rate_rps, self.ramp.to_rps
        if not self.ramp.exponential or low == high:
            return (low + high) / 2
        return (high - low) / math.log(high / low)

    def arrivals_s(self, rng: np.random.Generator, size: int) -> Array:
        """Offsets of `size` arrivals in seconds, rising, shape (size,), of a load with a rate.

        Gaps of mean 1 are drawn first and then stretched, so that episodes at two rates differ in scale alone.
        """
        import numpy as np  # here, not above: the first paint must not wait for it

        assert self.rate_rps is not None
        match self.arrival:
            case Arrival.POISSON:
                gaps = rng.exponential(1.0, size)
            case Arrival.GAMMA:
                gaps = rng.gamma(self.burstiness, 1 / self.burstiness, size)
            case Arrival.CONSTANT:
                gaps = np.ones(size)
        return self._at_the_rate(np.cumsum(gaps), size)

    def _at_the_rate(self, units: Array, size: int) -> Array:
        """Moments at which the integral of the rate reaches `units`."""
        import numpy as np

        low = self.rate_rps
        assert low is not None
        high = low if self.ramp is None else self.ramp.to_rps
        if low == high or self.ramp is None:
            return units / low
        mean = self.mean_rps()
        assert mean is not None
        duration_s = size / mean
        # Beyond its end (the drawn gaps can sum to more than `size`) the ramp stays at its last rate.
        within, beyond_s = np.minimum(units, size), np.maximum(units - size, 0.0) / high
        if self.ramp.exponential:
            growth = math.log(high / low)
            return duration_s / growth * np.log1p(within * growth / (low * duration_s)) + beyond_s
        slope = (high - low) / duration_s
        # The root of slope/2 t^2 + low t = units that stays exact where the slope is small.
        return 2 * within / (low + np.sqrt(low * low + 2 * slope * within)) + beyond_s

    def stepped(self, direction: int) -> Load:
        """The load one key press up or down: about 10 %, on round figures."""
        if self.rate_rps is not None:
            size = max(_round_step(self.rate_rps / 8), 0.01)
            return replace(self, rate_rps=round(max(self.rate_rps + direction * size, size), 6))
        if self.speed is not None:
            size = max(_round_step(self.speed / 8), 0.01)
            return replace(self, speed=round(max(self.speed + direction * size, size), 6))
        assert self.concurrency is not None
        size_n = max(1, round(self.concurrency / 8))
        return replace(self, concurrency=max(1, self.concurrency + direction * size_n))

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} stream{'s' if self.concurrency > 1 else ''} closed loop"
        if self.speed is not None:
            return f"trace x{self.speed:g}"
        arrival = f"gamma {self.burstiness:g}" if self.arrival is Arrival.GAMMA else self.arrival.value
        if self.ramp is not None:
            return f"{self.rate_rps:g} to {self.ramp.to_rps:g} rps {arrival}"
        return f"{float(f'{self.rate_rps:.4g}'):g} rps {arrival}"


def parse_ramp(text: str) -> tuple[float, Ramp]:
    """Read `2:20` or `2:20:exponential`: the first rate, and the ramp. Raises WorkloadError with the form."""
    first, _, rest = text.partition(":")
    last, colon, shape = rest.partition(":")
    try:
        rates = float(first), float(last)
    except ValueError:
        rates = math.nan, math.nan
    if not all(map(math.isfinite, rates)) or (colon and shape not in ("linear", "exponential")):
        raise WorkloadError(
            f"cannot read the ramp {text!r}: write FROM:TO in requests/s, e.g. 2:20 or 2:20:exponential"
        )
    return rates[0], Ramp(rates[1], shape == "exponential")


def _round_step(most: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is at most `most`."""
    power = 10.0 ** math.floor(math.log10(most) + 1e-9)
    return max(m * power for m in (1, 2, 5) if m * power <= most * (1 + 1e-9))
