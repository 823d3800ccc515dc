"""The front of points traded against each other, and its knee."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunetui.core.tradeoff import Traded, front, knee

POINTS = st.lists(
    st.builds(Traded, st.integers(1, 99), st.floats(0.01, 10.0), st.floats(1.0, 1e4), st.booleans()), max_size=12
)


def traded(*pairs: tuple[float, float]) -> list[Traded]:
    return [Traded(number, latency_s, gain, True) for number, (latency_s, gain) in enumerate(pairs, 1)]


@given(POINTS)
def test_no_point_beats_one_of_the_front_and_every_other_is_beaten(points: list[Traded]) -> None:
    best = front(points)
    for one in best:
        assert not any(o.latency_s <= one.latency_s and o.gain > one.gain for o in points)
    for other in points:
        assert any(b.latency_s <= other.latency_s and b.gain >= other.gain for b in best)
    assert [b.latency_s for b in best] == sorted(b.latency_s for b in best)


@given(POINTS)
def test_a_knee_is_inside_the_front(points: list[Traded]) -> None:
    found = knee(points)
    assert found is None or found in front(points)[1:-1]


def test_the_knee_is_where_throughput_flattens() -> None:
    guide = traded((0.2, 1200.0), (0.42, 1850.0), (0.55, 2150.0), (0.9, 2230.0), (1.4, 2300.0))
    found = knee(guide)
    assert found is not None
    assert found.number == 3


def test_there_is_none_on_a_straight_line_or_one_that_bends_the_other_way_or_between_two() -> None:
    assert knee(traded((1.0, 1.0), (2.0, 2.0), (3.0, 3.0))) is None
    assert knee(traded((1.0, 1.0), (2.0, 1.1), (3.0, 3.0))) is None
    assert knee(traded((1.0, 1.0), (2.0, 2.0))) is None
    assert knee([]) is None
