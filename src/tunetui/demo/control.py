"""The simulated engine's end of the control block: what the scheduler class is inside vLLM."""

from __future__ import annotations

import os
import time

from tunetui.demo.engine import BLOCK_SIZE, Engine, Step, blocks_for
from tunetui.live.tunetui_live import block as control

PUBLISH_S = 0.1


class Control:
    """Reads targets, keeps them within the limits of the start, and writes what is in force and what each step did.

    `threshold_restart` says why the long prefill threshold stays as it is, if it does. What is in force is written at
    once where it changes, and else every `publish_s`.
    """

    def __init__(
        self,
        path: str,
        engine: Engine,
        max_model_len: int,
        bytes_per_block: int,
        version: str,
        threshold_restart: str = "",
        publish_s: float = PUBLISH_S,
    ) -> None:
        self._block = control.ServerBlock.open(path)
        self._engine, self._length = engine, max_model_len
        self._seqs, self._tokens = engine.max_num_seqs, engine.token_budget
        self._most_held = max(engine.pool.num_blocks - 1 - blocks_for(max_model_len), 0)
        self._threshold_restart = threshold_restart
        self._chunked_restart = ""
        if not engine.chunked:
            self._chunked_restart = "the engine was started without it"
        elif engine.token_budget < max_model_len:
            self._chunked_restart = f"without it a step must hold the model's {max_model_len} tokens"
        self._wanted = control.Targets(0, self._seqs, self._tokens, int(engine.chunked), engine.threshold, 0)
        self._seen = 0
        self._pending = False
        self._publish_s, self._published_s = publish_s, 0.0
        self._block.say_hello(control.Hello(
            pid=os.getpid(), asynchronous=0, num_blocks=engine.pool.num_blocks, block_size=BLOCK_SIZE,
            blocks_per_max_request=blocks_for(max_model_len), bytes_per_block=bytes_per_block,
            max_num_seqs=self._seqs, max_num_batched_tokens=self._tokens, max_model_len=max_model_len,
            whole_request=max_model_len, tokens_per_decode=1, least_prefill=0, least_threshold=BLOCK_SIZE,
            chunked_prefill=int(engine.chunked), long_prefill_token_threshold=engine.threshold, version=version,
            base_class="Scheduler", seqs_restart="", tokens_restart="", chunked_restart=self._chunked_restart,
            threshold_restart=threshold_restart, memory_restart="",
        ))  # fmt: skip
        self.look()
        self._publish()

    def look(self) -> None:
        """Read what is asked for, and bring it into force as far as the running batch allows."""
        asked = self._block.asked()
        if asked != self._seen:
            self._seen = asked
            self._wanted = self._block.targets() or self._wanted
            self._pending = True
        if self._pending:
            self._apply()
            self._publish()

    def _apply(self) -> None:
        engine, wanted = self._engine, self._wanted
        engine.max_num_seqs = min(max(wanted.max_num_seqs, 1), self._seqs)
        if not self._chunked_restart:
            engine.chunked = bool(wanted.chunked_prefill)
        floor = max(engine.max_num_seqs, len(engine.running), 0 if engine.chunked else self._length)
        engine.token_budget = min(max(wanted.max_num_batched_tokens, floor), self._tokens)
        if not self._threshold_restart:
            threshold = wanted.long_prefill_token_threshold if engine.chunked else 0
            engine.threshold = max(threshold, BLOCK_SIZE) if threshold else 0
        hold = min(max(wanted.held_blocks, 0), self._most_held)
        engine.hold(hold)
        self._pending = len(engine.held) != hold or len(engine.running) > engine.max_num_seqs

    def record(self, step: Step) -> None:
        """A step was scheduled."""
        engine, now_s = self._engine, time.monotonic()
        self._block.record(
            now_s, len(engine.running), len(engine.waiting), step.decodes + len(step.prefills), step.tokens,
            engine.pool.free, len(engine.held), engine.preemptions, step.stopped_by, engine.token_budget,
        )  # fmt: skip
        if now_s >= self._published_s + self._publish_s:
            self._publish()

    def idle(self) -> None:
        """Nothing is left to do: say so, for no step will. vLLM's last step is an empty one, which looks once more."""
        self.look()
        self._publish()

    def _publish(self) -> None:
        engine = self._engine
        self._published_s = time.monotonic()
        self._block.publish(
            self._published_s, self._wanted.step, engine.max_num_seqs, engine.token_budget, int(engine.chunked),
            engine.threshold, len(engine.held), len(engine.running), len(engine.waiting), engine.pool.free,
            engine.steps, engine.preemptions, 0, int(not self._pending),
        )  # fmt: skip
