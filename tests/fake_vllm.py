"""A stand-in for vLLM's API server: the demo's server on a small and fast machine, with faults.

`python tests/fake_vllm.py [serve MODEL] [vLLM's flags]`; as with vLLM, the module of a scheduler class that is named
must be found on PYTHONPATH.

Environment: FAKE_VLLM_START_S (seconds of start-up, 0.3), FAKE_VLLM_SPEED (2 halves the step times), FAKE_VLLM_FAULT:
crash_at_start, crash_in_weights, oom, oom_in_weights, memory-above-tokens:N (no room for the KV cache above N tokens),
memory-above-seqs:N (the sampler runs out), free-share:SHARE, hang_start, hang_below_tokens:N, own_threshold:N,
ignore_term, slow_stop, grandchild, orphan, crash_after:SECONDS; several joined by commas. Children of `grandchild` and
`orphan` are announced in the log as `fake child pid N`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
from typing import Any

from tunetui.demo.control import Control
from tunetui.demo.engine import Engine, Step
from tunetui.demo.machine import GIB, Card, Machine, Model
from tunetui.demo.server import SimulatedVllm, completed, vllm_flags
from tunetui.demo.start import Start, StartError, log

VERSION = "0.32.0"
START_S = float(os.environ.get("FAKE_VLLM_START_S", "0.3"))
SPEED = float(os.environ.get("FAKE_VLLM_SPEED", "1"))
FAULTS = set(filter(None, os.environ.get("FAKE_VLLM_FAULT", "").split(",")))
TOTAL_GIB = 10.0
TAKEN_GIB = {"weight": 0.55, "peak activation": 0.25, "non-torch memory": 0.15, "CUDAGraph memory": 0.05}
BASE_S, PER_SEQUENCE_S, PER_PREFILL_TOKEN_S = 0.002, 0.000_15, 0.000_01


def fault_number(name: str, default: float) -> float:
    return next((float(f.partition(":")[2]) for f in FAULTS if f.startswith(name + ":")), default)


class SmallMachine(Machine):
    """Memory and step times in round numbers."""

    def step_s(self, step: Step) -> float:
        prefill = sum(new for new, _ in step.prefills)
        sequences = step.decodes + len(step.prefills)
        return (BASE_S + PER_SEQUENCE_S * sequences + PER_PREFILL_TOKEN_S * prefill) / SPEED

    def fixed_bytes(self, token_budget: int) -> float:
        return sum(TAKEN_GIB.values()) * GIB


# A block of 16 tokens has 2 MiB.
MODEL = Model(
    "fake/model", TAKEN_GIB["weight"] * GIB / 2e9, layers=32, heads=32, kv_heads=8, head_dim=128, max_model_len=2048
)
MACHINE = SmallMachine(Card("a small card", TOTAL_GIB, bandwidth_gb_s=0.0, tflop_s=0.0), MODEL)


class FaultyStart(Start):
    """With the faults that belong to its phases."""

    free_share = fault_number("free-share", 1.0)

    def taken_gib(self) -> dict[str, float]:
        return TAKEN_GIB

    async def read_config(self) -> None:
        if "ignore_term" in FAULTS:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        spawn_children()
        await super().read_config()
        if "crash_at_start" in FAULTS:
            raise RuntimeError("this fake crashes at its start")
        if "hang_start" in FAULTS or self.options.max_num_batched_tokens < fault_number("hang_below_tokens", 0):
            await asyncio.Event().wait()

    async def read_weights(self) -> float:
        if "oom_in_weights" in FAULTS:
            raise StartError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
                             f"total capacity of {TOTAL_GIB:.2f} GiB of which 1.20 GiB is free.")  # fmt: skip
        if "crash_in_weights" in FAULTS:
            raise StartError("safetensors_rust.SafetensorError: Error while deserializing header: invalid header")
        return await super().read_weights()

    async def size_cache(self) -> int:
        tokens = self.options.max_num_batched_tokens
        if "oom" in FAULTS or tokens > fault_number("memory-above-tokens", tokens):
            raise StartError("ValueError: No available memory for the cache blocks. Try increasing "
                             "`gpu_memory_utilization`.")  # fmt: skip
        return await super().size_cache()

    async def warm_up(self) -> None:
        seqs = self.options.max_num_seqs
        if seqs > fault_number("memory-above-seqs", seqs):
            raise StartError("RuntimeError: CUDA out of memory occurred when warming up sampler with "
                             f"{seqs} dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` "
                             "when initializing the engine.")  # fmt: skip
        await super().warm_up()


class FaultyVllm(SimulatedVllm):
    """With the faults of a server that runs."""

    async def answer(self, num_blocks: int, stop: asyncio.Task[Any]) -> None:
        after_s = fault_number("crash_after", -1)
        if after_s >= 0:
            asyncio.get_running_loop().call_later(after_s, crash)
        await super().answer(num_blocks, stop)
        if "slow_stop" in FAULTS:
            await asyncio.sleep(3.0)

    def control(self, path: str, engine: Engine) -> Control:
        importlib.import_module(self.options.scheduler_cls.rpartition(".")[0])
        why = "vLLM sets it" if fault_number("own_threshold", 0) else ""
        return Control(path, engine, self.options.max_model_len, MACHINE.bytes_per_block, VERSION, why, publish_s=0.0)


def crash() -> None:
    log("EngineCore encountered a fatal error.", "ERROR")
    os._exit(1)


def spawn_children() -> None:
    """Processes that leave the group and session of the server; an orphan's parent has also ended."""
    scripts = {"grandchild": "sleep 987 & echo $!; echo $$; exec sleep 987", "orphan": "sleep 987 & echo $!"}
    for kind in sorted(FAULTS & set(scripts)):
        child = subprocess.Popen(["sh", "-c", scripts[kind]], stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdout is not None
        for _ in range(2 if kind == "grandchild" else 1):
            log(f"fake child pid {int(child.stdout.readline())}")


def main(words: list[str]) -> int:
    """The exit status."""
    parser = vllm_flags("api_server.py")
    parser.add_argument("positional", nargs="*", metavar="model_tag")
    options = parser.parse_args(words)
    tags = options.positional[1:] if options.positional[:1] == ["serve"] else options.positional
    if len(tags) > 1:
        parser.error("unrecognized arguments: " + " ".join(tags[1:]))
    options.model = options.model or next(iter(tags), None)
    options.long_prefill_token_threshold = int(fault_number("own_threshold", options.long_prefill_token_threshold))
    return FaultyVllm(FaultyStart(completed(options, MODEL), MACHINE, VERSION, START_S)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
