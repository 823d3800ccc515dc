"""A baseline as a value: the accepted point, what it was measured on, and the evidence, under the TOML's own names.

It is built and read here; `store` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tunetui.core.session import Row

SCHEMA = 1
TABLES = ("model", "engine", "hardware", "knobs", "launch", "workload", "slo", "result")


class BaselineError(ValueError):
    """A baseline that lacks something; the message names the table and key."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The tables of a baseline file; each maps the file's own keys to plain values."""

    model: dict[str, Any]
    engine: dict[str, Any]
    hardware: dict[str, Any]
    knobs: dict[str, Any]
    launch: dict[str, Any]
    workload: dict[str, Any]
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
        """Read a document. Unknown keys are kept. Raises BaselineError naming what is missing."""
        if document.get("schema") != SCHEMA:
            raise BaselineError(f"schema is {document.get('schema')!r}, this tunetui reads {SCHEMA}")
        for name in TABLES:
            if not isinstance(document.get(name), dict):
                raise BaselineError(f"the table [{name}] is missing")
        argv = document["launch"].get("argv")
        if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
            raise BaselineError("launch.argv is missing: it must be a list of strings")
        known = {"schema", "created", *TABLES}
        return cls(
            **{name: document[name] for name in TABLES},
            created=str(document.get("created", "")),
            extra={key: value for key, value in document.items() if key not in known},
        )


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
