"""One episode as its requests come in: who met what, the exact curtailed verdict, and the figures shown beside it.

It plans nothing (`workload` does) and says nothing about load other than this episode's.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunetui.core.requests import CANCELLED, FAILED, OK, OPEN, Requests
from tunetui.core.sample import Outcome, Sample
from tunetui.core.slo import Metric, Slo, Verdict
from tunetui.core.workload import EpisodePlan

if TYPE_CHECKING:
    from tunetui.core.requests import Mask, Seconds

ON_THE_LINE = 0.01  # a share this close to the target is called ON THE LINE (MEASURES, Verdict on the episode)


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """One objective on one episode. `left` is the most requests that are still needed to decide."""

    metric: Metric
    limit_s: float
    verdict: Verdict
    met: int
    missed: int
    applies_to: int
    left: int
    share: float | None  # met, of those that are certain in the order of arrival; None where none is

    def is_on_the_line(self, percent: int) -> bool:
        """Whether the share of the whole episode is within a point of the target."""
        return self.left == 0 and self.share is not None and abs(self.share - percent / 100) <= ON_THE_LINE + 1e-9


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was seen of an episode. Latencies in seconds, at the SLO's percentile; None where nothing is known yet."""

    episode: int
    counted: int
    judged: int
    objectives: tuple[ObjectiveResult, ...]
    verdict: Verdict
    on_the_line: bool
    good: int
    attainment: float | None  # the share that met every objective, of those that ended, in the order of arrival
    ttft_s: float | None
    tpot_s: float | None
    ttft_from_send_s: float | None
    mean_e2el_s: float | None
    output_tokens_per_s: float
    requests_per_s: float
    goodput_rps: float
    goodput_tokens_per_s: float
    window_s: float
    failed: int
    cancelled: int
    one_token_answers: int
    lateness_p99_s: float | None
    suspect: str = ""
    overload: str = ""  # why waiting grows without bound: the verdict is FAIL then
    e2el_s: float | None = None

    @property
    def complete(self) -> bool:
        return self.judged >= self.counted


def curtailed(met: int, missed: int, total: int, share: float) -> tuple[Verdict, int]:
    """The verdict that the full episode will have whatever comes, or UNDECIDED, and how many more could be needed.

    PASS when at least `share * total` requests met the objective (MEASURES, Verdict on the episode).
    """
    needed = math.ceil(share * total - 1e-9)
    if met >= needed:
        return Verdict.PASS, 0
    if missed > total - needed:
        return Verdict.FAIL, 0
    return Verdict.UNDECIDED, total - met - missed


def percentile(values: Sequence[float] | Seconds, percent: float) -> float | None:
    """`numpy.percentile`, linear, of per-request values; those that are NaN do not count. None for none."""
    import numpy as np  # here, not above: the first paint must not wait for it

    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return float(np.percentile(known, percent)) if known.size else None


class Episode:
    """Gathers one episode's requests. Cut requests (the first turnover) are left out of everything but throughput.

    What it holds is fixed with the plan: a few numbers a request, and counts.
    """

    def __init__(self, number: int, plan: EpisodePlan, slo: Slo) -> None:
        self.number = number
        self.plan = plan
        self.requests = Requests(plan.size)
        self.counted = slice(plan.cut, plan.size)
        self.itl_bins: Counter[int] = Counter()
        self._slo = slo
        self._can_have_tpot = [tokens >= 2 for tokens in plan.output_tokens[self.counted]]
        self._cut_short = False
        self._window = _Window()
        self.window_start_s: float | None = None
        self.ended_s: float | None = None

    # -- what comes in --------------------------------------------------------------------------------------------

    def sent(self, index: int, scheduled_s: float) -> None:
        self.requests.sent(index, scheduled_s)
        if index >= self.plan.cut and self.window_start_s is None:
            self.window_start_s = scheduled_s

    def first_token(self, index: int, first_s: float) -> None:
        self.requests.first_token(index, first_s)

    def add(self, sample: Sample) -> None:
        self.sent(sample.index, sample.scheduled_s)
        self.requests.add(sample)
        if sample.index >= self.plan.cut and sample.outcome is Outcome.OK:
            for number, count in sample.itl_bins:
                self.itl_bins[number] += count
        if self.ended_s is None and self.requests.ended == self.plan.size:
            self.ended_s = float(self.requests.ended_s.max())

    def arrived(self, time_s: float, tokens: int) -> None:
        """Output tokens that arrived up to `time_s` since the call before, of any request."""
        if self._in_window(time_s):
            self._window.tokens += tokens

    def finished(self, sample: Sample) -> None:
        """A request of any episode ended: one that was answered counts for throughput in the window."""
        if sample.outcome is Outcome.OK and self._in_window(sample.ended_s):
            self._window.requests += 1
            if sample.good(self._slo):
                self._window.good += 1
                self._window.good_tokens += sample.output_tokens

    def _in_window(self, time_s: float) -> bool:
        start_s, end_s = self.window_start_s, self.ended_s
        return start_s is not None and start_s < time_s and (end_s is None or time_s <= end_s)

    def close_at(self, size: int, cut_short: bool = False) -> None:
        """No more than the first `size` requests were sent: only these are judged. `cut_short`: those of them that were
        cancelled would have gone on, so they can still decide."""
        self._cut_short = cut_short
        size = max(min(size, self.plan.size), self.plan.cut)
        self.plan = replace(self.plan, counted=size - self.plan.cut)
        self.counted = slice(self.plan.cut, size)
        self._can_have_tpot = self._can_have_tpot[: self.plan.counted]
        if self.requests.ended == size and size:
            self.ended_s = float(self.requests.ended_s[:size].max())

    # -- what can be said -----------------------------------------------------------------------------------------

    def _judge(self, metric: Metric, limit_s: float, now_s: float) -> ObjectiveResult:
        """Each counted request that is certain: ended, or its first token already over the limit."""
        import numpy as np

        requests, rows = self.requests, self.counted
        outcome = requests.outcome[rows]
        met = requests.met(metric, limit_s, rows)
        missed = (outcome == FAILED) | (outcome == OK) & ~met
        if metric is Metric.TTFT:  # also of those that were cancelled: they had been over by then
            missed |= (outcome != OK) & requests.is_over(limit_s, now_s, rows)
        # What was cancelled on the way to another point is left out; what an interrupt cut short stays unknown.
        applies = (outcome != CANCELLED) | missed | self._cut_short
        if metric is Metric.TPOT:
            applies &= np.asarray(self._can_have_tpot)
        met, missed = met & applies, missed & applies
        count, bad, total = int(met.sum()), int(missed.sum()), int(applies.sum())
        verdict, left = curtailed(count, bad, total, self._slo.share)
        # In the order of arrival up to the first that is not certain: short answers end first, and would flatter.
        known = slice(0, _first_false(met | missed | ~applies))
        share = _share(int(met[known].sum()), int(missed[known].sum()))
        return ObjectiveResult(metric, limit_s, verdict, count, bad, total, left, share)

    def measure(self, now_s: float) -> Measurement:
        """The episode as it stands at `now_s` (monotonic seconds)."""
        objectives = tuple(self._judge(o.metric, o.limit_s, now_s) for o in self._slo.objectives)
        requests, rows = self.requests, self.counted
        outcome = requests.outcome[rows]
        ok, cancelled = outcome == OK, int((outcome == CANCELLED).sum())
        judged = int((outcome != OPEN).sum()) - cancelled
        good = self.good()
        known = slice(0, _first_false(outcome != OPEN))
        in_order = int(((outcome == OK) | (outcome == FAILED))[known].sum())
        percent = self._slo.percentile
        lateness = percentile(requests.lateness_s(rows)[outcome != CANCELLED], 99)
        e2el = requests.e2el_s(rows)[ok]
        window_s = self._window_s(now_s)
        return Measurement(
            episode=self.number,
            counted=self.plan.counted - cancelled,
            judged=judged,
            objectives=objectives,
            verdict=_overall(objectives),
            on_the_line=judged >= self.plan.counted - cancelled and any(o.is_on_the_line(percent) for o in objectives),
            good=int(good.sum()),
            attainment=_share(int(good[known].sum()), in_order - int(good[known].sum())),
            ttft_s=percentile(requests.ttft_s(rows)[ok | (outcome == OPEN)], percent),
            tpot_s=percentile(requests.tpot_s(rows)[ok], percent),
            ttft_from_send_s=percentile(requests.ttft_from_send_s(rows)[ok], percent),
            mean_e2el_s=float(e2el.mean()) if e2el.size else None,
            output_tokens_per_s=self._window.tokens / window_s if window_s else 0.0,
            requests_per_s=self._window.requests / window_s if window_s else 0.0,
            goodput_rps=self._window.good / window_s if window_s else 0.0,
            goodput_tokens_per_s=self._window.good_tokens / window_s if window_s else 0.0,
            window_s=window_s,
            failed=int((outcome == FAILED).sum()),
            cancelled=cancelled,
            one_token_answers=int((ok & (requests.output_tokens[rows] == 1)).sum()),
            lateness_p99_s=lateness,
            suspect=self._suspect(lateness),
            e2el_s=percentile(e2el, percent),
        )

    @property
    def mean_tpot_s(self) -> float:
        """Of the counted requests that ended well; 0 where none has a TPOT."""
        import numpy as np

        tpot_s = self.requests.tpot_s(self.counted)[self.requests.outcome[self.counted] == OK]
        tpot_s = tpot_s[~np.isnan(tpot_s)]
        return float(tpot_s.mean()) if tpot_s.size else 0.0

    def good(self) -> Mask:
        """Which counted requests ended well and met every objective, shape (counted,)."""
        good: Mask = self.requests.outcome[self.counted] == OK
        for objective in self._slo.objectives:
            good = good & self.requests.met(objective.metric, objective.limit_s, self.counted)
        return good

    def _window_s(self, now_s: float) -> float:
        if self.window_start_s is None:
            return 0.0
        if self.ended_s is not None:
            return max(self.ended_s - self.window_start_s, 0.0)
        window_s = now_s - self.window_start_s
        return window_s if window_s >= 0.5 else 0.0  # less is too little to divide by while tokens come in batches

    def _suspect(self, lateness_p99_s: float | None) -> str:
        """A late generator makes the numbers suspect (MEASURES, generator lateness)."""
        ttft = self._slo.objective(Metric.TTFT)
        bound_s = max(0.005, 0.01 * ttft.limit_s if ttft else 0.0)
        if lateness_p99_s is not None and lateness_p99_s > bound_s:
            return f"the load generator was late: P99 {lateness_p99_s * 1000:.1f} ms, allowed {bound_s * 1000:.1f} ms"
        return ""


@dataclass(slots=True)
class _Window:
    """What arrived and ended between the first counted request and the end of the last one."""

    tokens: int = 0
    requests: int = 0
    good: int = 0
    good_tokens: int = 0


def _share(met: int, missed: int) -> float | None:
    return met / (met + missed) if met + missed else None


def _first_false(mask: Mask) -> int:
    """The number of entries before the first that is False."""
    return mask.size if mask.all() else int(mask.argmin())


def _overall(objectives: tuple[ObjectiveResult, ...]) -> Verdict:
    verdicts = {o.verdict for o in objectives}
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.UNDECIDED


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """What the charts show at one tick: latencies in seconds over the trailing window, None where nothing ended."""

    time_s: float
    ttft_s: float | None
    tpot_s: float | None


class Trailing:
    """Latencies over a trailing window, for the charts: P-th percentile of what arrived in the last `window_s`."""

    def __init__(self, percent: int, window_s: float = 10.0) -> None:
        self._percent = percent
        self._window_s = window_s
        self._ttft: deque[tuple[float, float]] = deque()
        self._tpot: deque[tuple[float, float]] = deque()

    def first_token(self, time_s: float, ttft_s: float) -> None:
        self._ttft.append((time_s, ttft_s))
        self._forget(self._ttft, time_s)

    def finished(self, time_s: float, tpot_s: float) -> None:
        self._tpot.append((time_s, tpot_s))
        self._forget(self._tpot, time_s)

    def _forget(self, entries: deque[tuple[float, float]], now_s: float) -> None:
        """What has left the window: also while nobody looks, so that it holds no more than that."""
        while entries and entries[0][0] < now_s - self._window_s:
            entries.popleft()

    def clear(self) -> None:
        """Forget everything: a step's transient must not colour the next point."""
        self._ttft.clear()
        self._tpot.clear()

    def at(self, now_s: float) -> ChartPoint:
        for entries in (self._ttft, self._tpot):
            self._forget(entries, now_s)
        return ChartPoint(
            now_s,
            percentile([v for _, v in self._ttft], self._percent),
            percentile([v for _, v in self._tpot], self._percent),
        )
