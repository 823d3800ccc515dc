"""What the load process tells, as values, and the reading of its lines.

It holds no process and no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunetui.core.sample import Outcome, Sample


@dataclass(frozen=True, slots=True)
class Started:
    """An episode began; its arrivals are offsets from `base_s`."""

    episode: int
    base_s: float


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The last request of an episode has been sent."""

    episode: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A request left; `scheduled_s` is when it should have."""

    episode: int
    index: int
    scheduled_s: float
    sent_s: float


@dataclass(frozen=True, slots=True)
class First:
    """The first token of a request arrived."""

    episode: int
    index: int
    first_s: float


@dataclass(frozen=True, slots=True)
class Batch:
    """What happened since the last batch, and at `t_s` how many streams are open and how many await their first token.

    It comes ten times a second, also when nothing happened; `tokens` are the output tokens that arrived.
    """

    t_s: float
    tokens: int
    in_flight: int
    awaiting: int
    sent: tuple[Sent, ...]
    firsts: tuple[First, ...]
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A command that the load process could not carry out, and why."""

    text: str


@dataclass(frozen=True, slots=True)
class Died:
    """The load process ended unasked; `stderr_tail` are the last lines it wrote."""

    returncode: int
    stderr_tail: tuple[str, ...]


Event = Started | Exhausted | Batch | Refused | Died


def read_event(event: dict[str, Any]) -> Event:
    """One line of the load process as a value. Raises KeyError for one that is not of the protocol."""
    match event["ev"]:
        case "started":
            return Started(event["id"], event["base_s"])
        case "exhausted":
            return Exhausted(event["id"])
        case "error":
            return Refused(event["text"])
        case "batch":
            return Batch(
                event["t"], event["tokens"], event["in_flight"], event["awaiting"],
                tuple(Sent(*row) for row in event["sent"]), tuple(First(*row) for row in event["firsts"]),
                tuple(read_sample(row) for row in event["samples"]),
            )  # fmt: skip
        case other:
            raise KeyError(other)


def read_sample(row: list[Any]) -> Sample:
    """A row of `samples` in a batch, whose order is that of Sample's fields."""
    *moments, outcome, ended_s, error, retries, bins = row
    counts = tuple((number, count) for number, count in bins)
    return Sample(*moments, Outcome(outcome), ended_s, error, retries, counts)  # type: ignore[call-arg]
