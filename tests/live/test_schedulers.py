"""vLLM's real schedulers, several versions, driven without a model: thousands of steps of every knob.

Needs TUNETUI_TEST_VLLM; versions other than its own are looked for in the folder TUNETUI_TEST_SCHEDULERS (see the
README). `drive_scheduler.py` does the work inside the vLLM under test; here it is started and its report is read.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

VLLM = os.environ.get("TUNETUI_TEST_VLLM", "")
FOLDER = os.environ.get("TUNETUI_TEST_SCHEDULERS", "")
OWN = "its own"  # the version of the interpreter
VERSIONS = [OWN, *sorted(path.parent.name for path in Path(FOLDER).glob("*/vllm"))] if FOLDER else [OWN]
DRIVER = Path(__file__).with_name("drive_scheduler.py")
STEPS, STEPS_EACH = 2500, 300
SHAPES = {"sync", "async", "async, one at a time", "pipeline parallel"}
POINTS = {
    "the start", "4 sequences", "16 sequences", "a budget of 64 tokens", "chunked prefill off",
    "a long-prefill threshold of 48", "an adaptive threshold", "half of the blocks", "all at once",
}  # fmt: skip
TRAPS = {
    "BudgetBelowPrompt", "BudgetBelowPreempted", "TooManyHeld", "MoreThanFree", "LimitBelowBatch", "BudgetBelowBatch",
    "NoSequence", "ResetWhileHeld", "ThresholdWithoutChunking",
}  # fmt: skip
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not VLLM, reason="TUNETUI_TEST_VLLM is not set: no real scheduler to drive"),
]


@pytest.fixture(scope="module")
def driven(request: pytest.FixtureRequest, toy_model: Path) -> dict[str, dict[str, Any]]:
    """What one version's run reported: check -> shape -> figures."""
    version = request.param
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if version != OWN:
        environment["PYTHONPATH"] = os.pathsep.join((str(Path(FOLDER, version)), str(Path(FOLDER, "needs"))))
    command = [shlex.split(VLLM)[0], str(DRIVER), "--model", str(toy_model), "--steps", str(STEPS)]
    command += ["--steps-each", str(STEPS_EACH)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"check"'):
            report = json.loads(line)
            found.setdefault(report["check"], {})[report["shape"]] = report["done"]
    return found


pytestmark.append(pytest.mark.parametrize("driven", VERSIONS, indirect=True))  # type: ignore[arg-type]


def test_random_steps_of_every_knob_lose_and_starve_nobody(driven: dict[str, dict[str, Any]]) -> None:
    assert set(driven["random"]) == SHAPES
    for shape, done in driven["random"].items():
        assert done["steps"] >= STEPS, shape
        assert min(done["asks"], done["requests"], done["aborted"], done["preemptions"], done["resets"]) > 10, done
        assert done["prefix_hit_tokens"] > 1000
        assert done["sleeps"] > 0
        assert (done["memory_restart"] != "") == (shape == "pipeline parallel")
        assert done["base"] == ("AsyncScheduler" if "async" in shape else "Scheduler")


def test_a_live_point_schedules_step_for_step_as_a_start_at_it_does(driven: dict[str, dict[str, Any]]) -> None:
    assert set(driven["same"]) == SHAPES
    for shape, points in driven["same"].items():
        assert set(points) == POINTS
        compared = {name for name, done in points.items() if isinstance(done, dict)}
        assert all(points[name]["steps"] > STEPS_EACH / 2 for name in compared), points
        assert len(compared) >= (6 if shape == "pipeline parallel" else 8)


def test_every_known_trap_springs_with_bare_hands_and_not_through_the_class(driven: dict[str, dict[str, Any]]) -> None:
    assert set(driven["traps"]) == SHAPES
    for traps in driven["traps"].values():
        assert set(traps) == TRAPS
        sprung = [what for what in traps.values() if what in ("hangs", "AssertionError", "ValueError")]
        assert len(sprung) >= 3  # with a pipeline no blocks are held, and 0.10 has no switch for chunked prefill


def test_a_failure_of_the_class_leaves_vllm_as_it_was_started(driven: dict[str, dict[str, Any]]) -> None:
    assert set(driven["failing"]) == SHAPES
    assert all(set(done) == {"targets", "asked", "record", "publish"} for done in driven["failing"].values())
