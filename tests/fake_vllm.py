"""A stand-in for vLLM's API server: its flags, log lines, HTTP and metrics, over a simulated batching engine.

It holds no model and computes nothing; its HTTP is the demo's, and it needs `tunetui_live` on PYTHONPATH when a
scheduler class is named. `python tests/fake_vllm.py [serve MODEL] [vLLM's flags]`.

Environment: FAKE_VLLM_START_S (seconds of start-up, 0.3), FAKE_VLLM_SPEED (2 halves the step times), FAKE_VLLM_FAULT:
crash_at_start, crash_in_weights, oom, oom_in_weights, memory-above-tokens:N (no room for the KV cache above N tokens),
memory-above-seqs:N (the sampler runs out), free-share:SHARE, hang_start, hang_below_tokens:N, own_threshold:N,
ignore_term, slow_stop, grandchild, orphan, crash_after:SECONDS; several joined by commas. Children of `grandchild` and
`orphan` are announced in the log as `fake child pid N`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tunetui.demo.http import Server

BLOCK_SIZE = 16
BYTES_PER_BLOCK = 2 * 2**20
GIB = 2**30
TOTAL, WEIGHTS, ACTIVATIONS, NON_TORCH, GRAPHS = 10.0, 0.55, 0.25, 0.15, 0.05  # GiB of a card
VERSION = "0.32.0"
BASE_S, PER_RUNNING_S, PER_PREFILL_TOKEN_S = 0.002, 0.000_15, 0.000_01


def log(text: str, level: str = "INFO", who: str = "APIServer") -> None:
    print(f"({who} pid={os.getpid()}) {level} {time.strftime('%m-%d %H:%M:%S')} [fake.py:1] {text}", flush=True)


def read_options(words: list[str]) -> argparse.Namespace:
    """vLLM's flags as far as they matter here; another one ends the start with vLLM's own usage error and status 2."""
    parser = argparse.ArgumentParser(prog="api_server.py", allow_abbrev=False)
    toggle = argparse.BooleanOptionalAction
    parser.add_argument("positional", nargs="*", metavar="model_tag")
    for name in ("--model", "--served-model-name", "--scheduler-cls"):
        parser.add_argument(name)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--enforce-eager", action="store_true")
    for name, default in (("--port", 8000), ("--max-num-seqs", 256), ("--max-num-batched-tokens", 2048),
                          ("--max-model-len", 2048), ("--long-prefill-token-threshold", 0),
                          ("--kv-cache-memory-bytes", 0), ("--num-gpu-blocks-override", 0)):  # fmt: skip
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    parser.add_argument("--enable-chunked-prefill", action=toggle, default=True)
    parser.add_argument("--enable-prefix-caching", action=toggle, default=True)
    options = parser.parse_args(words)
    tags = options.positional[1:] if options.positional[:1] == ["serve"] else options.positional
    if len(tags) > 1:
        parser.error("unrecognized arguments: " + " ".join(tags[1:]))
    options.model = options.model or (tags[0] if tags else "fake/model")
    options.name = options.served_model_name or options.model
    options.num_blocks = (
        options.num_gpu_blocks_override or options.kv_cache_memory_bytes // BYTES_PER_BLOCK
        or int((TOTAL * options.gpu_memory_utilization - WEIGHTS - ACTIVATIONS - NON_TORCH - GRAPHS)
               * GIB / BYTES_PER_BLOCK)
    )  # fmt: skip
    return options


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


@dataclass(eq=False)
class Request:
    """One completion in the engine. `emit` gets each token id, then None at its end."""

    prompt: list[int]
    max_tokens: int
    emit: Callable[[int | None], None]
    is_gone: Callable[[], bool]
    produced: int = 0
    computed: int = 0
    blocks: int = 0
    hashes: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.prompt) + self.produced


class Engine:
    """A step loop over a waiting and a running queue, limited in requests, tokens a step and KV blocks."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.max_num_seqs: int = options.max_num_seqs
        self.token_budget: int = options.max_num_batched_tokens
        self.chunked: bool = options.enable_chunked_prefill
        self.threshold: int = int(fault_number("own_threshold", options.long_prefill_token_threshold))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.held_blocks = 0
        self.used_blocks = 0
        self.cached: OrderedDict[int, None] = OrderedDict()
        counters = ("preemptions", "queries", "hits", "prompt", "generation", "finished", "aborted")
        self.totals = dict.fromkeys(counters, 0)
        self.wake = asyncio.Event()
        self.control: Control | None = None

    @property
    def free_blocks(self) -> int:
        """One block is vLLM's null block."""
        return self.options.num_blocks - 1 - self.used_blocks - self.held_blocks

    def submit(
        self, prompt: list[int], max_tokens: int, emit: Callable[[int | None], None], is_gone: Callable[[], bool]
    ) -> None:
        self.add(Request(prompt, max_tokens, emit, is_gone))

    def add(self, request: Request) -> None:
        if self.control:
            self.control.look()
        if self.options.enable_prefix_caching:
            last = 0
            for at in range(0, len(request.prompt) - BLOCK_SIZE + 1, BLOCK_SIZE):
                last = hash((last, tuple(request.prompt[at : at + BLOCK_SIZE])))
                request.hashes.append(last)
        self.waiting.append(request)
        self.wake.set()

    async def run(self) -> None:
        """The loop: schedule, take the time the step would take, hand out its tokens."""
        speed = float(os.environ.get("FAKE_VLLM_SPEED", "1"))
        loop = asyncio.get_running_loop()
        end_s = loop.time()
        while True:
            if not self.waiting and not self.running:
                self.wake.clear()
                await self.wake.wait()
            self.drop_gone()
            batch = self.schedule()
            prefill = sum(tokens for request, tokens in batch if tokens > 1 or request.computed < len(request.prompt))
            step_s = (BASE_S + PER_RUNNING_S * len(self.running) + PER_PREFILL_TOKEN_S * prefill) / speed
            # A late timer is made up for, so that the step times hold on average.
            end_s = max(end_s, loop.time() - 0.005) + step_s
            await asyncio.sleep(end_s - loop.time())
            self.finish_step(batch)

    def drop_gone(self) -> None:
        for request in [r for r in (*self.running, *self.waiting) if r.is_gone()]:
            (self.running if request in self.running else self.waiting).remove(request)
            self.release(request)
            self.totals["aborted"] += 1
            request.emit(None)

    def release(self, request: Request) -> None:
        self.used_blocks -= request.blocks
        request.blocks = request.computed = 0

    def schedule(self) -> list[tuple[Request, int]]:
        """Running requests first, in order, preempting the youngest when blocks run out; then admission."""
        if self.control:
            self.control.look()
        budget, batch, preempted, stopped = self.token_budget, [], False, "none"
        for request in list(self.running):
            if budget <= 0 or (preempted and request not in self.running):
                continue
            tokens = self.piece(request, budget)
            while not self.allocate(request, tokens):
                victim = self.running.pop()
                preempted = True
                self.totals["preemptions"] += 1
                self.release(victim)
                self.waiting.appendleft(victim)
                batch = [(r, n) for r, n in batch if r is not victim]
                if victim is request:
                    break
            else:
                budget -= tokens
                batch.append((request, tokens))
        while self.waiting and not preempted:
            if len(self.running) >= self.max_num_seqs:
                stopped = "seqs"
                break
            request = self.waiting[0]
            request.computed = self.cached_tokens(request)
            tokens = self.piece(request, budget)
            if budget <= 0 or (not self.chunked and tokens < request.total - request.computed):
                stopped = "tokens"
                break
            if not self.allocate(request, tokens):
                stopped = "blocks"
                break
            self.running.append(self.waiting.popleft())
            self.totals["queries"] += len(request.prompt)
            self.totals["hits"] += request.computed
            budget -= tokens
            batch.append((request, tokens))
        if self.control:
            self.control.record(batch, "blocks" if preempted else stopped)
        return batch

    def piece(self, request: Request, budget: int) -> int:
        wanted = request.total - request.computed
        if self.chunked and 0 < self.threshold < wanted:
            wanted = self.threshold
        return min(wanted, budget)

    def allocate(self, request: Request, tokens: int) -> bool:
        more = blocks_for(request.computed + tokens) - request.blocks
        if more > self.free_blocks:
            return False
        request.blocks += more
        self.used_blocks += more
        return True

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the prompt whose blocks are known; the last token is always computed."""
        known = 0
        for number in request.hashes[: (len(request.prompt) - 1) // BLOCK_SIZE]:
            if number not in self.cached:
                break
            self.cached.move_to_end(number)
            known += BLOCK_SIZE
        return known

    def finish_step(self, batch: list[tuple[Request, int]]) -> None:
        for request, tokens in batch:
            prefilling = request.computed < len(request.prompt)
            request.computed += tokens
            if request.computed < request.total:
                continue
            if prefilling and not request.produced:
                self.totals["prompt"] += len(request.prompt)
                self.cached.update(dict.fromkeys(request.hashes))
                while len(self.cached) > self.options.num_blocks:
                    self.cached.popitem(last=False)
            request.produced += 1
            self.totals["generation"] += 1
            request.emit(100 + request.produced % 1000)
            if request.produced >= request.max_tokens:
                self.running.remove(request)
                self.release(request)
                self.totals["finished"] += 1
                request.emit(None)
        if self.control:
            self.control.report()

    def metrics(self) -> str:
        """The page, with vLLM's names."""
        labels = f'{{engine="0",model_name="{self.options.name}"}}'
        usable = max(self.options.num_blocks - 1, 1)
        rows = [
            ("num_requests_running", "gauge", len(self.running)),
            ("num_requests_waiting", "gauge", len(self.waiting)),
            ("kv_cache_usage_perc", "gauge", (self.used_blocks + self.held_blocks) / usable),
            ("num_preemptions_total", "counter", self.totals["preemptions"]),
            ("prefix_cache_queries_total", "counter", self.totals["queries"]),
            ("prefix_cache_hits_total", "counter", self.totals["hits"]),
            ("prompt_tokens_total", "counter", self.totals["prompt"]),
            ("generation_tokens_total", "counter", self.totals["generation"]),
        ]
        lines = []
        for name, kind, value in rows:
            family = name.removesuffix("_total")
            lines += [f"# HELP vllm:{family} A fake.", f"# TYPE vllm:{family} {kind}"]
            lines.append(f"vllm:{name}{labels} {float(value)}")
        for reason, key in (("length", "finished"), ("abort", "aborted")):
            count = float(self.totals[key])
            lines.append(f'vllm:request_success_total{{engine="0",finished_reason="{reason}"}} {count}')
        options = self.options
        lines.append(
            f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",enable_prefix_caching="{options.enable_prefix_caching}"'
            f',engine="0",gpu_memory_utilization="{options.gpu_memory_utilization}"'
            f',num_gpu_blocks="{options.num_blocks}"}} 1.0'
        )
        return "\n".join(lines) + "\n"


class Control:
    """The engine's end of the control block, with the limits that the real scheduler class keeps."""

    def __init__(self, engine: Engine, path: str) -> None:
        from tunetui_live import block

        self.block, self.engine, self.options = block, engine, engine.options
        self.end = block.ServerBlock.open(path)
        self.seen = self.steps = 0
        self.pending = False
        self.per_request = blocks_for(self.options.max_model_len)
        self.live_chunking = self.options.enable_chunked_prefill and engine.token_budget >= self.options.max_model_len
        start = (engine.max_num_seqs, engine.token_budget, int(engine.chunked), engine.threshold)
        self.wanted = block.Targets(0, *start, 0)
        self.end.say_hello(block.Hello(
            pid=os.getpid(), asynchronous=0, num_blocks=self.options.num_blocks, block_size=BLOCK_SIZE,
            blocks_per_max_request=self.per_request, bytes_per_block=BYTES_PER_BLOCK,
            max_num_seqs=engine.max_num_seqs, max_num_batched_tokens=engine.token_budget,
            max_model_len=self.options.max_model_len, whole_request=self.options.max_model_len,
            tokens_per_decode=1, least_prefill=0, least_threshold=BLOCK_SIZE,
            chunked_prefill=int(engine.chunked), long_prefill_token_threshold=engine.threshold,
            version=VERSION, base_class="Scheduler", seqs_restart="", tokens_restart="",
            chunked_restart="" if self.live_chunking else "fixed at start", memory_restart="",
            threshold_restart="vLLM sets it" if fault_number("own_threshold", 0) else "",
        ))  # fmt: skip
        self.look()
        self.report()

    def look(self) -> None:
        asked = self.end.asked()
        if asked != self.seen:
            self.seen = asked
            self.wanted = self.end.targets() or self.wanted
            self.pending = True
        if self.pending:
            self.apply()
            self.report()

    def apply(self) -> None:
        engine, options, wanted = self.engine, self.options, self.wanted
        engine.max_num_seqs = min(max(wanted.max_num_seqs, 1), options.max_num_seqs)
        if self.live_chunking:
            engine.chunked = bool(wanted.chunked_prefill)
        floor = max(engine.max_num_seqs, len(engine.running), 0 if engine.chunked else options.max_model_len)
        engine.token_budget = min(max(wanted.max_num_batched_tokens, floor), options.max_num_batched_tokens)
        threshold = wanted.long_prefill_token_threshold if engine.chunked else 0
        threshold = fault_number("own_threshold", threshold)
        engine.threshold = max(int(threshold), BLOCK_SIZE) if threshold else 0
        hold = min(max(wanted.held_blocks, 0), max(options.num_blocks - 1 - self.per_request, 0))
        engine.held_blocks += min(hold - engine.held_blocks, engine.free_blocks)
        self.pending = engine.held_blocks != hold or len(engine.running) > wanted.max_num_seqs

    def record(self, batch: list[tuple[Request, int]], stopped: str) -> None:
        engine, block = self.engine, self.block
        self.steps += 1
        stops = {"none": block.STOP_NONE, "seqs": block.STOP_SEQS, "tokens": block.STOP_TOKENS}
        self.end.record(*block.StepRecord(
            time.monotonic(), len(engine.running), len(engine.waiting), len(batch), sum(n for _, n in batch),
            engine.free_blocks, engine.held_blocks, engine.totals["preemptions"],
            stops.get(stopped, block.STOP_BLOCKS), engine.token_budget,
        ))  # fmt: skip

    def report(self) -> None:
        engine = self.engine
        self.end.publish(*self.block.InForce(
            time_s=time.monotonic(), step=self.wanted.step, max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.token_budget, chunked_prefill=int(engine.chunked),
            long_prefill_token_threshold=engine.threshold, held_blocks=engine.held_blocks,
            running=len(engine.running), waiting=len(engine.waiting), free_blocks=engine.free_blocks,
            steps=self.steps, preemptions=engine.totals["preemptions"], disabled=0,
            settled=int(not self.pending), error="",
        ))  # fmt: skip


def fail(message: str) -> None:
    """End the start as vLLM does: the cause in the engine core's log, then its consequence."""
    log("EngineCore failed to start.", "ERROR", "EngineCore")
    log("Traceback (most recent call last):", "ERROR", "EngineCore")
    log('  File "core.py", line 1, in run_engine_core', "ERROR", "EngineCore")
    log(message, "ERROR", "EngineCore")
    raise RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {'E': 1}")


def check(options: argparse.Namespace) -> None:
    """The limits that vLLM checks at a start, in its words."""
    tokens, seqs, length = options.max_num_batched_tokens, options.max_num_seqs, options.max_model_len
    if tokens < length and not options.enable_chunked_prefill:
        raise ValueError(f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}).")
    if tokens < seqs:
        raise ValueError(f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs}).")
    have, need = options.num_blocks - 1, blocks_for(length)
    if seqs > fault_number("memory-above-seqs", seqs):
        fail("RuntimeError: CUDA out of memory occurred when warming up sampler with "
             f"{seqs} dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing "
             "the engine.")  # fmt: skip
    if have <= 0 or "oom" in FAULTS or tokens > fault_number("memory-above-tokens", tokens):
        fail("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.")
    if need > have:
        gib = BYTES_PER_BLOCK / 2**30
        fail(f"ValueError: To serve at least one request with the model's max seq len ({length}), ({need * gib:.2f} "
             f"GiB KV cache is needed, which is larger than the available KV cache memory ({have * gib:.2f} GiB). "
             f"Based on the available memory, the estimated maximum model length is {have * BLOCK_SIZE}. ")  # fmt: skip


def check_memory(utilization: float) -> None:
    """What vLLM looks at before it loads anything."""
    free = fault_number("free-share", 1.0) * TOTAL
    if TOTAL * utilization > free:
        fail(f"ValueError: Free memory on device cuda:0 ({free:.2f}/{TOTAL:.2f} GiB) on startup is less than desired "
             f"GPU memory utilization ({utilization}, {TOTAL * utilization:.2f} GiB). Decrease GPU memory utilization "
             "or reduce GPU memory used by other processes.")  # fmt: skip


def fault_number(name: str, default: float) -> float:
    return next((float(f.partition(":")[2]) for f in FAULTS if f.startswith(name + ":")), default)


FAULTS = set(filter(None, os.environ.get("FAKE_VLLM_FAULT", "").split(",")))


async def start_up(options: argparse.Namespace) -> None:
    """The log lines of a start, spread over its time, and the faults that belong to it."""
    pause_s = float(os.environ.get("FAKE_VLLM_START_S", "0.3")) / 4
    log(f"  █  version {VERSION}")
    log(f"non-default args: {{'model': '{options.model}'}}")
    if "crash_at_start" in FAULTS:
        raise RuntimeError("this fake crashes at its start")
    await asyncio.sleep(pause_s)
    log("Resolved architecture: LlamaForCausalLM")
    log(f"Using max model len {options.max_model_len}")
    if "hang_start" in FAULTS or options.max_num_batched_tokens < fault_number("hang_below_tokens", 0):
        await asyncio.Event().wait()
    log(f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{options.model}'", who="EngineCore")
    await asyncio.sleep(pause_s)
    if not options.kv_cache_memory_bytes:
        check_memory(options.gpu_memory_utilization)
    log(f"Starting to load model {options.model}...", who="Worker")
    if "oom_in_weights" in FAULTS:
        fail("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
             f"{TOTAL:.2f} GiB of which 1.20 GiB is free.")  # fmt: skip
    if "crash_in_weights" in FAULTS:
        fail("safetensors_rust.SafetensorError: Error while deserializing header: invalid header")
    await asyncio.sleep(pause_s)
    log(f"Loading weights took {pause_s:.2f} seconds", who="Worker")
    log(f"Model loading took {WEIGHTS:.2f} GiB memory and {pause_s:.6f} seconds", who="Worker")
    check(options)
    total, length = (options.num_blocks - 1) * BLOCK_SIZE, options.max_model_len
    kv = options.num_blocks * BYTES_PER_BLOCK / GIB
    if options.kv_cache_memory_bytes:
        log(f"Explicitly set ({kv:.2f}/{TOTAL:.2f}) GiB for KV cache on node 0.", who="Worker")
    else:
        log(f"Available KV cache memory: {kv:.2f} GiB", who="Worker")
    log(f"GPU KV cache size: {total:,} tokens, Maximum concurrency for {length:,} tokens per request: "
        f"{total / length:.2f}x", who="EngineCore")  # fmt: skip
    await asyncio.sleep(pause_s)
    if not options.kv_cache_memory_bytes:
        share = options.gpu_memory_utilization
        log(f"Free memory on device ({TOTAL:.2f}/{TOTAL:.2f} GiB) on startup. Desired GPU memory utilization is "
            f"({share}, {share * TOTAL:.2f} GiB). Actual usage is {WEIGHTS + NON_TORCH:.2f} GiB for consumed "
            f"memory (weights + non-torch), {ACTIVATIONS:.2f} GiB for peak activation, and {GRAPHS:.2f} GiB for "
            "CUDAGraph memory.", who="Worker")  # fmt: skip
    log(f"init engine (profile, create kv cache, warmup model) took {pause_s:.2f} s", who="EngineCore")


def spawn_children() -> None:
    """Processes that leave the group and session of the server; an orphan's parent has also ended."""
    scripts = {"grandchild": "sleep 987 & echo $!; echo $$; exec sleep 987", "orphan": "sleep 987 & echo $!"}
    for kind in sorted(FAULTS & set(scripts)):
        child = subprocess.Popen(["sh", "-c", scripts[kind]], stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdout is not None
        for _ in range(2 if kind == "grandchild" else 1):
            log(f"fake child pid {int(child.stdout.readline())}")


async def main(options: argparse.Namespace) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        if "ignore_term" in FAULTS:
            signal.signal(number, signal.SIG_IGN)
        else:
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    spawn_children()
    stop = asyncio.create_task(stopping.wait())
    starting = asyncio.create_task(start_up(options))
    await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        return 0
    starting.result()
    engine = Engine(options)
    block = os.environ.get("TUNETUI_CONTROL_BLOCK")
    if options.scheduler_cls and block:
        engine.control = Control(engine, block)
    stepping = asyncio.create_task(engine.run())
    made = Server(engine, options.name, options.model, options.max_model_len, VERSION)
    server = await asyncio.start_server(made.serve, options.host, options.port, limit=2**24, backlog=2048)
    log(f"Starting vLLM server on http://{options.host}:{options.port}")
    print("INFO:     Application startup complete.", flush=True)
    after_s = next((float(fault.partition(":")[2]) for fault in FAULTS if fault.startswith("crash_after:")), None)
    await asyncio.wait({stop, stepping}, timeout=after_s, return_when=asyncio.FIRST_COMPLETED)
    if not stop.done():
        log("EngineCore encountered a fatal error.", "ERROR", "EngineCore")
        if stepping.done():
            log(repr(stepping.exception()), "ERROR", "EngineCore")
        os._exit(1)
    if "slow_stop" in FAULTS:
        await asyncio.sleep(3.0)
    log("Shutting down")
    server.close()
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(main(read_options(sys.argv[1:]))))
