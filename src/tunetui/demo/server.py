"""The demo's server: vLLM's flags, log lines, HTTP and metrics over the simulated engine, in real time.

`python -m tunetui.demo --profile NAME --model MODEL [vLLM's flags]`. TUNETUI_DEMO_START_S says how long a start takes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tunetui.demo.control import Control
from tunetui.demo.engine import BLOCK_SIZE, Engine, Request, blocks_for, hashes_of
from tunetui.demo.http import Server
from tunetui.demo.machine import GIB, GRAPHS_GIB, NON_TORCH_GIB, Machine
from tunetui.demo.profiles import PROFILES
from tunetui.live.tunetui_live.block import ENVIRONMENT_KEY

VERSION = "0.32.0+simulated"
START_S = 2.0
CATCH_UP_S = 0.05  # a late timer is made up for, so that the step times hold on average, but no pause of the machine is


def log(text: str, level: str = "INFO", who: str = "EngineCore") -> None:
    print(f"({who} pid={os.getpid()}) {level} {time.strftime('%m-%d %H:%M:%S')} [demo.py:1] {text}", flush=True)


class StartError(Exception):
    """The start fails as vLLM's would; the message is the cause in vLLM's words."""


def read_options(words: list[str]) -> argparse.Namespace:
    """vLLM's flags as far as they matter here; another one ends the start with a usage error and status 2."""
    parser = argparse.ArgumentParser(prog="tunetui.demo", allow_abbrev=False)
    parser.add_argument("--profile", choices=PROFILES, default="case")
    for name in ("--model", "--served-model-name", "--scheduler-cls"):
        parser.add_argument(name)
    parser.add_argument("--host", default="127.0.0.1")
    for name, default in (("--port", 8000), ("--max-num-seqs", 256), ("--max-num-batched-tokens", 2048),
                          ("--max-model-len", 0), ("--long-prefill-token-threshold", 0),
                          ("--kv-cache-memory-bytes", 0), ("--num-gpu-blocks-override", 0)):  # fmt: skip
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--enable-chunked-prefill", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args(words)
    model = PROFILES[options.profile].machine.model
    options.model = options.model or model.name
    options.max_model_len = options.max_model_len or model.max_model_len
    return options


def blocks_of(options: argparse.Namespace, machine: Machine) -> int:
    """KV blocks of a start with these flags. Raises StartError where vLLM would not start."""
    tokens, seqs, length = options.max_num_batched_tokens, options.max_num_seqs, options.max_model_len
    if length > machine.model.max_model_len:
        raise StartError(
            f"ValueError: User-specified max_model_len ({length}) is greater than the derived max_model_len "
            f"(max_position_embeddings={machine.model.max_model_len} or model_max_length=None in model's config.json)."
        )
    if tokens < length and not options.enable_chunked_prefill:
        raise StartError(f"ValueError: max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}).")
    if tokens < seqs:
        raise StartError(
            f"ValueError: max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs})."
        )
    total, share = machine.card.memory_gib, options.gpu_memory_utilization
    if share > 0.99 and not options.kv_cache_memory_bytes:
        free = 0.99 * total
        raise StartError(
            f"ValueError: Free memory on device cuda:0 ({free:.2f}/{total:.2f} GiB) on startup is less than desired "
            f"GPU memory utilization ({share}, {total * share:.2f} GiB). Decrease GPU memory utilization or reduce GPU "
            "memory used by other processes."
        )
    blocks = (
        options.num_gpu_blocks_override
        or options.kv_cache_memory_bytes // machine.bytes_per_block
        or machine.num_blocks(share, tokens)
    )
    if blocks < 2:
        raise StartError("ValueError: No available memory for the cache blocks. Try increasing "
                         "`gpu_memory_utilization` when initializing the engine.")  # fmt: skip
    need, have, gib = blocks_for(length), blocks - 1, machine.bytes_per_block / GIB
    if need > have:
        raise StartError(
            f"ValueError: To serve at least one request with the model's max seq len ({length}), ({need * gib:.2f} GiB "
            f"KV cache is needed, which is larger than the available KV cache memory ({have * gib:.2f} GiB). Based on "
            f"the available memory, the estimated maximum model length is {have * BLOCK_SIZE}. Try increasing "
            "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    return int(blocks)


async def start_up(options: argparse.Namespace, machine: Machine) -> int:
    """The log lines of a start, spread over its time; the KV blocks it ends with. Raises StartError."""
    start_s = float(os.environ.get("TUNETUI_DEMO_START_S", START_S))
    began_s = time.monotonic()
    log(f"  █  version {VERSION}", who="APIServer")
    log(f"SIMULATED: no model is loaded; {options.model} on {machine.name} is modelled", "WARNING", "APIServer")
    log(f"non-default args: {{'model': '{options.model}'}}", who="APIServer")
    await asyncio.sleep(0.15 * start_s)
    log("Resolved architecture: SimulatedForCausalLM", who="APIServer")
    log(f"Using max model len {options.max_model_len}", who="APIServer")
    log(f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{options.model}'")
    await asyncio.sleep(0.15 * start_s)
    log(f"Starting to load model {options.model}...", who="Worker")
    await asyncio.sleep(0.4 * start_s)
    weights_gib = machine.model.weights_bytes / machine.cards / GIB
    log(f"Loading weights took {0.4 * start_s:.2f} seconds", who="Worker")
    log(f"Model loading took {weights_gib:.2f} GiB memory and {0.4 * start_s:.6f} seconds", who="Worker")
    await asyncio.sleep(0.15 * start_s)
    blocks = blocks_of(options, machine)
    kv_gib, total, length = blocks * machine.bytes_per_block / GIB, (blocks - 1) * BLOCK_SIZE, options.max_model_len
    log(f"Available KV cache memory: {kv_gib:.2f} GiB", who="Worker")
    log(f"GPU KV cache size: {total:,} tokens, Maximum concurrency for {length:,} tokens per request: "
        f"{total / length:.2f}x")  # fmt: skip
    log("Capturing CUDA graphs (decode, FULL)", who="Worker")
    await asyncio.sleep(0.15 * start_s)
    card_gib, share = machine.card.memory_gib, options.gpu_memory_utilization
    log(f"Free memory on device ({card_gib:.2f}/{card_gib:.2f} GiB) on startup. Desired GPU memory utilization is "
        f"({share}, {share * card_gib:.2f} GiB). Actual usage is {weights_gib:.2f} GiB for weight, "
        f"{machine.activations_bytes(options.max_num_batched_tokens) / GIB:.2f} GiB for peak activation, "
        f"{NON_TORCH_GIB:.2f} GiB for non-torch memory, and {GRAPHS_GIB:.2f} GiB for CUDAGraph memory.",
        who="Worker")  # fmt: skip
    log(f"init engine (profile, create kv cache, warmup model) took {time.monotonic() - began_s:.2f} s")
    return blocks


@dataclass(slots=True)
class _Client:
    emit: Callable[[int | None], None]
    is_gone: Callable[[], bool]


class Runner:
    """The engine in real time, and who waits for its tokens."""

    def __init__(self, options: argparse.Namespace, machine: Machine, num_blocks: int) -> None:
        self.engine = Engine(
            num_blocks, options.max_num_seqs, options.max_num_batched_tokens, options.enable_chunked_prefill,
            options.long_prefill_token_threshold if options.enable_chunked_prefill else 0,
            options.enable_prefix_caching,
        )  # fmt: skip
        self.options, self.machine = options, machine
        self.control: Control | None = None
        self._clients: dict[Request, _Client] = {}
        self._wake = asyncio.Event()
        self._totals = dict.fromkeys(("prompt", "generation", "finished", "aborted"), 0)

    def submit(
        self, prompt: list[int], max_tokens: int, emit: Callable[[int | None], None], is_gone: Callable[[], bool]
    ) -> None:
        """Take a request, see `http.Backend`."""
        if self.control:
            self.control.look()
        request = Request(len(prompt), max_tokens, hashes_of(prompt) if self.engine.prefix_caching else ())
        self._clients[request] = _Client(emit, is_gone)
        self.engine.add(request)
        self._wake.set()

    async def run(self) -> None:
        """The loop: schedule, take the time that the step would take, hand out its tokens."""
        loop = asyncio.get_running_loop()
        engine, end_s = self.engine, loop.time()
        while True:
            self._drop_gone()
            if engine.idle:
                if self.control:
                    self.control.idle()
                self._wake.clear()
                await self._wake.wait()
            if self.control:
                self.control.look()
            step = engine.schedule()
            if self.control:
                self.control.record(step)
            decoding = engine.decoding
            end_s = max(end_s, loop.time() - CATCH_UP_S) + self.machine.step_s(step)
            await asyncio.sleep(end_s - loop.time())
            firsts, ended = engine.finish(step)
            for request in (*decoding, *firsts):
                self._clients[request].emit(100 + engine.steps % 900)
            self._totals["generation"] += len(decoding) + len(firsts)
            self._totals["prompt"] += sum(request.prompt_tokens for request in firsts if request.made == 1)
            for request in ended:
                self._totals["finished"] += 1
                self._clients.pop(request).emit(None)

    def _drop_gone(self) -> None:
        for request, client in [pair for pair in self._clients.items() if pair[1].is_gone()]:
            self.engine.abort(request)
            self._totals["aborted"] += 1
            del self._clients[request]
            client.emit(None)

    def metrics(self) -> str:
        """The page, with vLLM's names."""
        engine, options = self.engine, self.options
        usable = max(engine.pool.num_blocks - 1, 1)
        labels = f'{{engine="0",model_name="{options.served_model_name or options.model}"}}'
        lines = []
        for name, kind, value in (
            ("num_requests_running", "gauge", len(engine.running)),
            ("num_requests_waiting", "gauge", len(engine.waiting)),
            ("kv_cache_usage_perc", "gauge", 1 - engine.pool.free / usable),
            ("num_preemptions_total", "counter", engine.preemptions),
            ("prefix_cache_queries_total", "counter", engine.prefix_queries),
            ("prefix_cache_hits_total", "counter", engine.prefix_hits),
            ("prompt_tokens_total", "counter", self._totals["prompt"]),
            ("generation_tokens_total", "counter", self._totals["generation"]),
        ):
            family = name.removesuffix("_total")
            lines += [f"# HELP vllm:{family} Simulated.", f"# TYPE vllm:{family} {kind}"]
            lines.append(f"vllm:{name}{labels} {float(value)}")
        for reason, key in (("length", "finished"), ("abort", "aborted")):
            count = float(self._totals[key])
            lines.append(f'vllm:request_success_total{{engine="0",finished_reason="{reason}"}} {count}')
        lines.append(
            f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",enable_prefix_caching="{options.enable_prefix_caching}"'
            f',engine="0",gpu_memory_utilization="{options.gpu_memory_utilization}"'
            f',num_gpu_blocks="{engine.pool.num_blocks}"}} 1.0'
        )
        return "\n".join(lines) + "\n"


async def serve(options: argparse.Namespace) -> int:
    """Start, answer until a signal comes, and end; the exit status."""
    machine = PROFILES[options.profile].machine
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    stop = asyncio.create_task(stopping.wait())
    starting = asyncio.create_task(start_up(options, machine))
    await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        return 0
    try:
        num_blocks = starting.result()
    except StartError as error:
        log("EngineCore failed to start.", "ERROR")
        log(str(error), "ERROR")
        print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
        return 1
    runner = Runner(options, machine, num_blocks)
    path = os.environ.get(ENVIRONMENT_KEY)
    if options.scheduler_cls and path:
        runner.control = Control(path, runner.engine, options.max_model_len, machine.bytes_per_block, VERSION)
    name = options.served_model_name or options.model
    made = Server(runner, name, options.model, options.max_model_len, VERSION)
    stepping = asyncio.create_task(runner.run())
    server = await asyncio.start_server(made.serve, options.host, options.port, limit=2**24, backlog=2048)
    log(f"Starting vLLM server on http://{options.host}:{options.port}", who="APIServer")
    print("INFO:     Application startup complete.", flush=True)
    await asyncio.wait({stop, stepping}, return_when=asyncio.FIRST_COMPLETED)
    if stepping.done():
        stepping.result()
    log("Shutting down", who="APIServer")
    server.close()
    return 0


def main(words: list[str]) -> int:
    """The exit status."""
    options = read_options(words)
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(serve(options))
    return 130
