"""Overload is said early where there is one, almost never where there is none, and with the figures that show it."""

import numpy as np
import pytest
import queueing

from tunetui.core.overload import OverloadAlarm

RATE_RPS = 10.0


def watch(arrivals_s: np.ndarray, first_s: np.ndarray, alarm: OverloadAlarm | None = None) -> tuple[OverloadAlarm, int]:
    """Play one run up to its last arrival; returns the alarm and at how many arrivals it was given (0: never)."""
    alarm = alarm or OverloadAlarm(RATE_RPS)
    times_s = np.concatenate([arrivals_s, first_s])
    ttft_s = np.concatenate([np.full(len(arrivals_s), np.nan), first_s - arrivals_s])
    order = np.argsort(times_s, kind="stable")
    arrived = 0
    for time_s, seconds in zip(times_s[order].tolist(), ttft_s[order].tolist(), strict=True):
        if time_s > arrivals_s[-1]:
            break
        if seconds == seconds:
            alarm.first_token(time_s, seconds)
        else:
            arrived += 1
            alarm.arrived(time_s)
        if alarm.alarm:
            return alarm, arrived
    return alarm, 0


def alarms_at(utilization: float, runs: int, requests: int, seed: int) -> np.ndarray:
    queue = queueing.simulate(runs, requests, utilization, seed, rate_rps=RATE_RPS)
    first_s = queue.starts_s + 0.01
    return np.array([watch(queue.arrivals_s[r], first_s[r])[1] for r in range(runs)])


def test_one_and_a_half_times_capacity_is_seen_within_twenty_seconds() -> None:
    at = alarms_at(1.5, 200, 250, seed=1)
    assert ((at > 0) & (at <= 200)).mean() >= 0.97  # 20 s at 10 requests a second
    assert ((at > 0) & (at <= 100)).mean() >= 0.70


def test_a_slight_overload_is_seen_later() -> None:
    assert (alarms_at(1.15, 40, 2500, seed=2) > 0).mean() >= 0.95


def test_a_server_at_utilization_nine_tenths_is_left_in_peace() -> None:
    assert (alarms_at(0.9, 30, 20_000, seed=3) > 0).sum() <= 1


def test_an_overload_that_begins_late_is_seen() -> None:
    rng = np.random.default_rng(4)
    for _ in range(10):
        arrivals_s = queueing.poisson_arrivals(rng, (1, 4000), RATE_RPS)
        services_s = queueing.lognormal_services(rng, (1, 4000), 0.28)
        services_s[:, 3000:] *= 1.5 / 0.7
        queue = queueing.serve(arrivals_s, services_s)
        at = watch(queue.arrivals_s[0], queue.starts_s[0] + 0.01)[1]
        assert 3000 < at < 3600


@pytest.mark.parametrize("ttft_s", [0.05, 0.5, 2.0])
def test_requests_in_prefill_are_no_queue(ttft_s: float) -> None:
    # Any number at once, each with a TTFT of its own: up to 20 without a first token, and nothing wrong.
    rng = np.random.default_rng(5)
    for _ in range(10):
        arrivals_s = np.cumsum(rng.exponential(1 / RATE_RPS, 5000))
        assert watch(arrivals_s, arrivals_s + ttft_s * rng.lognormal(-0.125, 0.5, 5000))[1] == 0


def test_one_long_pause_is_no_overload() -> None:
    arrivals_s = np.arange(400) / RATE_RPS
    first_s = arrivals_s + 0.05
    held = (first_s > 20) & (first_s < 24)  # 40 requests behind one prefill, then all at once
    first_s[held] = 24.0
    assert watch(arrivals_s, first_s)[1] == 0


def test_the_reason_has_the_numbers() -> None:
    # Exactly 4 of 10 requests a second are served.
    arrivals_s = np.arange(300) / RATE_RPS
    alarm, at = watch(arrivals_s, np.maximum(arrivals_s, 0) + 0.1 + np.arange(300) * 0.15)
    assert 0 < at < 100
    assert alarm.alarm == (
        f"overloaded: {alarm.waiting} requests wait for their first token, 4 a second get it and 10 arrive"
    )
    said = alarm.alarm
    for i in range(50):
        alarm.first_token(100.0 + i / 100, 1.0)
    assert alarm.alarm == said  # once and for good


def test_requests_that_are_gone_wait_no_more() -> None:
    alarm = OverloadAlarm(RATE_RPS)
    for i in range(5):
        alarm.arrived(i / 10)
    alarm.gone(0.6)
    alarm.first_token(0.7, 0.7)
    assert alarm.waiting == 3


def test_a_wrong_rate_is_refused() -> None:
    for rate_rps in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="above 0"):
            OverloadAlarm(rate_rps)
