"""The control block: the small memory-mapped file through which tunetui and the scheduler class talk.

It holds the layout and both ends of it. It decides nothing: limits are checked in tunetui's core before a target is
written, and again by the scheduler class after it is read.

tunetui creates the file (mode 0600) and is the only writer of the targets; the scheduler is the only writer of the
rest. Each region is a seqlock: its first eight bytes are odd while it is being written, and a reader that sees them
odd or changed reads again.

The server's end, in order::

    block = ServerBlock.open(path)
    block.say_hello(Hello(...))                 # once, when the limits are known
    if block.asked() != last:                   # one integer; every schedule() and add_request()
        targets = block.targets()               # then apply what they allow
    block.record(*StepRecord(...))              # after every step
    block.publish(*InForce(...))                # when it has changed, and now and then
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import Any, List, NamedTuple, Optional, Tuple

MAGIC = b"TUNETUI1"
ENVIRONMENT_KEY = "TUNETUI_CONTROL_BLOCK"
SIZE = 128 * 1024

_TARGETS_AT = 64
_HELLO_AT = 256
_IN_FORCE_AT = 1024
_RING_AT = 4096
_SEQUENCE = struct.Struct("<Q")
_TARGETS = struct.Struct("<6q")
_HELLO = struct.Struct("<15q32s64s" + "96s" * 5)
_IN_FORCE = struct.Struct("<d13q160s")
_RECORD = struct.Struct("<d9i4x")
RING_CAPACITY = 2048

# What stopped admission in a step (StepRecord.stopped_by).
STOP_NONE, STOP_SEQS, STOP_TOKENS, STOP_BLOCKS, STOP_OTHER = range(5)


class BlockError(Exception):
    """The control block is missing, of another layout, or could not be read consistently."""


class Targets(NamedTuple):
    """What tunetui asks for. `step` grows by one with each ask; 0 means nothing was asked yet."""

    step: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: int
    long_prefill_token_threshold: int
    held_blocks: int


class Hello(NamedTuple):
    """What the engine is, said once when the scheduler is made. Sizes are tokens, blocks and bytes.

    The last five say why a knob is not live here; empty where it is.
    """

    pid: int
    asynchronous: int
    num_blocks: int
    block_size: int
    blocks_per_max_request: int
    bytes_per_block: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    whole_request: int
    tokens_per_decode: int
    least_prefill: int
    least_threshold: int
    chunked_prefill: int
    long_prefill_token_threshold: int
    version: str
    base_class: str
    seqs_restart: str
    tokens_restart: str
    chunked_restart: str
    threshold_restart: str
    memory_restart: str


class InForce(NamedTuple):
    """What is in force now. `step` is the last ask that the scheduler has read; `disabled` is 1 after a failure."""

    time_s: float
    step: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: int
    long_prefill_token_threshold: int
    held_blocks: int
    running: int
    waiting: int
    free_blocks: int
    steps: int
    preemptions: int
    disabled: int
    settled: int
    error: str


class StepRecord(NamedTuple):
    """One call of schedule(). Tokens beyond one for each scheduled request are prefill."""

    time_s: float
    running: int
    waiting: int
    scheduled_requests: int
    scheduled_tokens: int
    free_blocks: int
    held_blocks: int
    preemptions: int
    stopped_by: int
    token_budget: int


def _encode(text: str, size: int) -> bytes:
    return text.encode("utf-8", "replace")[:size]


def _decode(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "replace")


class _Block:
    """The mapped file, with seqlocked reads and writes of its regions."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._numbers = {}  # type: dict

    @classmethod
    def _map(cls, path: str) -> mmap.mmap:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        try:
            if os.fstat(descriptor).st_size != SIZE:
                raise BlockError("the control block %s is not %d bytes long" % (path, SIZE))
            memory = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        if memory[: len(MAGIC)] != MAGIC:
            memory.close()
            raise BlockError("the control block %s has another layout" % path)
        return memory

    def close(self) -> None:
        self._memory.close()

    def _write(self, at: int, packed: bytes) -> None:
        number = self._numbers.get(at)
        if number is None:
            number = _SEQUENCE.unpack_from(self._memory, at)[0]
            number += number & 1  # a writer that died half-way left it odd
        _SEQUENCE.pack_into(self._memory, at, number + 1)
        self._memory[at + 8 : at + 8 + len(packed)] = packed
        _SEQUENCE.pack_into(self._memory, at, number + 2)
        self._numbers[at] = number + 2

    def _read(self, at: int, size: int) -> Optional[bytes]:
        """The region's bytes, or None where it was never written. Raises BlockError after 1,000 torn reads."""
        for attempt in range(1000):
            before = _SEQUENCE.unpack_from(self._memory, at)[0]
            data = self._memory[at + 8 : at + 8 + size]
            after = _SEQUENCE.unpack_from(self._memory, at)[0]
            if before == after and not before & 1:
                return data if before else None
            if attempt > 10:
                time.sleep(0.0001)
        raise BlockError("the control block stays half-written: its writer stopped in the middle")


def sign_in(path: str) -> None:
    """Leave a sign beside the block at `path` that this process makes a scheduler for it."""
    os.close(os.open("%s.%d" % (path, os.getpid()), os.O_WRONLY | os.O_CREAT, 0o600))


def signed_in(path: str) -> int:
    """How many processes made a scheduler for the block at `path`: more than one where each rank of data parallelism
    has an engine core of its own, of which vLLM tells the scheduler nothing for models without experts (0.16 on)."""
    folder, name = os.path.split(path)
    return sum(entry.startswith(name + ".") for entry in os.listdir(folder or "."))


class ServerBlock(_Block):
    """The scheduler's end of the block."""

    @classmethod
    def open(cls, path: str) -> "ServerBlock":
        """Map the existing file at `path`. Raises BlockError or OSError."""
        return cls(cls._map(path))

    def asked(self) -> int:
        """A number that changes with every ask; comparing it is all that an unchanged step costs."""
        return _SEQUENCE.unpack_from(self._memory, _TARGETS_AT)[0]

    def targets(self) -> Optional[Targets]:
        data = self._read(_TARGETS_AT, _TARGETS.size)
        return None if data is None else Targets(*_TARGETS.unpack(data))

    def say_hello(self, hello: Hello) -> None:
        texts = (_encode(text, size) for text, size in zip(hello[15:], (32, 64, 96, 96, 96, 96, 96)))
        self._write(_HELLO_AT, _HELLO.pack(*hello[:15], *texts))

    def publish(self, *fields: Any) -> None:
        """Write the fields of InForce, in its order; `error` may be left out."""
        numbers, error = fields[:14], fields[14] if len(fields) > 14 else ""
        self._write(_IN_FORCE_AT, _IN_FORCE.pack(*numbers, _encode(error, 160)))

    def record(self, *fields: Any) -> None:
        """Append the fields of StepRecord, in its order, to the ring; the oldest of RING_CAPACITY is overwritten."""
        head = self._numbers.get(_RING_AT)
        if head is None:
            head = _SEQUENCE.unpack_from(self._memory, _RING_AT)[0]
        at = _RING_AT + 8 + (head % RING_CAPACITY) * _RECORD.size
        _RECORD.pack_into(self._memory, at, *fields)
        _SEQUENCE.pack_into(self._memory, _RING_AT, head + 1)
        self._numbers[_RING_AT] = head + 1


class ControlBlock(_Block):
    """tunetui's end of the block."""

    @classmethod
    def create(cls, path: str) -> "ControlBlock":
        """Make a new zeroed file at `path` with mode 0600 and map it. Raises FileExistsError rather than reuse one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            os.ftruncate(descriptor, SIZE)
            os.pwrite(descriptor, MAGIC, 0)
        finally:
            os.close(descriptor)
        return cls(cls._map(path))

    def ask(self, targets: Targets) -> None:
        self._write(_TARGETS_AT, _TARGETS.pack(*targets))

    def hello(self) -> Optional[Hello]:
        data = self._read(_HELLO_AT, _HELLO.size)
        if data is None:
            return None
        fields = _HELLO.unpack(data)
        return Hello(*fields[:15], *map(_decode, fields[15:]))

    def in_force(self) -> Optional[InForce]:
        data = self._read(_IN_FORCE_AT, _IN_FORCE.size)
        if data is None:
            return None
        *numbers, error = _IN_FORCE.unpack(data)
        return InForce(*numbers, _decode(error))

    def records(self, since: int) -> Tuple[int, List[StepRecord]]:
        """The records after number `since` that the ring still holds, oldest first, and the number to ask from next."""
        head = _SEQUENCE.unpack_from(self._memory, _RING_AT)[0]
        # The slot being overwritten now is left out: it is the oldest one of a full ring.
        first = max(since, head - RING_CAPACITY + 1, 0)
        found = []
        for number in range(first, head):
            at = _RING_AT + 8 + (number % RING_CAPACITY) * _RECORD.size
            found.append(StepRecord(*_RECORD.unpack_from(self._memory, at)))
        return head, found
