"""The knobs, points (full sets of knobs), and what a step from one point to another takes: live, restart, or refused.

It knows vLLM's limits as facts; it applies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite, nan

from tunetui.core.memory import MemoryParts


class Knob(StrEnum):
    """A setting that can be stepped, named by its vLLM flag."""

    SEQS = "max-num-seqs"
    TOKENS = "max-num-batched-tokens"
    CHUNKED = "enable-chunked-prefill"
    THRESHOLD = "long-prefill-token-threshold"
    MEMORY = "gpu-memory-utilization"
    PREFIX = "enable-prefix-caching"


class MemoryFlag(StrEnum):
    """The flag that the memory knob steps: a share of the card or, where the KV size was given, that size in bytes."""

    UTILIZATION = "gpu-memory-utilization"
    KV_BYTES = "kv-cache-memory-bytes"


@dataclass(frozen=True, slots=True)
class Point:
    """A full set of knobs. `memory` is in the unit of the engine's MemoryFlag: a share of the card, or bytes.
    `long_prefill_token_threshold` is the most tokens of one prompt in a step; 0 is no limit."""

    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool
    memory: float
    prefix_caching: bool
    long_prefill_token_threshold: int = 0

    def value(self, knob: Knob) -> int | float | bool:
        return {
            Knob.SEQS: self.max_num_seqs,
            Knob.TOKENS: self.max_num_batched_tokens,
            Knob.CHUNKED: self.chunked_prefill,
            Knob.THRESHOLD: self.long_prefill_token_threshold,
            Knob.MEMORY: self.memory,
            Knob.PREFIX: self.prefix_caching,
        }[knob]

    def with_value(self, knob: Knob, value: float) -> Point:
        match knob:
            case Knob.SEQS:
                return replace(self, max_num_seqs=int(value))
            case Knob.TOKENS:
                return replace(self, max_num_batched_tokens=int(value))
            case Knob.CHUNKED:
                return replace(self, chunked_prefill=bool(value))
            case Knob.THRESHOLD:
                return replace(self, long_prefill_token_threshold=int(value))
            case Knob.MEMORY:
                return replace(self, memory=value)
            case Knob.PREFIX:
                return replace(self, prefix_caching=bool(value))


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine said of itself when it started. Where it is not `live`, `why_not_live` says why; where it is,
    `restart_reasons` says why some of the knobs are not. `fixed` says why no step of a knob would change anything, not
    even by a restart. A step's budget must hold `tokens_per_decode` for each sequence and `least_prefill` beside them,
    and without chunked prefill `whole_request`; a long-prefill threshold (not 0) must be `least_threshold` at least.
    """

    version: str
    model: str
    ceiling: Point
    memory_flag: MemoryFlag = MemoryFlag.UTILIZATION
    max_model_len: int = 0
    whole_request: int = 0
    live: bool = False
    why_not_live: str = ""
    base_class: str = ""
    asynchronous: bool = False
    num_blocks: int = 0
    block_size: int = 0
    blocks_per_max_request: int = 0
    bytes_per_block: int = 0
    tokens_per_decode: int = 1
    least_prefill: int = 0
    least_threshold: int = 1
    restart_reasons: Mapping[Knob, str] = field(default_factory=dict)
    fixed: Mapping[Knob, str] = field(default_factory=dict)
    total_memory_bytes: int = 0
    memory: MemoryParts = field(default_factory=MemoryParts)
    hardware: str = ""

    def capacity_blocks(self, memory: float) -> int | None:
        """KV blocks that a restart with `memory` would leave, or None where that cannot be told.

        Linear from the blocks that the engine counted: vLLM gives the KV cache what the share leaves after weights and
        activations, which do not change. The parts in `memory` are rounded to hundredths of a GiB, several blocks
        each, and some vLLM versions leave them out, so nothing is computed from them.
        """
        if not self.num_blocks or not self.bytes_per_block:
            return None
        if self.memory_flag is MemoryFlag.KV_BYTES:
            return int(memory // self.bytes_per_block)
        if not self.total_memory_bytes:
            return None
        # Rounded, for 0.92 - 0.90 is not 0.02 in binary; a block is far below the knob's fine step.
        return self.num_blocks - round((self.ceiling.memory - memory) * self.total_memory_bytes / self.bytes_per_block)

    def held_blocks(self, memory: float) -> int | None:
        """Blocks to take out of the pool for `memory`, or None where the map is not known."""
        capacity = self.capacity_blocks(memory)
        return None if capacity is None else max(self.num_blocks - capacity, 0)

    @property
    def most_held_blocks(self) -> int:
        """One request of the model's full length, and vLLM's null block, must always fit."""
        return max(self.num_blocks - 1 - self.blocks_per_max_request, 0)


class How(StrEnum):
    """What a step takes."""

    LIVE = "live"
    RESTART = "restart"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Step:
    """A step to `target`: how it would be done, and one sentence on why not live."""

    target: Point
    how: How
    reason: str = ""


def plan_step(current: Point, target: Point, facts: EngineFacts) -> Step:
    """How to get from `current` to `target`: refused where vLLM would not start so or it would change nothing, else
    live, else by a restart."""
    moved = [knob for knob in Knob if target.value(knob) != current.value(knob)]
    refusal = next((facts.fixed[knob] for knob in moved if knob in facts.fixed), "") or start_refusal(target, facts)
    if refusal:
        return Step(target, How.REFUSED, refusal)
    reason = next(filter(None, (restart_reason(knob, target, facts) for knob in moved)), "")
    return Step(target, How.RESTART if reason else How.LIVE, reason)


def start_refusal(point: Point, facts: EngineFacts) -> str:
    """Why vLLM itself would not start with this point (its own start-up checks), or an empty string."""
    if point.max_num_seqs < 1:
        return "max-num-seqs must be at least 1"
    floor = point.max_num_seqs * facts.tokens_per_decode + facts.least_prefill
    if point.max_num_batched_tokens < floor:
        return (
            f"max-num-batched-tokens {point.max_num_batched_tokens} is below the {floor} tokens that "
            f"{point.max_num_seqs} sequences {'and a prefill need' if facts.least_prefill else 'decode'} in a step: "
            "lower max-num-seqs first"
        )
    whole = max(facts.whole_request, facts.max_model_len)
    if not point.chunked_prefill and point.max_num_batched_tokens < whole:
        drafts = f" and {whole - facts.max_model_len} tokens of drafts" if whole > facts.max_model_len else ""
        return (
            "with chunked prefill off max-num-batched-tokens cannot be below the model length "
            f"{facts.max_model_len}{drafts}: raise it first"
        )
    refusal = _threshold_refusal(point, facts)
    if refusal:
        return refusal
    if facts.memory_flag is MemoryFlag.UTILIZATION and not 0 < point.memory <= 1:
        return "gpu-memory-utilization must be above 0 and at most 1"
    if point.memory <= 0:
        return "the KV cache must have some memory"
    held = facts.held_blocks(point.memory)
    if held is not None and held > facts.most_held_blocks:
        return (
            f"too little KV cache: a request of the model's {facts.max_model_len} tokens needs "
            f"{facts.blocks_per_max_request} blocks and would never fit"
        )
    return ""


def _threshold_refusal(point: Point, facts: EngineFacts) -> str:
    threshold = point.long_prefill_token_threshold
    if threshold == 0:
        return ""
    if not point.chunked_prefill:
        return (
            f"a long-prefill threshold of {threshold} chunks prompts, so chunked prefill is not off: set it to 0 first"
        )
    if threshold < facts.least_threshold:
        return f"a long-prefill threshold below {facts.least_threshold} would leave a prompt without a block of tokens"
    if 0 < facts.max_model_len < threshold:
        return f"the long-prefill threshold cannot be above the model length {facts.max_model_len}"
    return ""


def restart_reason(knob: Knob, target: Point, facts: EngineFacts) -> str:
    """Why moving `knob` to its value in `target` needs a restart, or an empty string where it is live."""
    if not facts.live:
        return facts.why_not_live
    if reason := facts.restart_reasons.get(knob):
        return reason
    ceiling = facts.ceiling
    match knob:
        case Knob.SEQS if target.max_num_seqs > ceiling.max_num_seqs:
            return f"above the {ceiling.max_num_seqs} that the server was started with"
        case Knob.TOKENS if target.max_num_batched_tokens > ceiling.max_num_batched_tokens:
            return f"above the {ceiling.max_num_batched_tokens} that the server was started with"
        case Knob.MEMORY if target.memory > ceiling.memory:
            return f"above the {format_memory(ceiling.memory, facts.memory_flag)} that the server was started with"
        case Knob.MEMORY if facts.held_blocks(target.memory) is None:
            return "the size of the card's memory is not known"
        case Knob.PREFIX:
            return "vLLM sets it at start"
    return ""


def start_ceiling(target: Point, ceiling: Point) -> Point:
    """The ceiling for a restart that reaches `target`: the old one, raised where it must be. The threshold has no
    ceiling: any value is live, whatever the start had."""
    return Point(
        max_num_seqs=max(target.max_num_seqs, ceiling.max_num_seqs),
        max_num_batched_tokens=max(target.max_num_batched_tokens, ceiling.max_num_batched_tokens),
        chunked_prefill=ceiling.chunked_prefill,
        memory=max(target.memory, ceiling.memory),
        prefix_caching=target.prefix_caching,
        long_prefill_token_threshold=target.long_prefill_token_threshold if target.chunked_prefill else 0,
    )


def stepped(point: Point, knob: Knob, direction: int, fine: bool, facts: EngineFacts) -> Point:
    """The point one key press away, `direction` +1 or -1: a wide step (64 sequences, 1,024 tokens, 0.05) or a fine
    one (8, 256, 0.01). Below one wide step, a wide step halves or doubles. `plan_step` applies the limits, not this."""
    match knob:
        case Knob.SEQS:
            return replace(point, max_num_seqs=_grid(point.max_num_seqs, 8 if fine else 64, direction, fine))
        case Knob.TOKENS:
            step = 256 if fine else 1024
            return replace(point, max_num_batched_tokens=_grid(point.max_num_batched_tokens, step, direction, fine))
        case Knob.CHUNKED:
            return replace(point, chunked_prefill=not point.chunked_prefill)
        case Knob.THRESHOLD:
            return replace(point, long_prefill_token_threshold=_threshold_step(point, direction, fine, facts))
        case Knob.PREFIX:
            return replace(point, prefix_caching=not point.prefix_caching)
        case Knob.MEMORY:
            if facts.memory_flag is MemoryFlag.KV_BYTES:
                share = 0.02 if fine else 0.10
                size = max(facts.bytes_per_block, 1)
                blocks = max(1, round(facts.num_blocks * share))
                return replace(point, memory=point.memory + direction * blocks * size)
            return replace(point, memory=round(point.memory + direction * (0.01 if fine else 0.05), 4))


def _grid(value: int, step: int, direction: int, fine: bool) -> int:
    """The next multiple of `step` above or below; under one step, fine moves by 1 and wide by a factor of 2."""
    if direction > 0:
        if value < step:
            return value + 1 if fine else min(value * 2, step)
        return (value // step + 1) * step
    if value <= step:
        return max(value - 1, 1) if fine else max(value // 2, 1)
    return -(-value // step) * step - step


def _threshold_step(point: Point, direction: int, fine: bool, facts: EngineFacts) -> int:
    """The next threshold on a grid of 512 (fine: 64) tokens; below the least there is 0, which is no limit."""
    step = 64 if fine else 512
    value = point.long_prefill_token_threshold
    if direction > 0:
        return max((value // step + 1) * step, facts.least_threshold)
    lower = -(-value // step) * step - step
    return lower if lower >= max(facts.least_threshold, 1) else 0


def parse_value(knob: Knob, text: str) -> float:
    """A typed value for a knob, e.g. `320` or `0.9`. Raises ValueError with the sentence to show."""
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not isfinite(value):
        raise ValueError(f"cannot read {text!r} as a value for {knob.value}")
    if knob in (Knob.SEQS, Knob.TOKENS) and (value != int(value) or value < 1):
        raise ValueError(f"{knob.value} takes a whole number of 1 or more")
    if knob is Knob.THRESHOLD and (value != int(value) or value < 0):
        raise ValueError(f"{knob.value} takes a whole number of tokens, or 0 for no limit")
    if knob in (Knob.CHUNKED, Knob.PREFIX) and value not in (0, 1):
        raise ValueError(f"{knob.value} is on (1) or off (0)")
    return value


def format_memory(memory: float, flag: MemoryFlag) -> str:
    """The memory knob's value for a screen: 0.92, or 256 MiB."""
    if flag is MemoryFlag.UTILIZATION:
        return f"{memory:.2f}"
    return f"{memory / 2**30:.2f} GiB" if memory >= 2**30 else f"{memory / 2**20:.0f} MiB"


def knob_flags(point: Point, memory_flag: MemoryFlag) -> dict[str, int | float | bool]:
    """Every knob under vLLM's own flag names, as a baseline records them."""
    memory: int | float = point.memory if memory_flag is MemoryFlag.UTILIZATION else int(point.memory)
    return {
        Knob.SEQS.value: point.max_num_seqs,
        Knob.TOKENS.value: point.max_num_batched_tokens,
        Knob.CHUNKED.value: point.chunked_prefill,
        Knob.THRESHOLD.value: point.long_prefill_token_threshold,
        memory_flag.value: memory,
        Knob.PREFIX.value: point.prefix_caching,
    }


def knob_argv(point: Point, memory_flag: MemoryFlag) -> list[str]:
    """Every knob as explicit command-line arguments, so that a start depends on no default of vLLM's."""
    argv: list[str] = []
    for flag, value in knob_flags(point, memory_flag).items():
        if isinstance(value, bool):
            argv.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            argv += [f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)]
    return argv
