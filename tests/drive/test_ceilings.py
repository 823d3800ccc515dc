"""A ceiling that does not start for want of memory: lower ones are tried, said, and in the end in force."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from drive.sessions import Sessions, offspring, said, until

from tunetui.core.knobs import How, Knob
from tunetui.core.session import Phase
from tunetui.drive.driver import Driver


def fault(text: str) -> dict[str, str]:
    return {"FAKE_VLLM_FAULT": text}


def logs(driver: Driver) -> list[str]:
    return sorted(path.name for path in Path(driver.folder).glob("server*.log"))


def flag(driver: Driver, name: str) -> str:
    return driver.engine.argv[driver.engine.argv.index(name) + 1]


async def test_a_ceiling_without_room_for_the_kv_cache_is_lowered_in_tokens_and_is_what_limits_the_knobs(
    sessions: Sessions,
) -> None:
    driver = await sessions.live(env=fault("memory-above-tokens:2048"), ceiling_seqs=64)
    state = driver.state
    assert state.facts is not None
    assert state.point is not None
    assert state.facts.ceiling.max_num_batched_tokens == 2048
    assert flag(driver, "--max-num-batched-tokens") == "2048"
    assert logs(driver) == ["server-2.log", "server-3.log", "server.log"]
    warnings = [n.text for n in state.notices if n.severity == "warning"]
    assert warnings == [
        "the ceiling of 64 sequences and 8192 tokens at 0.40 did not start (no memory left for the KV cache): "
        "trying 4096 tokens",
        "the ceiling of 64 sequences and 4096 tokens at 0.40 did not start (no memory left for the KV cache): "
        "trying 2048 tokens",
    ]
    assert state.lowered == ()
    assert [phase.label for phase in state.starting].count("starting python") == 1
    assert state.history == ()
    driver.set_knob(Knob.TOKENS, 4096)
    assert driver.state.restart is not None
    assert driver.state.restart.how is How.RESTART
    assert "above the 2048" in driver.state.restart.reason


@pytest.mark.parametrize(
    ("faults", "flags", "changed", "ceiling", "point"),
    [
        ("memory-above-seqs:40", (), {"ceiling_seqs": 128}, (32, 8192, 0.4), (32, 2048, 0.4)),
        ("free-share:0.335", (), {"ceiling_seqs": 64}, (64, 8192, 0.33), (64, 2048, 0.33)),
        ("memory-above-seqs:16", ("--max-num-seqs", "16"), {"ceiling_seqs": 64}, (16, 8192, 0.4), (16, 2048, 0.4)),
    ],
)
async def test_each_shortage_lowers_what_causes_it_and_the_first_point_comes_within(
    sessions: Sessions,
    faults: str,
    flags: tuple[str, ...],
    changed: dict[str, Any],
    ceiling: tuple[int, int, float],
    point: tuple[int, int, float],
) -> None:
    driver = await sessions.live(*flags, env=fault(faults), **changed)
    facts, here = driver.state.facts, driver.state.point
    assert facts is not None
    assert here is not None
    most = facts.ceiling
    assert (most.max_num_seqs, most.max_num_batched_tokens, most.memory) == ceiling
    assert (here.max_num_seqs, here.max_num_batched_tokens, here.memory) == point
    assert driver.engine.control is not None
    assert (now := driver.engine.control.in_force())
    assert now.max_num_seqs == here.max_num_seqs
    row = await until(lambda: driver.state.rows and driver.state.rows[0])
    assert row.point == here


async def test_when_nothing_starts_the_last_diagnosis_stays_with_what_was_tried(sessions: Sessions) -> None:
    driver = sessions.driver(env=fault("oom"), ceiling_seqs=256)
    await driver.start()
    state = driver.state
    assert state.phase is Phase.FAILED
    assert "no memory was left for the KV cache" in state.failure[0]
    assert [rung.ceiling.max_num_batched_tokens for rung in state.lowered] == [4096, 2048, 2048, 2048, 2048]
    assert [rung.ceiling.max_num_seqs for rung in state.lowered] == [256, 256, 128, 64, 32]
    assert len(logs(driver)) == 6


@pytest.mark.parametrize(
    ("faults", "flags"),
    [
        ("crash_in_weights", ()),
        ("oom_in_weights", ()),
        ("crash_at_start", ()),
        ("oom", ("--kv-cache-memory-bytes", "1G")),
        ("", ("--bogus-flag",)),
        ("memory-above-seqs:8", ("--max-num-seqs", "256")),
        ("free-share:0.2", ("--gpu-memory-utilization", "0.3")),
    ],
)
async def test_what_no_lower_ceiling_meets_fails_at_once(
    sessions: Sessions, faults: str, flags: tuple[str, ...]
) -> None:
    driver = sessions.driver(*flags, env=fault(faults), ceiling_seqs=256)
    await driver.start()
    assert driver.state.phase is Phase.FAILED
    assert driver.state.lowered == ()
    assert logs(driver) == ["server.log"]


async def test_a_restart_that_the_operator_asked_for_fails_at_once(sessions: Sessions) -> None:
    driver = await sessions.live("--max-num-seqs", "8", env=fault("memory-above-seqs:64"), ceiling_seqs=64)
    first = driver.state.point
    driver.set_knob(Knob.SEQS, 128)
    driver.confirm_restart()
    await until(lambda: driver.state.phase is Phase.FAILED)
    assert driver.state.lowered == ()
    assert logs(driver) == ["server-2.log", "server.log"]
    driver.undo()
    driver.confirm_restart()
    await until(lambda: driver.state.phase is Phase.LIVE)
    assert driver.state.point == first


async def test_quitting_between_two_ceilings_leaves_nothing(sessions: Sessions) -> None:
    driver = sessions.driver(env=fault("memory-above-tokens:2048,hang_below_tokens:8000"), ceiling_seqs=64)
    starting = asyncio.create_task(driver.start())
    await until(lambda: said(driver, "trying 4096 tokens"))
    assert driver.state.phase is Phase.STARTING
    await sessions.end(driver)
    await starting
    assert driver.engine.pid is None
    await until(lambda: not offspring())
    assert not said(driver, "trying 2048 tokens")
