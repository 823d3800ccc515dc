"""A baseline as JSON, under the names of `vllm bench serve --save-result` that `tunetui measure --json` has too."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from tunetui.store.exports.server import Server, about

RESULT = {
    "seconds": "duration", "requests": "num_prompts", "failed": "failed", "cancelled": "cancelled",
    "requests_per_s": "request_throughput", "goodput_rps": "request_goodput",
    "output_tokens_per_s": "output_throughput", "generator_lateness_p99_ms": "generator_lateness_p99_ms",
    "one_token_answers": "one_token_answers", "verdict": "verdict", "on_the_line": "on_the_line",
    "attainment": "attainment", "prefix_hit_rate": "prefix_hit_rate", "capacity_rps": "capacity_rps",
    "preemptions": "preemptions", "confirmed": "confirmed",
}  # fmt: skip
LATENCIES = ("ttft", "tpot", "ttft_from_send")


def render(server: Server) -> tuple[str, list[str]]:
    """The JSON without its notes, which `noted` adds: it has no comments."""
    told, load = server.baseline, server.baseline.episode
    secrets = [f"{name} is not in it: it has what {what} had" for name, what in server.secrets.items()]
    percentile = told.slo["percentile"]
    data: dict[str, Any] = {
        "date": _date(told.created),
        "backend": "vllm",
        "endpoint_type": "openai-chat" if load.get("endpoint") == "chat" else "openai",
        "model_id": server.model,
        **({"simulated": True} if told.engine.get("simulated") else {}),
        "request_rate": load.get("rate_rps") or ("trace" if "speed" in load else "inf"),
        "burstiness": load.get("burstiness", 1.0),
        "max_concurrency": load.get("concurrency"),
        "load": told.result.get("load"),
        "seed": load.get("seed", 0),
        **{name: told.result[key] for key, name in RESULT.items() if key in told.result},
        **{
            f"p{percentile}_{name}_ms": told.result[f"{name}_ms"]
            for name in LATENCIES
            if f"{name}_ms" in told.result
        },
        "slo": str(told.goal),
        "percentile": percentile,
        "features": told.workload,
        "vllm_version": server.version,
        "hardware": told.hardware,
        "knobs": told.knobs,
        "flags": [word for flag in server.flags for word in flag.words if isinstance(word, str)],
        "environment": server.environment,
    }  # fmt: skip
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n", secrets


def noted(text: str, server: Server, notes: list[str]) -> str:
    """The JSON with where it comes from and its notes."""
    data = {**json.loads(text), "about": about(server), "notes": notes}
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _date(created: str) -> str | None:
    """As vLLM's benchmark writes it."""
    try:
        return datetime.fromisoformat(created).strftime("%Y%m%d-%H%M%S")
    except ValueError:
        return None
