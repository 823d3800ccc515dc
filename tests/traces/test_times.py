"""Moments in the shapes that logs write them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tunetui.traces.lines import BrokenLine
from tunetui.traces.times import moment_s


@pytest.fixture(autouse=True)
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a recording says must not depend on where it is read."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1970-01-02 00:00:00", 86_400),
        ("1970-01-02T00:00:00.25Z", 86_400.25),
        ("1970-01-02 00:00:00.1234567", 86_400.123456),
        ("1970-01-02T02:00:00+02:00", 86_400),
        ("1970-01-02 00:00:00,500", 86_400.5),
        ("02/Jan/1970:01:00:00 +0100", 86_400),
        (5, 5),
        ("5.5", 5.5),
        ("1e-05", 0.00001),
        (1_927_858_000, 1_927_858_000),
        (1_927_858_000_250, 1_927_858_000.25),
        (1_927_858_000_250_000, 1_927_858_000.25),
        ("1927858000250000000", 1_927_858_000.25),
    ],
)
def test_a_moment(value: object, seconds: float) -> None:
    assert moment_s(value) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "the time is missing"),
        ("", "the time is missing"),
        (True, "the time is not a time"),
        ([], "the time is not a time"),
        ("noon", "the time is not a time"),
        ("02/Foo/1970:01:00:00 +0100", "the time is not a time"),
        ("2031-02-30", "the time is not a time"),
        ("1969-12-31 00:00:00", "the time is before 1970"),
        ("nan", "the time is not a number"),
        (10**400, "the time is not a time"),
    ],
)
def test_no_moment(value: object, said: str) -> None:
    with pytest.raises(BrokenLine, match=said):
        moment_s(value)
