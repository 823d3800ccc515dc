"""Steps of the engine as its ring holds them, one record for each call of the scheduler. It says nothing about them.

`limits` says what they show, `step_model` how long they take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise


class Stop(IntEnum):
    """What stopped admission in a step; the numbers are the control block's."""

    NONE = 0
    SEQS = 1
    TOKENS = 2
    BLOCKS = 3
    OTHER = 4


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One step. `time_s` is when it was scheduled, on the monotonic clock; `running` and `waiting` are requests after
    it was, `preemptions` those of the engine since its start. Tokens beyond one a request are prefill. `used_blocks`
    are KV blocks that running requests hold; held ones (DESIGN, Knobs) are none of them."""

    time_s: float
    running: int
    waiting: int
    requests: int
    tokens: int
    used_blocks: int
    free_blocks: int
    preemptions: int
    stopped_by: Stop
    token_budget: int

    @property
    def prefill_tokens(self) -> int:
        """Tokens beyond one for each request: at most one a prefill too few."""
        return max(self.tokens - self.requests, 0)


def durations_s(steps: Sequence[EngineStep]) -> list[float | None]:
    """Seconds from each step to the next, shape (len(steps),); None for the last one, and where nothing was running.

    Where a step ends the last request and nothing waits, the engine is idle until one comes: the ring does not tell,
    and such a gap is long. Whoever fits step times must leave out what does not fit.
    """
    found: list[float | None] = [
        following.time_s - step.time_s if step.running else None for step, following in pairwise(steps)
    ]
    return [*found, None] if steps else []
