"""What an engine was started with, read once from its scheduler: the most and the least of each knob, what its KV
blocks are, and why some knobs are not live there. It changes nothing but what `set` and `set_watermark` are told to.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tunetui_live import block as control


class Start:
    """What the engine was started with: the most of each knob, its least, and why some are not live here."""

    def __init__(self, scheduler: Any) -> None:
        config, vllm_config, cache = scheduler.scheduler_config, scheduler.vllm_config, scheduler.kv_cache_config
        self._base = type(scheduler).__mro__[1].__name__
        # 0.31 split admission from the size of the runner's slots. Before, one limit is both, and vLLM asserts after
        # each step that the batch is not above it: there it follows the batch down as that drains.
        self.follows_batch = not hasattr(scheduler, "max_num_active_reqs")
        self._seqs_attribute = "max_num_running_reqs" if self.follows_batch else "max_num_active_reqs"
        self.seqs = int(getattr(scheduler, self._seqs_attribute))
        self.tokens = int(scheduler.max_num_scheduled_tokens)
        self._batched_tokens = int(config.max_num_batched_tokens)
        # A field of its own in 0.10, in 0.11 another name for the flag's.
        old = "chunked_prefill_enabled" in vars(config)
        self._chunked_attribute = "chunked_prefill_enabled" if old else "enable_chunked_prefill"
        self.chunked = bool(getattr(config, self._chunked_attribute))
        self.threshold = int(getattr(config, "long_prefill_token_threshold", 0) or 0)
        self._max_model_len = int(scheduler.max_model_len)
        # A sequence that decodes takes its own token of a step's budget, drafted ones, and slots for new drafts.
        speculative = getattr(vllm_config, "speculative_config", None)
        slots = int(getattr(speculative, "max_num_new_slots_for_drafting", 0) or 0)
        self.tokens_per_decode = 1 + int(getattr(scheduler, "num_spec_tokens", 0) or 0) + slots
        # Without chunking a preempted request prefills its prompt and what it had produced in one piece.
        self.whole_request = self._max_model_len + slots
        self._block_size = int(scheduler.cache_config.block_size or 1)
        self._num_blocks = int(cache.num_blocks)
        self.blocks_per_max_request = blocks_per_max_request(vllm_config, cache)
        self.most_held = max(self._num_blocks - 1 - self.blocks_per_max_request, 0)
        self.pool = getattr(scheduler.kv_cache_manager, "block_pool", None)
        self._watermark = int(getattr(scheduler.kv_cache_manager, "watermark_blocks", 0) or 0)
        self._bytes_per_block = bytes_per_block(cache)
        # A chunk of a model with aligned state is cut to whole blocks: one below a block would be cut to nothing. And
        # none may end within the tokens that a multi-token predictor looks ahead at the end of a prefill.
        block = max([self._block_size] + [int(group.kv_cache_spec.block_size) for group in cache.kv_cache_groups])
        ahead = int(getattr(scheduler, "num_prefill_lookahead", 0) or 0)
        self.least_threshold = max(block, ahead + 1)
        aligned = getattr(scheduler, "need_mamba_block_aligned_split", False)
        self.least_prefill = max(block + slots if aligned else 0, ahead)

        everything = why_nothing_is_live(vllm_config)
        whole_items = why_inputs_stay_whole(vllm_config)
        self.seqs_restart = everything
        self.tokens_restart = everything or whole_items
        if not self.tokens_restart and self.tokens != self._batched_tokens:
            self.tokens_restart = "the tokens of a step are set apart from it (max-num-scheduled-tokens)"
        self.chunked_restart = everything or self._why_chunked_needs_restart(old)
        self.threshold_restart = everything or whole_items
        if not self.threshold_restart and int(getattr(config, "max_num_partial_prefills", 1) or 1) > 1:
            self.threshold_restart = "vLLM sets it for several partial prefills"
        self.memory_restart = everything or why_memory_needs_restart(scheduler)

    def _why_chunked_needs_restart(self, old: bool) -> str:
        if old:
            return "this vLLM overwrites it at start"
        if not self.chunked:
            return "the engine was started without it, or vLLM switched it off for this model"
        if self.tokens < self.whole_request:
            return "without it a step must hold the model's %d tokens, above the ceiling" % self.whole_request
        return ""

    def hello(self) -> control.Hello:
        return control.Hello(
            pid=os.getpid(),
            asynchronous=int("Async" in self._base),
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            blocks_per_max_request=self.blocks_per_max_request,
            bytes_per_block=self._bytes_per_block,
            max_num_seqs=self.seqs,
            max_num_batched_tokens=self._batched_tokens,
            max_model_len=self._max_model_len,
            whole_request=self.whole_request,
            tokens_per_decode=self.tokens_per_decode,
            least_prefill=self.least_prefill,
            least_threshold=self.least_threshold,
            chunked_prefill=int(self.chunked),
            long_prefill_token_threshold=self.threshold,
            version=str(getattr(sys.modules.get("vllm"), "__version__", "")),
            base_class=self._base,
            seqs_restart=self.seqs_restart,
            tokens_restart=self.tokens_restart,
            chunked_restart=self.chunked_restart,
            threshold_restart=self.threshold_restart,
            memory_restart=self.memory_restart,
        )

    def targets(self) -> control.Targets:
        """The point of the start."""
        return control.Targets(0, self.seqs, self._batched_tokens, int(self.chunked), self.threshold, 0)

    @property
    def limits(self) -> Any:
        """Sequences, tokens, chunked prefill and long-prefill threshold of the start, as `set` takes them."""
        return self.seqs, self.tokens, self.chunked, self.threshold

    def set(self, scheduler: Any, seqs: int, tokens: int, chunked: bool, threshold: int) -> None:
        """Put the limits of a step into force; only this scheduler reads its copy of the configuration."""
        config = scheduler.scheduler_config
        setattr(scheduler, self._seqs_attribute, seqs)
        scheduler.max_num_scheduled_tokens = tokens
        if not self.tokens_restart:
            config.max_num_batched_tokens = tokens  # newer versions count a step's input against it too
        setattr(config, self._chunked_attribute, chunked)
        config.long_prefill_token_threshold = threshold

    def set_watermark(self, scheduler: Any, held: int) -> None:
        """The blocks that admission leaves free are a share of the blocks there are."""
        if self._watermark:
            share = (self._num_blocks - held) / self._num_blocks
            scheduler.kv_cache_manager.watermark_blocks = int(self._watermark * share)


def why_nothing_is_live(vllm_config: Any) -> str:
    """Why this engine's scheduler must be left alone, or an empty string."""
    parallel = vllm_config.parallel_config
    if int(getattr(parallel, "data_parallel_size", 1) or 1) > 1:
        return "data parallelism: each engine core has a scheduler of its own"
    model = getattr(vllm_config, "model_config", None)
    if getattr(vllm_config, "diffusion_config", None) is not None or getattr(model, "is_diffusion", False):
        return "a diffusion model: its steps are not those of a language model"
    return ""


def why_inputs_stay_whole(vllm_config: Any) -> str:
    """Why a step may not become smaller than it started, or an empty string: an image that is not chunked must fit."""
    whole = getattr(vllm_config.scheduler_config, "disable_chunked_mm_input", False)
    return "this model's multimodal inputs are not chunked, and a step must hold the largest" if whole else ""


def why_memory_needs_restart(scheduler: Any) -> str:
    """Why no blocks can be taken out of the pool for a smaller memory, or an empty string."""
    vllm_config, cache = scheduler.vllm_config, scheduler.kv_cache_config
    if getattr(vllm_config, "kv_transfer_config", None) is not None:
        return "a KV connector shares the blocks"
    if getattr(vllm_config.parallel_config, "pipeline_parallel_size", 1) > 1:
        return "pipeline parallelism"
    if getattr(cache, "hisparse_host_num_blocks", None):
        return "a second pool of KV blocks"
    if any("Mamba" in type(group.kv_cache_spec).__name__ for group in cache.kv_cache_groups):
        return "a hybrid model: its blocks are rounded to its state's size"
    if not hasattr(scheduler.kv_cache_manager, "block_pool"):
        return "this vLLM has no block pool"
    return ""


def blocks_per_max_request(vllm_config: Any, cache: Any) -> int:
    """KV blocks that one request of max_model_len needs, over all groups."""
    total = 0
    for group in cache.kv_cache_groups:
        spec = group.kv_cache_spec
        total += -(-int(spec.max_memory_usage_bytes(vllm_config)) // int(spec.page_size_bytes))
    return total


def bytes_per_block(cache: Any) -> int:
    """Bytes of KV cache that one block takes on one device: a page of each layer of a group; groups share them."""
    sizes = [0]
    for group in cache.kv_cache_groups:
        spec = group.kv_cache_spec
        layers = 1 if hasattr(spec, "kv_cache_specs") else len(group.layer_names)
        sizes.append(int(spec.page_size_bytes) * layers)
    return max(sizes)
