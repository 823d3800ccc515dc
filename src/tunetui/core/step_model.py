"""How long a step of the engine takes, from what is in it, fitted to the steps that the ring told of.

It runs no engine (`drive.predict` does), and says nothing of steps that are unlike those it was fitted to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING

from tunetui.core.least_times import TermsFit, fit_terms
from tunetui.core.steps import EngineStep, durations_s

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FEWEST_STEPS = 30  # a fit to fewer is none
PER_CELL = 96  # newest steps kept of each kind
MOST_CELLS = 512  # kinds; the one that was seen longest ago is forgotten
MOST_FITTED = 8192  # steps in a fit: of many kinds fewer each
BEYOND = 2.0  # a step may be so many times larger or smaller than any that was seen, and ...
BEYOND_UNKNOWN = 1.25  # ... in a term that the steps do not determine
# Of the mean error, what must be left of it for the times to be taken as those of the step before, and less by so much.
LAG_GAIN, LEAST_GAIN = 0.9, 0.002


class Term(StrEnum):
    """A quantity of a step that its time may depend on."""

    TOKENS = "tokens"
    SEQUENCES = "sequences"
    KV_TOKENS = "KV tokens"


@dataclass(frozen=True, slots=True)
class Work:
    """What is in a step: tokens computed, sequences that have a part in it, tokens in the KV blocks in use."""

    tokens: float
    sequences: float
    kv_tokens: float

    def of(self, term: Term) -> float:
        return {Term.TOKENS: self.tokens, Term.SEQUENCES: self.sequences, Term.KV_TOKENS: self.kv_tokens}[term]


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of a step = base + per token above `free_tokens` + per sequence + per token of KV, none below 0.

    The roofline (Williams, Waterman and Patterson 2009): up to `free_tokens` the time to read the weights hides the
    computation. `error` is the median absolute relative error over the steps, `explained` the share of the variance of
    the times that the model explains in those that were used, `used` the share of steps that were (the rest did not
    fit: idle gaps, pauses). `undetermined` terms varied too little to be told apart and are left out: their part is in
    the others. `low` and `high` are the span of what was seen.
    """

    base_s: float
    per_token_s: float
    free_tokens: float
    per_sequence_s: float
    per_kv_token_s: float
    error: float = 0.0
    explained: float = 1.0
    steps: int = 0
    used: float = 1.0
    undetermined: tuple[Term, ...] = ()
    low: Work = Work(0, 0, 0)
    high: Work = Work(float("inf"), float("inf"), float("inf"))

    def step_s(self, tokens: float, sequences: float, kv_tokens: float) -> float:
        """Seconds that a step takes."""
        return (
            self.base_s
            + self.per_token_s * max(0.0, tokens - self.free_tokens)
            + self.per_sequence_s * sequences
            + self.per_kv_token_s * kv_tokens
        )

    def known(self, tokens: float, sequences: float, kv_tokens: float) -> bool:
        """Whether steps not too unlike this one were seen: no quantity is more than twice beyond their span, and none
        whose term is undetermined more than 1.25 times."""
        (least_t, most_t), (least_s, most_s), (least_kv, most_kv) = self.span
        return least_t <= tokens <= most_t and least_s <= sequences <= most_s and least_kv <= kv_tokens <= most_kv

    @property
    def span(self) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
        """The least and the most tokens, sequences and KV tokens of a step that is known."""

        def of(term: Term) -> tuple[float, float]:
            beyond = BEYOND_UNKNOWN if term in self.undetermined else BEYOND
            return self.low.of(term) / beyond, self.high.of(term) * beyond

        return of(Term.TOKENS), of(Term.SEQUENCES), of(Term.KV_TOKENS)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A time between two steps, the work of the step that begins it, and of the one before (None: not known)."""

    took_s: float
    work: Work
    before: Work | None


class StepModelFit:
    """Takes the steps of a session as they come and gives the model of them all, in bounded memory.

    Steps are kept by kind (prefill, sequences and KV, each within a factor of 2), the newest of each: so a point that
    was left is still known, and thousands of equal decodes do not outweigh the rare long prefill.
    """

    def __init__(self, block_size: int) -> None:
        """`block_size`: tokens of a KV block. Raises ValueError where there are none."""
        if block_size < 1:
            raise ValueError(f"a KV block holds at least one token, not {block_size}")
        self._block_size = block_size
        self._cells: dict[tuple[int, int, int], deque[_Seen]] = {}
        self._recent: list[EngineStep] = []
        self.taken = 0  # steps that a time is known of, ever

    def add(self, steps: Sequence[EngineStep]) -> None:
        """New steps, in their order, from where the call before ended."""
        known = len(self._recent)
        chain = [*self._recent, *steps]
        for i, took_s in enumerate(durations_s(chain)):
            # The newest step of the call before has its time only now; those before it had theirs.
            if i < known - 1 or took_s is None or not 0 < took_s < float("inf"):
                continue
            if not chain[i].tokens or self._may_follow_idleness(chain[i + 1]):
                continue
            late = i == 0 or not chain[i - 1].tokens or self._may_follow_idleness(chain[i])
            self._keep(_Seen(took_s, self._work(chain[i]), None if late else self._work(chain[i - 1])), chain[i])
        self._recent = chain[-2:]

    def restart(self) -> None:
        """The steps to come do not follow those before: the engine was started again, or some were lost."""
        self._recent = []

    def _work(self, step: EngineStep) -> Work:
        return Work(step.tokens, step.requests, step.used_blocks * self._block_size)

    def _may_follow_idleness(self, step: EngineStep) -> bool:
        """Whether everything in `step` may be new: no block holds more than its own tokens."""
        return step.used_blocks <= step.tokens // self._block_size + step.requests and step.prefill_tokens > 0

    def _keep(self, seen: _Seen, step: EngineStep) -> None:
        key = _bin(step.prefill_tokens), _bin(step.requests), _bin(step.used_blocks)
        cell = self._cells.pop(key, None) or deque(maxlen=PER_CELL)
        cell.append(seen)
        self._cells[key] = cell
        self.taken += 1
        if len(self._cells) > MOST_CELLS:
            del self._cells[next(iter(self._cells))]

    def model(self) -> StepModel | None:
        """The model of all that was added, or None where that is too little. A few tens of milliseconds.

        With asynchronous scheduling the time between two calls can be that of the step scheduled before: where that
        fits clearly better, it is taken so.
        """
        each = MOST_FITTED // max(len(self._cells), 1)
        rows = [seen for cell in self._cells.values() for seen in islice(reversed(cell), each)]
        if len(rows) < FEWEST_STEPS:
            return None
        found = _model([(seen.took_s, seen.work) for seen in rows])
        shifted = [(seen.took_s, seen.before) for seen in rows if seen.before is not None]
        if len(shifted) < max(FEWEST_STEPS, len(rows) // 2):
            return found
        late = _model(shifted)
        # On the same times: how far off each model is with the work of its own step.
        own = _loss(found, [(seen.took_s, seen.work) for seen in rows if seen.before is not None])
        return late if _loss(late, shifted) < LAG_GAIN * own - LEAST_GAIN else found


def fit(steps: Sequence[EngineStep], block_size: int) -> StepModel | None:
    """The model of these steps alone (in their order, as the ring holds them), or None where they are too few."""
    found = StepModelFit(block_size)
    found.add(steps)
    return found.model()


def _bin(value: int) -> int:
    return max(value, 0).bit_length()


def _loss(model: StepModel, rows: Sequence[tuple[float, Work]]) -> float:
    """The mean absolute relative error, where none counts for more than 1."""
    off = (abs(took_s / max(model.step_s(w.tokens, w.sequences, w.kv_tokens), 1e-9) - 1) for took_s, w in rows)
    return sum(min(one, 1.0) for one in off) / len(rows)


def _model(rows: Sequence[tuple[float, Work]]) -> StepModel:
    import numpy as np  # here, not above: the first paint must not wait for it

    took_s = np.array([row_s for row_s, _ in rows])
    works = np.array([(work.tokens, work.sequences, work.kv_tokens) for _, work in rows], dtype=float)
    return _named(fit_terms(took_s, works), works)


def _named(found: TermsFit, works: Array) -> StepModel:
    low, high = works[found.used].min(axis=0), works[found.used].max(axis=0)
    per_token_s, per_sequence_s, per_kv_token_s = found.slopes
    return StepModel(
        base_s=found.base,
        per_token_s=per_token_s,
        free_tokens=found.knee,
        per_sequence_s=per_sequence_s,
        per_kv_token_s=per_kv_token_s,
        error=found.error,
        explained=found.explained,
        steps=len(works),
        used=float(found.used.mean()),
        undetermined=tuple(term for term, unknown in zip(Term, found.undetermined, strict=True) if unknown),
        low=Work(*map(float, low)),
        high=Work(*map(float, high)),
    )
