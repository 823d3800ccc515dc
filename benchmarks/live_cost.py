"""What the scheduler class costs where nothing changes, beside vLLM's own scheduler, and what a step costs.

    <python of a vLLM> benchmarks/live_cost.py --model FOLDER [--rounds 200]

Needs no engine: vLLM's real schedulers are driven without a model, one with the class and one without, each in a
process of its own, in turns over the same load; they must schedule the same. What counts is the median over the
differences of equal steps, each the time inside schedule() and update_from_output(); beside it, the class's own two
calls timed alone. A control write is one `ask`; it is in force when the next schedule() has returned.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/live"))

import drive_scheduler as drive
import vllm
from tunetui_live import block as control

STEPS = 50  # a round
WARM = 1000  # steps that are not counted
ANSWER = "answer "
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
    """Microseconds of the class's own two calls of a step, with a full batch."""
    limits, count = engine.scheduler.tunetui_limits, 20_000
    engine.fill()
    output = engine.schedule()
    assert engine.scheduler.running
    began = time.perf_counter()
    for _ in range(count):
        limits.look()
        limits.after_schedule(output)
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


def work(kind: str, model: str) -> None:
    """One side, told by lines on stdin: `steps N` answers with each step's microseconds and what was scheduled, `own`
    and `knobs N` with the class's own figures."""
    shape = drive.Shape(asynchronous=True, depth=2)
    with tempfile.TemporaryDirectory() as folder:
        ours = drive.with_block(Path(folder) / "block")
        engine = Timed(shape.make(model, drive.make_scheduler if kind == "live" else None), shape, 1)
        for line in sys.stdin:
            command, *count = line.split()
            if command == "steps":
                answer = [(engine.step_us(), engine.last) for _ in range(int(count[0]))]
            elif command == "own":
                answer = own_calls_us(engine)
            else:
                answer = steps_of_knobs(engine, ours, int(count[0]))
            print(ANSWER + json.dumps(answer), flush=True)


class Side:
    """A process of its own for one side: in one process the two classes would share the interpreter's inline caches."""

    def __init__(self, kind: str, model: str) -> None:
        command = [sys.executable, __file__, "--model", model, "--side", kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:  # vLLM prints there too
            if answer.startswith(ANSWER):
                return json.loads(answer.removeprefix(ANSWER))
        raise SystemExit("one side ended: see above")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder with a config.json")
    parser.add_argument("--rounds", type=int, default=200, help=f"of {STEPS} steps each")
    parser.add_argument("--side", choices=("live", "plain"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        work(options.side, options.model)
        return
    sides = {kind: Side(kind, options.model) for kind in ("live", "plain")}
    for side in sides.values():
        side.ask(f"steps {WARM}")
    pairs = []
    for number in range(options.rounds):
        order = ("live", "plain") if number % 2 else ("plain", "live")
        rounds = {kind: sides[kind].ask(f"steps {STEPS}") for kind in order}
        for (plain_us, what), (live_us, same) in zip(rounds["plain"], rounds["live"], strict=True):
            assert what == same, "the two did not schedule the same"
            pairs.append((plain_us, live_us))
    own_us = sides["live"].ask("own")
    writes, in_force = sides["live"].ask("knobs 500")
    for side in sides.values():
        side.close()
    peer, own = median(a for a, _ in pairs), median(b for _, b in pairs)
    differences = sorted(b - a for a, b in pairs)
    quarter = len(differences) // 4
    quartiles = f"{differences[quarter]:.1f} to {differences[-quarter]:.1f}"
    print(f"vLLM {vllm.__version__}, {BATCH} requests alive, {len(pairs)} equal steps of both, {STEPS} in turns")
    print("| | us |\n| --- | --- |")
    print(f"| a step of vLLM's own AsyncScheduler, median | {peer:.1f} |\n| with the class, median | {own:.1f} |")
    print(f"| difference of equal steps, median (quartiles) | {median(differences):.1f} ({quartiles}) |")
    print(f"| the class's own calls alone | {own_us:.1f} |")
    print(f"| control write, median (most) of {len(writes)} | {median(writes):.1f} ({max(writes):.1f}) |")
    print(f"| from the write until it is in force, the step included | {median(in_force):.0f} ({max(in_force):.0f}) |")


if __name__ == "__main__":
    main()
