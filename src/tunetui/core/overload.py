"""Overload under an open loop: requests wait for their first token, and first tokens come too slowly to catch up.

It judges no latency against an objective, and has nothing to say of a closed loop, which cannot be overloaded.
"""

from __future__ import annotations

import math

LOW = 1 / 1.5  # first tokens per arrival at a load of 1.5 times capacity
SLIGHT = 0.9  # ... and at 1.1 times
STABLE = 1 / 0.9  # ... that a server at utilization 0.9 would give while requests wait
# Natural log of the likelihood ratio from the start on: wrong less than once in e^4 = 55 points, in simulated queues at
# utilization 0.9 in 2 of 500, for it counts only while more wait than on average.
START_BAR = 4.0
LATER_BAR = 9.0  # ... from any later moment on; it rises with the arrivals, for every moment is another chance to err
LATER_RISE = 2.0
LATER_SCALE = 100  # arrivals
LARGEST_GAP = 3.0  # the most that one pause between first tokens can add: a single long prefill is not an overload
LARGEST_START_GAP = 2.8  # ... to the evidence from the start
WINDOW = 32.0  # arrivals' worth of time over which first tokens are counted to see how unevenly they come
FILLING = 2.0  # an engine takes this many TTFTs (mean + standard deviation) to fill; before, few tokens are no sign
FILLING_TOKENS = 5  # ... of at least this many requests
WINDOWS_ASSUMED = 4  # windows of Poisson evenness assumed before any is seen


class OverloadAlarm:
    """Watches one point under one load and says, once and for good, that waiting grows without bound.

    The rate of arrivals is known, so only the rate of first tokens is in question: while more requests wait than on
    average, does it look like LOW (or SLIGHT) or like STABLE times the arrivals? The Poisson log likelihood ratio is
    kept from the start of the point (Wald's sequential test, for a load that was too much all along) and, against a
    higher bar, from the best moment since (Page's CUSUM 1954, for one that became so). Either is divided by the index
    of dispersion of the first tokens, for they come in clumps.

    More than on average: an engine holds some requests in prefill at any load, and these are no queue. In a stable
    queue the number waiting keeps falling below its average; under overload it stays at twice the average.

    Memory is flat. A point that has changed, or a load that has, needs a new alarm.
    """

    def __init__(self, rate_rps: float) -> None:
        """`rate_rps`: offered requests per second as planned, above 0; it may be set anew along a ramp.

        Raises ValueError for a rate that is not above 0.
        """
        if not rate_rps > 0:
            raise ValueError(f"an overload needs arrivals: the rate must be above 0, not {rate_rps}")
        self.rate_rps = rate_rps
        self.waiting = 0
        self.alarm = ""
        self._arrivals = 0
        self._began_s = self._last_s = 0.0
        self._waited = 0.0  # request seconds
        self._filled = False
        self._answers = (0, 0.0, 0.0)  # first tokens, sum of their TTFTs and of the squares, until the engine is full
        self._from_start = 0.0
        self._low = _Cusum(LOW)
        self._slight = _Cusum(SLIGHT)
        self._gap = 0.0  # what the present pause has added to `_from_start`
        self._spread = _Dispersion()
        self._stretch_s = 0.0  # since fewer waited than on average
        self._tokens = (0, 0.0)  # first tokens in it, and its length at the last of them

    def arrived(self, time_s: float) -> None:
        """A request was scheduled to leave at `time_s` (monotonic seconds; events in the order of their times)."""
        if not self._arrivals:
            self._began_s = self._last_s = time_s
        self._advance(time_s)
        self._arrivals += 1
        self.waiting += 1
        self._decide()

    def first_token(self, time_s: float, ttft_s: float) -> None:
        """A request got its first token at `time_s`, `ttft_s` after it was scheduled to leave."""
        backed_up = self._advance(time_s)
        self.waiting -= 1
        if not self._filled:
            self._fill(ttft_s)
        if backed_up:
            self._gap = 0.0
            self._from_start += math.log(LOW / STABLE)
            self._low.token()
            self._slight.token()
            self._spread.tokens += 1
            self._tokens = (self._tokens[0] + 1, self._stretch_s)
            self._decide()

    def gone(self, time_s: float) -> None:
        """A request ended without a first token (failed, timed out, cancelled): it waits no more, unserved."""
        self._advance(time_s)
        self.waiting -= 1

    def _advance(self, time_s: float) -> bool:
        """Let time pass; returns whether first tokens count now, because more wait than on average."""
        passed_s = max(time_s - self._last_s, 0.0)
        self._last_s += passed_s
        self._waited += self.waiting * passed_s
        elapsed_s = self._last_s - self._began_s
        if not self._filled or self.waiting < 2 or self.waiting * elapsed_s <= self._waited:
            self._low.reset()
            self._slight.reset()
            self._spread.reset()
            self._gap = self._stretch_s = 0.0
            self._tokens = (0, 0.0)
            return False
        arrivals = passed_s * self.rate_rps
        added = min((STABLE - LOW) * arrivals, LARGEST_START_GAP - self._gap)
        self._gap += added
        self._from_start += added
        self._low.wait(arrivals)
        self._slight.wait(arrivals)
        self._spread.wait(arrivals)
        self._stretch_s += passed_s
        return True

    def _fill(self, ttft_s: float) -> None:
        count, total_s, squares = self._answers
        self._answers = count, total_s, squares = count + 1, total_s + ttft_s, squares + ttft_s**2
        mean_s = total_s / count
        deviation_s = math.sqrt(max(squares / count - mean_s**2, 0.0))
        elapsed_s = self._last_s - self._began_s
        self._filled = count >= FILLING_TOKENS and elapsed_s >= FILLING * (mean_s + deviation_s)

    def _decide(self) -> None:
        if self.alarm:
            return
        later_bar = LATER_BAR + LATER_RISE * math.log1p(self._arrivals / LATER_SCALE)
        latest = max(self._low.evidence, self._slight.evidence)
        if max(self._from_start / START_BAR, latest / later_bar) >= self._spread.index:
            tokens, seconds = self._tokens
            self.alarm = (
                f"overloaded: {self.waiting} requests wait for their first token, "
                f"{tokens / seconds if seconds else 0.0:.3g} a second get it and {self.rate_rps:.3g} arrive"
            )


class _Cusum:
    """Log likelihood ratio of `share` first tokens an arrival against STABLE, from its lowest point on; 0 or more."""

    __slots__ = ("_gap", "_step", "_weight", "evidence")

    def __init__(self, share: float) -> None:
        self._weight = STABLE - share
        self._step = math.log(share / STABLE)
        self.evidence = self._gap = 0.0

    def wait(self, arrivals: float) -> None:
        added = min(self._weight * arrivals, LARGEST_GAP - self._gap)
        self._gap += added
        self.evidence += added

    def token(self) -> None:
        self._gap = 0.0
        self.evidence = max(self.evidence + self._step, 0.0)

    def reset(self) -> None:
        self.evidence = self._gap = 0.0


class _Dispersion:
    """The index of dispersion (variance over mean) of the first tokens in windows of equal length; 1 for Poisson."""

    __slots__ = ("_count", "_passed", "_squares", "_total", "index", "tokens")

    def __init__(self) -> None:
        self.index = 1.0
        self._count = 0
        self._total = self._squares = 0.0
        self.reset()

    def wait(self, arrivals: float) -> None:
        self._passed += arrivals
        if self._passed < WINDOW:
            return
        self._count += 1
        self._total += self.tokens
        self._squares += self.tokens**2
        self.reset()
        if self._count > 1 and self._total:
            mean = self._total / self._count
            seen = (self._squares - self._total * mean) / (self._count - 1) / mean
            weighed = (WINDOWS_ASSUMED + self._count * seen) / (WINDOWS_ASSUMED + self._count)
            self.index = max(weighed, 1.0)

    def reset(self) -> None:
        self._passed, self.tokens = 0.0, 0
