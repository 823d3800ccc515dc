"""Features against computations of their own: plain Python, no arrays."""

from __future__ import annotations

import math
import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.core.features import features_of, log_histogram, rates_over_time

PROMPTS = (100, 200, 300, 400, 2000)
OUTPUTS = (10, 30, 20, 50, 40)


def test_lengths_of_a_recording_without_more() -> None:
    assert features_of(PROMPTS, OUTPUTS) == {
        "requests": 5,
        "prompt_tokens_mean": 600.0,
        "prompt_tokens_p50": 300.0,
        "prompt_tokens_p95": 1680.0,  # 400 + 0.8 * 1600
        "prompt_tokens_max": 2000,
        "output_tokens_mean": 30.0,
        "output_tokens_p50": 30.0,
        "output_tokens_p95": 48.0,
        "output_tokens_max": 50,
        "length_correlation": round(statistics.correlation(PROMPTS, OUTPUTS), 3),
        "long_prompt_share": 0.2,  # 2000 is above 1200
        "shared_prefix_share": 0.0,
        "turns_per_conversation": 1,
    }


def test_rate_and_burstiness_are_of_the_gaps() -> None:
    found = features_of((1,) * 5, (1,) * 5, arrivals_s=(0.0, 1.0, 1.5, 4.5, 5.0))
    gaps = (1.0, 0.5, 3.0, 0.5)
    assert found["rate_rps"] == 0.8
    assert found["burstiness"] == round((statistics.mean(gaps) / statistics.pstdev(gaps)) ** 2, 3)
    assert "length_correlation" not in found


@pytest.mark.parametrize("arrivals", [(0.0, 0.0, 0.0), (0.0, 0.1, 0.2)])
def test_what_has_no_spread_is_left_out(arrivals: tuple[float, ...]) -> None:
    found = features_of((1,) * 3, (1,) * 3, arrivals_s=arrivals)
    assert "burstiness" not in found
    assert ("rate_rps" in found) == (arrivals[-1] > 0)


def test_one_request_and_none() -> None:
    assert features_of((), ()) == {"requests": 0}
    one = features_of((7,), (3,), arrivals_s=(0.0,), blocks=((5,),), block_tokens=16)
    assert (one["requests"], one["prompt_tokens_p95"], one["shared_prefix_share"]) == (1, 7.0, 0.0)
    assert not {"rate_rps", "burstiness", "length_correlation"} & one.keys()


def test_columns_of_different_lengths_are_an_error() -> None:
    with pytest.raises(ValueError, match="one entry a request"):
        features_of((1, 2), (1,))
    with pytest.raises(ValueError, match="block_tokens"):
        features_of((1,), (1,), blocks=((1,),))


def test_shared_prefixes_by_hand() -> None:
    # 10 tokens a block; the last block of a prompt is not full.
    blocks = ((1, 2, 3), (1, 2, 3), (1, 9), (4, 2, 3), (1, 2, 3, 5))
    prompts = (25, 25, 20, 30, 40)
    found = features_of(prompts, (1,) * 5, blocks=blocks, block_tokens=10)
    # the second has all its 25, the third 10, the fourth none (2, 3 after another beginning), the fifth 30
    assert found["shared_prefix_share"] == round(65 / 140, 4)


def test_turns_share_the_prompt_of_the_turn_before() -> None:
    found = features_of((10, 50, 30, 20, 5), (1,) * 5, conversations=(4, 7, 4, 4, 7))
    # 4: 10 of 30, then 20 of 20; 7: 5 of 5
    assert found["shared_prefix_share"] == round(35 / 115, 4)
    assert found["turns_per_conversation"] == 2.5


def prefix_share(prompts: list[int], blocks: list[tuple[int, ...]], size: int) -> float:
    """An infinite prefix cache, as a set of the prefixes it has seen."""
    seen: set[tuple[int, ...]] = set()
    shared = 0
    for prompt, ids in zip(prompts, blocks, strict=True):
        hits = 0
        while hits < len(ids) and ids[: hits + 1] in seen:
            hits += 1
        shared += min(hits * size, prompt)
        seen.update(ids[: n + 1] for n in range(len(ids)))
    return shared / sum(prompts)


IDS = st.one_of(st.integers(0, 2), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(st.lists(IDS, min_size=1, max_size=6).map(tuple), min_size=1, max_size=40), st.data())
def test_shared_prefixes_are_those_of_an_infinite_cache(blocks: list[tuple[int, ...]], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 32))
    prompts = [len(ids) * size - data.draw(st.integers(0, size - 1)) for ids in blocks]
    found = features_of(prompts, [1] * len(prompts), blocks=blocks, block_tokens=size)
    assert found["shared_prefix_share"] == round(prefix_share(prompts, blocks, size), 4)


@given(st.lists(st.integers(1, 10_000_000), min_size=2, max_size=60))
def test_percentiles_and_share_of_long_prompts(values: list[int]) -> None:
    found = features_of(values, values[::-1])
    ordered = sorted(values)
    place = 0.95 * (len(values) - 1)
    low = math.floor(place)
    p95 = ordered[low] + (place - low) * (ordered[min(low + 1, len(values) - 1)] - ordered[low])
    assert found["prompt_tokens_p95"] == pytest.approx(p95, abs=0.06)
    assert found["prompt_tokens_p50"] == statistics.median(values)
    assert found["output_tokens_mean"] == pytest.approx(statistics.fmean(values), abs=0.06)
    above = sum(value > 4 * statistics.median(values) for value in values)
    assert found["long_prompt_share"] == round(above / len(values), 4)


def test_a_million_requests_take_seconds_and_no_more() -> None:
    count = 1_000_000
    prompts = [1000 + index % 777 for index in range(count)]
    began = time.process_time()
    found = features_of(prompts, prompts, [index / 10 for index in range(count)], None, 0, range(count))
    assert time.process_time() - began < 4  # 0.6 s on an idle machine
    assert found["rate_rps"] == 10.0


def test_histogram_on_round_edges() -> None:
    found = log_histogram((1, 2, 2, 4, 5, 99, 100))
    assert found.edges == (1, 2, 5, 10, 20, 50, 100, 200)
    assert found.counts == (1, 3, 1, 0, 0, 1, 1)
    wide = log_histogram((1, 10, 10_000_000), most_buckets=10)
    assert wide.edges == (1, 10, 100, 1000, 10**4, 10**5, 10**6, 10**7, 10**8)
    gaps = log_histogram((0.0, 0.0, 0.003, 0.3), least=1e-4)
    assert (gaps.below, gaps.edges[0], gaps.edges[-1], sum(gaps.counts)) == (2, 0.002, 0.5, 2)
    assert log_histogram((0.0,)).counts == ()


@given(st.lists(st.floats(1e-4, 1e8), min_size=1, max_size=50))
def test_every_value_lies_in_its_bucket(values: list[float]) -> None:
    found = log_histogram(values, least=1e-4)
    pairs = list(zip(found.edges, found.edges[1:], strict=False))
    assert [sum(low <= value < high for value in values) for low, high in pairs] == list(found.counts)
    assert sum(found.counts) == len(values)
    assert found.counts[0] > 0
    assert found.counts[-1] > 0


def test_rates_over_time() -> None:
    width_s, rates = rates_over_time((0.0, 1.0, 1.5, 9.0, 10.0), 5)
    assert width_s == 2.0
    assert rates == (1.5, 0.0, 0.0, 0.0, 1.0)
    assert rates_over_time((3.0,), 5) == rates_over_time((3.0, 3.0), 5) == (0.0, ())
