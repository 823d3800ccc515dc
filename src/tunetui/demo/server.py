"""The demo's server: vLLM's flags, and its way from the start over answers to the end that a signal brings."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from typing import Any

from tunetui.demo.control import Control
from tunetui.demo.engine import Engine
from tunetui.demo.http import Server
from tunetui.demo.machine import Model
from tunetui.demo.runner import Runner
from tunetui.demo.start import Start, StartError, log
from tunetui.live.tunetui_live.block import ENVIRONMENT_KEY


def vllm_flags(program: str) -> argparse.ArgumentParser:
    """vLLM's flags as far as they matter here; another one ends the start with a usage error and status 2."""
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False)
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
    return parser


def completed(options: argparse.Namespace, model: Model) -> argparse.Namespace:
    """With what the model says where the flags say nothing."""
    options.model = options.model or model.name
    options.served_model_name = options.served_model_name or options.model
    options.max_model_len = options.max_model_len or model.max_model_len
    return options


class SimulatedVllm:
    """vLLM's API server on a simulated engine."""

    def __init__(self, start: Start) -> None:
        self.start, self.options = start, start.options

    def run(self) -> int:
        """Start, answer until a signal comes, and end; the exit status."""
        with contextlib.suppress(KeyboardInterrupt):
            return asyncio.run(self._serve())
        return 130

    async def _serve(self) -> int:
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        stop = asyncio.create_task(stopping.wait())
        starting = asyncio.create_task(self.start.run())
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return 0
        try:
            num_blocks = starting.result()
        except StartError as error:
            error.tell()
            return 1
        await self.answer(num_blocks, stop)
        return 0

    async def answer(self, num_blocks: int, stop: asyncio.Task[Any]) -> None:
        """Answer until `stop` is done."""
        options, version = self.options, self.start.version
        runner = Runner(options, self.start.machine, num_blocks)
        path = os.environ.get(ENVIRONMENT_KEY)
        if options.scheduler_cls and path:
            runner.control = self.control(path, runner.engine)
        made = Server(runner, options.served_model_name, options.model, options.max_model_len, version)
        stepping = asyncio.create_task(runner.run())
        server = await asyncio.start_server(made.serve, options.host, options.port, limit=2**24, backlog=2048)
        log(f"Starting vLLM server on http://{options.host}:{options.port}", who="APIServer")
        print("INFO:     Application startup complete.", flush=True)
        await asyncio.wait({stop, stepping}, return_when=asyncio.FIRST_COMPLETED)
        if stepping.done():
            stepping.result()
        log("Shutting down", who="APIServer")
        server.close()

    def control(self, path: str, engine: Engine) -> Control:
        """The engine's end of the control block at `path`."""
        start = self.start
        return Control(path, engine, self.options.max_model_len, start.machine.bytes_per_block, start.version)
