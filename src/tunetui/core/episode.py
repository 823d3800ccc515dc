"""One episode as its requests come in: who met what, the exact curtailed verdict, and the figures shown beside it.

It plans nothing (`workload` does) and says nothing about load other than this episode's.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean

from tunetui.core.sample import Outcome, Sample
from tunetui.core.slo import Metric, Slo, Verdict
from tunetui.core.workload import EpisodePlan

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

    @property
    def share(self) -> float | None:
        """The share met among those known, or None where none is known."""
        known = self.met + self.missed
        return self.met / known if known else None


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
    ttft_s: float | None
    tpot_s: float | None
    ttft_from_send_s: float | None
    mean_e2el_s: float | None
    output_tokens_per_s: float
    requests_per_s: float
    goodput_rps: float
    window_s: float
    failed: int
    cancelled: int
    one_token_answers: int
    lateness_p99_s: float | None
    suspect: str = ""

    @property
    def attainment(self) -> float | None:
        """The share of judged requests that met every objective."""
        return self.good / self.judged if self.judged else None

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


def percentile(values: list[float], percent: float) -> float | None:
    """`numpy.percentile`, linear, of per-request values; None for none."""
    import numpy as np  # here, not above: the first paint must not wait for it

    return float(np.percentile(values, percent)) if values else None


class Episode:
    """Gathers one episode's requests. Cut requests (the first turnover) are left out of everything but throughput."""

    def __init__(self, number: int, plan: EpisodePlan, slo: Slo) -> None:
        self.number = number
        self.plan = plan
        self._slo = slo
        self._samples: dict[int, Sample] = {}
        self._scheduled: dict[int, float] = {}
        self._first: dict[int, float] = {}
        self._ends: deque[tuple[float, bool]] = deque()
        self._tokens: deque[tuple[float, int]] = deque()
        self.window_start_s: float | None = None
        self.ended_s: float | None = None

    # -- what comes in --------------------------------------------------------------------------------------------

    def sent(self, index: int, scheduled_s: float) -> None:
        self._scheduled[index] = scheduled_s
        if index >= self.plan.cut and self.window_start_s is None:
            self.window_start_s = scheduled_s

    def first_token(self, index: int, first_s: float) -> None:
        self._first[index] = first_s

    def add(self, sample: Sample) -> None:
        self._samples[sample.index] = sample
        if sample.first_s is not None:
            self._first[sample.index] = sample.first_s
        self.sent(sample.index, sample.scheduled_s)
        if self.ended_s is None and len(self._samples) == self.plan.size:
            self.ended_s = max(s.ended_s for s in self._samples.values())

    def arrived(self, time_s: float, tokens: int) -> None:
        """Output tokens that arrived up to `time_s` since the call before, of any request."""
        if tokens:
            self._tokens.append((time_s, tokens))

    def finished(self, sample: Sample) -> None:
        """A request of any episode ended: it counts for throughput in the window."""
        if sample.outcome is not Outcome.CANCELLED:
            self._ends.append((sample.ended_s, sample.good(self._slo)))

    # -- what can be said -----------------------------------------------------------------------------------------

    def _judge(self, metric: Metric, limit_s: float, now_s: float) -> ObjectiveResult:
        """Each counted request that is certain: ended, or its first token already over the limit."""
        met = missed = 0
        total = self.plan.counted
        for index in range(self.plan.cut, self.plan.size):
            sample = self._samples.get(index)
            if sample is not None and sample.outcome is Outcome.CANCELLED:
                total -= 1
                continue
            if metric is Metric.TPOT and self.plan.output_tokens[index] < 2:
                total -= 1
                continue
            if sample is not None:
                met, missed = (met, missed + 1) if sample.meets(metric, limit_s) is False else (met + 1, missed)
            elif metric is Metric.TTFT and index in self._scheduled:
                known = self._first.get(index)
                if (known if known is not None else now_s) - self._scheduled[index] > limit_s:
                    missed += 1
                elif known is not None:
                    # Met so far, but the stream may still break: only its end makes it good.
                    continue
        verdict, left = curtailed(met, missed, total, self._slo.share)
        return ObjectiveResult(metric, limit_s, verdict, met, missed, total, left)

    def measure(self, now_s: float) -> Measurement:
        """The episode as it stands at `now_s` (monotonic seconds)."""
        objectives = tuple(self._judge(o.metric, o.limit_s, now_s) for o in self._slo.objectives)
        known = [self._samples[i] for i in range(self.plan.cut, self.plan.size) if i in self._samples]
        cancelled = sum(s.outcome is Outcome.CANCELLED for s in known)
        kept = [s for s in known if s.outcome is not Outcome.CANCELLED]
        answered = [s for s in kept if s.outcome is Outcome.OK]
        ttft = [
            first_s - self._scheduled[i]
            for i, first_s in self._first.items()
            if i >= self.plan.cut and i in self._scheduled and not self._ended_badly(i)
        ]
        lateness = percentile([s.lateness_s for s in kept if s.lateness_s is not None], 99)
        e2el = [s.e2el_s for s in answered if s.e2el_s is not None]
        window_s, tokens, ends = self._throughput(now_s)
        return Measurement(
            episode=self.number,
            counted=self.plan.counted - cancelled,
            judged=len(kept),
            objectives=objectives,
            verdict=_overall(objectives),
            on_the_line=any(
                o.share is not None and abs(o.share - self._slo.share) <= ON_THE_LINE + 1e-9 and o.left == 0
                for o in objectives
            )
            and len(kept) >= self.plan.counted - cancelled,
            good=sum(s.good(self._slo) for s in kept),
            ttft_s=percentile(ttft, self._slo.percentile),
            tpot_s=percentile([s.tpot_s for s in answered if s.tpot_s is not None], self._slo.percentile),
            ttft_from_send_s=percentile(
                [s.ttft_from_send_s for s in answered if s.ttft_from_send_s is not None], self._slo.percentile
            ),
            mean_e2el_s=fmean(e2el) if e2el else None,
            output_tokens_per_s=tokens / window_s if window_s else 0.0,
            requests_per_s=len(ends) / window_s if window_s else 0.0,
            goodput_rps=sum(ends) / window_s if window_s else 0.0,
            window_s=window_s,
            failed=sum(s.outcome is Outcome.FAILED for s in kept),
            cancelled=cancelled,
            one_token_answers=sum(s.output_tokens == 1 for s in answered),
            lateness_p99_s=lateness,
            suspect=self._suspect(lateness),
        )

    def _ended_badly(self, index: int) -> bool:
        sample = self._samples.get(index)
        return sample is not None and sample.outcome is not Outcome.OK

    def _throughput(self, now_s: float) -> tuple[float, int, list[bool]]:
        """Window in seconds, tokens that arrived and requests that ended in it (True: good)."""
        if self.window_start_s is None:
            return 0.0, 0, []
        start_s, end_s = self.window_start_s, self.ended_s if self.ended_s is not None else now_s
        window_s = max(end_s - start_s, 0.0)
        if window_s < 0.5:  # too little to divide by
            return 0.0, 0, []
        tokens = sum(n for time_s, n in self._tokens if start_s < time_s <= end_s)
        return window_s, tokens, [good for time_s, good in self._ends if start_s < time_s <= end_s]

    def _suspect(self, lateness_p99_s: float | None) -> str:
        """A late generator makes the numbers suspect (MEASURES, generator lateness)."""
        ttft = self._slo.objective(Metric.TTFT)
        bound_s = max(0.005, 0.01 * ttft.limit_s if ttft else 0.0)
        if lateness_p99_s is not None and lateness_p99_s > bound_s:
            return f"the load generator was late: P99 {lateness_p99_s * 1000:.1f} ms, allowed {bound_s * 1000:.1f} ms"
        return ""


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

    def finished(self, time_s: float, tpot_s: float) -> None:
        self._tpot.append((time_s, tpot_s))

    def clear(self) -> None:
        """Forget everything: a step's transient must not colour the next point."""
        self._ttft.clear()
        self._tpot.clear()

    def at(self, now_s: float) -> ChartPoint:
        for entries in (self._ttft, self._tpot):
            while entries and entries[0][0] < now_s - self._window_s:
                entries.popleft()
        return ChartPoint(
            now_s,
            percentile([v for _, v in self._ttft], self._percent),
            percentile([v for _, v in self._tpot], self._percent),
        )
