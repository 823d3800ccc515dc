"""What the scheduler class costs where nothing changes, beside vLLM's own scheduler, and what a step costs.

    <python of a vLLM> benchmarks/live_cost.py --model FOLDER [--rounds 40]

Needs no engine: vLLM's real schedulers are driven without a model, one with the class and one without, in turns over
the same load. The cost of a step of the scheduler is the median of the rounds' differences; beside it, the class's own
three calls timed alone. A control write is one `ask`; it is in force when the next schedule() has returned.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/live"))

import drive_scheduler as drive
import vllm
from tunetui_live import block as control

STEPS = 300  # a round
BATCH = 24


class Timed(drive.Engine):
    """An engine that keeps `BATCH` requests alive and counts the time inside the scheduler."""

    inside_s = 0.0

    def schedule(self):
        began = time.perf_counter()
        try:
            return super().schedule()
        finally:
            self.inside_s += time.perf_counter() - began

    def answer(self):
        began = time.perf_counter()
        try:
            super().answer()
        finally:
            self.inside_s += time.perf_counter() - began

    def fill(self) -> None:
        while len(self.scheduler.requests) < BATCH:
            self.add([self.random.randint(1, 1000) for _ in range(60)], 40)

    def round_us(self) -> float:
        """Microseconds a step over one round."""
        self.inside_s, steps = 0.0, self.steps
        while self.steps < steps + STEPS:
            self.fill()
            self.step()
        return self.inside_s / STEPS * 1e6


def own_calls_us(engine: Timed) -> float:
    """Microseconds of the class's own three calls of a step, with a full batch."""
    limits, count = engine.scheduler.tunetui_limits, 20_000
    engine.round_us()
    output = engine.schedule()
    assert engine.scheduler.running
    began = time.perf_counter()
    for _ in range(count):
        limits.look()
        limits.after_schedule(output)
        limits.after_update()
    return (time.perf_counter() - began) / count * 1e6


def steps_of_knobs(engine: Timed, ours: control.ControlBlock, count: int) -> tuple[list[float], list[float]]:
    """Microseconds of a control write, and from it until schedule() has returned with the new limits in force."""
    writes, in_force = [], []
    for number in range(1, count + 1):
        engine.fill()
        engine.flush()
        budget = 600 + number % 400
        targets = control.Targets(number, 8 + number % 16, budget, number % 2, 0, number % 40)
        began = time.perf_counter()
        ours.ask(targets)
        writes.append((time.perf_counter() - began) * 1e6)
        engine.schedule()
        in_force.append((time.perf_counter() - began) * 1e6)
        state = ours.in_force()
        assert state is not None
        assert (state.step, state.max_num_batched_tokens) == (number, budget), state
    return writes, in_force


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder with a config.json")
    parser.add_argument("--rounds", type=int, default=40, help=f"of {STEPS} steps each")
    options = parser.parse_args()
    shape = drive.Shape(asynchronous=True)
    with tempfile.TemporaryDirectory() as folder:
        ours = drive.with_block(Path(folder) / "block")
        live = Timed(shape.make(options.model, drive.make_scheduler), shape, 1)
        plain = Timed(shape.make(options.model, None), shape, 1)
        for engine in (live, plain):
            engine.round_us()  # warm
        rounds = [(plain.round_us(), live.round_us()) for _ in range(options.rounds)]
        own, peer = median(b for _, b in rounds), median(a for a, _ in rounds)
        differences = sorted(b - a for a, b in rounds)
        writes, in_force = steps_of_knobs(live, ours, 500)
        spread = (differences[len(rounds) // 4], differences[-len(rounds) // 4])
        print(f"vLLM {vllm.__version__}, {BATCH} requests alive, {options.rounds} rounds of {STEPS} steps in turns")
        print("| | us a step |\n| --- | --- |")
        print(f"| vLLM's own AsyncScheduler | {peer:.1f} |\n| with the class | {own:.1f} |")
        quartiles = f"{spread[0]:.1f} to {spread[1]:.1f}"
        print(f"| difference, median of rounds (quartiles) | {median(differences):.1f} ({quartiles}) |")
        print(f"| the class's own calls alone | {own_calls_us(live):.1f} |")
        print(f"| control write, median (most) of {len(writes)} | {median(writes):.1f} ({max(writes):.1f}) |")
        print(
            f"| from the write until it is in force, the step included | {median(in_force):.0f} ({max(in_force):.0f}) |"
        )


if __name__ == "__main__":
    main()
