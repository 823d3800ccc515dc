"""What limits the engine now: one word, one sentence with the numbers behind it, and the share of steps it held over.

It advises nothing (`rules` does) and reads no ring (`step_figures` takes steps).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tunetui.core.step_figures import StepFigures

BLOCKS_STOP = 0.10  # of the steps
PREEMPTIONS = 0.005  # a step
HEAD_BLOCKED = 0.10
LONG_TIME, MOST_LONG_STEPS = 0.35, 0.30  # more long steps than that are no exception that delays the others
STOPPED = 0.10
ALWAYS_FULL = 0.50
SATURATED = 0.60  # of a step's time grows with what it carries
NO_GAIN = 0.85  # twice the batch would give 8 % more


class Limit(StrEnum):
    """What limits the engine; the word is shown."""

    SEQ_CAP = "SEQ CAP"
    TOKEN_BUDGET = "TOKEN BUDGET"
    KV_PRESSURE = "KV PRESSURE"
    PREFILL_BLOCKING = "PREFILL BLOCKING"
    COMPUTE = "COMPUTE SATURATED"
    BANDWIDTH = "BANDWIDTH SATURATED"
    UNDERLOADED = "UNDERLOADED"
    CLIENT = "CLIENT LIMITED"

    @property
    def saturated(self) -> bool:
        return self in (Limit.COMPUTE, Limit.BANDWIDTH)


@dataclass(frozen=True, slots=True)
class Finding:
    """The limit, the share of steps (or looks) that it held over, why, and the figures it was found in."""

    limit: Limit
    share: float
    sentence: str
    figures: StepFigures


def find_limit(figures: StepFigures, late: str = "") -> Finding:
    """The one limit to name. `late` says why the load generator was too late to tell, or is empty.

    The order is that of causes. A late client tells nothing of the engine. Blocks that run out stop admission whatever
    the slots are. A prompt that holds up those behind it, or the decodes beside it, fills slots and queue too, so it
    comes before both. A batch that gains nothing by growing is saturated even where the slots are all taken; then the
    slots and the budget, whichever stopped more; and an engine that nothing stops is saturated or has room.
    """
    f = figures
    if late:
        return Finding(Limit.CLIENT, 1.0, late, f)
    for look in (_kv, _prefill, _saturated_for_good, _stopped, _saturated):
        if (found := look(f)) is not None:
            return found
    share = 1 - max(f.waiting_share, f.slots_full)
    return Finding(Limit.UNDERLOADED, share, f"nothing waits on {share:.0%} of {_of(f)}, {_running(f)}{_room(f)}", f)


def _kv(f: StepFigures) -> Finding | None:
    if f.stopped_by_blocks < BLOCKS_STOP and f.preemptions < max(PREEMPTIONS * f.steps, 1):
        return None
    peak = f"the KV cache was {f.kv_peak:.0%} full at most" if f.kv_peak is not None else "the KV cache is full"
    parts = [peak]
    if f.stopped_by_blocks:
        parts.append(f"requests wait for blocks on {f.stopped_by_blocks:.0%} of {_of(f)}")
    if f.preemptions:
        parts.append(f"{f.preemptions} preemptions")
    return Finding(Limit.KV_PRESSURE, max(f.stopped_by_blocks, min(f.preemptions / f.steps, 1.0)), ", ".join(parts), f)


def _prefill(f: StepFigures) -> Finding | None:
    if f.head_blocked >= HEAD_BLOCKED:
        text = f"a prompt that must fit whole holds up {f.mean_waiting:.0f} others on {f.head_blocked:.0%} of {_of(f)}"
        return Finding(Limit.PREFILL_BLOCKING, f.head_blocked, text, f)
    busy = f.grows is not None and f.grows >= 0.5
    if not busy or f.long_time < LONG_TIME or f.long_steps > MOST_LONG_STEPS or f.decode_step_s is None:
        return None
    text = (
        f"{f.long_time:.0%} of the decode time is in the {f.long_steps:.0%} of {_of(f)} that a prefill makes 3 times "
        f"as long as the {f.decode_step_s * 1000:.0f} ms of a decode"
    )
    return Finding(Limit.PREFILL_BLOCKING, f.long_steps, text, f)


def _saturated_for_good(f: StepFigures) -> Finding | None:
    return _saturated(f) if f.grows is not None and f.grows >= NO_GAIN else None


def _saturated(f: StepFigures) -> Finding | None:
    grows = f.grows
    if grows is None or grows < SATURATED or f.mean_step_s is None or f.base_s is None:
        return None
    compute = f.compute_time >= f.batch_time
    where = f"{f.compute_time:.0%} of the time is prefill" if compute else f"{f.batch_time:.0%} of it the batch's KV"
    text = (
        f"steps take {f.mean_step_s * 1000:.0f} ms, {f.mean_step_s / max(f.base_s, 1e-9):.1f} times an empty one's; "
        f"{where}; twice the batch would give {(f.gain(2.0) or 1.0) - 1:.0%} more"
    )
    return Finding(Limit.COMPUTE if compute else Limit.BANDWIDTH, 1 - f.pauses, text, f)


def _stopped(f: StepFigures) -> Finding | None:
    full = f.slots_full if f.slots_full >= ALWAYS_FULL else 0.0
    seqs, tokens = max(f.stopped_by_seqs, full), f.stopped_by_tokens
    if max(seqs, tokens) < STOPPED:
        return None
    if tokens > seqs:
        text = f"requests wait for tokens of a step on {tokens:.0%} of {_of(f)}, {_running(f)}"
        return Finding(Limit.TOKEN_BUDGET, tokens, text, f)
    if f.stopped_by_seqs >= STOPPED:
        text = f"requests wait for a slot on {f.stopped_by_seqs:.0%} of {_of(f)}, {f.mean_waiting:.0f} at a time"
        return Finding(Limit.SEQ_CAP, f.stopped_by_seqs, text, f)
    return Finding(Limit.SEQ_CAP, full, f"every slot is taken on {full:.0%} of {_of(f)}", f)


def _of(f: StepFigures) -> str:
    return "steps" if f.exact else f"{f.steps} looks"


def _running(f: StepFigures) -> str:
    return f"{f.mean_running:.0f} running"


def _room(f: StepFigures) -> str:
    grows = f.grows
    return "" if grows is None else f", and {1 - grows:.0%} of a step would be there without load"
