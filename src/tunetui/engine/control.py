"""Live control, seen from tunetui: lays the scheduler class out for a start, asks for points, reads what is in force.

It checks no limits: `core.knobs` does before a point gets here, and the scheduler class after.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tunetui.core.knobs import EngineFacts, Knob, MemoryFlag, Point
from tunetui.core.steps import EngineStep, Stop
from tunetui.live.tunetui_live import block as layout
from tunetui.live.tunetui_live.block import BlockError, Hello, InForce, StepRecord


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The files of one live start: a folder for PYTHONPATH that holds only our package, and the control block."""

    python_path: Path
    block: Path


def lay_out(run_folder: Path) -> LiveFiles:
    """Copy the package that runs inside vLLM into `run_folder`: nothing else of ours comes onto the server's path."""
    source = Path(layout.__file__).parent
    target = run_folder / "live"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return LiveFiles(target, run_folder / "control.block")


class LiveControl:
    """Our end of one server's control block. Reads raise nothing: a block that cannot be read is `lost`."""

    def __init__(self, files: LiveFiles) -> None:
        files.block.unlink(missing_ok=True)
        self._path = str(files.block)
        self._block = layout.ControlBlock.create(str(files.block))
        self._step = 0
        self.lost = ""

    def hello(self) -> Hello | None:
        """What the scheduler said of the engine, or None while it has not, or where there is more than one."""
        try:
            count = layout.signed_in(self._path)
            if count > 1:
                self.lost = f"{count} engine cores, each with a scheduler of its own"
                return None
            return self._block.hello()
        except (BlockError, OSError, ValueError) as error:
            self.lost = str(error)
            return None

    def ask(self, point: Point, facts: EngineFacts) -> int:
        """Ask for `point`, which must have passed `plan_step`. Returns the number of this ask."""
        self._step += 1
        self._block.ask(
            layout.Targets(
                step=self._step,
                max_num_seqs=point.max_num_seqs,
                max_num_batched_tokens=point.max_num_batched_tokens,
                chunked_prefill=int(point.chunked_prefill),
                long_prefill_token_threshold=point.long_prefill_token_threshold,
                held_blocks=facts.held_blocks(point.memory) or 0,
            )
        )
        return self._step

    def in_force(self) -> InForce | None:
        """What the scheduler last said is in force, or None."""
        try:
            return self._block.in_force()
        except (BlockError, ValueError) as error:
            self.lost = str(error)
            return None

    def records_since(self, number: int | None) -> tuple[int, Sequence[StepRecord]]:
        """The steps recorded after `number`, as far as the ring still holds them (None: none, only where it stands
        now), and the number to ask from next."""
        following, records = self._block.records(number if number is not None else 2**62)
        return following, tuple(records)

    def close(self) -> None:
        self._block.close()


def engine_step(record: StepRecord, num_blocks: int) -> EngineStep:
    """A record of the ring as the core has it."""
    return EngineStep(
        record.time_s,
        record.running,
        record.waiting,
        record.scheduled_requests,
        record.scheduled_tokens,
        max(num_blocks - 1 - record.free_blocks - record.held_blocks, 0),
        record.free_blocks,
        record.preemptions,
        Stop(record.stopped_by),
        record.token_budget,
    )


def facts_from_hello(
    hello: Hello, model: str, ceiling: Point, memory_flag: MemoryFlag, total_memory_bytes: int, hardware: str
) -> EngineFacts:
    """The engine's facts where the scheduler class reported in: every knob that it allows is live.

    A long-prefill threshold that vLLM chose itself, and that cannot be stepped, is the ceiling's: it is in force."""
    if hello.threshold_restart:
        ceiling = replace(ceiling, long_prefill_token_threshold=hello.long_prefill_token_threshold)
    reasons = {
        Knob.SEQS: hello.seqs_restart,
        Knob.TOKENS: hello.tokens_restart,
        Knob.CHUNKED: hello.chunked_restart,
        Knob.THRESHOLD: hello.threshold_restart,
        Knob.MEMORY: hello.memory_restart,
    }
    return EngineFacts(
        version=hello.version,
        model=model,
        ceiling=ceiling,
        memory_flag=memory_flag,
        max_model_len=hello.max_model_len,
        whole_request=hello.whole_request,
        live=True,
        base_class=hello.base_class,
        asynchronous=bool(hello.asynchronous),
        num_blocks=hello.num_blocks,
        block_size=hello.block_size,
        blocks_per_max_request=hello.blocks_per_max_request,
        bytes_per_block=hello.bytes_per_block,
        tokens_per_decode=hello.tokens_per_decode,
        least_prefill=hello.least_prefill,
        least_threshold=hello.least_threshold,
        restart_reasons={knob: reason for knob, reason in reasons.items() if reason},
        total_memory_bytes=total_memory_bytes,
        hardware=hardware,
    )
