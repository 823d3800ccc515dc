"""Random machines, models, workloads and objectives for the sweep's benchmark, seeded; and the small grid on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.load import Load
from tunetui.core.slo import Metric, Objective, Slo
from tunetui.core.workload import Workload, parse_lengths
from tunetui.demo.engine import Engine, Step
from tunetui.demo.machine import Card, Machine, Model
from tunetui.demo.virtual import StepTimes
from tunetui.drive.virtual_rig import virtual_facts

CEILING = Point(512, 8192, True, 0.92, True)
START = Point(256, 8192, True, 0.92, True)
GRID_SEQS, GRID_TOKENS = (64, 128, 256, 512), (2048, 8192)
LENGTH = 4096
NOISE = 0.05  # standard deviation of the natural log of step times: what the model cannot know
TRUTH_SEED = 1_000  # of the long runs: no trial of a sweep has it


@dataclass(frozen=True, slots=True)
class Setting:
    """One machine with its workload and SLO."""

    number: int
    machine: Machine
    workload: Workload
    slo: Slo

    @property
    def facts(self) -> EngineFacts:
        return virtual_facts(self.machine, CEILING)


@dataclass(slots=True)
class Noisy:
    """A machine's step times, each off by some percent."""

    machine: StepTimes
    rng: np.random.Generator

    def step_s(self, step: Step) -> float:
        return self.machine.step_s(step) * float(np.exp(self.rng.normal(0.0, NOISE)))


def noisy(setting: Setting, seed: int) -> Noisy:
    return Noisy(setting.machine, np.random.default_rng([setting.number, seed]))


def settings(count: int) -> list[Setting]:
    """The first `count` settings; those in which not even one request meets the SLO are passed over."""
    found: list[Setting] = []
    number = 0
    while len(found) < count:
        setting = setting_of(number)
        if setting is not None:
            found.append(setting)
        number += 1
    return found


def setting_of(number: int) -> Setting | None:
    rng = np.random.default_rng([7, number])

    def log_uniform(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    memory_gib = float(rng.choice([24.0, 40.0, 48.0, 80.0]))
    card = Card("random", memory_gib * 0.99, log_uniform(500, 3500), log_uniform(80, 1000))
    parameters_b = log_uniform(1.0, memory_gib * 0.9 / 2.4)
    layers = int(np.clip(round(16 * parameters_b**0.45), 16, 80))
    kv_heads = int(rng.choice([2, 4, 8]))
    model = Model("random", parameters_b, layers, 32, kv_heads, 128, LENGTH)
    machine = Machine(card, model)
    facts = virtual_facts(machine, CEILING)
    if facts.num_blocks < 4 * facts.blocks_per_max_request:
        return None
    low, high = sorted(rng.integers(16, 1200, 2).tolist())
    long_share = float(rng.choice([0.0, 0.0, 0.02, 0.06]))
    prompts = f"{low}-{high + 1}@{1 - long_share:g}" + (f",2500-3500@{long_share:g}" if long_share else "")
    low, high = sorted(rng.integers(16, 400, 2).tolist())
    workload = Workload(parse_lengths(prompts), parse_lengths(f"{low}-{high + 1}"), number)
    # Some times what one request takes that has the machine for itself, with another's prefill before its own.
    decode_s = machine.step_s(Step(1, 500, (), (), 0))
    prefill_s = machine.step_s(Step(0, 0, ((int(workload.prompt.largest), 0),), (), 0))
    ttft_s, tpot_s = prefill_s * float(rng.uniform(2.0, 8.0)), decode_s * float(rng.uniform(1.6, 5.0))
    slo = Slo((Objective(Metric.TTFT, ttft_s), Objective(Metric.TPOT, tpot_s)), 95)
    return Setting(number, machine, workload, slo)


def grid(setting: Setting) -> list[Point]:
    """The points of the small grid: chunked at each budget, and whole prefills at the largest."""
    chunked = [replace(CEILING, max_num_seqs=s, max_num_batched_tokens=t) for s in GRID_SEQS for t in GRID_TOKENS]
    return chunked + [replace(CEILING, max_num_seqs=s, chunked_prefill=False) for s in GRID_SEQS]


def machine_times(setting: Setting) -> object:
    """Step times of the machine itself, as `virtual_episode` takes them."""

    def of(engine: Engine) -> StepTimes:
        return setting.machine

    return of


def poisson() -> Load:
    return Load(1.0)
