"""The best point of the tuning guide's case, by exhaustion: the capacity of every point of a fine grid, from long runs.

    uv run python benchmarks/case_truth.py

It prints the grid as a table and keeps it in `benchmarks/data/case_truth.json`, which the test of the sweep on the case
reads. One core is busy for some ten minutes. Of a point that is clearly below the best so far only that is told. Every
point gets the same requests, which no trial of a sweep has: the figures are for comparing points, for with other
requests all of them move together (one point had 23.2 to 25.7 req/s with five seeds over 4000 requests, 22.4 to 24.5
over 12000). Memory and prefix caching stay as the ceiling has them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tunetui.cli.tune import cards_of, parser, settings_from
from tunetui.core.candidates import THRESHOLDS, token_budgets
from tunetui.core.knobs import EngineFacts, Point, start_refusal
from tunetui.core.load import Load
from tunetui.demo.profiles import PROFILES
from tunetui.drive.predict_capacity import CLEARLY, virtual_capacity
from tunetui.drive.settings import ceiling_of
from tunetui.drive.virtual_rig import virtual_facts

TRUTH = Path(__file__).parent / "data" / "case_truth.json"
REQUESTS = 12_000  # of a long run
WITHIN = 1.01
SEED = 1_000  # of the long runs
SEQS_STEP, FINE_FROM = 64, 256  # from so many sequences on half the step, where long prefills have no limit

CASE = PROFILES["case"]
SETTINGS = settings_from(parser().parse_args(["--demo", "case"]), [])
FACTS: EngineFacts = virtual_facts(CASE.machine, ceiling_of(SETTINGS, cards_of(CASE)))
WORKLOAD = replace(SETTINGS.workload, seed=SETTINGS.workload.seed + SEED)


@dataclass(frozen=True, slots=True)
class Found:
    """A point of the grid and its capacity; not `exact`: that is below `rate_rps`."""

    point: Point
    rate_rps: float
    exact: bool = True


def capacity_of(point: Point, above_rps: float = 0.0) -> Found:
    """Requests per second over a long run, unless that is clearly below `above_rps`."""
    found = virtual_capacity(
        lambda engine: CASE.machine, FACTS, point, WORKLOAD, Load(1.0), SETTINGS.slo, above_rps, REQUESTS, WITHIN
    )
    return Found(point, found.rate_rps if found.exact else CLEARLY * above_rps, found.exact)


def grid() -> Iterator[Point]:
    """All that the sweep may try at the ceiling's memory, the most sequences first."""
    ceiling = FACTS.ceiling
    for seqs in range(ceiling.max_num_seqs, 0, -SEQS_STEP):
        yield from at(seqs, (0, *THRESHOLDS))
        if seqs > FINE_FROM:
            yield from at(seqs - SEQS_STEP // 2, (0,))


def at(seqs: int, thresholds: tuple[int, ...]) -> Iterator[Point]:
    """The points with so many sequences: each budget with chunks and without, as far as vLLM starts so."""
    for tokens in token_budgets(seqs, FACTS):
        base = replace(FACTS.ceiling, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        points = [replace(base, long_prefill_token_threshold=t) for t in thresholds if t < tokens]
        yield from (p for p in (*points, replace(base, chunked_prefill=False)) if not start_refusal(p, FACTS))


def row(found: Found) -> str:
    p = found.point
    how = f"{p.long_prefill_token_threshold or 'chunked'}" if p.chunked_prefill else "whole"
    rate = f"{'' if found.exact else '<'}{found.rate_rps:.2f}"
    return f"{p.max_num_seqs:>5} {p.max_num_batched_tokens:>6} {how:>8} {rate:>7}"


def best_of(known: list[Found]) -> Found | None:
    return max((f for f in known if f.exact), key=lambda f: f.rate_rps, default=None)


def kept() -> list[Found]:
    """What the file says."""
    return [Found(Point(**one.pop("point")), **one) for one in json.loads(TRUTH.read_text())["points"]]


def keep(known: list[Found], took_s: float) -> None:
    best = best_of(known)
    data: dict[str, Any] = {
        "requests": REQUESTS, "within": WITHIN, "seed": SEED, "took_s": round(took_s),
        "best": best and asdict(best), "points": [asdict(one) for one in known],
    }  # fmt: skip
    TRUTH.write_text(json.dumps(data, indent=1) + "\n")


def main() -> None:
    began_s, known = time.monotonic(), list[Found]()
    print(f"{'seqs':>5} {'tokens':>6} {'prefill':>8} {'req/s':>7}")
    for point in grid():
        best = best_of(known)
        known.append(capacity_of(point, best.rate_rps if best else 0.0))
        print(row(known[-1]), flush=True)
    keep(known, time.monotonic() - began_s)
    best = best_of(known)
    print(f"best of {len(known)}: {best and row(best)}, in {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
