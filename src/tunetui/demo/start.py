"""The start of the simulated server: vLLM's phases and log lines over their time, and its words where it refuses."""

from __future__ import annotations

import argparse
import asyncio
import os
import time

from tunetui.demo.engine import BLOCK_SIZE, blocks_for
from tunetui.demo.machine import GIB, GRAPHS_GIB, NON_TORCH_GIB, Machine


def log(text: str, level: str = "INFO", who: str = "EngineCore") -> None:
    print(f"({who} pid={os.getpid()}) {level} {time.strftime('%m-%d %H:%M:%S')} [demo.py:1] {text}", flush=True)


class StartError(Exception):
    """The start fails as vLLM's would; the message is the cause in vLLM's words."""

    def tell(self) -> None:
        """In the log as vLLM does: the cause, and after it its consequence."""
        log("EngineCore failed to start.", "ERROR")
        log("Traceback (most recent call last):", "ERROR")
        log('  File "core.py", line 1, in run_engine_core', "ERROR")
        log(str(self), "ERROR")
        print("Traceback (most recent call last):", flush=True)
        print('  File "api_server.py", line 1, in run_server', flush=True)
        print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)


class Start:
    """A start with these flags on this machine, which takes so many seconds."""

    free_share = 0.99  # of the card, before anything of the start is on it

    def __init__(self, options: argparse.Namespace, machine: Machine, version: str, seconds: float) -> None:
        self.options, self.machine, self.version, self.seconds = options, machine, version, seconds
        self.explicit_bytes = int(options.kv_cache_memory_bytes)

    async def run(self) -> int:
        """All its phases; the KV blocks that it ends with. Raises StartError."""
        began_s = time.monotonic()
        await self.read_config()
        await self.load_weights()
        blocks = await self.size_cache()
        await self.warm_up()
        log(f"init engine (profile, create kv cache, warmup model) took {time.monotonic() - began_s:.2f} s")
        return blocks

    async def read_config(self) -> None:
        """The flags and the model's config, and whether they go together."""
        options, longest = self.options, self.machine.model.max_model_len
        log(f"  █  version {self.version}", who="APIServer")
        said = f"SIMULATED: no model is loaded; {options.model} on {self.machine.name} is modelled"
        log(said, "WARNING", "APIServer")
        log(f"non-default args: {{'model': '{options.model}'}}", who="APIServer")
        await self._pass(0.15)
        log("Resolved architecture: SimulatedForCausalLM", who="APIServer")
        tokens, seqs, length = options.max_num_batched_tokens, options.max_num_seqs, options.max_model_len
        if length > longest:
            raise StartError(
                f"ValueError: User-specified max_model_len ({length}) is greater than the derived max_model_len "
                f"(max_position_embeddings={longest} or model_max_length=None in model's config.json)."
            )
        log(f"Using max model len {length}", who="APIServer")
        if tokens < length and not options.enable_chunked_prefill:
            raise StartError(f"ValueError: max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}).")
        if tokens < seqs:
            raise StartError(
                f"ValueError: max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs})."
            )

    async def load_weights(self) -> None:
        """The engine's process, the memory it asks for, and the weights."""
        log(f"Initializing a V1 LLM engine (v{self.version}) with config: model='{self.options.model}'")
        await self._pass(0.15)
        total, share = self.machine.card.memory_gib, self.options.gpu_memory_utilization
        free = self.free_share * total
        if total * share > free and not self.explicit_bytes:
            raise StartError(
                f"ValueError: Free memory on device cuda:0 ({free:.2f}/{total:.2f} GiB) on startup is less than "
                f"desired GPU memory utilization ({share}, {total * share:.2f} GiB). Decrease GPU memory utilization "
                "or reduce GPU memory used by other processes."
            )
        log(f"Starting to load model {self.options.model}...", who="Worker")
        load_s = await self.read_weights()
        log(f"Loading weights took {load_s:.2f} seconds", who="Worker")
        log(f"Model loading took {self.taken_gib()['weight']:.2f} GiB memory and {load_s:.6f} seconds", who="Worker")

    async def read_weights(self) -> float:
        """The seconds that it took."""
        return await self._pass(0.4)

    async def size_cache(self) -> int:
        """The KV blocks that the flags ask for or the memory has room for, if a request fits into them."""
        await self._pass(0.15)
        options, machine = self.options, self.machine
        blocks = int(
            options.num_gpu_blocks_override
            or self.explicit_bytes // machine.bytes_per_block
            or machine.num_blocks(options.gpu_memory_utilization, options.max_num_batched_tokens)
        )
        if blocks < 2:
            raise StartError("ValueError: No available memory for the cache blocks. Try increasing "
                             "`gpu_memory_utilization` when initializing the engine.")  # fmt: skip
        length, have, gib = options.max_model_len, blocks - 1, machine.bytes_per_block / GIB
        need = blocks_for(length)
        if need > have:
            raise StartError(
                f"ValueError: To serve at least one request with the model's max seq len ({length}), "
                f"({need * gib:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
                f"({have * gib:.2f} GiB). Based on the available memory, the estimated maximum model length is "
                f"{have * BLOCK_SIZE}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
                "initializing the engine."
            )
        if self.explicit_bytes:
            log(f"Explicitly set ({blocks * gib:.2f}/{machine.card.memory_gib:.2f}) GiB for KV cache on node 0.",
                who="Worker")  # fmt: skip
        else:
            log(f"Available KV cache memory: {blocks * gib:.2f} GiB", who="Worker")
        total = have * BLOCK_SIZE
        log(f"GPU KV cache size: {total:,} tokens, Maximum concurrency for {length:,} tokens per request: "
            f"{total / length:.2f}x")  # fmt: skip
        return blocks

    async def warm_up(self) -> None:
        """The graphs, and what the memory went to."""
        if not self.options.enforce_eager:
            log("Capturing CUDA graphs (decode, FULL)", who="Worker")
        await self._pass(0.15)
        if self.explicit_bytes:
            return
        total, share = self.machine.card.memory_gib, self.options.gpu_memory_utilization
        *most, last = (f"{gib:.2f} GiB for {what}" for what, gib in self.taken_gib().items())
        log(f"Free memory on device ({self.free_share * total:.2f}/{total:.2f} GiB) on startup. Desired GPU memory "
            f"utilization is ({share}, {share * total:.2f} GiB). Actual usage is {', '.join(most)}, and {last}.",
            who="Worker")  # fmt: skip

    def taken_gib(self) -> dict[str, float]:
        """What is taken of one card besides the KV cache, in the log's order and by its names."""
        machine = self.machine
        return {
            "weight": machine.model.weights_bytes / machine.cards / GIB,
            "peak activation": machine.activations_bytes(self.options.max_num_batched_tokens) / GIB,
            "non-torch memory": NON_TORCH_GIB,
            "CUDAGraph memory": GRAPHS_GIB,
        }

    async def _pass(self, share: float) -> float:
        """Let a share of the start's time pass; the seconds it was."""
        await asyncio.sleep(share * self.seconds)
        return share * self.seconds
