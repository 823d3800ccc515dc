"""The share of applied advices that did what they promised, over random machines and workloads in virtual time.

    uv run python benchmarks/advice.py [--machines N] [--seed S] [--verbose]

Each machine is a card of random speed with a model, at a random point, under a random load (open loop below and above
what it can serve, or closed loop) of a random mix with a random SLO. One episode is run, the first advice taken as a
step, and the same episode run again. What is advised without a step (lower the load) is counted apart.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace

import numpy as np

from tunetui.core.advice import Advice, advise
from tunetui.core.episode import Episode, Measurement
from tunetui.core.expectation import Observed, judge, observed
from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.lengths import by_length
from tunetui.core.limits import Finding, find_limit
from tunetui.core.load import Load
from tunetui.core.overload import OverloadAlarm
from tunetui.core.rules import RULES
from tunetui.core.sample import Sample
from tunetui.core.situation import Situation
from tunetui.core.slo import Slo, Verdict, parse_slo
from tunetui.core.step_figures import figures_of, shortest_decode_s
from tunetui.core.steps import EngineStep
from tunetui.core.trace import Trace
from tunetui.core.workload import EpisodePlan, Workload, features, parse_lengths, plan_episode
from tunetui.demo.engine import BLOCK_SIZE, Engine
from tunetui.demo.machine import A10, A100, H100, LLAMA_70B, MISTRAL_7B, Machine
from tunetui.demo.virtual import RING, VirtualLoad
from tunetui.drive.virtual_rig import virtual_facts

COUNTED = 400
PROMPTS = (
    "64-512", "20-200", "200-1200", "30-150@0.975,3000-3600@0.025", "50-300@0.9,1500-3000@0.1", "1000-3000",
    "100-400@0.95,3000-3500@0.05", "16-64",
)  # fmt: skip
OUTPUTS = ("32-256", "140-256", "8-40", "200-600", "100-300")
OF_LOAD = {rule.name for rule in RULES if rule.of_load}
LENGTH = 4096  # of the model, here


@dataclass(frozen=True)
class Machinery:
    """One random engine: what it takes time, its facts at the start, and what is asked of it."""

    machine: Machine
    facts: EngineFacts
    workload: Workload
    slo: Slo
    follows: bool


@dataclass(frozen=True)
class Ran:
    """What one episode at a point showed."""

    seen: Observed
    situation: Situation
    finding: Finding


def random_machinery(rng: np.random.Generator) -> Machinery:
    """A card of 0.5 to 2 times a real one's bandwidth and FLOP/s."""
    card, model, cards = [(A10, MISTRAL_7B, 1), (A100, MISTRAL_7B, 1), (H100, MISTRAL_7B, 1), (H100, LLAMA_70B, 4)][
        int(rng.integers(4))
    ]
    card = replace(
        card,
        bandwidth_gb_s=card.bandwidth_gb_s * float(rng.uniform(0.5, 2)),
        tflop_s=card.tflop_s * float(rng.uniform(0.5, 2)),
    )
    machine = Machine(card, replace(model, max_model_len=LENGTH), cards)
    facts = virtual_facts(machine, Point(512, 8192, True, 0.92, True))
    workload = Workload(
        parse_lengths(str(rng.choice(PROMPTS))), parse_lengths(str(rng.choice(OUTPUTS))), int(rng.integers(1000))
    )
    if rng.random() < 0.2:
        workload = replace(workload, trace=_shared(workload, rng))
    ttft_ms, tpot_ms = float(rng.choice([200, 400, 600, 1000, 2000])), float(rng.choice([30, 50, 80, 120]))
    slow = 2.5 if card.memory_gib < 40 else 1.0
    slo = parse_slo([f"ttft:{ttft_ms * slow:g}", f"tpot:{tpot_ms * slow:g}"])
    return Machinery(machine, facts, workload, slo, bool(rng.random() < 0.5))


def _shared(workload: Workload, rng: np.random.Generator) -> Trace:
    """The same mix as a trace in which a fifth to two thirds of each prompt is one of eight system prompts."""
    plan = plan_episode(replace(workload, trace=None), Load(1.0), 0, 2000)
    share, blocks, fresh = float(rng.uniform(0.2, 0.67)), [], 1000
    for tokens in plan.prompt_tokens:
        count = tokens // BLOCK_SIZE
        common, which = int(count * share), int(rng.integers(8))
        blocks.append(
            (*(which * 100_000 + 10_000_000 + n for n in range(common)), *range(fresh, fresh + count - common))
        )
        fresh += count
    return Trace("shared", plan.prompt_tokens, plan.output_tokens, block_tokens=BLOCK_SIZE, blocks=tuple(blocks))


def random_point(machinery: Machinery, rng: np.random.Generator) -> Point:
    chunked = bool(rng.random() < 0.7)
    budgets = [512, 1024, 2048, 4096, 8192] if chunked else [4096, 8192]
    seqs = int(rng.choice([8, 16, 32, 64, 128, 192, 256, 320, 384, 512]))
    tokens = max(int(rng.choice(budgets)), seqs)
    least = machinery.facts.ceiling.memory - machinery.facts.most_held_blocks * (
        machinery.facts.bytes_per_block / machinery.facts.total_memory_bytes
    )
    memory = round(float(rng.uniform(max(least + 0.02, 0.3), 0.92)), 2) if rng.random() < 0.4 else 0.92
    return Point(seqs, tokens, chunked, memory, bool(rng.random() < 0.7))


def run(machinery: Machinery, point: Point, load: Load, requests: int = COUNTED) -> Ran:
    """One episode at `point`, with everything that a session would know of it."""
    facts = machinery.facts
    engine = Engine(
        facts.num_blocks, point.max_num_seqs, point.max_num_batched_tokens, point.chunked_prefill,
        point.long_prefill_token_threshold if point.chunked_prefill else 0, point.prefix_caching,
    )  # fmt: skip
    if point.memory > facts.ceiling.memory:  # a restart
        engine = replace_pool(engine, machinery.machine.num_blocks(point.memory, 8192))
    else:
        engine.hold(facts.held_blocks(point.memory) or 0)
    steps = deque[EngineStep]()  # all of them
    virtual = VirtualLoad(engine, machinery.machine, ring=steps)
    virtual_plan = plan_of(machinery, load, requests)
    samples = virtual.run(virtual_plan)
    return judged(machinery, point, load, virtual_plan, samples, virtual, list(steps))


def replace_pool(engine: Engine, blocks: int) -> Engine:
    return Engine(
        blocks, engine.max_num_seqs, engine.token_budget, engine.chunked, engine.threshold, engine.prefix_caching
    )


def plan_of(machinery: Machinery, load: Load, requests: int) -> EpisodePlan:
    return plan_episode(machinery.workload, load, load.concurrency or 100, requests)


def judged(
    machinery: Machinery, point: Point, load: Load, plan: EpisodePlan, samples: list[Sample], virtual: VirtualLoad,
    ring: list[EngineStep],
) -> Ran:  # fmt: skip
    """The measurement of the episode, and the coach's situation at its end."""
    episode = Episode(1, plan, machinery.slo)
    for sample in sorted(samples, key=lambda s: s.index):
        episode.add(sample)
    for at_s, tokens in virtual.steps:
        episode.arrived(at_s, tokens)
    for sample in samples:
        episode.finished(sample)
    seen = episode.measure(virtual.now_s)
    if load.rate_rps is not None and (alarm := overload_of(samples, load.rate_rps)):
        seen = replace(seen, verdict=Verdict.FAIL, overload=alarm)
    begin_s = episode.window_start_s or 0.0
    end_s = max(s.scheduled_s for s in samples)
    window = [s for s in ring if begin_s <= s.time_s <= end_s][-RING:]
    if len(window) < 10:
        window = ring[-RING:]
    figures = figures_of(window, point.max_num_seqs, point.chunked_prefill, shortest_decode_s(ring))
    assert figures is not None
    finding = find_limit(figures)
    good = episode.good()
    rows = episode.counted
    lengths = by_length(np.array(plan.prompt_tokens[rows]), episode.requests.ttft_s(rows), np.asarray(good))
    situation = Situation(
        point, machinery.facts, machinery.slo, seen, finding, load, features(plan), lengths.finding,
        cap_follows=load.concurrency is not None and machinery.follows,
    )  # fmt: skip
    return Ran(observed(seen, figures), situation, finding)


def overload_of(samples: list[Sample], rate_rps: float) -> str:
    alarm = OverloadAlarm(rate_rps)
    happened = [(s.scheduled_s, 0, 0.0) for s in samples]
    last_s = max(s.scheduled_s for s in samples)
    happened += [(s.first_s, 1, s.first_s - s.scheduled_s) for s in samples if s.first_s is not None]
    for at_s, what, ttft_s in sorted(happened):
        if at_s > last_s:
            break
        alarm.arrived(at_s) if what == 0 else alarm.first_token(at_s, ttft_s)
    return alarm.alarm


def random_load(machinery: Machinery, point: Point, rng: np.random.Generator) -> Load:
    """Half of them closed; the others at 0.4 to 1.2 times what the point answers when its queue never empties."""
    if rng.random() < 0.4:
        streams = point.max_num_seqs if machinery.follows else int(rng.choice([16, 32, 64, 128, 256, 384]))
        return Load(concurrency=streams)
    full = run(machinery, point, Load(concurrency=point.max_num_seqs + 32), 300)
    return Load(rate_rps=float(f"{full.seen.measurement.requests_per_s * rng.uniform(0.4, 1.2):.3g}"))


def load_at(before: Load, machinery: Machinery, target: Point) -> Load:
    if before.concurrency is not None and machinery.follows:
        return Load(concurrency=target.max_num_seqs)
    return before


@dataclass
class Tally:
    applied: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    limits: Counter[str] = field(default_factory=Counter)
    silent: Counter[str] = field(default_factory=Counter)


def one(number: int, rng: np.random.Generator, tally: Tally, verbose: bool) -> None:
    machinery = random_machinery(rng)
    point = random_point(machinery, rng)
    load = random_load(machinery, point, rng)
    before = run(machinery, point, load)
    advice = advise(before.situation)
    tally.limits[before.finding.limit.value] += 1
    if advice is None:
        tally.silent[before.seen.measurement.verdict.value] += 1
        if verbose:
            tell(number, before, None, "silent")
        return
    if advice.target is None:
        tally.applied[advice.rule] += 1
        if verbose:
            tell(number, before, advice, "")
        return
    after = run(machinery, advice.target, load_at(load, machinery, advice.target))
    assert advice.expects is not None
    outcome = judge(advice.expects, before.seen, after.seen)
    tally.applied[advice.rule] += 1
    tally.kept[advice.rule] += outcome.kept
    tally.passed[advice.rule] += after.seen.measurement.verdict is Verdict.PASS
    if verbose:
        tell(number, before, advice, ("ok  " if outcome.kept else "NOT ") + outcome.sentence, after)


def tell(number: int, ran: Ran, advice: Advice | None, what: str, after: Ran | None = None) -> None:
    s = ran.situation

    def figures(m: Measurement) -> str:
        return f"{m.verdict.value} {m.goodput_rps:.3g}/s {(m.ttft_s or 0) * 1000:.0f}/{(m.tpot_s or 0) * 1000:.1f}"

    then = f" then {figures(after.seen.measurement)}" if after else ""
    p = s.point
    print(
        f"{number}: {p.max_num_seqs}/{p.max_num_batched_tokens}/{p.chunked_prefill}/{p.memory} {s.load} of "
        f"{s.slo} {figures(ran.seen.measurement)} {'OVER ' if s.overloaded else ''}"
        f"[{s.finding.limit}: {s.finding.sentence}] {'follows ' if s.cap_follows else ''}\n"
        f"    {advice.rule + ': ' + advice.sentence if advice else '-'}\n    {what}{then}",
        flush=True,
    )


def main() -> int:
    """Print the tally; the exit status is 1 where the share is not over 80 %."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    tally, began_s = Tally(), time.monotonic()
    for number in range(options.machines):
        one(number, np.random.default_rng([options.seed, number]), tally, options.verbose)
    print(f"{options.machines} machines, seed {options.seed}, {time.monotonic() - began_s:.0f} s")
    print("limits: " + ", ".join(f"{name} {count}" for name, count in tally.limits.most_common()))
    print("no advice: " + ", ".join(f"{name} {count}" for name, count in tally.silent.most_common()))
    print(f"{'rule':34} {'applied':>7} {'kept':>5} {'share':>6} {'PASS after':>10}")
    for rule, count in tally.applied.most_common():
        if rule in OF_LOAD:
            print(f"{rule:34} {count:7}   (no step)")
            continue
        print(f"{rule:34} {count:7} {tally.kept[rule]:5} {tally.kept[rule] / count:6.0%} {tally.passed[rule]:10}")
    applied = sum(count for rule, count in tally.applied.items() if rule not in OF_LOAD)
    kept = sum(tally.kept.values())
    print(f"{'all':34} {applied:7} {kept:5} {kept / max(applied, 1):6.1%} {sum(tally.passed.values()):10}")
    return 0 if kept > 0.8 * applied else 1


if __name__ == "__main__":
    sys.exit(main())
