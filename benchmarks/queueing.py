"""A first-come-first-served queue with several servers, simulated for many runs at once: a truth to test against.

It judges nothing; the benchmarks and the tests of core's statistics do. It is no model of vLLM's batching.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SERVERS = 4


@dataclass(frozen=True, slots=True)
class Runs:
    """Independent runs, each array of shape (runs, requests), times in seconds, requests in order of arrival."""

    arrivals_s: Floats
    waits_s: Floats
    services_s: Floats
    busy_s: Floats  # server seconds worked from the run's start up to each arrival
    servers: int

    @property
    def starts_s(self) -> Floats:
        return self.arrivals_s + self.waits_s

    @property
    def departures_s(self) -> Floats:
        return self.arrivals_s + self.waits_s + self.services_s

    @property
    def sojourns_s(self) -> Floats:
        return self.waits_s + self.services_s

    def utilization(self, run: int, start: int, stop: int) -> float:
        """Mean busy servers over all servers, between the arrivals `start` and `stop` (both indices) of one run."""
        elapsed_s = self.arrivals_s[run, stop] - self.arrivals_s[run, start]
        return float((self.busy_s[run, stop] - self.busy_s[run, start]) / (self.servers * elapsed_s))


def lognormal_services(
    rng: np.random.Generator, shape: tuple[int, int], mean_s: float = 1.0, cv: float = 1.0
) -> Floats:
    """Lognormal service times of the given mean and coefficient of variation."""
    variance = math.log1p(cv * cv)
    return rng.lognormal(math.log(mean_s) - variance / 2, math.sqrt(variance), shape)


def poisson_arrivals(rng: np.random.Generator, shape: tuple[int, int], rate_rps: float) -> Floats:
    """Arrival times in seconds of Poisson processes, one a row."""
    return np.cumsum(rng.exponential(1.0 / rate_rps, shape), axis=1)


def serve(arrivals_s: Floats, services_s: Floats, servers: int = SERVERS) -> Runs:
    """Serve each row's requests in order of arrival, each by the server that is free first (Kiefer and Wolfowitz)."""
    runs, requests = arrivals_s.shape
    free_s = np.zeros((servers, runs))
    every = np.arange(runs)
    waits, overhang = np.empty((requests, runs)), np.empty((requests, runs))
    arrival_rows, service_rows = np.ascontiguousarray(arrivals_s.T), np.ascontiguousarray(services_s.T)
    for i in range(requests):
        now = arrival_rows[i]
        ahead = np.maximum(free_s - now, 0.0)
        first = ahead.argmin(axis=0)
        waits[i] = ahead[first, every]
        overhang[i] = ahead.sum(axis=0)
        free_s[first, every] = now + waits[i] + service_rows[i]
    # What was assigned before an arrival, less what is still to be worked off at it: each server works without a pause
    # from an arrival until it is free.
    assigned = np.cumsum(services_s, axis=1) - services_s
    return Runs(arrivals_s, np.ascontiguousarray(waits.T), services_s, assigned - overhang.T, servers)


def simulate(
    runs: int,
    requests: int,
    utilization: float,
    seed: int,
    cv: float = 1.0,
    servers: int = SERVERS,
    rate_rps: float = 10.0,
) -> Runs:
    """Poisson arrivals at `rate_rps` to lognormal services whose mean makes the given utilization (M/G/c)."""
    rng = np.random.default_rng(seed)
    arrivals_s = poisson_arrivals(rng, (runs, requests), rate_rps)
    return serve(arrivals_s, lognormal_services(rng, (runs, requests), servers * utilization / rate_rps, cv), servers)
