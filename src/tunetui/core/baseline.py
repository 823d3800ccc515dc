"""A baseline as a value: the accepted point, what it was measured on, and the evidence, under the TOML's own names.

It is built here and upgraded from older schemas; `store` checks, reads and writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tunetui.core.knobs import Knob, MemoryFlag, Point
from tunetui.core.load import Arrival, Load, Ramp
from tunetui.core.session import Row
from tunetui.core.slo import Metric, Objective, Slo

SCHEMA = 2
TABLES = ("model", "engine", "hardware", "knobs", "launch", "workload", "episode", "slo", "result")


class BaselineError(ValueError):
    """A document that is of no schema that is known; the message says which it is."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The tables of a baseline file; each maps the file's own keys to plain values."""

    model: dict[str, Any]
    engine: dict[str, Any]
    hardware: dict[str, Any]
    knobs: dict[str, Any]
    launch: dict[str, Any]
    workload: dict[str, Any]
    episode: dict[str, Any]
    slo: dict[str, Any]
    result: dict[str, Any]
    created: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def to_tables(self) -> dict[str, Any]:
        """The document to write, tables in a fixed order."""
        head: dict[str, Any] = {"schema": SCHEMA, "created": self.created, **self.extra}
        return head | {name: getattr(self, name) for name in TABLES}

    @classmethod
    def from_tables(cls, document: dict[str, Any]) -> Baseline:
        """The value of a document that has been checked; unknown keys are kept."""
        known = {"schema", "created", *TABLES}
        return cls(
            **{name: document[name] for name in TABLES},
            created=str(document.get("created", "")),
            extra={key: value for key, value in document.items() if key not in known},
        )

    @property
    def point(self) -> Point:
        """The accepted point."""
        knobs = self.knobs
        memory = knobs[next(flag.value for flag in MemoryFlag if flag.value in knobs)]
        return Point(
            max_num_seqs=knobs[Knob.SEQS.value],
            max_num_batched_tokens=knobs[Knob.TOKENS.value],
            chunked_prefill=knobs[Knob.CHUNKED.value],
            memory=float(memory),
            prefix_caching=knobs[Knob.PREFIX.value],
            long_prefill_token_threshold=knobs.get(Knob.THRESHOLD.value, 0),
        )

    @property
    def load(self) -> Load:
        """The load of its episode. Raises WorkloadError where that names none."""
        told = self.episode
        ramp = Ramp(told["ramp_to_rps"], told.get("ramp_exponential", False)) if "ramp_to_rps" in told else None
        return Load(
            rate_rps=told.get("rate_rps"),
            concurrency=told.get("concurrency"),
            speed=told.get("speed"),
            arrival=Arrival(told.get("arrival", Arrival.POISSON.value)),
            burstiness=told.get("burstiness", 1.0),
            ramp=ramp,
        )

    @property
    def goal(self) -> Slo:
        """Its objectives."""
        limits = [(metric, self.slo.get(f"{metric.value}_ms")) for metric in Metric]
        found = tuple(Objective(metric, limit_ms / 1000) for metric, limit_ms in limits if limit_ms is not None)
        return Slo(found, self.slo["percentile"])


def episode_table(load: Load, asked: dict[str, str | int], cut: int, requests: int) -> dict[str, Any]:
    """What sends an episode again: `load`, what was `asked` of the workload, and how many requests count."""
    told: dict[str, Any] = {"requests": requests, "cut": cut, **asked}
    if load.rate_rps is not None:
        told |= {"rate_rps": load.rate_rps, "arrival": load.arrival.value, "burstiness": load.burstiness}
    if load.concurrency is not None:
        told["concurrency"] = load.concurrency
    if load.speed is not None:
        told["speed"] = load.speed
    if load.ramp is not None:
        told |= {"ramp_to_rps": load.ramp.to_rps, "ramp_exponential": load.ramp.exponential}
    return told


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """`document` in the present schema. Raises BaselineError for one that is newer, or not of a baseline."""
    version = document.get("schema")
    if version == 1:
        return _from_1(document)
    if version != SCHEMA:
        newer = isinstance(version, int) and version > SCHEMA
        hint = ": a newer tunetui wrote it" if newer else ": it is no baseline" if version is None else ""
        raise BaselineError(f"schema is {version!r}, this tunetui reads 1 and {SCHEMA}{hint}")
    return document


ASKED = ("prompt_tokens", "output_tokens", "trace", "seed", "endpoint")


def _from_1(document: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 had no [episode] (the load stood among the features), and some files no long-prefill threshold."""

    def table(name: str) -> dict[str, Any]:
        found = document.get(name)
        return found if isinstance(found, dict) else {}

    workload, result = table("workload"), table("result")
    episode: dict[str, Any] = {"requests": result.get("requests") or 1}
    episode |= {key: workload[key] for key in ASKED if key in workload}
    if "concurrency" in workload:
        episode["concurrency"] = workload["concurrency"]
    elif workload.get("arrival") == "trace":
        episode["speed"] = 1.0
    elif "rate_rps" in workload:
        arrival = workload.get("arrival", "poisson")
        # The feature is what was drawn: of a Poisson stream it is near 1, and only a gamma one was asked for with it.
        asked = {"burstiness": workload["burstiness"]} if arrival == "gamma" and "burstiness" in workload else {}
        episode |= {"rate_rps": workload["rate_rps"], "arrival": arrival, **asked}
    new = {**document, "schema": SCHEMA, "episode": episode}
    if isinstance(document.get("knobs"), dict):
        new["knobs"] = {Knob.THRESHOLD.value: 0, **document["knobs"]}
    return new


def result_figures(row: Row) -> dict[str, Any]:
    """One measurement as a baseline records it, in milliseconds and per second; unknown figures are left out."""
    m = row.measurement
    tail = {
        "ttft_ms": m.ttft_s and round(m.ttft_s * 1000, 2),
        "tpot_ms": m.tpot_s and round(m.tpot_s * 1000, 3),
        "ttft_from_send_ms": m.ttft_from_send_s and round(m.ttft_from_send_s * 1000, 2),
        "generator_lateness_p99_ms": m.lateness_p99_s and round(m.lateness_p99_s * 1000, 3),
        "attainment": m.attainment and round(m.attainment, 4),
        "prefix_hit_rate": row.prefix_hit_rate if row.prefix_hit_rate is None else round(row.prefix_hit_rate, 4),
        "kv_blocks": row.kv_blocks,
        "capacity_rps": row.capacity_rps and round(row.capacity_rps, 3),
    }
    return {
        "verdict": m.verdict.value,
        "on_the_line": m.on_the_line,
        "load": str(row.load),
        "requests": m.judged,
        "seconds": round(m.window_s, 1),
        "output_tokens_per_s": round(m.output_tokens_per_s, 1),
        "requests_per_s": round(m.requests_per_s, 3),
        "goodput_rps": round(m.goodput_rps, 3),
        "failed": m.failed,
        "cancelled": m.cancelled,
        "one_token_answers": m.one_token_answers,
        "preemptions": row.preemptions,
        **({"suspect": m.suspect} if m.suspect else {}),
        **{key: value for key, value in tail.items() if value is not None},
    }
