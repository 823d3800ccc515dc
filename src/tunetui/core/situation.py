"""What the coach's rules look at: one point, what was seen there, and what is foreseen of a larger or smaller batch.

It holds no rule (`rules` does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunetui.core.episode import Measurement
from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.limits import Finding, Limit
from tunetui.core.load import Load
from tunetui.core.slo import Metric, Slo, Verdict
from tunetui.core.step_figures import StepFigures

HOLDS = 0.95  # of a limit that a prediction must stay within
WIDE = 8.0  # P95 over P50 of prompts that differ widely
LONG_SHARE = 0.005  # of prompts that are 4 times the median


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the rules look at. `workload` are the features of what is sent (`core.workload.features`),
    `blocked_short` the finding of `core.lengths`, `capacity_rps` the point's capacity where it is known. `cap_follows`:
    the load has as many streams as max-num-seqs, and changes with it."""

    point: Point
    facts: EngineFacts
    slo: Slo
    measurement: Measurement
    finding: Finding
    load: Load
    workload: Mapping[str, float | int | str] = field(default_factory=dict)
    blocked_short: str = ""
    capacity_rps: float | None = None
    cap_follows: bool = False

    @property
    def figures(self) -> StepFigures:
        return self.finding.figures

    @property
    def limit(self) -> Limit:
        return self.finding.limit

    @property
    def overloaded(self) -> bool:
        return bool(self.measurement.overload)

    def value_s(self, metric: Metric) -> float | None:
        return {Metric.TTFT: self.measurement.ttft_s, Metric.TPOT: self.measurement.tpot_s}.get(
            metric, self.measurement.mean_e2el_s
        )

    def spare(self, metric: Metric) -> float:
        """What is left of the limit as a share of it, below 0 where it is over; 1 where there is no such objective."""
        objective, value = self.slo.objective(metric), self.value_s(metric)
        if objective is None:
            return 1.0
        return 1.0 if value is None else 1 - value / objective.limit_s

    def over(self, metric: Metric) -> bool:
        """Whether the objective is missed, by its verdict or else by its present percentile."""
        for result in self.measurement.objectives:
            if result.metric is metric:
                return result.verdict is Verdict.FAIL or (
                    result.verdict is Verdict.UNDECIDED and self.spare(metric) < 0
                )
        return False

    @property
    def kv_short(self) -> bool:
        return self.limit is Limit.KV_PRESSURE

    @property
    def failing(self) -> bool:
        return any(self.over(o.metric) for o in self.slo.objectives)

    def number(self, name: str) -> float:
        value = self.workload.get(name, 0)
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def long_prompts(self) -> bool:
        """Whether prompts differ widely, or some are far longer than the others."""
        middle, long = self.number("prompt_tokens_p50"), self.number("prompt_tokens_p95")
        return self.number("long_prompt_share") >= LONG_SHARE or (middle > 0 and long >= WIDE * middle)

    @property
    def closed_at_cap(self) -> bool:
        """A closed loop with as many streams as there are slots: no request can wait for one."""
        return self.load.concurrency is not None and (
            self.cap_follows or self.load.concurrency <= self.point.max_num_seqs
        )

    def tpot_at(self, factor: float) -> float | None:
        """P95 TPOT of a batch `factor` times as large, as the steps would have it."""
        tpot_s = self.measurement.tpot_s
        return None if tpot_s is None else tpot_s * self.figures.slowdown(factor)

    def tpot_holds_at(self, factor: float) -> bool:
        objective, value = self.slo.objective(Metric.TPOT), self.tpot_at(factor)
        return objective is None or value is None or value <= HOLDS * objective.limit_s

    def kv_holds_at(self, factor: float) -> bool:
        """Whether the KV cache takes a batch so many times as large."""
        usage = self.figures.kv_usage
        return usage is None or usage * factor <= HOLDS
