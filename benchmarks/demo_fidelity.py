"""Is the simulated engine like the real one? Its step times are fitted to one measured point of a real vLLM, then it
predicts P95 TPOT and throughput at other sizes of the batch, which are measured too.

    TUNETUI_BENCH_VLLM=/path/to/python uv run python benchmarks/demo_fidelity.py MODEL

The point is 64 sequences under overload, and how its batch drains to 4: three constants (a step, a sequence, a prompt's
token) by least squares over its steps. Predicted with the same requests: 4, 8, 16, 32 and 64 sequences.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from tunetui.core.episode import Measurement
from tunetui.core.knobs import Knob
from tunetui.core.load import Load
from tunetui.core.sample import Outcome
from tunetui.core.session import Phase, StepState
from tunetui.core.slo import parse_slo
from tunetui.core.workload import Workload, parse_lengths, plan_episode
from tunetui.demo.engine import Engine, Step
from tunetui.demo.virtual import VirtualLoad
from tunetui.drive.driver import Driver
from tunetui.drive.settings import Settings
from tunetui.engine.command import API_SERVER_MODULE, VllmCommand, read_flags
from tunetui.engine.control import LiveControl
from tunetui.live.tunetui_live.block import StepRecord

SEQS = (4, 8, 16, 32, 64)
STREAMS = 80
COUNTED = 160
TOKENS = 2048
WORKLOAD = Workload(parse_lengths("64-256"), parse_lengths("24-48"))
PORT = 8765
LONGEST_STEP_S = 1.0  # beyond: nothing ran, or the machine stalled


@dataclass(frozen=True, slots=True)
class Fitted:
    """Seconds: `step_s` and what a sequence and a prompt's token add."""

    a_step_s: float
    a_sequence_s: float
    a_token_s: float

    def step_s(self, step: Step) -> float:
        """Seconds that `step` takes."""
        sequences = step.decodes + len(step.prefills)
        prefill = step.tokens - sequences
        return max(self.a_step_s + self.a_sequence_s * sequences + self.a_token_s * prefill, 1e-5)


def fit(records: Sequence[StepRecord]) -> Fitted:
    """Least squares over the times between steps; a step's own work is done before the next one is recorded."""
    took_s = np.diff([record.time_s for record in records])
    sequences = np.array([record.scheduled_requests for record in records[:-1]], dtype=float)
    prefill = np.array([r.scheduled_tokens - r.scheduled_requests for r in records[:-1]], dtype=float)
    use = (took_s < LONGEST_STEP_S) & (sequences > 0)
    terms = np.column_stack([np.ones(use.sum()), sequences[use], prefill[use]])
    found, *_ = np.linalg.lstsq(terms, took_s[use], rcond=None)
    return Fitted(*map(float, found))


def predicted(model: Fitted, seqs: int, num_blocks: int) -> tuple[float, float]:
    """Output tokens per second and P95 TPOT in seconds, of the requests that the real engine had."""
    plan = plan_episode(WORKLOAD, Load(concurrency=STREAMS), STREAMS, COUNTED)
    load = VirtualLoad(Engine(num_blocks, seqs, TOKENS), model)
    samples = load.run(plan)
    counted = [s for s in samples if s.index >= plan.cut and s.outcome is Outcome.OK]
    begin_s, end_s = min(s.scheduled_s for s in counted), max(s.scheduled_s for s in counted)
    tokens = sum(made for at_s, made in load.steps if begin_s < at_s <= end_s)
    tpot_s = float(np.percentile([s.tpot_s for s in counted if s.tpot_s is not None], 95))
    return tokens / (end_s - begin_s), tpot_s


async def measured(driver: Driver, seqs: int) -> Measurement:
    """The first whole episode at so many sequences."""
    if driver.state.point is not None and driver.state.point.max_num_seqs != seqs:
        driver.set_knob(Knob.SEQS, seqs)
        await until(lambda: driver.state.step_state is StepState.SETTLED, 120)
    await until(lambda: row_of(driver, seqs) is not None, 400)
    row = row_of(driver, seqs)
    assert row is not None
    return row


def row_of(driver: Driver, seqs: int) -> Measurement | None:
    rows = [row.measurement for row in driver.state.rows if row.point.max_num_seqs == seqs]
    return rows[-1] if rows and rows[-1].complete else None


async def until(true: object, limit_s: float) -> None:
    ends_s = time.monotonic() + limit_s
    while not true():  # type: ignore[operator]
        if time.monotonic() > ends_s:
            raise SystemExit("the engine did not get there in time")
        await asyncio.sleep(0.05)


async def keep_steps(control: LiveControl, seen: list[StepRecord]) -> None:
    """Read the ring into `seen`, often enough that nothing of it is lost, until cancelled."""
    number: int | None = None
    while True:
        number, records = control.records_since(number)
        seen.extend(records)
        await asyncio.sleep(0.2)


async def main(python: str, model: str) -> None:
    """Measure, fit, predict, print."""
    folder = Path(tempfile.mkdtemp(prefix="fidelity-"))
    flags = ["--enforce-eager", "--max-num-seqs", "64", "--max-num-batched-tokens", str(TOKENS),
             "--kv-cache-memory-bytes", "1G"]  # fmt: skip
    driver = Driver(
        Settings(
            slo=parse_slo(["tpot:100000"]), load=Load(concurrency=STREAMS), workload=WORKLOAD, episode_requests=COUNTED,
            sessions_dir=folder, model=model, command=VllmCommand((python, "-m", API_SERVER_MODULE), "benchmark"),
            given=read_flags(flags), port=PORT, ceiling_seqs=64, ceiling_tokens=TOKENS,
        ),
        folder,
    )  # fmt: skip
    seen: list[StepRecord] = []
    try:
        await driver.start()
        if driver.state.phase is not Phase.LIVE or driver.engine.control is None:
            raise SystemExit("\n".join(driver.state.failure))
        reading = asyncio.create_task(keep_steps(driver.engine.control, seen))
        real = {64: await measured(driver, 64)}
        driver.set_knob(Knob.SEQS, 4)
        await until(lambda: driver.state.step_state is StepState.SETTLED, 120)
        reading.cancel()
        fitted = fit(seen)
        step_ms, sequence_us, token_us = fitted.a_step_s * 1e3, fitted.a_sequence_s * 1e6, fitted.a_token_s * 1e6
        print(
            f"fitted on {len(seen)} steps: {step_ms:.2f} ms, {sequence_us:.0f} us a sequence, {token_us:.1f} us a token"
        )
        for seqs in SEQS[:-1]:
            real[seqs] = await measured(driver, seqs)
        facts = driver.state.facts
        assert facts is not None
        print(f"{'seqs':>5} {'tok/s':>8} {'predicted':>10} {'':>7} {'P95 TPOT':>9} {'predicted':>10}")
        errors = []
        for seqs in SEQS:
            rate, tpot_s = predicted(fitted, seqs, facts.num_blocks)
            one = real[seqs]
            assert one.tpot_s is not None
            errors += [rate / one.output_tokens_per_s - 1, tpot_s / one.tpot_s - 1]
            print(f"{seqs:5} {one.output_tokens_per_s:8.0f} {rate:10.0f} {errors[-2]:+7.1%} {one.tpot_s * 1000:9.1f} "
                  f"{tpot_s * 1000:10.1f} {errors[-1]:+7.1%}")  # fmt: skip
        print(f"median error {median(map(abs, errors)):.1%}, largest {max(map(abs, errors)):.1%}")
    finally:
        await driver.close()
        await asyncio.to_thread(driver.stop_server)


if __name__ == "__main__":
    interpreter = os.environ.get("TUNETUI_BENCH_VLLM")
    if interpreter is None or len(sys.argv) != 2:
        raise SystemExit(__doc__)
    asyncio.run(main(interpreter, sys.argv[1]))
