"""Turns what the load process reports into episodes, statistics of the point, chart points and counts.

It sends nothing and decides nothing about what comes next.
"""

from __future__ import annotations

from dataclasses import replace

from tunetui.core.episode import ChartPoint, Episode, Measurement, Trailing
from tunetui.core.overload import OverloadAlarm
from tunetui.core.point_statistics import PointStatistics
from tunetui.core.sample import Outcome, Sample
from tunetui.core.slo import Slo, Verdict
from tunetui.core.utilization import Utilization
from tunetui.core.workload import EpisodePlan, variability
from tunetui.load.events import Batch

KEPT_EPISODES = 4


class Meter:
    """The episodes under way. The shown one is the oldest that is not complete."""

    def __init__(self, slo: Slo) -> None:
        self._slo = slo
        self._plans: dict[int, EpisodePlan] = {}
        self._episodes: dict[int, Episode] = {}
        self._trailing = Trailing(slo.percentile)
        self._scheduled: dict[tuple[int, int], float] = {}
        self._taken: dict[int, int] = {}  # requests of an episode that the statistics have
        self._alarm: OverloadAlarm | None = None
        self.statistics = PointStatistics(slo)
        self.utilization = Utilization()
        self.exhausted: set[int] = set()
        self.in_flight = 0
        self.awaiting = 0
        self.heard_s = 0.0  # when the load process last looked
        self.errors = 0
        self.last_error = ""

    def expect(self, number: int, plan: EpisodePlan) -> None:
        """An episode that has been handed to the load process."""
        if not self._plans:
            self.statistics = PointStatistics(self._slo, variability(plan))
        self._plans[number] = plan

    def reset(self) -> None:
        """Forget the episodes under way: what is still to come of them belongs to the point before."""
        self._plans.clear()
        self._episodes.clear()
        self._scheduled.clear()
        self._trailing.clear()
        self._taken.clear()
        self._alarm = None
        self.statistics = PointStatistics(self._slo)
        self.utilization = Utilization()
        self.exhausted.clear()

    def started(self, number: int) -> None:
        if number in self._plans:
            plan = self._plans[number]
            self._episodes[number] = Episode(number, plan, self._slo)
            if self._alarm is None and plan.load.rate_rps is not None and plan.load.ramp is None:
                self._alarm = OverloadAlarm(plan.load.rate_rps)
            for old in sorted(self._episodes)[:-KEPT_EPISODES]:
                self._forget(old)

    def _forget(self, number: int) -> None:
        del self._episodes[number]
        self._plans.pop(number, None)
        self._taken.pop(number, None)
        self._scheduled = {key: value for key, value in self._scheduled.items() if key[0] != number}

    def took(self, batch: Batch) -> None:
        """One report of the load process."""
        self.in_flight, self.awaiting, self.heard_s = batch.in_flight, batch.awaiting, batch.t_s
        self._watch(batch)
        for sent in batch.sent:
            episode = self._episodes.get(sent.episode)
            if episode is not None:
                self._scheduled[sent.episode, sent.index] = sent.scheduled_s
                episode.sent(sent.index, sent.scheduled_s)
        for first in batch.firsts:
            scheduled_s = self._scheduled.get((first.episode, first.index))
            if first.episode in self._episodes and scheduled_s is not None:
                self._episodes[first.episode].first_token(first.index, first.first_s)
                self._trailing.first_token(first.first_s, first.first_s - scheduled_s)
        for episode in self._episodes.values():
            episode.arrived(batch.t_s, batch.tokens)
        for sample in batch.samples:
            self._ended(sample)
        for number, episode in self._episodes.items():
            from_here = episode.plan.cut + self._taken.get(number, 0)
            taken = self.statistics.take(episode.requests, slice(from_here, episode.plan.size))
            self._taken[number] = self._taken.get(number, 0) + taken

    def _watch(self, batch: Batch) -> None:
        """Show the overload alarm what happened, in the order in which it did."""
        if self._alarm is None:
            return
        happened = [(sent.scheduled_s, 0, 0.0) for sent in batch.sent if sent.episode in self._episodes]
        arrived = {(sent.episode, sent.index): sent.scheduled_s for sent in batch.sent}
        for first in batch.firsts:
            key = first.episode, first.index
            scheduled_s = self._scheduled.get(key, arrived.get(key))
            if first.episode in self._episodes and scheduled_s is not None:
                happened.append((first.first_s, 1, first.first_s - scheduled_s))
        for sample in batch.samples:
            if sample.episode in self._episodes and sample.first_s is None and sample.sent_s is not None:
                happened.append((sample.ended_s, 2, 0.0))
        for time_s, what, ttft_s in sorted(happened):
            if what == 0:
                self._alarm.arrived(time_s)
            elif what == 1:
                self._alarm.first_token(time_s, ttft_s)
            else:
                self._alarm.gone(time_s)

    def _ended(self, sample: Sample) -> None:
        if sample.outcome is Outcome.FAILED:
            self.errors += 1
            self.last_error = sample.error
        for episode in self._episodes.values():
            episode.finished(sample)
        own = self._episodes.get(sample.episode)
        if own is None:
            return
        self._scheduled.pop((sample.episode, sample.index), None)
        own.add(sample)
        if sample.tpot_s is not None and sample.outcome is Outcome.OK:
            self._trailing.finished(sample.ended_s, sample.tpot_s)

    @property
    def shown(self) -> Episode | None:
        """The oldest episode that is not complete, else the newest."""
        for number in sorted(self._episodes):
            if self._episodes[number].ended_s is None:
                return self._episodes[number]
        return self._episodes[max(self._episodes)] if self._episodes else None

    @property
    def newest(self) -> int | None:
        """The number of the episode that is being sent."""
        return max(self._episodes) if self._episodes else None

    @property
    def overload(self) -> str:
        """Why waiting grows without bound, or empty."""
        return self._alarm.alarm if self._alarm is not None else ""

    def measurement(self, now_s: float) -> Measurement | None:
        """The shown episode as it stands; FAIL where the point is overloaded, whatever the episode says so far."""
        return None if self.shown is None else self._judged(self.shown, now_s)

    def _judged(self, episode: Episode, now_s: float) -> Measurement:
        seen = episode.measure(now_s)
        if not self.overload or not seen.objectives:
            return seen
        return replace(seen, verdict=Verdict.FAIL, overload=self.overload)

    def completed(self, now_s: float) -> list[Measurement]:
        """The measurements of the episodes that are complete, oldest first."""
        return [self._judged(e, now_s) for _, e in sorted(self._episodes.items()) if e.ended_s is not None]

    def chart(self, now_s: float) -> ChartPoint:
        return self._trailing.at(now_s)
