"""The scheduler class: vLLM's own, with limits that change between two steps when tunetui asks for it.

It never raises into vLLM: when anything of ours fails, it gives back what it holds, restores the limits of the start,
says so once, and from then on does what vLLM would do.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import time
from typing import Any

from tunetui_live import block as control

logger = logging.getLogger("vllm.tunetui_live")


def make_scheduler(*args: Any, **kwargs: Any) -> Any:
    """What `--scheduler-cls tunetui_live.scheduler.make_scheduler` names: the scheduler that vLLM would have made,
    listening to the control block at $TUNETUI_CONTROL_BLOCK; without a usable block, exactly vLLM's own."""
    vllm_config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    base = base_class(vllm_config)
    try:
        path = os.environ[control.ENVIRONMENT_KEY]
        opened = control.ServerBlock.open(path)
        control.sign_in(path)
    except Exception as error:
        logger.warning("tunetui: no control block, so no live knobs: %r", error)
        return base(*args, **kwargs)
    scheduler = live_class(base)(*args, **kwargs)
    scheduler.tunetui_limits.connect(opened)
    return scheduler


def base_class(vllm_config: Any) -> Any:
    """The class that vLLM takes for this configuration when none is named (0.10 to 0.33)."""
    config = vllm_config.scheduler_config
    asynchronous = bool(getattr(config, "async_scheduling", False))
    if getattr(vllm_config, "diffusion_config", None) is not None:
        from vllm.v1.core.sched import diffusion_scheduler

        return getattr(diffusion_scheduler, "DiffusionAsyncScheduler" if asynchronous else "DiffusionScheduler")
    if hasattr(config, "get_scheduler_cls"):
        unnamed = copy.copy(config)
        unnamed.scheduler_cls = None
        return unnamed.get_scheduler_cls()
    if asynchronous:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        return AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    return Scheduler


def live_class(base: Any) -> Any:
    """A subclass of `base` that looks at its Limits wherever a request or a step begins."""

    class LiveScheduler(base):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # A copy, so that the model runner, which may share the object, never sees a value move under it.
            self.scheduler_config = copy.copy(self.scheduler_config)
            self.tunetui_limits = Limits(self)

        def add_request(self, *args: Any, **kwargs: Any) -> Any:
            self.tunetui_limits.look()
            return super().add_request(*args, **kwargs)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            self.tunetui_limits.look()
            output = super().schedule(*args, **kwargs)
            self.tunetui_limits.after_schedule(output)
            return output

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            result = super().update_from_output(*args, **kwargs)
            self.tunetui_limits.after_update()
            return result

        def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
            # vLLM refuses while any block is out; the next step takes them again.
            self.tunetui_limits.release_blocks()
            return super().reset_prefix_cache(*args, **kwargs)

        def _preempt_request(self, *args: Any, **kwargs: Any) -> Any:
            self.tunetui_limits.preemptions += 1
            return super()._preempt_request(*args, **kwargs)

    LiveScheduler.__name__ = LiveScheduler.__qualname__ = "Live" + base.__name__
    return LiveScheduler


class Limits:
    """Reads targets, keeps them within what the start allows, applies them to one scheduler, and reports."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._block = None  # type: Any
        self._start = None  # type: Any
        self._seen = 0
        self._step = 0
        self._pending = False
        self._held = []  # type: List[Any]
        self._steps = 0
        self.preemptions = 0

    @property
    def held_blocks(self) -> int:
        """KV blocks that are kept out of use now."""
        return len(self._held)

    def connect(self, block: control.ServerBlock) -> None:
        """Note the limits of the start, say hello, and begin to listen."""
        try:
            self._start = Start(self._scheduler)
            self._pool = self._start.pool
            self._wanted = self._start.targets()
            self._limits = (self._start.seqs, self._start.tokens, self._start.chunked, self._start.threshold)
            block.say_hello(self._start.hello())
            self._block = block
            self.look()
            self._publish()
        except Exception as error:
            self._block = block
            self._disable(error)

    # -- each step ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take over new targets, if any; finish those that could not be reached at once."""
        if self._block is None:
            return
        try:
            asked = self._block.asked()
            if asked != self._seen:
                targets = self._block.targets()
                if targets is not None:
                    self._wanted, self._step = targets, targets.step
                self._seen = asked
                self._apply()
                self._publish()
            elif self._pending:
                self._apply()
        except Exception as error:
            self._disable(error)

    def _apply(self) -> None:
        scheduler, wanted, start = self._scheduler, self._wanted, self._start
        running = len(scheduler.running)
        target = start.seqs if start.seqs_restart else min(max(wanted.max_num_seqs, 1), start.seqs)
        seqs = target
        idle_sessions = getattr(scheduler, "num_waiting_for_streaming_input", 0)
        if start.follows_batch or idle_sessions:
            # Sessions that wait for more input hold their slots: the next piece of one of them needs its own again.
            seqs = max(target, min(running + idle_sessions + bool(idle_sessions), start.seqs))
        setattr(scheduler, start.seqs_attribute, seqs)

        chunked = start.chunked if start.chunked_restart else bool(wanted.chunked_prefill)
        threshold = start.threshold if start.threshold_restart else max(wanted.long_prefill_token_threshold, 0)
        if threshold > 0:
            threshold = max(threshold, start.least_threshold) if chunked else 0
        tokens = start.tokens
        if not start.tokens_restart:
            floor = max(target, running) * start.tokens_per_decode + start.least_prefill
            if not chunked:
                floor = max(floor, start.whole_request)
            tokens = min(max(wanted.max_num_batched_tokens, floor), start.tokens)
        start.set(scheduler, tokens, chunked, threshold)
        self._limits = (seqs, tokens, chunked, threshold)
        held = self._hold_blocks(wanted.held_blocks)
        self._pending = not (held and running <= target)

    def _hold_blocks(self, wanted: int) -> bool:
        """Move towards holding `wanted` blocks; True when that many (or all that may be) are held."""
        if self._start.memory_restart:
            return True
        wanted = min(max(wanted, 0), self._start.most_held)
        missing = wanted - len(self._held)
        if missing > 0:
            take = min(missing, self._pool.get_num_free_blocks())
            if take:
                self._held.extend(self._pool.get_new_blocks(take))
        elif missing < 0:
            back, self._held = self._held[wanted:], self._held[:wanted]
            self._pool.free_blocks(back)
        if missing:
            self._start.set_watermark(self._scheduler, len(self._held))
        return len(self._held) == wanted

    def release_blocks(self) -> None:
        """Give all held blocks back for now; the next step takes them again."""
        try:
            if self._held:
                back, self._held = self._held, []
                self._pool.free_blocks(back)
                self._pending = True
        except Exception as error:
            self._disable(error)

    def after_schedule(self, output: Any) -> None:
        """Count the step and write its record and what is in force."""
        if self._block is None:
            return
        try:
            self._steps += 1
            seqs, budget, _, _ = self._limits
            running, waiting = len(self._scheduler.running), waiting_requests(self._scheduler)
            tokens, free = output.total_num_scheduled_tokens, self._pool.get_num_free_blocks()
            stopped_by = control.STOP_NONE
            if waiting:
                # Admission wants the blocks of a whole prompt; with fewer free than one may need it waits for them.
                if running >= seqs:
                    stopped_by = control.STOP_SEQS
                elif tokens >= budget:
                    stopped_by = control.STOP_TOKENS
                elif free < self._start.blocks_per_max_request:
                    stopped_by = control.STOP_BLOCKS
                else:
                    stopped_by = control.STOP_OTHER
            now_s, block, held = time.monotonic(), self._block, len(self._held)
            scheduled = len(output.num_scheduled_tokens)
            block.record(now_s, running, waiting, scheduled, tokens, free, held, self.preemptions, stopped_by, budget)
            block.publish(
                now_s, self._step, *self._limits, held, running, waiting, free, self._steps, self.preemptions, 0,
                not self._pending,
            )  # fmt: skip
        except Exception as error:
            self._disable(error)

    def after_update(self) -> None:
        """Write what is in force where no step may follow: the last request has ended."""
        if self._block is not None and not self._scheduler.running:
            try:
                self._publish()
            except Exception as error:
                self._disable(error)

    def _publish(self) -> None:
        """Write what is in force now, between two steps."""
        scheduler = self._scheduler
        self._block.publish(
            time.monotonic(), self._step, *self._limits, len(self._held), len(scheduler.running),
            waiting_requests(scheduler), self._pool.get_num_free_blocks(), self._steps, self.preemptions, 0,
            not self._pending,
        )  # fmt: skip

    def _disable(self, error: Exception) -> None:
        """Behave as vLLM would from now on, and say why, once."""
        block, self._block = self._block, None
        logger.error("tunetui: live control has switched itself off: %r", error)
        try:
            if self._start is not None:
                self._start.restore(self._scheduler)
            if self._held:
                back, self._held = self._held, []
                self._pool.free_blocks(back)
        except Exception as again:
            logger.error("tunetui: and could not restore the limits of the start: %r", again)
        try:
            block.publish(time.monotonic(), self._step, *([0] * 10), 1, 0, repr(error))
        except Exception as again:
            logger.error("tunetui: and could not say so in the control block: %r", again)


class Start:
    """What the engine was started with: the most of each knob, its least, and why some are not live here."""

    def __init__(self, scheduler: Any) -> None:
        config, vllm_config, cache = scheduler.scheduler_config, scheduler.vllm_config, scheduler.kv_cache_config
        self._base = type(scheduler).__mro__[1].__name__
        # 0.31 split admission from the size of the runner's slots. Before, one limit is both, and vLLM asserts after
        # each step that the batch is not above it: there it follows the batch down as that drains.
        self.follows_batch = not hasattr(scheduler, "max_num_active_reqs")
        self.seqs_attribute = "max_num_running_reqs" if self.follows_batch else "max_num_active_reqs"
        self.seqs = int(getattr(scheduler, self.seqs_attribute))
        self.tokens = int(scheduler.max_num_scheduled_tokens)
        self._batched_tokens = int(config.max_num_batched_tokens)
        # A field of its own in 0.10, in 0.11 another name for the flag's.
        old = "chunked_prefill_enabled" in vars(config)
        self.chunked_attribute = "chunked_prefill_enabled" if old else "enable_chunked_prefill"
        self.chunked = bool(getattr(config, self.chunked_attribute))
        self.threshold = int(getattr(config, "long_prefill_token_threshold", 0) or 0)
        self.max_model_len = int(scheduler.max_model_len)
        # A sequence that decodes takes its own token of a step's budget, drafted ones, and slots for new drafts.
        speculative = getattr(vllm_config, "speculative_config", None)
        slots = int(getattr(speculative, "max_num_new_slots_for_drafting", 0) or 0)
        self.tokens_per_decode = 1 + int(getattr(scheduler, "num_spec_tokens", 0) or 0) + slots
        # Without chunking a preempted request prefills its prompt and what it had produced in one piece.
        self.whole_request = self.max_model_len + slots
        self.block_size = int(scheduler.cache_config.block_size or 1)
        self.num_blocks = int(cache.num_blocks)
        self.blocks_per_max_request = blocks_per_max_request(vllm_config, cache)
        self.most_held = max(self.num_blocks - 1 - self.blocks_per_max_request, 0)
        self.pool = getattr(scheduler.kv_cache_manager, "block_pool", None)
        self._watermark = int(getattr(scheduler.kv_cache_manager, "watermark_blocks", 0) or 0)
        self._bytes_per_block = bytes_per_block(cache)
        # A chunk of a model with aligned state is cut to whole blocks: one below a block would be cut to nothing. And
        # none may end within the tokens that a multi-token predictor looks ahead at the end of a prefill.
        block = max([self.block_size] + [int(group.kv_cache_spec.block_size) for group in cache.kv_cache_groups])
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
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            blocks_per_max_request=self.blocks_per_max_request,
            bytes_per_block=self._bytes_per_block,
            max_num_seqs=self.seqs,
            max_num_batched_tokens=self._batched_tokens,
            max_model_len=self.max_model_len,
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

    def set(self, scheduler: Any, tokens: int, chunked: bool, threshold: int) -> None:
        """Put the limits of a step into force; only this scheduler reads its copy of the configuration."""
        config = scheduler.scheduler_config
        scheduler.max_num_scheduled_tokens = tokens
        if not self.tokens_restart:
            config.max_num_batched_tokens = tokens  # newer versions count a step's input against it too
        setattr(config, self.chunked_attribute, chunked)
        config.long_prefill_token_threshold = threshold

    def set_watermark(self, scheduler: Any, held: int) -> None:
        """The blocks that admission leaves free are a share of the blocks there are."""
        if self._watermark:
            share = (self.num_blocks - held) / self.num_blocks
            scheduler.kv_cache_manager.watermark_blocks = int(self._watermark * share)

    def restore(self, scheduler: Any) -> None:
        """Everything as it was at the start."""
        setattr(scheduler, self.seqs_attribute, self.seqs)
        self.set(scheduler, self.tokens, self.chunked, self.threshold)
        self.set_watermark(scheduler, 0)


def why_nothing_is_live(vllm_config: Any) -> str:
    """Why this engine's scheduler must be left alone, or an empty string."""
    parallel = vllm_config.parallel_config
    if int(getattr(parallel, "data_parallel_size", 1) or 1) > 1:
        return "data parallelism: each engine core has a scheduler of its own"
    if getattr(vllm_config, "diffusion_config", None) is not None:
        return "a diffusion model: its steps are not those of a language model"
    if getattr(getattr(vllm_config, "model_config", None), "is_diffusion", False):
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


def waiting_requests(scheduler: Any) -> int:
    """Requests that wait for a slot, those that vLLM skipped in this step included."""
    counts = getattr(scheduler, "get_request_counts", None)
    if counts is not None:
        return int(counts()[1])
    return len(scheduler.waiting)


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
