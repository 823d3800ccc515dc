"""A recording from pages of metrics: the arrivals and lengths that the counters allow."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tunetui.traces.lines import TraceError
from tunetui.traces.scrapes import Scrape, parse_scrape, sampled_trace

EDGES = (1.0, 2.0, 5.0, 10.0, 100.0, math.inf)


def cumulative(counts: dict[float, int]) -> dict[float, float]:
    return {edge: float(sum(n for upper, n in counts.items() if upper <= edge)) for edge in EDGES}


def scrape(at_s: float, finished: int, active: int, prompts: dict[float, int], outputs: dict[float, int]) -> Scrape:
    return Scrape(at_s, finished, active, cumulative(prompts), cumulative(outputs), 0.0, 0.0)


def page(engine: str) -> str:
    def histogram(name: str, *cumulative: int) -> str:
        edges = ("1.0", "10.0", "+Inf")
        rows = [
            f'vllm:{name}_bucket{{engine="{engine}",le="{edge}",model_name="a le=\\"7\\" b"}} {count}.0'
            for edge, count in zip(edges, cumulative, strict=True)
        ]
        return "\n".join([f"# TYPE vllm:{name} histogram", *rows, f'vllm:{name}_sum{{engine="{engine}"}} 40.0'])

    return "\n".join(
        [
            histogram("request_prompt_tokens", 0, 3, 5),
            histogram("request_generation_tokens", 2, 4, 5),
            histogram("request_max_num_generation_tokens", 9, 9, 9),
            f'vllm:request_success_total{{engine="{engine}",finished_reason="stop"}} 4.0',
            f'vllm:request_success_total{{engine="{engine}",finished_reason="length"}} 1.0',
            f'vllm:num_requests_running{{engine="{engine}"}} 2.0',
            f'vllm:num_requests_waiting{{engine="{engine}"}} 1.0\n',
        ]
    )


def test_a_page_is_summed_over_engines_and_reasons() -> None:
    assert parse_scrape(page("0"), 7.5) == Scrape(
        7.5, 5.0, 3.0, {1.0: 0.0, 10.0: 3.0, math.inf: 5.0}, {1.0: 2.0, 10.0: 4.0, math.inf: 5.0}, 40.0, 40.0
    )
    two = parse_scrape(page("0") + page("1"), 0.0)
    assert (two.finished, two.active, two.prompts[math.inf], two.output_sum) == (10.0, 6.0, 10.0, 80.0)


@pytest.mark.parametrize(
    "text", ["", "<html>", "vllm:num_requests_running 1.0\n", page("0").replace("generation", "x")]
)
def test_a_page_without_histograms(text: str) -> None:
    with pytest.raises(TraceError, match="no histogram of vLLM's request lengths"):
        parse_scrape(text, 0.0)


def test_lengths_stay_in_their_buckets_and_their_shares() -> None:
    before = scrape(0.0, 50, 0, {5.0: 50}, {1.0: 50})
    after = scrape(100.0, 4050, 0, {5.0: 1050, 100.0: 3000}, {1.0: 50, 10.0: 2000, math.inf: 2000})
    trace, notes = sampled_trace([before, after], seed=3)
    assert trace.requests == 4000
    assert trace.lengths_only
    assert set(trace.prompt_tokens) <= {3, 4, 5} | set(range(11, 101))
    assert sum(tokens <= 5 for tokens in trace.prompt_tokens) == pytest.approx(1000, abs=120)
    assert set(trace.output_tokens) <= set(range(6, 11)) | set(range(101, 251))  # above the last edge: 2.5 times it
    # log-uniform: each of 11..33 and 34..100 holds about half of the long prompts
    assert sum(11 <= tokens <= 33 for tokens in trace.prompt_tokens) == pytest.approx(1500, abs=130)
    assert notes[0].startswith("lengths drawn from the histograms of 4000 requests that finished in 100 s")
    assert sampled_trace([before, after], seed=3)[0] == trace
    assert sampled_trace([before, after], seed=4)[0] != trace


@pytest.mark.parametrize("mean", [20, 40, 60, 85])
def test_lengths_have_the_mean_of_the_server(mean: int) -> None:
    before = replace(scrape(0.0, 50, 0, {5.0: 50}, {5.0: 50}), prompt_sum=150.0)
    after = replace(scrape(100.0, 1050, 0, {5.0: 50, 100.0: 1000}, {5.0: 1050}), prompt_sum=150.0 + 1000 * mean)
    trace, _ = sampled_trace([before, after], seed=3)
    assert sum(trace.prompt_tokens) / 1000 == pytest.approx(mean, abs=0.5)
    assert set(trace.prompt_tokens) <= set(range(11, 101))
    impossible, _ = sampled_trace([before, replace(after, prompt_sum=1e9)], seed=3)
    assert set(impossible.prompt_tokens) <= set(range(11, 101))


def test_a_bucket_of_one_length_gives_that_length() -> None:
    trace, _ = sampled_trace([scrape(0.0, 0, 0, {}, {}), scrape(1.0, 9, 0, {1.0: 9}, {2.0: 9})], seed=0)
    assert (set(trace.prompt_tokens), set(trace.output_tokens)) == ({1}, {2})


def test_arrivals_are_those_finished_and_the_change_of_those_inside() -> None:
    pages = [
        scrape(0.0, 0, 4, {}, {}),
        scrape(10.0, 4, 100, {5.0: 4}, {5.0: 4}),  # 100 came
        scrape(20.0, 104, 0, {5.0: 104}, {5.0: 104}),  # none came
        scrape(30.0, 124, 0, {5.0: 124}, {5.0: 124}),  # 20 came
    ]
    trace, _ = sampled_trace(pages, seed=1)
    assert trace.arrivals_s is not None
    assert trace.requests == 120
    assert trace.arrivals_s[0] == 0.0
    assert list(trace.arrivals_s) == sorted(trace.arrivals_s)
    assert trace.arrivals_s[99] < 10.0
    assert 20.0 - 10.0 / 10 < trace.arrivals_s[100] < 30.0  # the first came within 1 s


def test_a_restart_of_the_server_loses_nothing_after_it() -> None:
    pages = [
        scrape(0.0, 500, 0, {5.0: 500}, {5.0: 500}),
        scrape(10.0, 510, 0, {5.0: 510}, {5.0: 510}),
        scrape(20.0, 7, 0, {100.0: 7}, {10.0: 7}),
    ]
    trace, notes = sampled_trace(pages, seed=1)
    assert trace.requests == 17
    assert "the server was restarted meanwhile" in notes
    assert max(trace.prompt_tokens) > 10


def test_a_page_of_absurd_counts_is_an_error() -> None:
    with pytest.raises(TraceError, match="counts 1000000000000 requests"):
        sampled_trace([scrape(0.0, 0, 0, {}, {}), scrape(1.0, 10**12, 0, {5.0: 1}, {5.0: 1})], seed=0)


@pytest.mark.parametrize(
    "pages",
    [
        [],
        [scrape(0.0, 5, 0, {5.0: 5}, {5.0: 5})],
        [scrape(0.0, 5, 0, {5.0: 5}, {5.0: 5}), scrape(9.0, 5, 7, {5.0: 5}, {5.0: 5})],
        [scrape(0.0, 5, 4, {5.0: 5}, {5.0: 5}), scrape(9.0, 9, 0, {5.0: 9}, {5.0: 9})],
    ],
)
def test_nothing_to_record(pages: list[Scrape]) -> None:
    with pytest.raises(
        TraceError, match=r"nothing to record: . requests finished and . came in . s; sample for longer"
    ):
        sampled_trace(pages, seed=0)
