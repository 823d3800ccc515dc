"""The schema of a baseline file: what must be there, and what type it has. `baseline.schema.json` is made from it.

It upgrades nothing (`core.baseline` does) and reads no file. Keys that are not named here are allowed, and are kept.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

AtLeast0 = Annotated[float, Meta(ge=0)]
Above0 = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
OneOrMore = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
VerdictWord = Literal["PASS", "FAIL", "UNDECIDED"]


class Model(Struct):
    """Which model: as it was asked for, as it is served, and its length in tokens."""

    name: str
    served_as: str | UnsetType = UNSET
    max_model_len: OneOrMore | UnsetType = UNSET


class Engine(Struct):
    """Which engine, and whether it was a simulated one."""

    version: str
    name: str | UnsetType = UNSET
    simulated: bool | UnsetType = UNSET


class Hardware(Struct):
    """The card, or the processor where there is none; how many cards, and the memory of one in bytes."""

    name: str
    cards: Count | UnsetType = UNSET
    memory_bytes: Count | UnsetType = UNSET
    machine: str | UnsetType = UNSET


class Knobs(Struct, rename="kebab"):
    """The accepted point, under vLLM's own flag names. One of the two memory flags is there."""

    max_num_seqs: OneOrMore
    max_num_batched_tokens: OneOrMore
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    long_prefill_token_threshold: Count = 0
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    kv_cache_memory_bytes: OneOrMore | UnsetType = UNSET


class Launch(Struct):
    """The command line of the confirmed server, flags that were left out as secrets, and variables that mattered."""

    argv: list[str]
    left_out: list[str] | UnsetType = UNSET
    environment: dict[str, str] | UnsetType = UNSET


class Workload(Struct):
    """Features of the load that was counted (MEASURES)."""

    prompt_tokens_mean: Above0 | UnsetType = UNSET
    output_tokens_mean: Above0 | UnsetType = UNSET
    prompt_tokens_p95: Above0 | UnsetType = UNSET
    output_tokens_p95: Above0 | UnsetType = UNSET
    rate_rps: Above0 | UnsetType = UNSET
    concurrency: OneOrMore | UnsetType = UNSET
    burstiness: Above0 | UnsetType = UNSET
    long_prompt_share: Share | UnsetType = UNSET
    shared_prefix_share: Share | UnsetType = UNSET
    turns_per_conversation: AtLeast0 | UnsetType = UNSET


class Episode(Struct):
    """What sends the same episode again: the load, the lengths or the trace, and how many requests count."""

    requests: OneOrMore
    seed: Count = 0
    cut: Count | UnsetType = UNSET
    rate_rps: Above0 | UnsetType = UNSET
    concurrency: OneOrMore | UnsetType = UNSET
    speed: Above0 | UnsetType = UNSET
    arrival: Literal["poisson", "gamma", "constant"] = "poisson"
    burstiness: Above0 = 1.0
    ramp_to_rps: Above0 | UnsetType = UNSET
    ramp_exponential: bool = False
    prompt_tokens: str | UnsetType = UNSET
    output_tokens: str | UnsetType = UNSET
    trace: str | UnsetType = UNSET
    endpoint: Literal["completions", "chat"] = "completions"


class SloTable(Struct):
    """The objectives in milliseconds, and the percentile at which they must hold."""

    percentile: Literal[50, 90, 95, 99]
    ttft_ms: Above0 | UnsetType = UNSET
    tpot_ms: Above0 | UnsetType = UNSET
    e2el_ms: Above0 | UnsetType = UNSET


class Result(Struct):
    """What was measured, in milliseconds and per second; [result.live] and [result.confirmation] have the same keys."""

    verdict: VerdictWord
    confirmed: bool
    requests: Count | UnsetType = UNSET
    capacity_rps: Above0 | UnsetType = UNSET
    goodput_rps: AtLeast0 | UnsetType = UNSET
    requests_per_s: AtLeast0 | UnsetType = UNSET
    output_tokens_per_s: AtLeast0 | UnsetType = UNSET
    ttft_ms: AtLeast0 | UnsetType = UNSET
    tpot_ms: AtLeast0 | UnsetType = UNSET
    attainment: Share | UnsetType = UNSET
    tunetui_version: str | UnsetType = UNSET


class Document(Struct):
    """A baseline."""

    schema: Literal[2]
    model: Model
    engine: Engine
    hardware: Hardware
    knobs: Knobs
    launch: Launch
    workload: Workload
    episode: Episode
    slo: SloTable
    result: Result
    created: str = ""


class SchemaError(ValueError):
    """A document that is not a baseline; the message names the key and the reason."""


def check(document: dict[str, Any]) -> None:
    """Raises SchemaError for the first thing that is missing or of the wrong kind."""
    try:
        msgspec.convert(document, Document)
    except msgspec.ValidationError as error:
        raise SchemaError(_sentence(str(error))) from None
    knobs = document["knobs"]
    if ("gpu-memory-utilization" in knobs) == ("kv-cache-memory-bytes" in knobs):
        raise SchemaError("knobs must have one of gpu-memory-utilization and kv-cache-memory-bytes")


def json_schema() -> dict[str, Any]:
    """The same as a JSON Schema (2020-12)."""
    made = msgspec.json.schema(Document)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tunetui baseline", **made}


def _sentence(message: str) -> str:
    """`knobs.max-num-seqs: expected int, got str` of msgspec's own words."""
    what, _, where = message.partition(" - at `$.")
    key = where.rstrip("`")
    missing = re.fullmatch(r"Object missing required field `(.+)`", what)
    if missing:
        return f"{key + '.' if key else ''}{missing[1]} is missing"
    what = what.replace("`", "").replace("Expected", "expected").replace("Invalid", "invalid")
    return f"{key}: {what}" if key else what
