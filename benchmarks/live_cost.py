"""What the scheduler class costs where nothing changes, beside vLLM's own scheduler, and what a step costs.

    <python of a vLLM> benchmarks/live_cost.py --model FOLDER [--steps 20000]

Needs no engine: vLLM's real schedulers are driven without a model, one with the class and one without, over the same
load, step by step in turns; they must schedule the same. What counts is the median over the differences of equal steps,
each the time inside schedule() and update_from_output(); beside it, the class's own three calls timed alone. A control
write is one `ask`; it is in force when the next schedule() has returned.
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

WARM = 500  # steps that are not counted
BATCH = 24


class Timed(drive.Engine):
    """An engine that keeps `BATCH` requests alive and notes the time inside vLLM's scheduler, and nothing else."""

    def __init__(self, scheduler, shape, seed):
        self.inside_s = 0.0
        for name in ("schedule", "update_from_output"):
            setattr(scheduler, name, self.timed(getattr(scheduler, name)))
        super().__init__(scheduler, shape, seed)

    def timed(self, method):
        def call(*arguments):
            began = time.perf_counter()
            result = method(*arguments)
            self.inside_s += time.perf_counter() - began
            return result

        return call

    def fill(self) -> None:
        while len(self.scheduler.requests) < BATCH:
            self.add([self.random.randint(1, 1000) for _ in range(60)], 40)

    def step_us(self) -> float:
        """Microseconds inside the scheduler over one step, its answer included."""
        self.inside_s = 0.0
        self.fill()
        self.step()
        return self.inside_s * 1e6


def own_calls_us(engine: Timed) -> float:
    """Microseconds of the class's own three calls of a step, with a full batch."""
    limits, count = engine.scheduler.tunetui_limits, 20_000
    engine.fill()
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
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    shape = drive.Shape(asynchronous=True, depth=2)
    with tempfile.TemporaryDirectory() as folder:
        ours = drive.with_block(Path(folder) / "block")
        live = Timed(shape.make(options.model, drive.make_scheduler), shape, 1)
        plain = Timed(shape.make(options.model, None), shape, 1)
        pairs = []
        for number in range(options.steps + WARM):
            order = (live, plain) if number % 2 else (plain, live)
            figures = {engine: engine.step_us() for engine in order}
            assert live.last == plain.last, "the two did not schedule the same"
            if number >= WARM:
                pairs.append((figures[plain], figures[live]))
        peer, own = median(a for a, _ in pairs), median(b for _, b in pairs)
        differences = sorted(b - a for a, b in pairs)
        quarter = len(differences) // 4
        quartiles = f"{differences[quarter]:.1f} to {differences[-quarter]:.1f}"
        writes, in_force = steps_of_knobs(live, ours, 500)
        print(f"vLLM {vllm.__version__}, {BATCH} requests alive, {options.steps} equal steps of both, in turns")
        print("| | us |\n| --- | --- |")
        print(f"| a step of vLLM's own AsyncScheduler, median | {peer:.1f} |\n| with the class, median | {own:.1f} |")
        print(f"| difference of equal steps, median (quartiles) | {median(differences):.1f} ({quartiles}) |")
        print(f"| the class's own calls alone | {own_calls_us(live):.1f} |")
        print(f"| control write, median (most) of {len(writes)} | {median(writes):.1f} ({max(writes):.1f}) |")
        print(
            f"| from the write until it is in force, the step included | {median(in_force):.0f} ({max(in_force):.0f}) |"
        )


if __name__ == "__main__":
    main()
