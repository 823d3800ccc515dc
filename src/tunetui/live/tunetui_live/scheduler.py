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
        opened = control.ServerBlock.open(os.environ[control.ENVIRONMENT_KEY])
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
            self.tunetui_limits.report()
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
        self._seen = 0
        self._step = 0
        self._pending = False
        self._disabled = False
        self._error = ""
        self._held = []  # type: List[Any]
        self._steps = 0
        self.preemptions = 0

    def connect(self, block: control.ServerBlock) -> None:
        """Note the limits of the start, say hello, and begin to listen."""
        try:
            self._read_start()
            block.say_hello(self._hello())
            self._block = block
            self.look()
            self.report()
        except Exception as error:
            self._disable(error)

    # -- what the start allows ------------------------------------------------------------------------------------

    def _read_start(self) -> None:
        scheduler, config = self._scheduler, self._scheduler.scheduler_config
        vllm_config = scheduler.vllm_config
        # 0.31 split admission from the size of the runner's slots; before, one limit is both.
        self._seqs_attribute = (
            "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"
        )
        self._start_seqs = getattr(scheduler, self._seqs_attribute)
        self._start_tokens = scheduler.max_num_scheduled_tokens
        self._chunked_attribute = (
            "chunked_prefill_enabled" if hasattr(config, "chunked_prefill_enabled") else "enable_chunked_prefill"
        )
        self._start_chunked = bool(getattr(config, self._chunked_attribute))
        self._start_threshold = int(getattr(config, "long_prefill_token_threshold", 0) or 0)
        self._max_model_len = int(scheduler.max_model_len)
        self._tokens_per_decode = 1 + int(getattr(scheduler, "num_spec_tokens", 0) or 0)
        self._block_size = int(scheduler.cache_config.block_size or 1)
        cache = scheduler.kv_cache_config
        self._num_blocks = int(cache.num_blocks)
        self._blocks_per_max_request = blocks_per_max_request(vllm_config, cache)
        # A negative flag was overwritten up to 0.11 (chunked_prefill_enabled), so there the knob stays as it started.
        self._chunked_live = (
            self._start_chunked
            and self._chunked_attribute == "enable_chunked_prefill"
            and self._start_tokens >= self._max_model_len
        )
        self._memory_reason = self._why_memory_needs_restart()
        self._wanted = control.Targets(
            0, self._start_seqs, self._start_tokens, int(self._start_chunked), self._start_threshold, 0
        )

    def _why_memory_needs_restart(self) -> str:
        config = self._scheduler.vllm_config
        if getattr(config, "kv_transfer_config", None) is not None:
            return "a KV connector shares the blocks"
        if getattr(config.parallel_config, "pipeline_parallel_size", 1) > 1:
            return "pipeline parallelism"
        if getattr(self._scheduler.kv_cache_config, "hisparse_host_num_blocks", None):
            return "a second pool of KV blocks"
        if not hasattr(self._scheduler.kv_cache_manager, "block_pool"):
            return "this vLLM has no block pool"
        return ""

    def _hello(self) -> control.Hello:
        base = type(self._scheduler).__mro__[1]
        return control.Hello(
            pid=os.getpid(),
            asynchronous=int("Async" in base.__name__),
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            blocks_per_max_request=self._blocks_per_max_request,
            bytes_per_block=bytes_per_block(self._scheduler.kv_cache_config),
            max_num_seqs=self._start_seqs,
            max_num_batched_tokens=self._start_tokens,
            max_model_len=self._max_model_len,
            tokens_per_decode=self._tokens_per_decode,
            chunked_prefill=int(self._start_chunked),
            chunked_prefill_live=int(self._chunked_live),
            long_prefill_token_threshold=self._start_threshold,
            version=str(getattr(sys.modules.get("vllm"), "__version__", "")),
            base_class=base.__name__,
            memory_restart_reason=self._memory_reason,
        )

    # -- each step ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take over new targets, if any; finish those that could not be reached at once."""
        if self._block is None or self._disabled:
            return
        try:
            asked = self._block.asked()
            if asked != self._seen:
                targets = self._block.targets()
                if targets is not None:
                    self._wanted, self._step, self._pending = targets, targets.step, True
                self._seen = asked
                self._apply()
                self.report()
            elif self._pending:
                self._apply()
        except Exception as error:
            self._disable(error)

    def _apply(self) -> None:
        scheduler, config, wanted = self._scheduler, self._scheduler.scheduler_config, self._wanted
        seqs = min(max(wanted.max_num_seqs, 1), self._start_seqs)
        if self._seqs_attribute == "max_num_running_reqs":
            # Older versions assert len(running) <= limit after each step: follow the batch down as it drains.
            seqs = max(seqs, min(len(scheduler.running), self._start_seqs))
        setattr(scheduler, self._seqs_attribute, seqs)

        chunked = self._start_chunked
        if self._chunked_live:
            chunked = bool(wanted.chunked_prefill)
            setattr(config, self._chunked_attribute, chunked)
        floor = max(seqs, len(scheduler.running)) * self._tokens_per_decode
        if not chunked:
            # A preempted request prefills its prompt and what it had produced, in one piece.
            floor = max(floor, self._max_model_len)
        scheduler.max_num_scheduled_tokens = min(max(wanted.max_num_batched_tokens, floor), self._start_tokens)
        threshold = wanted.long_prefill_token_threshold if chunked else 0
        if threshold > 0:
            threshold = max(threshold, self._block_size)
        if hasattr(config, "long_prefill_token_threshold"):
            config.long_prefill_token_threshold = threshold
        held = self._hold_blocks(wanted.held_blocks)
        self._pending = not (
            held and len(scheduler.running) <= wanted.max_num_seqs and seqs == max(wanted.max_num_seqs, 1)
        )

    def _hold_blocks(self, wanted: int) -> bool:
        """Move towards holding `wanted` blocks; True when that many (or all that may be) are held."""
        if self._memory_reason:
            return True
        pool = self._scheduler.kv_cache_manager.block_pool
        wanted = min(max(wanted, 0), max(self._num_blocks - 1 - self._blocks_per_max_request, 0))
        missing = wanted - len(self._held)
        if missing > 0:
            take = min(missing, pool.get_num_free_blocks())
            if take:
                self._held.extend(pool.get_new_blocks(take))
        elif missing < 0:
            back, self._held = self._held[wanted:], self._held[:wanted]
            pool.free_blocks(back)
        return len(self._held) == wanted

    def release_blocks(self) -> None:
        """Give all held blocks back for now; the next step takes them again."""
        try:
            if self._held:
                back, self._held = self._held, []
                self._scheduler.kv_cache_manager.block_pool.free_blocks(back)
                self._pending = True
        except Exception as error:
            self._disable(error)

    def after_schedule(self, output: Any) -> None:
        """Count the step and write its record and what is in force."""
        if self._block is None or self._disabled:
            return
        try:
            scheduler = self._scheduler
            self._steps += 1
            tokens = output.total_num_scheduled_tokens
            free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
            waiting = waiting_requests(scheduler)
            self._block.record(
                control.StepRecord(
                    time.monotonic(),
                    len(scheduler.running),
                    waiting,
                    len(output.num_scheduled_tokens),
                    tokens,
                    free,
                    len(self._held),
                    self.preemptions,
                    self._stopped_by(waiting, tokens, free),
                    scheduler.max_num_scheduled_tokens,
                )
            )
            self.report()
        except Exception as error:
            self._disable(error)

    def _stopped_by(self, waiting: int, tokens: int, free: int) -> int:
        scheduler = self._scheduler
        if not waiting:
            return control.STOP_NONE
        if len(scheduler.running) >= getattr(scheduler, self._seqs_attribute):
            return control.STOP_SEQS
        if tokens >= scheduler.max_num_scheduled_tokens:
            return control.STOP_TOKENS
        # Admission wants the blocks of a whole prompt; fewer free than one request may need means it waits for them.
        return control.STOP_BLOCKS if free < self._blocks_per_max_request else control.STOP_OTHER

    def report(self) -> None:
        """Write what is in force now."""
        if self._block is None or self._disabled:
            return
        try:
            scheduler, config = self._scheduler, self._scheduler.scheduler_config
            self._block.publish(
                control.InForce(
                    time_s=time.monotonic(),
                    step=self._step,
                    max_num_seqs=getattr(scheduler, self._seqs_attribute),
                    max_num_batched_tokens=scheduler.max_num_scheduled_tokens,
                    chunked_prefill=int(bool(getattr(config, self._chunked_attribute))),
                    long_prefill_token_threshold=int(getattr(config, "long_prefill_token_threshold", 0) or 0),
                    held_blocks=len(self._held),
                    running=len(scheduler.running),
                    waiting=waiting_requests(scheduler),
                    free_blocks=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                    steps=self._steps,
                    preemptions=self.preemptions,
                    disabled=0,
                    settled=int(not self._pending),
                    error="",
                )
            )
        except Exception as error:
            self._disable(error)

    def _disable(self, error: Exception) -> None:
        """Behave as vLLM would from now on, and say why, once."""
        if self._disabled:
            return
        self._disabled = True
        logger.error("tunetui: live control has switched itself off: %r", error)
        scheduler = self._scheduler
        try:
            if hasattr(self, "_start_threshold"):
                setattr(scheduler, self._seqs_attribute, self._start_seqs)
                scheduler.max_num_scheduled_tokens = self._start_tokens
                setattr(scheduler.scheduler_config, self._chunked_attribute, self._start_chunked)
                scheduler.scheduler_config.long_prefill_token_threshold = self._start_threshold
            if self._held:
                back, self._held = self._held, []
                scheduler.kv_cache_manager.block_pool.free_blocks(back)
            if self._block is not None:
                zeros = control.InForce(time.monotonic(), *([0] * 13), error=repr(error))
                self._block.publish(zeros._replace(step=self._step, disabled=1))
        except Exception as again:
            logger.error("tunetui: and could not restore the limits of the start: %r", again)


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
