import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.core.load import Load, WorkloadError
from tunetui.core.workload import Workload, default_episode_requests, features, parse_lengths, plan_episode, turnover


@pytest.mark.parametrize(
    ("text", "ranges", "shares"),
    [
        ("256", ((256, 256),), (1.0,)),
        ("64-512", ((64, 512),), (1.0,)),
        ("100@0.8,4000@0.2", ((100, 100), (4000, 4000)), (0.8, 0.2)),
        ("1-2@3,9@1", ((1, 2), (9, 9)), (0.75, 0.25)),
    ],
)
def test_lengths(text: str, ranges: object, shares: object) -> None:
    mix = parse_lengths(text)
    assert (mix.ranges, mix.shares) == (ranges, pytest.approx(shares))
    assert parse_lengths(str(mix)) == mix


@pytest.mark.parametrize("text", ["", "0", "-4", "5-2", "a", "10@0", "10@-1", "10@nan", "1,,2", "10@x"])
def test_lengths_that_do_not_parse(text: str) -> None:
    with pytest.raises(WorkloadError):
        parse_lengths(text)


@pytest.mark.parametrize(
    ("rate", "concurrency"), [(None, None), (1.0, 2), (0.0, None), (-1.0, None), (float("nan"), None), (None, 0)]
)
def test_impossible_loads(rate: float | None, concurrency: int | None) -> None:
    with pytest.raises(WorkloadError):
        Load(rate, concurrency)


WORKLOAD = Workload(parse_lengths("64-512"), parse_lengths("100@0.8,400@0.2"), seed=5)


@given(st.floats(0.1, 500), st.integers(0, 40), st.integers(1, 200))
def test_equal_arguments_give_the_equal_episode(rate: float, cut: int, counted: int) -> None:
    plan = plan_episode(WORKLOAD, Load(rate), cut, counted)
    assert plan == plan_episode(WORKLOAD, Load(rate), cut, counted)
    assert plan.size == len(plan.arrivals_s) == len(plan.prompt_tokens) == cut + counted
    assert all(64 <= n <= 512 for n in plan.prompt_tokens)
    assert set(plan.output_tokens) <= {100, 400}
    assert list(plan.arrivals_s) == sorted(plan.arrivals_s)


def test_episodes_at_two_rates_differ_in_scale_alone() -> None:
    slow, fast = (plan_episode(WORKLOAD, Load(rate), 10, 90) for rate in (2.0, 8.0))
    assert np.allclose(np.array(slow.arrivals_s) / 4, fast.arrivals_s)
    assert (slow.prompt_tokens, slow.output_tokens) == (fast.prompt_tokens, fast.output_tokens)


def test_arrivals_are_poisson_at_the_rate() -> None:
    gaps = np.diff(plan_episode(WORKLOAD, Load(20.0), 0, 20_000).arrivals_s)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 20, rel=0.05)


def test_episode_is_long_enough_for_twenty_bad_requests() -> None:
    assert {p: default_episode_requests(p) for p in (50, 90, 95, 99)} == {50: 40, 90: 200, 95: 400, 99: 2000}


def test_turnover_is_one_mean_e2el_of_arrivals_and_bounded() -> None:
    assert turnover(Load(10.0), 2.5, 400) == 25
    assert turnover(Load(10.0), 90.0, 400) == 200
    assert turnover(Load(concurrency=64), 1.0, 400) == 64
    assert turnover(Load(0.1), 0.01, 400) == 1


def test_features_say_what_is_sent() -> None:
    tags = features(
        plan_episode(Workload(parse_lengths("100@0.9,4000@0.1"), parse_lengths("32"), 1), Load(5.0), 5, 4000)
    )
    assert tags["rate_rps"] == 5.0
    assert tags["burstiness"] == pytest.approx(1.0, abs=0.15)
    assert tags["long_prompt_share"] == pytest.approx(0.1, abs=0.02)
    assert (tags["prompt_tokens_max"], tags["output_tokens_p95"]) == (4000, 32.0)


@pytest.mark.parametrize(
    ("load", "up", "down"),
    [
        (Load(4.0), 4.5, 3.5),
        (Load(9.0), 10.0, 8.0),
        (Load(14.0), 15.0, 13.0),
        (Load(100.0), 110.0, 90.0),
        (Load(0.5), 0.55, 0.45),
        (Load(concurrency=64), 72, 56),
        (Load(concurrency=1), 2, 1),
    ],
)
def test_load_steps(load: Load, up: float, down: float) -> None:
    def value(stepped: Load) -> float | None:
        return stepped.rate_rps if stepped.open_loop else stepped.concurrency

    assert (value(load.stepped(1)), value(load.stepped(-1))) == (pytest.approx(up), pytest.approx(down))
