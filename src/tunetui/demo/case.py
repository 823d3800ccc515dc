"""The case of the tuning guide on the simulated engine, in virtual time: a customer-service chatbot on a 7B model.

Most of its requests are short questions; some carry a whole conversation, nearly as long as the model allows. The SLO
is P95 TTFT <= 600 ms and P95 TPOT <= 80 ms, and the load a closed loop with as many streams as the engine takes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from tunetui.core.load import Load
from tunetui.core.sample import Outcome
from tunetui.core.workload import Workload, parse_lengths, plan_episode
from tunetui.demo.engine import Engine
from tunetui.demo.machine import A100, MISTRAL_7B, Machine
from tunetui.demo.virtual import VirtualLoad

MACHINE = Machine(A100, MISTRAL_7B)
WORKLOAD = Workload(parse_lengths("30-150@0.975,3500-3840@0.025"), parse_lengths("140-256"))
TTFT_S, TPOT_S = 0.6, 0.08
UTILIZATION = 0.92


@dataclass(frozen=True, slots=True)
class Point:
    """What the guide steps: sequences, chunked prefill, tokens of a step."""

    max_num_seqs: int
    chunked_prefill: bool
    max_num_batched_tokens: int


# Without chunking a step must hold a whole request, and vLLM's default is the model's length.
POINTS = (Point(256, False, 4096), Point(384, False, 4096), Point(320, True, 8192))
# Past the knee: its clients give a request up after half a minute, and send it again.
PAST_THE_KNEE = (Point(512, True, 8192), Point(640, True, 8192))
PATIENCE_S, RETRIES = 32.0, 2


@dataclass(frozen=True, slots=True)
class Walked:
    """What was seen at a point: P95 latencies of requests that ended well, and rates while the engine was full.

    `tokens_per_s` counts every token that the engine made, `answered_tokens_per_s` those of answers that were whole.
    """

    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    answered_tokens_per_s: float
    retried: float  # share of the requests
    kv_used: float  # largest share of the blocks in use
    faster_than_real: float  # virtual seconds a second

    @property
    def ttft_met(self) -> bool:
        return self.ttft_s <= TTFT_S

    @property
    def tpot_met(self) -> bool:
        return self.tpot_s <= TPOT_S


def walk(
    point: Point,
    requests: int,
    workload: Workload = WORKLOAD,
    machine: Machine = MACHINE,
    utilization: float = UTILIZATION,
    timeout_s: float = float("inf"),
    retries: int = 0,
) -> Walked:
    """`requests` of `workload` at `point`, after one turnover that is left out."""
    num_blocks = machine.num_blocks(utilization, point.max_num_batched_tokens)
    engine = Engine(num_blocks, point.max_num_seqs, point.max_num_batched_tokens, point.chunked_prefill)
    load = VirtualLoad(engine, machine, timeout_s, retries)
    plan = plan_episode(workload, Load(concurrency=point.max_num_seqs), point.max_num_seqs, requests)
    began_s = time.perf_counter()
    samples = load.run(plan)
    took_s = time.perf_counter() - began_s
    counted = [s for s in samples if s.index >= plan.cut]
    ok = [s for s in counted if s.outcome is Outcome.OK]
    # From the first counted request on to the last one that left: after that the loop drains.
    begin_s, end_s = min(s.scheduled_s for s in counted), max(s.scheduled_s for s in counted)
    inside = [s for s in samples if s.outcome is Outcome.OK and begin_s <= s.ended_s <= end_s]
    span_s = end_s - begin_s
    return Walked(
        ttft_s=float(np.percentile([s.ttft_s for s in ok if s.ttft_s is not None], 95)),
        tpot_s=float(np.percentile([s.tpot_s for s in ok if s.tpot_s is not None], 95)),
        tokens_per_s=sum(tokens for at_s, tokens in load.steps if begin_s < at_s <= end_s) / span_s,
        answered_tokens_per_s=sum(s.output_tokens for s in inside) / span_s,
        retried=sum(s.retries > 0 for s in counted) / len(counted),
        kv_used=1 - engine.pool.least_free / (num_blocks - 1),
        faster_than_real=load.now_s / took_s,
    )
