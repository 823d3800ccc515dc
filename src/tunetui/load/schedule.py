"""When requests leave: episodes in an open loop (at their arrival times) or a closed one (so many streams at a time).

An open loop may have a cap of streams in flight: what would exceed it is dropped, and counts as failed.

It draws no arrivals (the plan brings them) and reads no answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tunetui.core.sample import Outcome
from tunetui.load.alarm import Alarm
from tunetui.load.client import Client, Request, Stream
from tunetui.load.prompts import Prompt, PromptBook
from tunetui.load.report import Report

AHEAD_S = 0.2  # bodies are built this long before they are due
LOW_AHEAD_S = 0.1  # and the building starts again when less than this is left
AHEAD_REQUESTS = 8  # in a closed loop, where nobody knows when they are due
BUILD_S = 0.0001  # a cautious guess of the time that one body takes, and each of its tokens
BUILD_TOKEN_S = 3e-7


@dataclass(frozen=True, slots=True)
class Episode:
    """This process's requests of an episode: open loop where `concurrency` is None.

    Request i of these is number `first_index + i * stride` of the episode. It starts at `base_s` (monotonic seconds),
    or where the one before ends, `span_s` after its base; whichever is later. Raises ValueError where the parts do
    not fit.
    """

    id: int
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    prompt_seed: tuple[int, ...]
    base_s: float = 0.0
    arrivals_s: tuple[float, ...] = ()
    span_s: float = 0.0
    concurrency: int | None = None
    first_index: int = 0
    stride: int = 1
    max_in_flight: int | None = None
    block_tokens: int = 0
    blocks: tuple[tuple[int, ...], ...] = ()
    texts: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.prompt_tokens)
        if not size or len(self.output_tokens) != size:
            raise ValueError(f"episode {self.id}: prompt and output lengths must be equally many, and at least one")
        if min(self.prompt_tokens) < 1 or min(self.output_tokens) < 1:
            raise ValueError(f"episode {self.id}: lengths must be 1 or more")
        if any(column and len(column) != size for column in (self.blocks, self.texts)):
            raise ValueError(f"episode {self.id}: blocks and texts must be as many as the lengths")
        for name in ("concurrency", "max_in_flight"):
            if (limit := getattr(self, name)) is not None and limit < 1:
                raise ValueError(f"episode {self.id}: {name} must be 1 or more")
        if self.concurrency is None:
            gaps_s = zip((0.0, *self.arrivals_s), self.arrivals_s, strict=False)
            if len(self.arrivals_s) != size or not all(before <= after for before, after in gaps_s):
                raise ValueError(f"episode {self.id}: there must be one arrival for each request, in rising order")

    def index(self, i: int) -> int:
        """The number in the episode of request `i` here."""
        return self.first_index + i * self.stride

    def prompt(self, i: int) -> Prompt:
        """What request `i` here asks."""
        return Prompt(
            self.prompt_tokens[i], self.output_tokens[i], self.texts[i] if self.texts else None,
            self.blocks[i] if self.blocks else (), self.block_tokens,
        )  # fmt: skip


class Run:
    """An episode under way. `base_s` is None while its start depends on a closed loop before it."""

    __slots__ = ("base_s", "built", "episode", "ready", "sent")

    def __init__(self, episode: Episode, base_s: float | None) -> None:
        self.episode = episode
        self.base_s = base_s
        self.ready: deque[bytes] = deque()
        self.built = 0
        self.sent = 0

    @property
    def size(self) -> int:
        return len(self.episode.prompt_tokens)

    def due_s(self, index: int) -> float | None:
        """When request `index` is scheduled to leave; None where that is not known yet."""
        if self.base_s is None or self.episode.concurrency is not None:
            return None
        return self.base_s + self.episode.arrivals_s[index]

    @property
    def end_s(self) -> float | None:
        """When the last request of the whole episode leaves, from whatever process; the next one starts then."""
        if self.base_s is None or self.episode.concurrency is not None:
            return None
        return self.base_s + max(self.episode.span_s, self.episode.arrivals_s[-1])


class Schedule:
    """Sends the requests of the current episode and then those of the queued one; it is the client's listener."""

    def __init__(self, report: Report) -> None:
        self._loop = asyncio.get_running_loop()
        self._report = report
        self._client: Client | None = None
        self._prompts: PromptBook | None = None
        self._current: Run | None = None
        self._queued: Run | None = None
        self._active: set[Stream] = set()
        self._last_end_s = 0.0  # of the episode that was sent last
        self._alarm = Alarm(self._step)
        self._soon: asyncio.Handle | None = None

    @property
    def in_flight(self) -> int:
        return len(self._active)

    @property
    def active(self) -> Iterable[Stream]:
        return self._active

    def configure(self, client: Client, prompts: PromptBook) -> None:
        """Send to another endpoint from now on. Raises ValueError while anything is under way."""
        if self._current is not None or self._active:
            raise ValueError("requests are under way: drain before configuring")
        if self._client is not None:
            self._client.close()
        self._client, self._prompts = client, prompts

    def start(self, episode: Episode) -> None:
        """Start `episode` where the current one's arrivals end, or now. One can wait; a further one takes its place."""
        if self._client is None:
            raise ValueError("configure before the first episode")
        if self._current is None:
            self._begin(Run(episode, None), max(episode.base_s or time.monotonic(), self._last_end_s))
        else:
            self._queued = Run(episode, self._current.end_s)
        self._again()

    def drain(self, cancel: str) -> int:
        """Stop sending, drop the episodes, cancel streams ("unstarted", "all" or "none"); returns how many go on."""
        if cancel not in ("unstarted", "all", "none"):
            raise ValueError(f"cannot drain {cancel!r}: write unstarted, all or none")
        self._current = self._queued = None
        self._last_end_s = 0.0
        self._alarm.cancel()
        for stream in list(self._active):
            if cancel == "all" or (cancel == "unstarted" and stream.answer.first_s is None):
                stream.cancel()
        return self.in_flight

    # What the client calls.

    def stream_sent(self, stream: Stream) -> None:
        self._report.sent(stream)

    def stream_ended(self, stream: Stream) -> None:
        self._active.discard(stream)
        self._report.ended(stream)
        self._again()

    # Sending and building.

    def _again(self) -> None:
        """Step once the loop has handled what it holds; several calls make one step."""
        if self._soon is None and self._current is not None:
            self._soon = self._loop.call_soon(self._step)

    def _step(self) -> None:
        """Send all that is due and built, build one body, and come back at once or when the next thing is due."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._alarm.cancel()
        while (run := self._current) is not None and run.ready and self._is_due(run):
            self._send(run)
        if self._build_one():
            self._again()  # one body a step, so that the bytes of answers are stamped in between
        else:
            self._set_alarm()

    def _is_due(self, run: Run) -> bool:
        if run.episode.concurrency is not None:
            return len(self._active) < run.episode.concurrency
        due_s = run.due_s(run.sent)
        return due_s is not None and due_s <= time.monotonic()

    def _send(self, run: Run) -> None:
        assert self._client is not None
        due_s, episode, body = run.due_s(run.sent), run.episode, run.ready.popleft()
        request = Request(episode.id, episode.index(run.sent), due_s, episode.prompt_tokens[run.sent], body)
        run.sent += 1
        if episode.max_in_flight is not None and self.in_flight >= episode.max_in_flight:
            self._drop(request, episode.max_in_flight)
        else:
            self._active.add(self._client.send(request))
        if run.sent == run.size:
            end_s = run.end_s
            self._last_end_s = end_s or 0.0
            self._report.exhausted(episode.id)
            self._current = None
            if self._queued is not None:
                following, self._queued = self._queued, None
                self._begin(following, end_s or time.monotonic())

    def _drop(self, request: Request, cap: int) -> None:
        assert self._client is not None
        stream = Stream(request, self._client)
        stream.outcome, stream.error = Outcome.FAILED, f"dropped: {cap} requests were in flight"
        stream.ended_s = time.monotonic()
        self._report.ended(stream)

    def _begin(self, run: Run, base_s: float) -> None:
        run.base_s = base_s
        self._current = run
        self._report.started(run.episode.id, base_s)

    def _build_one(self) -> bool:
        """Build the next body that is wanted, unless a send is so near that it would be late. True if one was built."""
        run = self._current
        if run is None or self._client is None or self._prompts is None:
            return False
        now_s = time.monotonic()
        next_due_s = run.due_s(run.sent) if run.ready else None
        if run.built == run.size and self._queued is not None:
            run = self._queued
        if run.built == run.size or not self._wants_body(run, now_s + AHEAD_S):
            return False
        episode, prompt = run.episode, run.episode.prompt(run.built)
        if next_due_s is not None and now_s + BUILD_S + BUILD_TOKEN_S * prompt.tokens > next_due_s:
            return False
        run.ready.append(self._prompts.body(episode.prompt_seed, episode.index(run.built), prompt))
        run.built += 1
        if episode.concurrency is None:
            self._client.warm(len(run.ready))
        return True

    @staticmethod
    def _wants_body(run: Run, until_s: float) -> bool:
        due_s = run.due_s(run.built)
        return len(run.ready) < AHEAD_REQUESTS if due_s is None else due_s <= until_s

    def _set_alarm(self) -> None:
        """Wake for the next arrival, or to build bodies before it. A closed loop is woken by the streams that end."""
        run = self._current
        if run is None:
            return
        moments_s = [run.due_s(run.sent) if run.ready else None]
        building = run if run.built < run.size else self._queued
        if building is not None and building.built < building.size:
            due_s = building.due_s(building.built)
            # A moment that has passed is one where the next arrival was too near to build: it comes again after that.
            if due_s is not None and due_s - LOW_AHEAD_S > time.monotonic():
                moments_s.append(due_s - LOW_AHEAD_S)
        known_s = [moment for moment in moments_s if moment is not None]
        if known_s:
            self._alarm.set(min(known_s))
