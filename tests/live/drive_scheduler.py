"""Drives vLLM's real scheduler without a model, in the interpreter of the vLLM under test; test_schedulers runs it.

A fake model output answers each step, so thousands of steps take seconds. The scheduler is made as an engine core makes
it, from a configuration that went through vLLM's own checks. Token values tell request and position, so an output that
is lost, doubled or out of order is seen. Each check prints one JSON line; an assertion of vLLM's or ours ends it.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import random
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).parents[2] / "src/tunetui/live"))

import vllm.platforms
from tunetui_live import block as control
from tunetui_live.scheduler import make_scheduler
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()  # the older wheels do not tell it from the package's name

import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, LENGTH, BLOCKS, SEQS, TOKENS = 16, 512, 129, 32, 1024
RESETS_RUNNING = "reset_running_requests" in inspect.signature(Scheduler.reset_prefix_cache).parameters
PER_REQUEST = LENGTH // BLOCK  # blocks of a request of the model's full length


def fitting(function, **wanted):
    """The keywords of `wanted` that this version's `function` takes."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in wanted.items() if name in known}


def hashers():
    """What makes a request's prefix-cache hashes."""
    from vllm.v1.core import kv_cache_utils

    try:
        from vllm.utils.hashing import sha256
    except ImportError:
        from vllm.utils import sha256
    kv_cache_utils.init_none_hash(sha256)
    return kv_cache_utils.get_request_block_hasher(BLOCK, sha256)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a scheduler is made with."""

    seqs: int = SEQS
    tokens: int = TOKENS
    chunked: bool = True
    threshold: int = 0
    adaptive: bool = False  # 0.31 on: the threshold is at least an equal share of a step's budget
    blocks: int = BLOCKS
    asynchronous: bool = False
    depth: int = 1
    pipeline: int = 1

    def make(self, model, make):
        """The scheduler that `make` gives for this shape."""
        import torch

        config = EngineArgs(
            model=model, enforce_eager=True, max_model_len=LENGTH, block_size=BLOCK, max_num_seqs=self.seqs,
            max_num_batched_tokens=self.tokens, enable_chunked_prefill=self.chunked, enable_prefix_caching=True,
            long_prefill_token_threshold=self.threshold, skip_tokenizer_init=True,
        ).create_engine_config()  # fmt: skip
        config.scheduler_config.async_scheduling = self.asynchronous
        config.parallel_config.pipeline_parallel_size = self.pipeline
        config.scheduler_config.long_prefill_token_threshold_adaptive = self.adaptive
        if not self.chunked:  # 0.10 and 0.11 overwrite it for models that generate
            for name in ("enable_chunked_prefill", "chunked_prefill_enabled"):
                if hasattr(config.scheduler_config, name):
                    setattr(config.scheduler_config, name, False)
        config.cache_config.num_gpu_blocks = self.blocks
        spec = FullAttentionSpec(
            **fitting(
                FullAttentionSpec, block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32, use_mla=False
            )
        )
        cache = KVCacheConfig(
            num_blocks=self.blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        arguments = dict(
            vllm_config=config, kv_cache_config=cache, structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK, hash_block_size=BLOCK, log_stats=True,
        )  # fmt: skip
        base = AsyncScheduler if self.asynchronous else Scheduler
        return (make or base)(**fitting(Scheduler.__init__, **arguments))


def with_block(path):
    """Our end of a new control block at `path`, which the next scheduler made by `make_scheduler` finds."""
    ours = control.ControlBlock.create(str(path))
    os.environ[control.ENVIRONMENT_KEY] = str(path)
    return ours


class Engine:
    """The loop of an engine core around one scheduler: requests, steps in a pipeline of `depth`, and what came out."""

    def __init__(self, scheduler, shape, seed):
        self.scheduler, self.shape = scheduler, shape
        self.random = random.Random(seed)
        self.hasher = hashers()
        self.pipeline = deque()
        self.sent, self.got, self.number = {}, {}, 0
        self.finished, self.aborted = set(), set()
        self.placeholders = {}
        self._update_after_schedule, scheduler._update_after_schedule = scheduler._update_after_schedule, self._note
        self.steps = self.scheduled = self.preemptions = self.hits = 0
        self.last = {}

    # -- requests ------------------------------------------------------------------------------------------------------

    def token(self, number, position):
        return (number * 7 + position * 13) % 1000 + 1

    def add(self, prompt, outputs):
        """Send one request; the answer to it must be `outputs` tokens of known values."""
        self.number += 1
        name = f"r{self.number}"
        params = SamplingParams(max_tokens=outputs, ignore_eos=True)
        request = Request(
            **fitting(
                Request.__init__,
                request_id=name,
                prompt_token_ids=prompt,
                sampling_params=params,
                pooling_params=None,
                eos_token_id=None,
                arrival_time=time.time(),
                block_hasher=self.hasher,
                client_index=0,
            )
        )
        self.sent[name] = (self.number, outputs)
        self.got[name] = []
        self.scheduler.add_request(request)
        return name

    def arrive(self):
        """A random request: a shared prefix, a tail of its own, and now and then one that fills the model's length."""
        rng = self.random
        outputs = rng.choice((1, 2, 5, rng.randint(1, 40)))
        family = rng.randint(0, 3) * 100
        prefix = [(family + i) % 1000 + 1 for i in range(rng.choice((0, 16, 40, 128)))]
        tail = [rng.randint(1, 1000) for _ in range(rng.choice((1, 8, rng.randint(1, 300))))]
        if rng.random() < 0.03:
            tail = [rng.randint(1, 1000) for _ in range(LENGTH - len(prefix) - outputs)]
        return self.add((prefix + tail)[: LENGTH - outputs], outputs)

    @property
    def alive(self):
        return [name for name in self.sent if name not in self.finished and name not in self.aborted]

    def abort(self, names):
        self.aborted.update(names)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def _note(self, output):
        """In place of the scheduler's own method: its first act after the decisions of a step."""
        requests = self.scheduler.requests
        self.placeholders = {name: requests[name].num_output_placeholders for name in output.num_scheduled_tokens}
        self._update_after_schedule(output)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def schedule(self):
        """One call of schedule(); its output goes into the pipeline."""
        scheduler = self.scheduler
        ran = {request.request_id for request in scheduler.running}
        self.running_before = len(scheduler.running)
        output = scheduler.schedule()
        self.steps += 1
        self.scheduled += output.total_num_scheduled_tokens
        self.last = dict(output.num_scheduled_tokens)
        sampled = {}
        for name in output.num_scheduled_tokens:
            request = scheduler.requests[name]
            placeholders = self.placeholders[name]  # tokens of steps still under way, which count as known
            done = request.num_computed_tokens >= request.num_tokens + placeholders
            position = request.num_tokens - request.num_prompt_tokens + placeholders
            sampled[name] = [self.token(self.sent[name][0], position)] if done else []
        self.preemptions += sum(r.status == RequestStatus.PREEMPTED for n, r in scheduler.requests.items() if n in ran)
        self.hits += sum(r.num_computed_tokens for r in output.scheduled_new_reqs)
        self.pipeline.append((output, sampled))
        return output

    def answer(self):
        """Give the oldest step of the pipeline its model output."""
        output, sampled = self.pipeline.popleft()
        names = list(sampled)
        tokens = list(sampled.values())
        if "ndarray" in str(ModelRunnerOutput.__annotations__["sampled_token_ids"]):
            import numpy

            tokens = [numpy.array(row, dtype=numpy.int64) for row in tokens]
        answer = ModelRunnerOutput(
            **fitting(
                ModelRunnerOutput,
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=tokens,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            )
        )
        for outputs in self.scheduler.update_from_output(output, answer).values():
            for one in outputs.outputs:
                self.got[one.request_id] += list(one.new_token_ids)
                if one.finish_reason is not None and one.request_id not in self.aborted:
                    self.finished.add(one.request_id)

    def step(self, check=lambda output: None):
        """As an engine core does: schedule while the pipeline has room, else wait for its oldest step.

        Between two calls at most depth - 1 steps are under way. `check` sees what was scheduled."""
        if self.scheduler.has_requests():
            output = self.schedule()
            check(output)
            if (
                len(self.pipeline) < self.shape.depth
                and output.total_num_scheduled_tokens
                and self.random.random() < 0.9
            ):
                return
        if self.pipeline:
            self.answer()

    def flush(self):
        while self.pipeline:
            self.answer()

    def finish(self, limit):
        """Step until every request is answered. Raises where that takes more than `limit` steps."""
        since = self.steps
        while self.alive or self.pipeline:
            self.step()
            assert self.steps - since < limit, f"not answered after {limit} steps: {self.alive[:5]}"
        self.step()
        self.flush()

    def check_answers(self):
        """Every finished request got exactly its tokens, in order; aborted ones a beginning of them."""
        for name, (number, outputs) in self.sent.items():
            expected = [self.token(number, position) for position in range(outputs)]
            got = [int(token) for token in self.got[name]]
            whole = name in self.finished
            assert got == expected if whole else got == expected[: len(got)], (name, got, expected)
            assert whole or name in self.aborted, f"{name} is lost"

    # -- everything that can be done to a scheduler ------------------------------------------------------------

    def reset_prefix_cache(self, running):
        """As the engine core's RPC, with or without the running requests."""
        if running and RESETS_RUNNING:
            if self.stands_reset():
                self.scheduler.reset_prefix_cache(reset_running_requests=True)
        else:
            self.scheduler.reset_prefix_cache()

    def stands_reset(self):
        """Whether vLLM's own scheduler would neither lose nor double a token if the running requests were reset now.

        Seen with vLLM's own classes: to 0.20 the asynchronous one drops the next token of a request that has none under
        way; to 0.24 the other one, in a pipeline, delivers a token twice.
        """
        running = self.scheduler.running
        if not running or hasattr(running[0], "num_stale_output_tokens"):
            return True
        if not self.shape.asynchronous:
            return not self.pipeline
        return hasattr(running[0], "async_tokens_to_discard") or all(r.num_output_placeholders for r in running)

    def pause(self, state):
        """PAUSED_NEW, PAUSED_ALL or UNPAUSED, where this version can pause."""
        try:
            from vllm.v1.core.sched.interface import PauseState
        except ImportError:
            return False
        self.scheduler.set_pause_state(PauseState[state])
        return True

    def sleep_and_wake(self):
        """As EngineCore.sleep(1) with its default mode, abort: nothing may be left in the cache; then wake up."""
        paused = self.pause("PAUSED_NEW")
        if self.alive:
            self.abort(self.alive)
        while self.pipeline or self.scheduler.has_requests():
            self.step()
        self.scheduler.reset_prefix_cache()
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == self.shape.blocks - 1, "blocks were out while the engine slept"
        if paused:
            self.pause("UNPAUSED")


def free_blocks(scheduler):
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


# -- the checks --------------------------------------------------------------------------------------------------------


def random_targets(rng, step):
    """Any target, sensible or not: the scheduler class must stand all of them."""
    return control.Targets(
        step,
        rng.choice((-3, 0, 1, 2, 4, 8, 16, 31, 32, 40)),
        rng.choice((-1, 0, 1, 8, 32, 64, 200, 511, 512, 700, 1024, 5000)),
        rng.choice((0, 1, 1)),
        rng.choice((-5, 0, 0, 1, 15, 16, 17, 64, 300, 4096)),
        rng.choice((-10, 0, 0, 10, 40, 64, 90, 96, 97, 128, 500)),
    )


def held_in_the_end(shape, asked, hello):
    """The blocks that `asked` must come to hold."""
    return 0 if hello.memory_restart else min(max(asked, 0), shape.blocks - 1 - PER_REQUEST)


def check_step(engine, output, wanted, hello):
    """What must be true after each schedule() with `wanted` asked for before it."""
    scheduler, shape = engine.scheduler, engine.shape
    seqs = min(max(wanted.max_num_seqs, 1), shape.seqs)
    running = len(scheduler.running)
    assert running <= max(seqs, engine.running_before), (running, seqs, engine.running_before)
    off = not wanted.chunked_prefill and not hello.chunked_restart
    floor = max(seqs, engine.running_before, LENGTH if off else 1)
    budget = min(max(wanted.max_num_batched_tokens, floor), shape.tokens)
    assert output.total_num_scheduled_tokens <= budget, (output.total_num_scheduled_tokens, budget)
    threshold = wanted.long_prefill_token_threshold
    if threshold > 0 and not off and len(scheduler.requests) > 1:
        assert max(output.num_scheduled_tokens.values(), default=0) <= max(threshold, BLOCK)
    if off:
        for new in output.scheduled_new_reqs:
            whole = scheduler.requests[new.req_id].num_prompt_tokens - new.num_computed_tokens
            assert output.num_scheduled_tokens[new.req_id] >= whole, "a prompt was chunked with chunked prefill off"
    held = scheduler.tunetui_limits.held_blocks
    assert 0 <= held <= shape.blocks - 1 - PER_REQUEST


def check_random(model, shape, steps, seed, folder):
    """Thousands of steps of every knob while requests come, go, are preempted, and caches are reset."""
    ours = with_block(folder / "block")
    scheduler = shape.make(model, make_scheduler)
    engine, hello = Engine(scheduler, shape, seed), ours.hello()
    rng = engine.random
    assert hello is not None
    wanted = control.Targets(0, shape.seqs, shape.tokens, int(shape.chunked), shape.threshold, 0)
    asks = resets = sleeps = pauses = 0
    paused = False
    while engine.steps < steps:
        draw = rng.random()
        if draw < 0.35:
            for _ in range(rng.choice((1, 1, 1, 10)) if len(engine.alive) < 80 else 0):
                engine.arrive()
        elif draw < 0.37 and engine.alive:
            engine.abort(rng.sample(engine.alive, 1))
        elif draw < 0.47:
            asks += 1
            wanted = random_targets(rng, asks)
            ours.ask(wanted)
        elif draw < 0.48:
            resets += 1
            engine.reset_prefix_cache(running=rng.random() < 0.5)
        elif draw < 0.4815:
            sleeps += 1
            engine.sleep_and_wake()
            paused = False
        elif draw < 0.49:
            pauses += 1
            paused = engine.pause(rng.choice(("PAUSED_NEW", "PAUSED_ALL", "UNPAUSED"))) and rng.random() < 2
        elif draw < 0.56 and paused:
            engine.pause("UNPAUSED")
            paused = False
        elif engine.scheduler.has_requests() or engine.pipeline:
            engine.step(lambda output: check_step(engine, output, wanted, hello))
        else:
            engine.arrive()
    engine.pause("UNPAUSED")
    # Nobody starves at the last targets, whatever they are, and with a request to apply them with they are reached.
    engine.finish(200_000)
    engine.add([1] * 20, 8)
    engine.finish(100)
    now = ours.in_force()
    assert now.disabled == 0, now.error
    assert now.step == asks
    assert now.settled == 1
    assert now.held_blocks == held_in_the_end(shape, wanted.held_blocks, hello)
    assert now.max_num_seqs == min(max(wanted.max_num_seqs, 1), shape.seqs)
    engine.check_answers()
    assert free_blocks(scheduler) == shape.blocks - 1 - now.held_blocks
    # And everything goes back.
    ours.ask(control.Targets(asks + 1, shape.seqs, shape.tokens, int(shape.chunked), shape.threshold, 0))
    engine.add([1] * 20, 2)
    engine.finish(100)
    assert free_blocks(scheduler) == shape.blocks - 1
    assert scheduler.reset_prefix_cache()
    return dict(
        steps=engine.steps, requests=engine.number, aborted=len(engine.aborted), preemptions=engine.preemptions,
        prefix_hit_tokens=engine.hits, asks=asks, resets=resets, sleeps=sleeps, pauses=pauses,
        base=hello.base_class, memory_restart=hello.memory_restart, chunked_restart=hello.chunked_restart,
    )  # fmt: skip


POINTS = {
    "the start": {},
    "4 sequences": {"seqs": 4},
    "16 sequences": {"seqs": 16},
    "a budget of 64 tokens": {"tokens": 64},
    "chunked prefill off": {"chunked": False, "tokens": 600},
    "a long-prefill threshold of 48": {"threshold": 48},
    "an adaptive threshold": {"threshold": 16, "tokens": 200, "adaptive": True},
    "half of the blocks": {"blocks": BLOCKS - 64},
    "all at once": {"seqs": 9, "tokens": 96, "threshold": 32, "blocks": BLOCKS - 90},
}


def check_same(model, shape, steps, seed, folder):
    """A point that is reached live schedules as the same point of a start does: step for step, request for request.

    One scheduler is started at the ceiling and stepped to the point; the other is vLLM's own, started at the point.
    """
    compared = {}
    for number, (name, change) in enumerate(POINTS.items()):
        started = dataclasses.replace(shape, **change)
        ours = with_block(folder / str(number))
        ceiling = dataclasses.replace(shape, adaptive=started.adaptive)
        live = Engine(ceiling.make(model, make_scheduler), ceiling, seed)
        hello = ours.hello()
        if ("blocks" in change and hello.memory_restart) or ("chunked" in change and hello.chunked_restart):
            compared[name] = hello.memory_restart or hello.chunked_restart
            continue
        ours.ask(
            control.Targets(
                1, started.seqs, started.tokens, int(started.chunked), started.threshold, shape.blocks - started.blocks
            )
        )
        plain = Engine(started.make(model, None), started, seed)
        rng, before, trace = random.Random(seed), 0, []
        for step in range(steps):
            while len(live.alive) < 40 and rng.random() < 0.8:
                assert live.arrive() == plain.arrive()
            if rng.random() < 0.02 and live.alive:
                gone = rng.sample(live.alive, 1)
                live.abort(gone)
                plain.abort(gone)
            live.step()
            plain.step()
            assert live.last == plain.last, (name, step, live.last, plain.last)
            assert live.alive == plain.alive, (name, step)
            before += bool(live.last)
            trace.append(live.last)
        assert live.got == plain.got
        assert live.preemptions == plain.preemptions
        assert ours.in_force().step == 1
        assert ours.in_force().disabled == 0
        compared[name] = dict(steps=before, requests=live.number, preemptions=live.preemptions, hits=live.hits)
        if change:
            assert trace != compared["the start"].get("trace"), f"{name} is not felt under this load"
        compared[name]["trace"] = trace
    for done in compared.values():
        if isinstance(done, dict):
            del done["trace"]
    return compared


class CannotBeLaid(Exception):
    """This vLLM does not stand what lays the trap."""


class Trap:
    """One known way to hang or crash the engine: what does it with bare hands, and the same wish through our class."""

    prompts, outputs = (20,), 4

    def bare(self, engine):
        """Set the limit on vLLM's own scheduler."""
        raise NotImplementedError

    wish = control.Targets(1, SEQS, TOKENS, 1, 0, 0)

    def why_not(self, hello):
        """Why it cannot be laid in this vLLM, or an empty string."""
        return (self.wish.held_blocks and hello.memory_restart) or (
            not self.wish.chunked_prefill and hello.chunked_restart
        )

    def sprung(self, engine):
        """Whether the engine hangs: requests that are never answered."""
        try:
            engine.finish(300)
        except AssertionError:
            return True
        return False


class BudgetBelowPrompt(Trap):
    """Chunked prefill off and a step's budget below a prompt: it is never scheduled, and the queue waits behind it."""

    prompts = (200, 20)
    wish = control.Targets(1, SEQS, 100, 0, 0, 0)

    def bare(self, engine):
        engine.scheduler.max_num_scheduled_tokens = 100
        engine.scheduler.scheduler_config.enable_chunked_prefill = False


class BudgetBelowPreempted(Trap):
    """The same for a request that is preempted: its prompt fitted, with what it has produced it does not."""

    prompts, outputs = (90,), 60
    wish = control.Targets(1, SEQS, 100, 0, 0, 0)

    def bare(self, engine):
        BudgetBelowPrompt.bare(self, engine)

    def why_not(self, hello):
        return super().why_not(hello) or ("" if RESETS_RUNNING else "this vLLM cannot reset running requests")

    def sprung(self, engine):
        for _ in range(30):
            engine.step()
        if not engine.shape.asynchronous:
            engine.flush()
        if not engine.stands_reset():
            raise CannotBeLaid
        engine.reset_prefix_cache(running=True)
        return super().sprung(engine)


class TooManyHeld(Trap):
    """So many blocks held that one request can never have enough."""

    prompts = (300,)
    wish = control.Targets(1, SEQS, TOKENS, 1, 0, 500)

    def bare(self, engine):
        engine.scheduler.kv_cache_manager.block_pool.get_new_blocks(BLOCKS - 1 - 10)


class MoreThanFree(Trap):
    """More blocks taken than are free."""

    prompts, outputs = (200,) * 4, 20
    wish = control.Targets(1, SEQS, TOKENS, 1, 0, 96)

    def bare(self, engine):
        engine.step()
        pool = engine.scheduler.kv_cache_manager.block_pool
        pool.get_new_blocks(pool.get_num_free_blocks() + 1)

    def ask(self, engine, ours):
        engine.step()
        ours.ask(self.wish)


class LimitBelowBatch(Trap):
    """A limit of sequences below the batch that is running."""

    prompts, outputs = (20,) * 8, 20
    wish = control.Targets(1, 2, TOKENS, 1, 0, 0)

    def bare(self, engine):
        engine.step()
        engine.scheduler.max_num_running_reqs = 2
        engine.step()

    ask = MoreThanFree.ask


class BudgetBelowBatch(Trap):
    """A budget below the batch that is running: those at its end get no token while those before them go on."""

    prompts, outputs = (20,) * 8, 40
    wish = control.Targets(1, 2, 2, 1, 0, 0)

    def bare(self, engine):
        engine.step()
        engine.scheduler.max_num_scheduled_tokens = 2

    ask = MoreThanFree.ask

    def sprung(self, engine):
        seen = set()
        for _ in range(20):
            engine.step()
            seen.update(engine.last)
        starved = len(seen) < 8
        return super().sprung(engine) or starved


class NoSequence(Trap):
    """A limit of no sequence: nothing is ever admitted."""

    wish = control.Targets(1, 0, TOKENS, 1, 0, 0)

    def bare(self, engine):
        for name in ("max_num_running_reqs", "max_num_active_reqs"):
            if hasattr(engine.scheduler, name):
                setattr(engine.scheduler, name, 0)


class ResetWhileHeld(Trap):
    """A reset of the prefix cache, which sleeping needs, while blocks are held."""

    prompts = ()
    wish = control.Targets(1, SEQS, TOKENS, 1, 0, 40)

    def bare(self, engine):
        engine.scheduler.kv_cache_manager.block_pool.get_new_blocks(40)

    def sprung(self, engine):
        engine.add([1] * 20, 2)
        engine.finish(300)
        return not engine.scheduler.reset_prefix_cache()


class ThresholdWithoutChunking(Trap):
    """A long-prefill threshold chunks prompts although chunked prefill is off."""

    prompts = (200, 200)
    wish = control.Targets(1, SEQS, TOKENS, 0, 32, 0)

    def bare(self, engine):
        engine.scheduler.scheduler_config.enable_chunked_prefill = False
        engine.scheduler.scheduler_config.long_prefill_token_threshold = 32

    def sprung(self, engine):
        engine.step()
        return min(engine.last.values()) < 200


def check_traps(model, shape, steps, seed, folder):
    """Each trap springs with bare hands and does not through our class."""
    found = {}
    for number, kind in enumerate(Trap.__subclasses__()):
        trap = kind()
        bare = Engine(shape.make(model, None), shape, seed)
        ours = with_block(folder / str(number))
        live = Engine(shape.make(model, make_scheduler), shape, seed)
        hello = ours.hello()
        if reason := trap.why_not(hello):
            found[kind.__name__] = reason
            continue
        for engine in (bare, live):
            for length in trap.prompts:
                engine.add([engine.random.randint(1, 1000) for _ in range(length)], trap.outputs)
        try:
            trap.bare(bare)
            what = "hangs" if trap.sprung(bare) else ""
        except CannotBeLaid:
            found[kind.__name__] = "this vLLM's own scheduler loses a token in it"
            continue
        except (AssertionError, ValueError) as error:
            what = type(error).__name__
        assert what, f"{kind.__name__} is no trap in this vLLM"
        getattr(trap, "ask", lambda engine, block: block.ask(trap.wish))(live, ours)
        assert not trap.sprung(live), f"{kind.__name__} springs"
        live.finish(500)
        live.check_answers()
        now = ours.in_force()
        assert (now.step, now.disabled) == (1, 0), now
        found[kind.__name__] = what
    return found


def check_failing(model, shape, steps, seed, folder):
    """When anything of ours fails in the middle, vLLM goes on as it was started, and nothing is lost."""
    done = {}
    for number, broken in enumerate(("targets", "asked", "record", "publish")):
        ours = with_block(folder / str(number))
        scheduler = shape.make(model, make_scheduler)
        engine, held = Engine(scheduler, shape, seed), not ours.hello().memory_restart
        ours.ask(control.Targets(1, 4, 64, 1, 32, 60))
        for _ in range(60):
            engine.arrive()
        for _ in range(50):
            engine.step()
        assert scheduler.tunetui_limits.held_blocks == (60 if held else 0)

        def fails(*_):
            raise OSError("the block is gone")

        setattr(scheduler.tunetui_limits._block, broken, fails)
        ours.ask(control.Targets(2, 5, 65, 1, 33, 61))
        engine.finish(5000)
        engine.check_answers()
        assert scheduler.tunetui_limits.held_blocks == 0
        assert free_blocks(scheduler) == shape.blocks - 1
        config = scheduler.scheduler_config
        assert (scheduler.max_num_scheduled_tokens, config.long_prefill_token_threshold) == (TOKENS, 0)
        assert scheduler.max_num_running_reqs == SEQS
        if broken != "publish":
            now = ours.in_force()
            assert (now.disabled, "the block is gone" in now.error) == (1, True)
        done[broken] = engine.steps
    return done


CHECKS = ("random", "same", "traps", "failing")
SHAPES = {
    "sync": Shape(),
    "async": Shape(asynchronous=True, depth=2),
    "async, one at a time": Shape(asynchronous=True),
    "pipeline parallel": Shape(depth=2, pipeline=2),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=3000, help="of each random run")
    parser.add_argument("--steps-each", type=int, default=300, help="of each pair of schedulers that is compared")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=CHECKS)
    options = parser.parse_args()
    for check in options.checks:
        for name, shape in SHAPES.items():
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                steps = options.steps_each if check == "same" else options.steps
                done = globals()[f"check_{check}"](options.model, shape, steps, options.seed, Path(folder))
            line = dict(check=check, shape=name, seconds=round(time.monotonic() - began, 1), done=done)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
