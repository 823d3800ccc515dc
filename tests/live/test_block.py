"""The control block: what one side writes the other reads, whole, under fire and across versions of the file."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tunetui_live
from tunetui_live.block import (
    RING_CAPACITY,
    SIZE,
    BlockError,
    ControlBlock,
    Hello,
    InForce,
    ServerBlock,
    StepRecord,
    Targets,
)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[ControlBlock, ServerBlock]:
    path = str(tmp_path / "block")
    return ControlBlock.create(path), ServerBlock.open(path)


def test_nothing_is_there_before_it_is_written(pair: tuple[ControlBlock, ServerBlock]) -> None:
    ours, theirs = pair
    assert (ours.hello(), ours.in_force(), theirs.targets(), theirs.asked()) == (None, None, None, 0)


def test_what_is_written_is_read(pair: tuple[ControlBlock, ServerBlock]) -> None:
    ours, theirs = pair
    hello = Hello(*range(15), "0.32.0", "AsyncScheduler", *("",) * 4, memory_restart="ü" * 200)
    theirs.say_hello(hello)
    seen = ours.hello()
    assert seen is not None
    assert seen[:15] == hello[:15]
    assert seen.memory_restart.startswith("ü" * 47)
    targets = Targets(3, 64, 2048, 1, 0, 12)
    ours.ask(targets)
    assert theirs.targets() == targets
    state = InForce(1.5, *range(13), error="")
    theirs.publish(*state)
    assert ours.in_force() == state


def test_the_file_is_private_and_never_reused(tmp_path: Path) -> None:
    path = tmp_path / "block"
    ControlBlock.create(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        ControlBlock.create(str(path))


@pytest.mark.parametrize("content", [b"", b"x" * SIZE, os.urandom(SIZE), b"TUNETUI1"])
def test_rubbish_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "block"
    path.write_bytes(content)
    with pytest.raises(BlockError):
        ServerBlock.open(str(path))


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    ControlBlock.create(str(tmp_path / "real"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError):  # noqa: PT011  (ELOOP or its kin, as the system has it)
        ServerBlock.open(str(tmp_path / "link"))


def test_a_writer_that_stopped_half_way_is_said_and_overcome(pair: tuple[ControlBlock, ServerBlock]) -> None:
    ours, theirs = pair
    ours.ask(Targets(1, 1, 1, 1, 1, 1))
    ours._memory[64] = 3  # as if it had died between the two halves of a write
    with pytest.raises(BlockError, match="half-written"):
        theirs.targets()
    again = ControlBlock(ours._memory)
    again.ask(Targets(2, 2, 2, 2, 2, 2))
    assert theirs.targets() == Targets(2, 2, 2, 2, 2, 2)


def test_the_ring_keeps_the_newest_records(pair: tuple[ControlBlock, ServerBlock]) -> None:
    ours, theirs = pair
    for number in range(RING_CAPACITY + 100):
        theirs.record(*StepRecord(float(number), *([number] * 9)))
    head, records = ours.records(0)
    assert head == RING_CAPACITY + 100
    assert [r.running for r in records] == list(range(101, RING_CAPACITY + 100))
    assert ours.records(head) == (head, [])


WRITER = """
import sys
from tunetui_live.block import InForce, ServerBlock
block = ServerBlock.open(sys.argv[1])
number = 0
while True:
    number += 1
    block.publish(*InForce(float(number), *([number] * 13), error=""))
"""


def test_reads_are_never_torn(tmp_path: Path) -> None:
    ours = ControlBlock.create(str(tmp_path / "block"))
    package = Path(tunetui_live.__file__).parents[1]
    command = [sys.executable, "-c", WRITER, str(tmp_path / "block")]
    writer = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(package)})
    seen: set[int] = set()
    deadline_s = time.monotonic() + 20
    try:
        while len(seen) < 2000 and time.monotonic() < deadline_s:
            state = ours.in_force()
            if state is not None:
                assert len(set(state[1:14])) == 1, state
                assert state.time_s == state.steps
                seen.add(state.steps)
    finally:
        writer.kill()
        writer.wait()
    assert len(seen) >= 2000
