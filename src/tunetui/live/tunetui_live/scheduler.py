"""The scheduler class: vLLM's own, with limits that change between two steps when tunetui asks for it.

It never raises into vLLM: when anything of ours fails, it gives back what it holds, restores the limits of the start,
says so once, and from then on does what vLLM would do.
"""

from __future__ import annotations

import copy
import logging
import os
import time
from typing import Any

from tunetui_live import block as control
from tunetui_live.start import Start

logger = logging.getLogger("vllm.tunetui_live")
PUBLISH_S = 0.05


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
        self._changed = False
        self._publish_at_s = 0.0
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
            self._limits = self._start.limits
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

        chunked = start.chunked if start.chunked_restart else bool(wanted.chunked_prefill)
        threshold = start.threshold
        if not start.threshold_restart:
            asked = wanted.long_prefill_token_threshold
            threshold = max(asked, start.least_threshold) if asked > 0 and chunked else 0
        tokens = start.tokens
        if not start.tokens_restart:
            floor = max(target, running) * start.tokens_per_decode + start.least_prefill
            if not chunked:
                floor = max(floor, start.whole_request)
            tokens = min(max(wanted.max_num_batched_tokens, floor), start.tokens)
        self._limits = (seqs, tokens, chunked, threshold)
        self._changed = True
        start.set(scheduler, *self._limits)
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
                self._start.set_watermark(self._scheduler, len(self._held))
        elif missing < 0:
            self._hold_only(wanted)
        return len(self._held) == wanted

    def _hold_only(self, kept: int) -> None:
        """Give held blocks back but for `kept` of them."""
        back, self._held = self._held[kept:], self._held[:kept]
        if back:
            self._pool.free_blocks(back)
            self._start.set_watermark(self._scheduler, kept)

    def release_blocks(self) -> None:
        """Give all held blocks back for now; the next step takes them again."""
        if self._held:
            try:
                self._hold_only(0)
                self._pending = True
            except Exception as error:
                self._disable(error)

    def after_schedule(self, output: Any) -> None:
        """Count the step and write its record; and what is in force, where that has changed, where nothing runs any
        more (vLLM makes one more, empty step then), and every `PUBLISH_S`: each step of the engine pays for this."""
        block = self._block
        if block is None:
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
            now_s, held = time.monotonic(), len(self._held)
            scheduled = len(output.num_scheduled_tokens)
            block.record(now_s, running, waiting, scheduled, tokens, free, held, self.preemptions, stopped_by, budget)
            if self._changed or not running or now_s >= self._publish_at_s:
                self._publish()
        except Exception as error:
            self._disable(error)

    def _publish(self) -> None:
        """Write what is in force now."""
        scheduler, now_s = self._scheduler, time.monotonic()
        self._block.publish(
            now_s, self._step, *self._limits, len(self._held), len(scheduler.running), waiting_requests(scheduler),
            self._pool.get_num_free_blocks(), self._steps, self.preemptions, 0, not self._pending,
        )  # fmt: skip
        self._changed, self._publish_at_s = False, now_s + PUBLISH_S

    def _disable(self, error: Exception) -> None:
        """Behave as vLLM would from now on, and say why, once."""
        block, self._block = self._block, None
        logger.error("tunetui: live control has switched itself off: %r", error)
        try:
            if self._start is not None:
                self._start.set(self._scheduler, *self._start.limits)
                self._hold_only(0)
        except Exception as again:
            logger.error("tunetui: and could not restore the limits of the start: %r", again)
        try:
            block.publish(time.monotonic(), self._step, *([0] * 10), 1, 0, repr(error))
        except Exception as again:
            logger.error("tunetui: and could not say so in the control block: %r", again)


def waiting_requests(scheduler: Any) -> int:
    """Requests that wait for a slot, those that vLLM skipped in this step included."""
    counts = getattr(scheduler, "get_request_counts", None)
    if counts is not None:
        return int(counts()[1])
    return len(scheduler.waiting)
