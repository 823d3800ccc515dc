"""The simulated engine in real time: who waits for its tokens, and what its metrics say."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tunetui.demo.control import Control
from tunetui.demo.engine import BLOCK_SIZE, Engine, Request, hashes_of
from tunetui.demo.machine import Machine

CATCH_UP_S = 0.05  # a late timer is made up for, so that the step times hold on average, but no pause of the machine is


@dataclass(slots=True)
class _Client:
    emit: Callable[[int | None], None]
    is_gone: Callable[[], bool]


class Runner:
    """Steps the engine as long as it lives, each step in the time that the machine would take."""

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
                end_s = loop.time()
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
        labels = f'{{engine="0",model_name="{options.served_model_name}"}}'
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
