"""How far workloads are apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.core.nearness import SCALES, distances, out_of_range

VALUE = st.floats(0.001, 1000)
FEATURES = st.dictionaries(st.sampled_from(list(SCALES)), VALUE)


@given(FEATURES, FEATURES)
def test_a_distance_is_symmetric_and_zero_on_itself(one: dict[str, float], other: dict[str, float]) -> None:
    assert distances(one, other) == pytest.approx(distances(other, one))
    assert set(distances(one, other)) == set(one) & set(other)
    assert all(distance == 0 for distance in distances(one, one).values())
    assert out_of_range(one, one) == ()


@given(st.sampled_from(list(SCALES)), VALUE, st.floats(1.01, 10), st.floats(1.01, 10))
def test_farther_is_more(name: str, value: float, factor: float, further: float) -> None:
    near = distances({name: value}, {name: value * factor})[name]
    far = distances({name: value}, {name: value * factor * further})[name]
    assert far > near > 0


def test_what_moved_out_of_its_scale_is_named_farthest_first() -> None:
    then = {"prompt_tokens_mean": 219.0, "rate_rps": 6.0, "long_prompt_share": 0.0, "arrival": "poisson"}
    now = {"prompt_tokens_mean": 900.0, "rate_rps": 7.0, "long_prompt_share": 0.06, "arrival": "gamma", "requests": 3}
    assert out_of_range(then, now) == ("prompt_tokens_mean 219 -> 900", "long_prompt_share 0 -> 0.06")
    assert out_of_range({"rate_rps": 6.0}, {"rate_rps": 7.6}) == ("rate_rps 6 -> 7.6",)
