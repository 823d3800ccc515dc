"""Robust least squares of times that grow with three quantities, the first one from a knee on; none makes them shorter.

It knows no engine: rows of numbers come in, coefficients go out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

# The rounds of fitting and trimming, and how far off a time may be in each whatever the spread: while the knee is not
# found, the few long prefills lie far off a fit of the many decodes, and must not be trimmed for it.
KEPT_AT_LEAST = (1.0, 0.7, 0.5, 0.35, 0.25, 0.2, 0.2)
KNEES = 28  # tried on a first grid, and ...
FINE, FINER = 7, 2  # ... between the neighbours of the best, so often
KEPT = 3.5  # robust standard deviations: what lies further off is no step's own time
OWN_VARIATION = 0.02  # of its size: what a term must vary by that the others do not explain
SAME = 3e-5  # relative error: less is none
SURE = 0.1  # of a typical time: the most by which a term's part may be in doubt
DOUBTS = 2.0  # standard errors that a term must be above
DROP = (1, 2, 0)  # the order in which terms that cannot be told apart are left out; see TermsFit.slopes


@dataclass(frozen=True, slots=True)
class TermsFit:
    """Coefficients, 0 or more: `base`, and `slopes` of (amount above `knee`, second, third quantity).

    `undetermined` says of each slope whether it is 0 for the rows do not determine it. `used` are the rows that were
    used, shape (rows,); `error` is the median absolute relative error over all rows, `explained` the share of variance.
    """

    base: float
    slopes: tuple[float, float, float]
    knee: float
    undetermined: tuple[bool, bool, bool]
    used: Mask
    error: float
    explained: float


def fit_terms(times: Array, amounts: Array) -> TermsFit:
    """Fit `times`, shape (rows,) and above 0, to `amounts`, shape (rows, 3).

    Errors are relative: a step of half a second may be off by more than one of ten milliseconds. Rows that lie far off
    are trimmed and the rest is fitted again (iterated trimming, Rousseeuw and Leroy 1987).
    """
    import numpy as np

    # Most rows are near the fastest of their kind, so weights of 1 / time make long gaps weigh little from the start.
    weights, used = 1 / times, np.ones(times.size, dtype=bool)
    left_out, undetermined = [False] * 3, [False] * 3
    knee = 0.0
    coefficients = np.zeros(4)
    for turn, kept_at_least in enumerate(KEPT_AT_LEAST):
        knee, coefficients = _best_knee(times, amounts, weights * used, left_out)
        fitted = _terms(amounts, knee) @ coefficients
        off = times / np.maximum(fitted, 1e-9) - 1
        spread = 1.4826 * float(np.median(np.abs(off - np.median(off))))
        used = np.abs(off - np.median(off)) <= max(KEPT * spread, kept_at_least)
        weights = 1 / np.maximum(fitted, 0.05 * float(np.median(times)))
        if turn == len(KEPT_AT_LEAST) // 2:  # trimmed by now: what varies too little shows
            left_out, undetermined = _not_told(times, amounts, knee, weights * used, coefficients)
    fitted = _terms(amounts, knee) @ coefficients
    rest = float(np.var((times - fitted)[used]))
    whole = float(np.var(times[used]))
    base, *slopes = map(float, coefficients)
    return TermsFit(
        base=base,
        slopes=(slopes[0], slopes[1], slopes[2]),
        knee=knee if slopes[0] else 0.0,
        undetermined=(undetermined[0], undetermined[1], undetermined[2]),
        used=used,
        error=float(np.median(np.abs(times / np.maximum(fitted, 1e-9) - 1))),
        explained=1 - rest / whole if whole > 0 else 1.0,
    )


def _terms(amounts: Array, knee: float) -> Array:
    """The columns that coefficients multiply, shape (rows, 4)."""
    import numpy as np

    above = np.maximum(amounts[:, 0] - knee, 0)
    return np.column_stack([np.ones(len(amounts)), above, amounts[:, 1], amounts[:, 2]])


def _best_knee(times: Array, amounts: Array, weights: Array, left_out: list[bool]) -> tuple[float, Array]:
    """The knee that leaves the least squares, and the coefficients with it; 0 unless another one is better."""
    import numpy as np

    inside = amounts[weights > 0, 0]
    low, high = float(inside.min()), float(inside.max())
    if left_out[0] or high <= max(low, 1.0):
        return 0.0, _solve(times, _terms(amounts, 0.0), weights, left_out)[1]
    tried: dict[float, tuple[float, Array]] = {}

    def squares(knee: float) -> float:
        if knee not in tried:
            tried[knee] = _solve(times, _terms(amounts, knee), weights, left_out)
        return tried[knee][0]

    grid = [0.0, *np.geomspace(max(low, 1.0), high, KNEES).tolist()[:-1]]
    best = min(range(len(grid)), key=lambda i: squares(grid[i]))
    knee, below, above = grid[best], grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    for _ in range(FINER):
        around = np.linspace(below, above, FINE).tolist()
        at = min(range(FINE), key=lambda i: squares(around[i]))
        below, above = around[max(at - 1, 0)], around[min(at + 1, FINE - 1)]
        knee = min(knee, around[at], key=squares)
    if squares(0.0) <= squares(knee) * (1 + 1e-6) + SAME**2 * inside.size:
        knee = 0.0
    return knee, tried[knee][1]


def _solve(times: Array, terms: Array, weights: Array, left_out: list[bool]) -> tuple[float, Array]:
    """Weighted sum of squares left, and coefficients of 0 or more, shape (4,): the most negative one is left out until
    none is."""
    import numpy as np

    scaled = terms * weights[:, None]
    target = times * weights
    size = np.sqrt((scaled**2).sum(axis=0))
    gram = scaled.T @ scaled
    sides = scaled.T @ target
    active = [j for j in range(4) if size[j] > 0 and not (j and left_out[j - 1])]
    found = np.zeros(4)
    while active:
        scale = size[active]
        part = gram[np.ix_(active, active)] / np.outer(scale, scale)
        solved = np.linalg.lstsq(part, sides[active] / scale, rcond=1e-10)[0]
        if (solved >= 0).all():
            found[active] = solved / scale
            break
        del active[int(solved.argmin())]
    rest = float(target @ target - 2 * found @ sides + found @ gram @ found)
    return max(rest, 0.0), found


def _not_told(
    times: Array, amounts: Array, knee: float, weights: Array, coefficients: Array
) -> tuple[list[bool], list[bool]]:
    """Which slopes are to be left out, and which of these might yet be large.

    Left out is one whose column, without what the others explain of it, varies by under 2 % of its size, and one that
    is not above its doubt. It might be large in the first case, and where twice its doubt is a tenth of a typical time.
    """
    import numpy as np

    terms = _terms(amounts, knee)
    scaled = terms * weights[:, None]
    rows = int((weights > 0).sum())
    deviation = float(np.sqrt((((times - terms @ coefficients) * weights) ** 2).sum() / max(rows - 4, 1)))
    size = np.sqrt((scaled**2).sum(axis=0))
    out, unknown = [False] * 3, [False] * 3
    for term in DROP:
        own = _own_share(scaled, size, out, term)
        # A standard error of the slope is this much of a typical time: the term's size is sqrt(rows) times its own.
        doubt = deviation / own / rows**0.5 if own else float("inf")
        part = coefficients[term + 1] * size[term + 1] / rows**0.5
        out[term] = own < OWN_VARIATION or part < DOUBTS * doubt or doubt > SURE
        unknown[term] = out[term] and (own < OWN_VARIATION or DOUBTS * doubt > SURE)
        if out[term]:  # the others take its part
            coefficients = _solve(times, terms, weights, out)[1]
    return out, unknown


def _own_share(scaled: Array, size: Array, out: list[bool], term: int) -> float:
    """What the other columns do not explain of a term's column, as a share of its size: 0 to 1."""
    import numpy as np

    if not size[term + 1] > 0:
        return 0.0
    others = [0, *(j + 1 for j in range(3) if not out[j] and j != term and size[j + 1] > 0)]
    unit = scaled[:, others] / size[others]
    column = scaled[:, term + 1] / size[term + 1]
    explained = np.linalg.lstsq(unit, column, rcond=1e-8)[0]
    return float(np.linalg.norm(column - unit @ explained))
