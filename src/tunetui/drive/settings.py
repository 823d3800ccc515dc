"""What a session is asked to do, as one value, and the defaults that depend on the machine and the model.

It parses no command line (`cli` does) and starts nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunetui.core.knobs import MemoryFlag, Point
from tunetui.core.load import Load
from tunetui.core.slo import Slo
from tunetui.core.workload import Workload
from tunetui.engine.command import GivenFlags, VllmCommand
from tunetui.engine.gpu import GpuReading

GIB = 2**30
# Below these a ladder of ceilings does not go by itself: a session would be of little use, or the memory is another's.
LEAST_SEQS, LEAST_TOKENS = 32, 2048
LEAST_UTILIZATION, LEAST_UTILIZATION_OF_HOST = 0.5, 0.1


@dataclass(frozen=True, slots=True)
class Settings:
    """One session. Either `model` and `command` are given (managed) or `url` (attached)."""

    slo: Slo
    load: Load
    workload: Workload
    episode_requests: int
    sessions_dir: Path
    model: str = ""
    command: VllmCommand | None = None
    given: GivenFlags = field(default_factory=GivenFlags)
    url: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    grace_s: float = 6.0  # TERM to KILL; a vLLM that is up goes in under a second, one that is starting ignores TERM
    timeout_s: float = 600.0  # of a request
    retries: int = 0
    cut: int | None = None  # requests that an episode leaves out at its start; None: one turnover
    max_in_flight: int | None = None
    ceiling_seqs: int | None = None
    ceiling_tokens: int | None = None
    ceiling_utilization: float | None = None
    cards: tuple[GpuReading, ...] | None = None  # of a demo; None: the machine is asked
    follows_seqs: bool = False  # a closed loop with as many streams as max-num-seqs, until the operator changes it
    simulated: bool = False

    @property
    def attached(self) -> bool:
        return bool(self.url)

    @property
    def memory_flag(self) -> MemoryFlag:
        return MemoryFlag.KV_BYTES if self.given.kv_cache_bytes is not None else MemoryFlag.UTILIZATION


def model_length(model: str, given: GivenFlags) -> int | None:
    """The model's length in tokens as far as it is known before the start: the flag, or a local config.json."""
    if given.max_model_len is not None:
        return given.max_model_len
    try:
        config = json.loads((Path(model) / "config.json").read_text("utf-8"))
        text = config.get("text_config", config)
        return int(text["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def ceiling_of(settings: Settings, gpus: tuple[GpuReading, ...]) -> Point:
    """The most of every knob that the server is started with (DESIGN, Ceilings).

    Without a card (CPU builds) the utilization is of the host's memory: 0.4, for the rest of the host lives there too.
    """
    given = settings.given
    small_card = not gpus or min(g.memory_total_bytes for g in gpus) < 40 * GIB
    seqs = settings.ceiling_seqs or max(256 if small_card else 512, given.max_num_seqs or 0)
    length = model_length(settings.model, given) or 0
    # Without chunked prefill a step must hold a request of the model's full length.
    held = length if length <= 16384 or given.chunked_prefill is False else 0
    tokens = settings.ceiling_tokens or max(8192, held, given.max_num_batched_tokens or 0, seqs)
    memory: float
    if given.kv_cache_bytes is not None:
        memory = float(given.kv_cache_bytes)
    else:
        default = 0.92 if gpus else 0.4
        memory = settings.ceiling_utilization or max(given.utilization or default, 0.0)
    return Point(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        chunked_prefill=True,
        memory=memory,
        prefix_caching=given.prefix_caching if given.prefix_caching is not None else True,
    )


def least_ceiling(settings: Settings, ceiling: Point, gpus: tuple[GpuReading, ...]) -> Point:
    """The least of every knob that a start may be lowered to from `ceiling`: the operator's flags, where given."""
    given = settings.given
    seqs = min(given.max_num_seqs or LEAST_SEQS, ceiling.max_num_seqs)
    tokens = given.max_num_batched_tokens or LEAST_TOKENS
    if given.chunked_prefill is False:
        tokens = max(tokens, model_length(settings.model, given) or ceiling.max_num_batched_tokens)
    memory = ceiling.memory
    if settings.memory_flag is MemoryFlag.UTILIZATION:
        memory = min(given.utilization or (LEAST_UTILIZATION if gpus else LEAST_UTILIZATION_OF_HOST), memory)
    return replace(
        ceiling,
        max_num_seqs=seqs,
        max_num_batched_tokens=min(max(tokens, seqs), ceiling.max_num_batched_tokens),
        memory=memory,
    )


def contradiction(settings: Settings) -> str:
    """What is asked for and cannot be had together, in one sentence with the next step, or an empty string."""
    given = settings.given
    length = model_length(settings.model, given)
    for name, value, most in (
        ("max-num-seqs", given.max_num_seqs, settings.ceiling_seqs),
        ("max-num-batched-tokens", given.max_num_batched_tokens, settings.ceiling_tokens),
    ):
        if value is not None and most is not None and value > most:
            return f"--{name} {value} is above --{name}-ceiling {most}: lower it, or raise the ceiling"
    ceiling = ceiling_of(settings, ())
    if ceiling.max_num_batched_tokens < ceiling.max_num_seqs:
        return (
            f"--max-num-batched-tokens-ceiling {ceiling.max_num_batched_tokens} is below the {ceiling.max_num_seqs} "
            "tokens that so many sequences decode in a step: raise it, or lower --max-num-seqs-ceiling"
        )
    if given.max_num_seqs and given.max_num_batched_tokens and given.max_num_batched_tokens < given.max_num_seqs:
        return (
            f"--max-num-batched-tokens {given.max_num_batched_tokens} is below --max-num-seqs {given.max_num_seqs}: "
            "vLLM does not start so; raise it"
        )
    if threshold := given.long_prefill_token_threshold:
        if given.chunked_prefill is False:
            return (
                f"--long-prefill-token-threshold {threshold} chunks prompts, and --no-enable-chunked-prefill forbids "
                "it: leave one of them out"
            )
        if length is not None and threshold > length:
            return (
                f"--long-prefill-token-threshold {threshold} is above the model's {length} tokens, and vLLM does not "
                "start so: lower it"
            )
    tokens = given.max_num_batched_tokens or settings.ceiling_tokens
    if given.chunked_prefill is False and length is not None and tokens is not None and tokens < length:
        return (
            f"without chunked prefill a step must hold the model's {length} tokens, not {tokens}: "
            "raise --max-num-batched-tokens, or leave chunked prefill on"
        )
    return ""


def first_point(settings: Settings, ceiling: Point, gpus: tuple[GpuReading, ...]) -> Point:
    """Where the session starts: what the operator gave, else the baseline of the guide (256) and vLLM's defaults."""
    given = settings.given
    big_card = bool(gpus) and min(g.memory_total_bytes for g in gpus) >= 70 * GIB
    seqs = min(given.max_num_seqs or 256, ceiling.max_num_seqs)
    chunked = given.chunked_prefill is not False
    tokens = given.max_num_batched_tokens or (8192 if big_card else 2048)
    tokens = max(tokens, seqs)
    if not chunked:
        tokens = max(tokens, model_length(settings.model, given) or ceiling.max_num_batched_tokens)
    return Point(
        max_num_seqs=seqs,
        max_num_batched_tokens=min(tokens, ceiling.max_num_batched_tokens),
        chunked_prefill=chunked,
        memory=min(given.utilization, ceiling.memory) if given.utilization is not None else ceiling.memory,
        prefix_caching=ceiling.prefix_caching,
        long_prefill_token_threshold=given.long_prefill_token_threshold or 0,
    )
