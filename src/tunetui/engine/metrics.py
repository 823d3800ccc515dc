"""The server's Prometheus page, read for the gauges and counters that tunetui shows, under their old and new names.

It reads no latency histograms: vLLM's buckets are too coarse to judge an SLO by, and the load generator times requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class MetricsError(Exception):
    """The page is not what a vLLM server answers; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """What the engine says of itself now; None where its page does not hold it. Several engines are summed,
    `kv_usage` (0 to 1) averaged; block count and the like are one engine's."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    preemptions_total: int | None = None
    prefix_queries_total: int | None = None
    prefix_hits_total: int | None = None
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool | None = None


_INFO = "vllm:cache_config_info"
_KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
# Newest name first; the first one on the page counts. Counters had a gpu_ prefix in the first V1 engines.
_SUMMED: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "preemptions_total": ("vllm:num_preemptions_total",),
    "prefix_queries_total": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits_total": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prompt_tokens_total": ("vllm:prompt_tokens_total",),
    "generation_tokens_total": ("vllm:generation_tokens_total",),
}
_WANTED = frozenset(name for names in _SUMMED.values() for name in names) | {*_KV_USAGE, _INFO}


def parse_metrics(text: str) -> EngineGauges:
    """Read a /metrics page. Only lines with a wanted name are parsed: the page is mostly histogram buckets.

    Raises MetricsError for a page that does not parse, and for one without any sample of vLLM.
    """
    from prometheus_client.parser import text_string_to_metric_families  # here: the first paint must not wait for it

    if "vllm:" not in text:
        raise MetricsError("the metrics page holds nothing of vLLM: is this the server's own port?")
    try:
        samples = [
            sample for line in _wanted_lines(text) for family in text_string_to_metric_families(line + "\n")
            for sample in family.samples
        ]  # fmt: skip
        values: dict[str, list[float]] = {}
        for sample in samples:
            values.setdefault(sample.name, []).append(float(sample.value))
        info = next((sample.labels for sample in samples if sample.name == _INFO), {})
        found: dict[str, Any] = {field: _sum(values, names) for field, names in _SUMMED.items()}
        usage = next((values[name] for name in _KV_USAGE if name in values), None)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise MetricsError(f"the metrics page cannot be read: {error}") from error
    kv_usage = None if usage is None else min(max(sum(usage) / len(usage), 0.0), 1.0)
    return EngineGauges(**found, kv_usage=kv_usage, **_config(info))


def _wanted_lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if line.startswith("vllm:") and line[: _name_end(line)] in _WANTED:
            yield line


def _name_end(line: str) -> int:
    brace, space = line.find("{"), line.find(" ")
    return min(end for end in (brace, space, len(line)) if end >= 0)


def _sum(values: Mapping[str, list[float]], names: tuple[str, ...]) -> int | None:
    found = next((values[name] for name in names if name in values), None)
    return None if found is None else int(sum(found))


def _config(labels: Mapping[str, str]) -> dict[str, Any]:
    """The cache configuration, which vLLM writes as Python text in labels; 'None' and odd values are None."""
    utilization = labels.get("gpu_memory_utilization", "")
    return {
        "block_size": _whole(labels.get("block_size")),
        "num_gpu_blocks": _whole(labels.get("num_gpu_blocks")),
        "gpu_memory_utilization": float(utilization) if utilization.replace(".", "", 1).isdigit() else None,
        "enable_prefix_caching": {"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
    }


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
