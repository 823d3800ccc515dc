"""A point reached live beside the same point reached by a restart, on a real vLLM: throughput, P95 TPOT, P50 TTFT.

`uv run python benchmarks/live_vs_restart.py --vllm "VENV/bin/python -m vllm.entrypoints.openai.api_server"`

One server is started at the ceilings with our scheduler class and stepped to each point under load; beside it a plain
vLLM is started with exactly that point's flags. Each round runs the same seeded closed-loop load on the live server at
its ceilings, on the live server at the point, and on the restarted one; the first round warms up and is not counted.
A run leaves out its first turnover, and the load stays on until its last counted request has ended. Exits with 1 where
the medians differ by more than 10 %, with 2 where it could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tunetui.core.episode import percentile
from tunetui.core.load import Load
from tunetui.core.sample import Outcome, Sample
from tunetui.core.slo import Slo
from tunetui.core.workload import EpisodePlan, Workload, parse_lengths, plan_episode
from tunetui.drive.meter import Meter
from tunetui.engine.command import SCHEDULER, CommandError, VllmCommand, find_vllm, server_environment
from tunetui.engine.control import lay_out
from tunetui.engine.process import ServerProcess, ServerStartError, pick_port
from tunetui.engine.server_api import ApiError, ServerApi
from tunetui.live.tunetui_live import block as layout
from tunetui.load.events import Batch, Died, Event, Refused, Started
from tunetui.load.generator import GeneratorGoneError, LoadGenerator

ROOT = Path(__file__).parents[1]
HOST, FIRST_PORT = "127.0.0.1", 8571
ALLOWED = 0.10
START_S, RUN_S, STEP_S, IDLE_S, EVENT_S = 240.0, 180.0, 60.0, 20.0, 30.0  # what each may take
BLOCKS, MODEL_LEN = 512, 2048
# Small KV blocks, so that half of them run out under this load; two servers share the machine's memory.
COMMON_FLAGS = (
    "--max-model-len", str(MODEL_LEN), "--block-size", "32", "--gpu-memory-utilization", "0.3",
    "--enforce-eager", "--no-enable-prefix-caching",
)  # fmt: skip
OUTPUT_TOKENS = "16-48"
BEGAN_S = time.monotonic()


class BenchmarkFailed(Exception):
    """It could not be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server is started with, or stepped to. The defaults are the ceilings."""

    seqs: int = 64
    tokens: int = MODEL_LEN
    chunked: bool = True
    blocks: int = BLOCKS

    def argv(self) -> tuple[str, ...]:
        return (
            "--max-num-seqs", str(self.seqs), "--max-num-batched-tokens", str(self.tokens),
            "--enable-chunked-prefill" if self.chunked else "--no-enable-chunked-prefill",
            "--num-gpu-blocks-override", str(self.blocks),
        )  # fmt: skip

    def targets(self, step: int) -> layout.Targets:
        """Held are the blocks that a start would not have; vLLM's null block is one of those left, as it is there."""
        return layout.Targets(
            step=step,
            max_num_seqs=self.seqs,
            max_num_batched_tokens=self.tokens,
            chunked_prefill=int(self.chunked),
            long_prefill_token_threshold=0,
            held_blocks=BLOCKS - self.blocks,
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """A point, the flag that makes it one, and the load under which that flag bites."""

    name: str
    flag: str
    limits: Limits
    streams: int
    prompt_tokens: str = "128-384"

    @property
    def load(self) -> str:
        return f"{self.streams} streams, {self.prompt_tokens}+{OUTPUT_TOKENS} tokens"

    def plan(self, cut: int, counted: int, seed: int) -> EpisodePlan:
        workload = Workload(parse_lengths(self.prompt_tokens), parse_lengths(OUTPUT_TOKENS), seed)
        return plan_episode(workload, Load(concurrency=self.streams), cut, counted)


TRIALS = {
    trial.name: trial
    for trial in (
        Trial("seqs4", "--max-num-seqs 4", Limits(seqs=4), 16),
        Trial("seqs16", "--max-num-seqs 16", Limits(seqs=16), 32),
        Trial("budget", "--max-num-batched-tokens 512", Limits(tokens=512), 48),
        # Longer prompts, so that more often one does not fit whole into what a step has left.
        Trial("unchunked", "--no-enable-chunked-prefill", Limits(chunked=False), 16, "256-768"),
        Trial("halfkv", f"--num-gpu-blocks-override {BLOCKS // 2}", Limits(blocks=BLOCKS // 2), 48),
    )
}
STEPPING = Trial("stepping", "", Limits(), 16)  # the load under which a step is taken


@dataclass(frozen=True, slots=True)
class Run:
    """One run's figures. `stopped` are shares of the live server's steps with requests waiting, by what kept them."""

    tokens_per_s: float
    tpot_p95_s: float
    ttft_p50_s: float
    window_s: float
    preempted: int
    most_running: int | None = None
    stopped: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepCost:
    """One ask under load: the write, and from the write to in force and to settled, by the scheduler's own clock."""

    write_s: float
    in_force_s: float
    settled_s: float


@dataclass(slots=True)
class Runs:
    """The counted runs of one trial, in pairs: the same index is the same load."""

    ceiling: list[Run] = field(default_factory=list)
    live: list[Run] = field(default_factory=list)
    restart: list[Run] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of Run as the table shows it. Only judged figures decide the exit code."""

    label: str
    of: Callable[[Run], float]
    judged: bool = True


FIGURES = (
    Figure("output tok/s", lambda run: run.tokens_per_s),
    Figure("P95 TPOT ms", lambda run: run.tpot_p95_s * 1000),
    Figure("P50 TTFT ms", lambda run: run.ttft_p50_s * 1000, judged=False),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; `folder` holds the logs and the control block, and goes with the benchmark."""

    command: VllmCommand
    model: str
    trials: tuple[Trial, ...]
    repeats: int
    requests: int
    folder: Path


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN_S:7.1f} s  {text}", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def within_s(limit_s: float, what: str) -> AsyncIterator[None]:
    """Raises BenchmarkFailed, naming what took so long."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise BenchmarkFailed(f"{what} took more than {limit_s:g} s") from None


# -- the servers ------------------------------------------------------------------------------------------------------


class Server:
    """One vLLM; with a control block it is the live one."""

    def __init__(self, name: str, url: str, process: ServerProcess, log: Path, block: layout.ControlBlock | None):
        self.name = name
        self.url = url
        self.process = process
        self.block = block
        self.api = ServerApi(url)
        self.model = ""
        self.token_ids: tuple[int, ...] = ()
        self._log = log
        self._asks = 0
        self._targets = Limits().targets(0)
        self._next_record = 0

    def raise_if_dead(self) -> None:
        code = self.process.poll()
        if code is not None:
            tail = self._log.read_text("utf-8", "replace").splitlines()[-8:]
            raise BenchmarkFailed("\n".join([f"the {self.name} server has ended ({code}):", *tail]))

    async def until_serving(self, limits: Limits) -> None:
        """Wait until it answers, and check that it is what was asked for."""
        async with within_s(START_S, f"the start of the {self.name} server"):
            while not await self.api.healthy():
                self.raise_if_dead()
                await asyncio.sleep(0.25)
        self.model = (await self.api.models())[0].id
        self.token_ids = await self.api.prompt_token_ids(self.model)
        blocks = (await self.api.gauges()).num_gpu_blocks
        if blocks != limits.blocks:
            raise BenchmarkFailed(f"the {self.name} server has {blocks} KV blocks, not {limits.blocks}")
        if self.block is not None and self.block.hello() is None:
            raise BenchmarkFailed("the scheduler class did not report in")

    async def until_idle(self) -> None:
        async with within_s(IDLE_S, f"getting idle (the {self.name} server)"):
            while (gauges := await self.api.gauges()).running or gauges.waiting:
                self.raise_if_dead()
                await asyncio.sleep(0.05)

    async def ask(self, limits: Limits) -> StepCost:
        """Ask for `limits` and wait until they are in force and settled: requests must be under way."""
        assert self.block is not None
        self._asks += 1
        targets = limits.targets(self._asks)
        asked_s = time.monotonic()
        began_s = time.perf_counter()
        self.block.ask(targets)
        write_s = time.perf_counter() - began_s
        in_force = await self._in_force(lambda now: now.step == targets.step)
        settled = await self._in_force(lambda now: now.step == targets.step and now.settled)
        self._targets = targets
        self.raise_if_not_in_force(settled)
        return StepCost(write_s, in_force.time_s - asked_s, settled.time_s - asked_s)

    def raise_if_not_in_force(self, now: layout.InForce | None = None) -> None:
        """Whether the last ask is in force to the letter; nothing to look at where the server is not live."""
        if self.block is None:
            return
        now = now or self.block.in_force()
        wanted = {name: value for name, value in self._targets._asdict().items() if name in now._fields}
        found = {name: getattr(now, name) for name in wanted}
        if found != wanted or now.disabled:
            raise BenchmarkFailed(f"asked for {wanted}, in force is {found} {now.error}")

    async def _in_force(self, condition: Callable[[layout.InForce], object]) -> layout.InForce:
        assert self.block is not None
        async with within_s(STEP_S, "a step of the live server"):
            while True:
                now = self.block.in_force()
                if now is not None and now.disabled:
                    raise BenchmarkFailed(f"live control has switched itself off: {now.error}")
                if now is not None and condition(now):
                    return now
                await asyncio.sleep(0.0005)  # finer than a step of the engine, so that the first report is seen

    def new_records(self) -> Sequence[layout.StepRecord]:
        """The steps recorded since the last call; none for a server that is not live."""
        if self.block is None:
            return ()
        self._next_record, records = self.block.records(self._next_record)
        return tuple(records)


async def start_server(options: Options, limits: Limits, name: str, ends: ExitStack) -> Server:
    """Start a vLLM and wait until it serves; the one named live has our class. `ends` stops it, however this ends."""
    port = pick_port(HOST, FIRST_PORT)
    command = options.command
    argv = [*command.words, *([options.model] if command.takes_model_as_word else ["--model", options.model])]
    argv += ["--host", HOST, "--port", str(port), *limits.argv(), *COMMON_FLAGS]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    block = None
    if name == "live":
        argv += ["--scheduler-cls", SCHEDULER]
        files = lay_out(options.folder)
        block = layout.ControlBlock.create(str(files.block))
        environment = server_environment(environment, files.python_path, files.block)
    else:
        environment = server_environment(environment, None, None)
    log = options.folder / f"{name}.log"

    def start() -> ServerProcess:
        process = ServerProcess.start(argv, environment, log, cwd=Path.cwd(), grace_s=6.0)
        ends.callback(process.stop)  # here, in the thread: nobody may be waiting for its result any more
        return process

    began_s = time.monotonic()
    server = Server(name, f"http://{HOST}:{port}", await asyncio.to_thread(start), log, block)
    await server.until_serving(limits)
    say(f"{name} server started in {time.monotonic() - began_s:.0f} s: {' '.join(limits.argv())}")
    return server


async def stop_server(server: Server) -> None:
    await server.api.aclose()
    left = await asyncio.to_thread(server.process.stop)
    if left:
        raise BenchmarkFailed(f"these processes of the {server.name} server would not end: {left}")


# -- the load ---------------------------------------------------------------------------------------------------------


class LoadProcess:
    """Tunetui's load process, pointed at one server at a time."""

    def __init__(self) -> None:
        self.generator = LoadGenerator()
        self._events = self.generator.events()
        self._episode = 0

    async def run(self, server: Server, trial: Trial, counted: int, seed: int) -> Run:
        """The trial's load on `server`: one turnover, the counted requests, and more until the last of them ended."""
        await self._point_at(server)
        preempted = (await server.api.gauges()).preemptions_total or 0
        server.new_records()
        meter = Meter(Slo((), percentile=95))
        plan = trial.plan(trial.streams, counted, seed)
        episode = await self._send(plan, seed)
        meter.expect(episode, plan)
        await self._send(trial.plan(0, 2 * trial.streams, seed + 1), seed + 1)  # follows on, and is cancelled
        samples = await self._until_complete(server, meter, episode)
        await self._drain(server)
        server.raise_if_not_in_force()
        preempted = ((await server.api.gauges()).preemptions_total or 0) - preempted
        return _figures(meter, episode, samples, plan.cut, preempted, server.new_records())

    async def _until_complete(self, server: Server, meter: Meter, episode: int) -> list[Sample]:
        samples: list[Sample] = []
        async with within_s(RUN_S, f"a run on the {server.name} server"):
            while not meter.completed(time.monotonic()):
                event = await self._event(server)
                if isinstance(event, Started):
                    meter.started(event.episode)
                elif isinstance(event, Batch):
                    meter.took(event)
                    samples += [sample for sample in event.samples if sample.episode == episode]
        bad = next((sample for sample in samples if sample.outcome is not Outcome.OK), None)
        if bad is not None:
            raise BenchmarkFailed(f"a request to the {server.name} server failed: {bad.error}")
        return samples

    async def step(self, server: Server, limits: Limits) -> StepCost:
        """Step the live server while requests come and go; what is left of them is cancelled."""
        await self._point_at(server)
        plan = STEPPING.plan(0, 3 * STEPPING.streams, self._episode)
        episode = await self._send(plan, self._episode)
        ended = 0
        async with within_s(RUN_S, "the load of a step"):
            while ended < STEPPING.streams // 2:  # beyond the prefills that it begins with
                event = await self._event(server)
                if isinstance(event, Batch):
                    ended += sum(sample.episode == episode for sample in event.samples)
        cost = await server.ask(limits)
        await self._drain(server)
        return cost

    async def _drain(self, server: Server) -> None:
        async with within_s(IDLE_S, "cancelling the load"):
            while await self.generator.drain("all"):
                await asyncio.sleep(0.01)
        await server.until_idle()

    async def _point_at(self, server: Server) -> None:
        going = self.generator.pid is not None
        point_at = self.generator.configure if going else self.generator.start
        await point_at(url=server.url, model=server.model, token_ids=server.token_ids)

    async def _send(self, plan: EpisodePlan, seed: int) -> int:
        self._episode += 1
        await self.generator.episode(plan, episode_id=self._episode, prompt_seed=(seed,))
        return self._episode

    async def _event(self, server: Server) -> Event:
        async with within_s(EVENT_S, "a report of the load process"):
            event = await anext(self._events)
        server.raise_if_dead()
        if isinstance(event, Refused | Died):
            raise BenchmarkFailed(f"the load process failed: {event}")
        return event


def _figures(
    meter: Meter,
    episode: int,
    samples: Sequence[Sample],
    cut: int,
    preempted: int,
    records: Sequence[layout.StepRecord],
) -> Run:
    (measured,) = (m for m in meter.completed(time.monotonic()) if m.episode == episode)
    ttft_s = percentile([s.ttft_s for s in samples if s.index >= cut and s.ttft_s is not None], 50)
    if measured.tpot_s is None or ttft_s is None or not measured.output_tokens_per_s:
        raise BenchmarkFailed("the run was too short to measure: raise --requests")
    names = {
        layout.STOP_SEQS: "seqs",
        layout.STOP_TOKENS: "tokens",
        layout.STOP_BLOCKS: "blocks",
        layout.STOP_OTHER: "other",  # also a whole prompt for which the step has too little left
    }
    stopped = {
        name: sum(record.stopped_by == reason for record in records) / len(records)
        for reason, name in names.items()
        if records
    }
    most_running = max((record.running for record in records), default=None)
    return Run(
        measured.output_tokens_per_s, measured.tpot_s, ttft_s, measured.window_s, preempted, most_running, stopped
    )


# -- the rounds -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Results:
    """Everything that was seen."""

    header: str = ""
    runs: dict[str, Runs] = field(default_factory=dict)
    steps: list[StepCost] = field(default_factory=list)


async def measure(options: Options, ends: ExitStack) -> Results:
    """All trials, on one live server and one restart each."""
    load = LoadProcess()
    ends.callback(load.generator.kill)
    results = Results()
    live = await start_server(options, Limits(), "live", ends)
    try:
        results.header = await header(options, live)
        for trial in options.trials:
            plain = await start_server(options, trial.limits, f"restart-{trial.name}", ends)
            results.runs[trial.name] = Runs()
            for number in range(options.repeats + 1):
                await one_round(load, live, plain, trial, number, options.requests, results)
            await stop_server(plain)
    finally:
        await load.generator.stop()
        await live.api.aclose()
    return results


async def one_round(
    load: LoadProcess, live: Server, plain: Server, trial: Trial, number: int, requests: int, results: Results
) -> None:
    """The same load three times: live at the ceilings, live at the point, restarted at the point. Round 0 warms up."""
    runs = results.runs[trial.name]
    for kind, server, limits in (
        (runs.ceiling, live, Limits()),
        (runs.live, live, trial.limits),
        (runs.restart, plain, None),
    ):
        if limits is not None:
            results.steps.append(await load.step(server, limits))
        run = await load.run(server, trial, requests, seed=1000 + 2 * number)
        at = "" if limits is None else ", ceilings" if limits == Limits() else ", at the point"
        say(f"{trial.name} {number or 'warm-up'}: {server.name}{at}: {describe(run)}")
        if number:
            kind.append(run)


def describe(run: Run) -> str:
    text = "  ".join(f"{figure.label} {figure.of(run):.1f}" for figure in FIGURES)
    text += f"  window {run.window_s:.1f} s  preempted {run.preempted}"
    if run.most_running is not None:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in run.stopped.items())
        text += f"  at most {run.most_running} running; steps stopped by {shares}"
    return text


# -- what is said -----------------------------------------------------------------------------------------------------


async def header(options: Options, live: Server) -> str:
    assert live.block is not None
    version, base = await live.api.version(), live.block.hello().base_class
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    path = Path(options.model)
    weights_mb = sum(file.stat().st_size for file in path.glob("*.safetensors")) / 1e6
    size = f"{path.name}, {weights_mb:.0f} MB of weights" if path.is_dir() else options.model
    return (
        f"vLLM {version} ({base}), {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB; model {size}; "
        f"ceilings: {Limits().seqs} seqs, {MODEL_LEN} tokens, {BLOCKS} KV blocks of 32; closed loop, fresh prompts, "
        f"prefix caching off, {options.requests} counted requests a run, {options.repeats} rounds"
    )


def within(live: float, restart: float) -> bool:
    return abs(live / restart - 1) <= ALLOWED


def all_within(results: Results) -> bool:
    return all(
        within(median(map(figure.of, runs.live)), median(map(figure.of, runs.restart)))
        for runs in results.runs.values()
        for figure in FIGURES
        if figure.judged
    )


def table(results: Results) -> Iterator[str]:
    """The Markdown table, a row for each point and figure."""
    yield "| point | load | figure | at the ceilings | live | restart | ratio | paired ratio | n | within 10 % |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, runs in results.runs.items():
        trial = TRIALS[name]
        for figure in FIGURES:
            ceiling, live, restart = (
                [figure.of(run) for run in kind] for kind in (runs.ceiling, runs.live, runs.restart)
            )
            paired = median(a / b for a, b in zip(live, restart, strict=True))
            verdict = ("yes" if within(median(live), median(restart)) else "no") if figure.judged else ""
            yield (
                f"| `{trial.flag}` | {trial.load} | {figure.label} | {median(ceiling):.1f} | {spread(live)} "
                f"| {spread(restart)} | {median(live) / median(restart):.3f} | {paired:.3f} | {len(live)} | {verdict} |"
            )


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.1f} [{min(values):.1f}-{max(values):.1f}]"


def bites(results: Results) -> Iterator[str]:
    """Whether each point's limit was felt: what kept requests waiting, and preemptions, in the median run."""
    for name, runs in results.runs.items():
        stopped = {key: median(run.stopped.get(key, 0.0) for run in runs.live) for key in runs.live[0].stopped}
        shares = ", ".join(f"{key} {share:.0%}" for key, share in stopped.items())
        preempted = ", ".join(
            f"{kind} {median(run.preempted for run in getattr(runs, kind)):g}" for kind in ("live", "restart")
        )
        running = max(run.most_running or 0 for run in runs.live)
        yield f"- {name}: live steps stopped by {shares}; at most {running} running; preemptions a run: {preempted}"


def step_costs(steps: Sequence[StepCost]) -> str:
    writes_us = [step.write_s * 1e6 for step in steps]
    in_force_ms = [step.in_force_s * 1e3 for step in steps]
    settled_ms = [step.settled_s * 1e3 for step in steps]
    return (
        f"A step under load (n={len(steps)}, median [min-max]): control write {spread(writes_us)} us; "
        f"from ask to in force {spread(in_force_ms)} ms, to settled {spread(settled_ms)} ms."
    )


def as_json(results: Results) -> dict[str, Any]:
    return {
        "header": results.header,
        "points": {name: {"trial": asdict(TRIALS[name]), **asdict(runs)} for name, runs in results.runs.items()},
        "steps": [asdict(step) for step in results.steps],
    }


# -- the command ------------------------------------------------------------------------------------------------------


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Points reached live beside the same points reached by a restart.")
    parser.add_argument("--vllm", help="the command that starts vLLM's server (default: as tunetui finds it)")
    parser.add_argument("--model", help=f"a model of {MODEL_LEN} tokens or more (default: a toy is made)")
    parser.add_argument("--points", default=",".join(TRIALS), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=6, help="counted rounds for each point (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=48, help="counted requests of a run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write every run here too")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.points.split(",") if name not in TRIALS]
    if unknown:
        parser.error(f"no point {', '.join(unknown)}: choose from {', '.join(TRIALS)}")
    if arguments.repeats < 1 or arguments.requests < 2:
        parser.error("--repeats must be 1 or more, --requests 2 or more")
    return arguments


def toy_model(command: VllmCommand, folder: Path) -> str:
    """The model of the real-vLLM tests, made by the interpreter of that vLLM."""
    model = folder / "toy-llama"
    script = ROOT / "tests" / "toy_model.py"
    made = subprocess.run([command.words[0], str(script), str(model)], timeout=300, capture_output=True, text=True)
    if made.returncode:
        raise BenchmarkFailed(f"the toy model could not be made, give one with --model: {made.stderr[-500:]}")
    return str(model)


def main() -> int:
    arguments = read_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl+C does
    try:
        command = find_vllm(arguments.vllm, os.environ)
        with ExitStack() as ends:  # plain: what it ends must end after the event loop too
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="tunetui-benchmark-")))
            model = arguments.model or toy_model(command, folder)
            trials = tuple(TRIALS[name] for name in dict.fromkeys(arguments.points.split(",")))
            options = Options(command, model, trials, arguments.repeats, arguments.requests, folder)
            results = asyncio.run(measure(options, ends))
    except KeyboardInterrupt:
        say("interrupted: the servers and the load process are ended")
        return 130
    except (BenchmarkFailed, CommandError, ServerStartError, ApiError, GeneratorGoneError, OSError) as error:
        say(f"failed: {error or type(error).__name__}")
        return 2
    print("\n".join([results.header, "", *table(results), "", *bites(results), "", step_costs(results.steps)]))
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(results), indent=1) + "\n", "utf-8")
    return 0 if all_within(results) else 1


if __name__ == "__main__":
    sys.exit(main())
