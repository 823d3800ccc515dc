"""The coach's advice: for each rule a situation in which it is right and one in which it must stay silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tunetui.core.advice import Advice, advise, budget_hint, change_words
from tunetui.core.episode import Measurement, ObjectiveResult
from tunetui.core.expectation import Expectation, Figure, Learned, Observed, judge
from tunetui.core.knobs import EngineFacts, How, Knob, MemoryFlag, Point, plan_step
from tunetui.core.limits import find_limit
from tunetui.core.load import Load
from tunetui.core.rules import RULES
from tunetui.core.situation import Situation
from tunetui.core.slo import Metric, Verdict, parse_slo
from tunetui.core.step_figures import StepFigures

POINT = Point(256, 8192, True, 0.90, True)
FACTS = EngineFacts(
    version="", model="m", ceiling=Point(512, 8192, True, 0.92, True), live=True, max_model_len=4096, num_blocks=10_000,
    block_size=16, blocks_per_max_request=256, bytes_per_block=2**21, least_threshold=16, total_memory_bytes=80 * 2**30,
)  # fmt: skip
SLO = parse_slo(["ttft:600", "tpot:80"])
FIGURES = StepFigures(
    steps=2000, waiting_share=0.0, slots_full=0.0, stopped_by_seqs=0.0, stopped_by_tokens=0.0, stopped_by_blocks=0.0,
    head_blocked=0.0, mean_running=100.0, mean_waiting=0.0, kv_usage=0.3, kv_peak=0.4, preemptions=0, span_s=60.0,
    tokens_p95=1000.0, longest_prefill=900, mean_step_s=0.030, decode_step_s=0.025, base_s=0.015,
)  # fmt: skip
WORKLOAD = {"prompt_tokens_p50": 200.0, "prompt_tokens_p95": 400.0, "output_tokens_mean": 128.0}
LONG_MIX = WORKLOAD | {"prompt_tokens_p95": 3000.0, "long_prompt_share": 0.03}
SLOTS = {"stopped_by_seqs": 0.83, "waits_for_seqs": 1.0, "mean_running": 256.0, "mean_waiting": 13.0}
HEAD = {"head_blocked": 0.3, "waits_for_head": 0.9, "mean_waiting": 8.0}
LONG = {"long_time": 0.5, "long_steps": 0.1, "tokens_p95": 4000.0, "longest_prefill": 3000}
TOKENS = {"stopped_by_tokens": 0.6, "waits_for_tokens": 0.9}
KV = {"stopped_by_blocks": 0.7, "waits_for_blocks": 0.9, "preemptions": 400, "kv_usage": 0.97, "kv_peak": 1.0}
RATE, AT_CAP = Load(rate_rps=14.0), Load(concurrency=256)
FOLLOWS: dict[str, Any] = {"load": AT_CAP, "cap_follows": True}


def measured(ttft_s: float = 0.412, tpot_s: float = 0.065, overload: str = "", **changes: Any) -> Measurement:
    """A complete episode of 400 requests, whose verdicts follow from its latencies."""

    def result(metric: Metric, limit_s: float, value_s: float) -> ObjectiveResult:
        met = value_s <= limit_s
        return ObjectiveResult(
            metric, limit_s, Verdict.PASS if met else Verdict.FAIL, 390 if met else 300, 10, 400, 0, 0.97
        )

    both = (result(Metric.TTFT, 0.6, ttft_s), result(Metric.TPOT, 0.08, tpot_s))
    verdict = Verdict.PASS if all(o.verdict is Verdict.PASS for o in both) and not overload else Verdict.FAIL
    seen = Measurement(
        episode=1, counted=400, judged=400, objectives=both, verdict=verdict, on_the_line=False, good=390,
        attainment=0.97, ttft_s=ttft_s, tpot_s=tpot_s, ttft_from_send_s=ttft_s, mean_e2el_s=5.0,
        output_tokens_per_s=1850.0, requests_per_s=13.5, goodput_rps=13.5, goodput_tokens_per_s=1800.0, window_s=30.0,
        failed=0, cancelled=0, one_token_answers=0, lateness_p99_s=0.0, overload=overload,
    )  # fmt: skip
    return replace(seen, **changes)


def situation(seen: Measurement | None = None, figures: dict[str, Any] | None = None, **changes: Any) -> Situation:
    found = find_limit(replace(FIGURES, **(figures or {})))
    given = {"point": POINT, "facts": FACTS, "slo": SLO, "load": RATE, "workload": WORKLOAD}
    return Situation(measurement=seen or measured(), finding=found, **(given | changes))


def point(**changes: Any) -> Point:
    return replace(POINT, **changes)


TTFT_OVER, TPOT_OVER = measured(ttft_s=0.78), measured(tpot_s=0.1)
WHOLE = point(chunked_prefill=False)
GROWS = {"mean_step_s": 0.1, "base_s": 0.01}  # a saturated engine

RIGHT: list[tuple[str, Situation, Point | None]] = [
    ("more sequences", situation(figures=SLOTS), point(max_num_seqs=320)),
    ("more sequences", situation(TTFT_OVER, SLOTS), point(max_num_seqs=320)),
    ("more sequences", situation(TTFT_OVER, SLOTS | {"stopped_by_seqs": 0.05}), point(max_num_seqs=320)),
    ("more sequences", situation(figures={"slots_full": 1.0, "mean_running": 256.0}, **FOLLOWS),
     point(max_num_seqs=320)),
    # little TPOT is left: a fine step
    ("more sequences", situation(measured(tpot_s=0.0715), SLOTS), point(max_num_seqs=264)),
    ("chunk prefill", situation(TTFT_OVER, HEAD, point=WHOLE), POINT),
    # the guide's case at 384: slots are all taken too, and lowering the batch comes after
    ("chunk prefill", situation(TTFT_OVER, HEAD | {"slots_full": 0.9}, point=WHOLE, **FOLLOWS), POINT),
    ("decouple a wide mix", situation(TTFT_OVER, {"waits_for_head": 0.3}, point=WHOLE, workload=LONG_MIX), POINT),
    ("limit long prefills", situation(TTFT_OVER, LONG, workload=LONG_MIX), point(long_prefill_token_threshold=512)),
    ("limit long prefills", situation(TTFT_OVER, {"longest_prefill": 3000}, workload=LONG_MIX, blocked_short="so"),
     point(long_prefill_token_threshold=512)),
    ("smaller token budget", situation(measured(0.1, 0.1), LONG), point(max_num_batched_tokens=2048)),
    ("larger token budget", situation(measured(0.78, 0.071), TOKENS, point=point(max_num_batched_tokens=4096)),
     point(max_num_batched_tokens=4352)),
    ("larger token budget", situation(measured(0.78, 0.03), TOKENS, point=point(max_num_batched_tokens=2048)),
     point(max_num_batched_tokens=3072)),
    ("more KV cache", situation(measured(0.78, 0.05), KV), point(memory=0.92)),
    ("more KV cache", situation(measured(0.78, 0.05), KV, point=point(memory=0.80)), point(memory=0.85)),
    ("fewer sequences for the KV cache", situation(TTFT_OVER, KV, point=point(memory=0.95), **FOLLOWS,
     facts=replace(FACTS, ceiling=replace(FACTS.ceiling, memory=0.95))), point(memory=0.95, max_num_seqs=88)),
    ("shorter steps", situation(TPOT_OVER, {"slots_full": 1.0, "mean_running": 255.0}, **FOLLOWS),
     point(max_num_seqs=192)),
    ("shorter steps", situation(measured(0.1, 0.1), GROWS | {"mean_running": 255.0, "base_s": 0.001}),
     point(max_num_seqs=192)),
    ("fewer sequences, memory to spare",
     situation(TTFT_OVER, {"slots_full": 1.0, "mean_running": 255.0}, **FOLLOWS),
     point(max_num_seqs=192)),
    ("share prefixes", situation(point=point(prefix_caching=False), workload=WORKLOAD | {"shared_prefix_share": 0.4}),
     POINT),
    ("over capacity", situation(measured(9.0, 0.1, overload="overloaded: ..."), GROWS), None),
    ("lower the load", situation(measured(0.1, 0.1)), None),
]  # fmt: skip
SILENT: list[tuple[str, Situation]] = [
    # nobody waits; TPOT has none to spare; TPOT would not hold; the KV cache is full; blocks are what they wait for
    ("more sequences", situation()),
    ("more sequences", situation(measured(tpot_s=0.1), SLOTS)),
    ("more sequences", situation(measured(tpot_s=0.0755), SLOTS)),
    ("more sequences", situation(figures=SLOTS | {"kv_usage": 0.94})),
    ("more sequences", situation(figures=SLOTS | {"waits_for_seqs": 0.2})),
    # a closed loop that has no more streams; one whose TTFT is over; one that gains nothing
    ("more sequences", situation(figures={"slots_full": 1.0, "mean_running": 256.0}, load=Load(concurrency=250))),
    ("more sequences", situation(TTFT_OVER, {"slots_full": 1.0}, **FOLLOWS)),
    ("more sequences", situation(measured(0.1, 0.03), {"slots_full": 1.0, "mean_running": 256.0, "mean_step_s": 0.3,
     "base_s": 0.001}, **FOLLOWS)),
    # chunked already; TTFT is met; the cache is what is short; no prompt is in the way
    ("chunk prefill", situation(TTFT_OVER, HEAD)),
    ("chunk prefill", situation(figures=HEAD, point=WHOLE)),
    ("chunk prefill", situation(TTFT_OVER, HEAD | KV, point=WHOLE)),
    ("chunk prefill", situation(TTFT_OVER, SLOTS, point=WHOLE)),
    ("decouple a wide mix", situation(TTFT_OVER, {"waits_for_head": 0.3}, point=WHOLE)),
    ("decouple a wide mix", situation(TTFT_OVER, SLOTS, point=WHOLE, workload=LONG_MIX)),
    # so many long prompts that the percentile is theirs; TPOT is over too; there is a limit already; all are alike
    ("limit long prefills", situation(TTFT_OVER, LONG, workload=LONG_MIX | {"long_prompt_share": 0.1})),
    ("limit long prefills", situation(measured(0.78, 0.1), LONG, workload=LONG_MIX)),
    ("limit long prefills",
     situation(TTFT_OVER, LONG, workload=LONG_MIX, point=point(long_prefill_token_threshold=256))),
    ("limit long prefills", situation(TTFT_OVER, LONG)),
    # TTFT could not bear it; no long step; TPOT is met; a closed loop has its prefills to do all the same
    ("smaller token budget", situation(measured(0.5, 0.1), LONG)),
    ("smaller token budget", situation(measured(0.1, 0.1))),
    ("smaller token budget", situation(measured(0.1, 0.05), LONG)),
    ("smaller token budget", situation(measured(0.1, 0.1), LONG, load=AT_CAP)),
    # TPOT would not bear it; TTFT is far from its limit; few wait for tokens
    ("larger token budget", situation(measured(0.78, 0.079), TOKENS, point=point(max_num_batched_tokens=2048))),
    ("larger token budget", situation(measured(0.2, 0.03), TOKENS, point=point(max_num_batched_tokens=2048))),
    ("larger token budget", situation(measured(0.78, 0.03), TOKENS | {"stopped_by_tokens": 0.01})),
    ("more KV cache", situation(TTFT_OVER)),
    ("more KV cache", situation(measured(0.78, 0.05), KV, point=point(memory=0.95))),
    ("more KV cache", situation(measured(0.78, 0.0799), KV, point=point(memory=0.80))),
    # a few preemptions cost less than slots; under another load they only wait for slots instead
    ("fewer sequences for the KV cache", situation(TTFT_OVER, KV | {"preemptions": 12}, **FOLLOWS)),
    ("fewer sequences for the KV cache", situation(TTFT_OVER, KV)),
    # TPOT is met; with fewer in a step less than what arrives would be served
    ("shorter steps", situation(TTFT_OVER, **FOLLOWS)),
    ("shorter steps", situation(measured(0.1, 0.1), {"mean_running": 255.0})),
    ("shorter steps", situation(measured(9.0, 0.1, overload="x"), GROWS)),
    ("fewer sequences, memory to spare", situation(TTFT_OVER)),
    ("fewer sequences, memory to spare", situation(**FOLLOWS)),
    ("share prefixes", situation(workload=WORKLOAD | {"shared_prefix_share": 0.4})),
    ("share prefixes", situation(point=point(prefix_caching=False), workload=WORKLOAD | {"shared_prefix_share": 0.02})),
    ("over capacity", situation(TTFT_OVER)),
    ("lower the load", situation()),
]  # fmt: skip


def advices(s: Situation) -> list[Advice]:
    """All that hold, in the order in which they are asked."""
    found, learned = [], Learned()
    while (advice := advise(s, learned)) is not None:
        found.append(advice)
        learned = learned.after(advice.key, False).after(advice.key, False)
    return found


@pytest.mark.parametrize(("rule", "s", "target"), RIGHT)
def test_where_a_rule_is_right(rule: str, s: Situation, target: Point | None) -> None:
    found = {advice.rule: advice for advice in reversed(advices(s))}
    assert rule in found, list(found)
    assert found[rule].target == target
    if target is not None:
        assert found[rule].change
        assert found[rule].expects is not None


@pytest.mark.parametrize(("rule", "s"), SILENT)
def test_where_a_rule_must_be_silent(rule: str, s: Situation) -> None:
    assert rule not in {advice.rule for advice in advices(s)}


def test_every_rule_is_in_both_tables() -> None:
    names = [rule.name for rule in RULES]
    assert {rule for rule, *_ in RIGHT} == {rule for rule, _ in SILENT} == set(names)
    assert len(set(names)) == len(names)


def test_nothing_that_is_refused_is_advised_and_a_live_step_comes_first() -> None:
    for _, s, _ in RIGHT:
        found = advices(s)
        hows = [plan_step(s.point, a.target, s.facts).how for a in found if a.target is not None]
        assert How.REFUSED not in hows
        assert hows == sorted(hows, key=lambda how: how is How.RESTART)
    fixed = replace(FACTS, fixed={Knob.SEQS: "a flag of yours"})
    assert advise(situation(figures=SLOTS, facts=fixed)) is None


@pytest.mark.parametrize(
    ("s", "sentence"),
    [
        (situation(figures=SLOTS),
         "requests wait for a slot on 83% of steps, TTFT has 188 ms to spare: max-num-seqs 320"),
        (situation(measured(0.78, 0.05), KV, point=point(memory=0.92)),
         "the KV cache was 100% full at most, requests wait for blocks on 70% of steps, 400 preemptions: "
         "gpu-memory-utilization 0.95 (a restart)"),
        (situation(measured(9.0, 0.1, overload="x"), GROWS),
         "14 req/s arrive and it serves at most 13.5: no knob will do, lower the load (-) to 13.5 or run 2 replicas"),
        (situation(measured(9.0, 0.1, overload="x"), GROWS, capacity_rps=4.2),
         "14 req/s arrive and its capacity is 4.2: no knob will do, lower the load (-) to 4.2 or run 4 replicas"),
        (situation(measured(0.1, 0.1)), "TPOT is 20 ms over, and no knob is known to help: lower the load (-)"),
    ],
)  # fmt: skip
def test_the_reason_has_its_figures(s: Situation, sentence: str) -> None:
    advice = advise(s)
    assert advice is not None
    assert advice.sentence == sentence


def test_what_failed_twice_in_a_region_is_not_repeated_there() -> None:
    s = situation(figures=SLOTS)
    advice = advise(s)
    assert advice is not None
    learned = Learned().after(advice.key, False).after(advice.key, True)
    assert advise(s, learned) == advice
    assert advise(s, learned.after(advice.key, False)) is None
    far = situation(figures=SLOTS | {"mean_running": 32.0}, point=point(max_num_seqs=32))
    assert advise(far, learned.after(advice.key, False)) is not None


@pytest.mark.parametrize(
    ("expectation", "before", "after", "kept", "sentence"),
    [
        (Expectation(Figure.THROUGHPUT, True), {}, {"output_tokens_per_s": 2150.0}, True,
         "throughput 1,850 -> 2,150 tok/s, as expected"),
        (Expectation(Figure.GOODPUT, True), {}, {"goodput_rps": 15.8}, True,
         "goodput 13.5 -> 15.8 req/s, as expected"),
        (Expectation(Figure.THROUGHPUT, True), {}, {"output_tokens_per_s": 1860.0}, False,
         "throughput 1,850 -> 1,860 tok/s, not as expected"),
        (Expectation(Figure.TTFT, False), {"ttft_s": 0.78}, {"ttft_s": 0.7}, True, "TTFT 780 -> 700 ms, as expected"),
        (Expectation(Figure.TTFT, False), {"ttft_s": 0.78}, {"ttft_s": 0.55}, True,
         "TTFT 780 -> 550 ms, and the SLO is met, as expected"),
        (Expectation(Figure.THROUGHPUT, True), {}, {"output_tokens_per_s": 2300.0, "ttft_s": 0.78}, False,
         "throughput 1,850 -> 2,300 tok/s, but TTFT is over"),
        (Expectation(Figure.TPOT, False), {"tpot_s": 0.1}, {"tpot_s": 0.12}, False,
         "TPOT 100.0 -> 120.0 ms, not as expected"),
    ],
)  # fmt: skip
def test_whether_it_did_what_was_promised(
    expectation: Expectation, before: dict[str, Any], after: dict[str, Any], kept: bool, sentence: str
) -> None:
    def seen(changes: dict[str, Any]) -> Observed:
        given = dict(changes)
        return Observed(measured(given.pop("ttft_s", 0.412), given.pop("tpot_s", 0.065), **given))

    outcome = judge(expectation, seen(before), seen(after))
    assert (outcome.kept, outcome.sentence) == (kept, sentence)


def test_preemptions_gone_at_the_cost_of_throughput_is_no_promise_kept() -> None:
    promise = Expectation(Figure.PREEMPTIONS, False, without_loss=Figure.THROUGHPUT)
    before, slower = Observed(measured(), 40.0), Observed(measured(output_tokens_per_s=1700.0), 0.0)
    assert judge(promise, before, Observed(measured(), 0.0)).kept
    lost = judge(promise, before, slower)
    assert not lost.kept
    assert lost.sentence == "preemptions 40 -> 0 per 100 requests, but throughput 1,850 -> 1,700 tok/s"


def test_the_rule_of_thumb_for_the_budget_is_a_hint() -> None:
    assert budget_hint(situation()) == (
        "rule of thumb: max-num-batched-tokens 1.2 x 256 x 128 = 39,322, now 8,192"
    )  # fmt: skip
    assert budget_hint(situation(workload={})) == ""


def test_changes_in_words() -> None:
    there = Point(320, 4096, False, 0.95, False, 0)
    assert change_words(POINT, there, MemoryFlag.UTILIZATION, arrow=True) == (
        "max-num-seqs 256 -> 320, max-num-batched-tokens 8192 -> 4096, chunked prefill on -> off, "
        "gpu-memory-utilization 0.90 -> 0.95, prefix caching on -> off"
    )
    assert change_words(POINT, replace(POINT, long_prefill_token_threshold=512), MemoryFlag.KV_BYTES) == (
        "long-prefill limit 512"
    )  # fmt: skip
