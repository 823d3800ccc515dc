"""TTFT by prompt length: the right figures in the right buckets, and blocking said only where there is some."""

import math

import numpy as np
import pytest

from tunetui.core.lengths import LEAST_IN_BUCKET, by_length


def test_buckets_are_powers_of_two_with_exact_figures() -> None:
    tokens = np.repeat([100, 127, 128, 300], 20)
    ttft_s = np.arange(80) / 100
    met = ttft_s <= 0.5
    result = by_length(tokens, ttft_s, met)
    assert [(b.low, b.high, b.count) for b in result.buckets] == [(64, 127, 40), (128, 255, 20), (256, 511, 20)]
    first = result.buckets[0]
    assert first.ttft_p50_s == pytest.approx(np.percentile(ttft_s[:40], 50))
    assert first.ttft_p95_s == pytest.approx(np.percentile(ttft_s[:40], 95))
    assert [b.attainment for b in result.buckets] == pytest.approx([1.0, 11 / 20, 0.0])
    assert str(first) == "64-127"


def test_every_request_is_in_one_bucket_and_none_is_small() -> None:
    tokens = np.random.default_rng(1).lognormal(6, 1.5, 2000).astype(int) + 1
    result = by_length(tokens, tokens / 1000, tokens > 0)
    assert sum(b.count for b in result.buckets) == 2000
    assert min(b.count for b in result.buckets) >= LEAST_IN_BUCKET
    for bucket in result.buckets:
        assert bucket.count == ((tokens >= bucket.low) & (tokens <= bucket.high)).sum()
    assert all(a.high < b.low for a, b in zip(result.buckets, result.buckets[1:], strict=False))


def test_few_requests_make_one_bucket_and_none_make_none() -> None:
    result = by_length([10, 5000], [0.1, 0.2], [True, True])
    assert [(b.low, b.high, b.count) for b in result.buckets] == [(8, 8191, 2)]
    assert by_length([], [], []).buckets == ()


def test_failed_requests_count_against_attainment_and_have_no_ttft() -> None:
    bucket = by_length([64] * 40, [math.nan] * 40, [False] * 40).buckets[0]
    assert (bucket.count, bucket.ttft_p50_s, bucket.ttft_p95_s, bucket.attainment) == (40, None, None, 0.0)
    half = by_length([64] * 40, [0.1] * 20 + [math.nan] * 20, [True] * 20 + [False] * 20).buckets[0]
    assert (half.ttft_p95_s, half.attainment) == (pytest.approx(0.1), 0.5)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        by_length([1, 2], [0.1], [True, True])


def single_server_ttft_s(tokens: np.ndarray, gaps_s: np.ndarray, seconds_per_token: float) -> np.ndarray:
    """TTFT where one prefill runs at a time, in order of arrival: short prompts stand behind long ones."""
    arrival_s, free_s = np.cumsum(gaps_s), 0.0
    ttft_s = np.empty(len(tokens))
    for i, at_s in enumerate(arrival_s):
        free_s = max(free_s, at_s) + 0.01 + seconds_per_token * tokens[i]
        ttft_s[i] = free_s - at_s
    return ttft_s


def mixed(seed: int, long_share: float, long: int = 8000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens = np.where(rng.random(1000) < long_share, long, rng.integers(100, 200, 1000))
    return tokens, rng.exponential(0.5, 1000)


@pytest.mark.parametrize("seed", range(10))
def test_short_prompts_behind_long_ones_are_found(seed: int) -> None:
    tokens, gaps_s = mixed(seed, 0.1)
    finding = by_length(tokens, single_server_ttft_s(tokens, gaps_s, 1e-4), tokens > 0).finding
    assert finding.startswith("prompts of 64-255 tokens wait behind those of 4096-8191: their P95 TTFT is ")
    assert "times their P50" in finding


@pytest.mark.parametrize("seed", range(10))
def test_long_prompts_that_block_nobody_are_not_accused(seed: int) -> None:
    tokens, _ = mixed(seed, 0.1)
    noise = np.random.default_rng(seed).lognormal(0, 0.3, 1000)
    assert by_length(tokens, (0.01 + 1e-4 * tokens) * noise, tokens > 0).finding == ""


@pytest.mark.parametrize("seed", range(10))
def test_queueing_behind_equals_is_not_blamed_on_length(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(100, 120, 1000)
    ttft_s = single_server_ttft_s(tokens, rng.exponential(0.03, 1000), 1e-4)
    assert by_length(tokens, ttft_s, tokens > 0).finding == ""
    # Nor where the long ones are there but as fast as the rest, and all wait for something else.
    tokens = np.where(rng.random(1000) < 0.1, 8000, tokens)
    assert by_length(tokens, rng.exponential(0.5, 1000), tokens > 0).finding == ""


def test_too_few_long_prompts_give_no_finding() -> None:
    tokens, gaps_s = mixed(3, 0.1)
    ttft_s = single_server_ttft_s(tokens, gaps_s, 1e-4)
    keep = np.flatnonzero((tokens < 1000) | (np.cumsum(tokens > 1000) <= LEAST_IN_BUCKET - 1))
    assert by_length(tokens[keep], ttft_s[keep], tokens[keep] > 0).finding == ""
