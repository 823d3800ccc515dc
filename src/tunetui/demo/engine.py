"""Continuous batching as vLLM's scheduler does it: waiting and running requests, a token budget, KV blocks, preemption.

It is pure: whoever drives it takes the time that a step would take (`machine.step_s`), in real or in virtual time.

All sequences that decode move on by one token a step, so none of them is looked at one by one: a sequence stands in
the bucket of the step it ends at, and in the bucket of the steps it needs a new block at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tunetui.demo.pool import BlockPool, CountedPool, Pool

BLOCK_SIZE = 16
STOP_NONE, STOP_SEQS, STOP_TOKENS, STOP_BLOCKS = range(4)  # as in the control block


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def hashes_of(prompt: Sequence[int]) -> tuple[int, ...]:
    """The hashes of a prompt's whole blocks, each also of all before it."""
    found, last = [], 0
    for at in range(0, len(prompt) - BLOCK_SIZE + 1, BLOCK_SIZE):
        last = hash((last, tuple(prompt[at : at + BLOCK_SIZE])))
        found.append(last)
    return tuple(found)


@dataclass(eq=False, slots=True)
class Request:
    """One request in the engine: so many prompt tokens and so many to come. `hashes` are of the prompt's blocks."""

    prompt_tokens: int
    max_tokens: int
    hashes: tuple[int, ...] = ()
    made: int = 0  # output tokens, up to when it began to decode
    computed: int = 0  # tokens of the prefill that are in its blocks
    blocks: list[int] = field(default_factory=list)
    since: int = -1  # the step from which on it decodes; -1: it waits or is in its prefill

    @property
    def to_prefill(self) -> int:
        """Tokens before its next one: the prompt, and after a preemption also what it had made."""
        return self.prompt_tokens + self.made


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine. `context` is the KV read by sequences that decode, in tokens; each prefill is a pair of
    new tokens and tokens already computed before them."""

    decodes: int
    context: int
    prefills: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[Request, int], ...]
    stopped_by: int

    @property
    def tokens(self) -> int:
        return self.decodes + sum(new for new, _ in self.prefills)


class Engine:
    """The scheduler and its queues. `schedule` makes a step, `finish` hands out what it brought; they alternate."""

    def __init__(
        self,
        num_blocks: int,
        max_num_seqs: int,
        token_budget: int,
        chunked: bool = True,
        threshold: int = 0,
        prefix_caching: bool = True,
        shares: bool = True,
    ) -> None:
        """`shares` False: no request brings hashes."""
        self.pool: Pool = BlockPool(num_blocks) if shares else CountedPool(num_blocks)
        self.max_num_seqs = max_num_seqs
        self.token_budget = token_budget
        self.chunked = chunked
        self.threshold = threshold
        self.prefix_caching = prefix_caching
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}  # in the order of admission
        self.held: list[int] = []  # blocks kept out of use, so that the pool is as small as with less memory
        self.steps = 0
        self.preemptions = 0
        self.prefix_queries = self.prefix_hits = 0
        self._prefilling: dict[Request, None] = {}
        self._ending: dict[int, dict[Request, None]] = {}
        self._growing: list[dict[Request, None]] = [{} for _ in range(BLOCK_SIZE)]
        self._context = 0

    # -- what the outside does -----------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """The request goes, wherever it is; its blocks are free again. Not between `schedule` and `finish`."""
        if request in self.running:
            self._leave(request)
        else:
            self.waiting.remove(request)

    def hold(self, count: int) -> None:
        """Move towards `count` blocks kept out of use, as far as blocks are free."""
        if count > len(self.held):
            self.held += self.pool.take(min(count - len(self.held), self.pool.free))
        else:
            self.pool.give_back(self.held[count:])
            del self.held[count:]

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def decoding(self) -> list[Request]:
        """The sequences that decode, in the order of admission."""
        return [request for request in self.running if request.since >= 0]

    def made(self, request: Request) -> int:
        """Output tokens of `request` up to the last step."""
        return request.made + (self.steps - request.since if request.since >= 0 else 0)

    # -- a step --------------------------------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """Sequences that decode first, then prefills under way, then admission in order, as far as the budget goes."""
        # vLLM goes through the running in the order of admission, so a prefill under way comes before younger sequences
        # that decode. While the knobs stay as they are both ways give the same: only with a threshold is one admitted
        # behind a prefill that goes on, and those before it never want more than in that step, when it found room.
        # They differ while such a prefill lasts after the budget was lowered, or the threshold raised or taken away:
        # vLLM may then leave younger sequences without a token.
        before = self.preemptions
        self._grow()
        budget = self.token_budget - (len(self.running) - len(self._prefilling))
        pieces: list[tuple[Request, int]] = []
        for request in list(self._prefilling):
            if budget <= 0:
                break
            if request in self._prefilling:  # not preempted meanwhile
                tokens = self._piece(request, budget)
                if self._make_room(request, blocks_for(request.computed + tokens) - len(request.blocks)):
                    pieces.append((request, tokens))
                    budget -= tokens
        pieces = [(request, tokens) for request, tokens in pieces if request in self._prefilling]
        stopped = STOP_BLOCKS if self.preemptions > before else self._admit(pieces, budget)
        decodes = len(self.running) - len(self._prefilling)
        prefills = tuple((tokens, request.computed) for request, tokens in pieces)
        return Step(decodes, self._context, prefills, tuple(pieces), stopped)

    def _grow(self) -> None:
        """A new block for every sequence whose last one is full."""
        growing = self._growing[self.steps % BLOCK_SIZE]
        if len(growing) <= self.pool.free:
            for request, block in zip(growing, self.pool.take(len(growing)), strict=True):
                request.blocks.append(block)
            return
        for request in list(growing):
            if request in growing:  # not preempted meanwhile
                self._make_room(request, 1)

    def _make_room(self, request: Request, count: int) -> bool:
        """`count` more blocks for a running request; the youngest ones are preempted for it, itself at last."""
        while count > self.pool.free:
            victim = next(reversed(self.running))
            self._preempt(victim)
            if victim is request:
                return False
        request.blocks += self.pool.take(count)
        return True

    def _piece(self, request: Request, budget: int) -> int:
        left = request.to_prefill - request.computed
        if self.chunked and 0 < self.threshold < left:
            left = self.threshold
        return min(left, budget)

    def _admit(self, pieces: list[tuple[Request, int]], budget: int) -> int:
        """Admit from the head of the queue; returns what stopped it."""
        while self.waiting:
            if len(self.running) >= self.max_num_seqs:
                return STOP_SEQS
            if budget <= 0:
                return STOP_TOKENS
            request = self.waiting[0]
            known: list[int] = []
            if self.prefix_caching and request.hashes:  # the last token is always computed
                known = self.pool.known(request.hashes[: (request.prompt_tokens - 1) // BLOCK_SIZE])
            request.computed = len(known) * BLOCK_SIZE
            left = request.to_prefill - request.computed
            # As vLLM V1 does without chunking: a whole prompt must fit into what the sequences that decode leave of the
            # budget. (V0 gave prefills steps of their own, before all decodes.)
            if not self.chunked and left > budget:
                return STOP_TOKENS
            # The whole prompt must find room, whatever part of it comes first.
            if blocks_for(request.to_prefill) - len(known) + self.pool.idle(known) > self.pool.free:
                return STOP_BLOCKS
            tokens = self._piece(request, budget)
            self.pool.share(known)
            request.blocks = known + self.pool.take(blocks_for(request.computed + tokens) - len(known))
            if self.prefix_caching and not request.made:
                self.prefix_queries += request.prompt_tokens
                self.prefix_hits += request.computed
            self.running[self.waiting.popleft()] = None
            self._prefilling[request] = None
            pieces.append((request, tokens))
            budget -= tokens
        return STOP_NONE

    def finish(self, step: Step) -> tuple[list[Request], list[Request]]:
        """The step is over: the requests whose prefill it completed, with a token each, and those that ended.

        Every sequence that decoded has one token more, too.
        """
        self._context += step.decodes
        self.steps += 1
        ended = list(self._ending.pop(self.steps, ()))
        for request in ended:
            self._leave(request)
        firsts = []
        for request, tokens in step.pieces:
            request.computed += tokens
            if request.computed < request.to_prefill:
                continue
            firsts.append(request)
            if self.prefix_caching and request.hashes:
                self.pool.learn(request.blocks[: len(request.hashes)], request.hashes)
            if request.made + 1 >= request.max_tokens:
                self._leave(request)
                request.made += 1
                ended.append(request)
            else:
                self._decode_from_now(request)
        return firsts, ended

    def _decode_from_now(self, request: Request) -> None:
        length = request.computed
        request.made += 1
        request.since = self.steps
        del self._prefilling[request]
        self._context += length
        self._ending.setdefault(self.steps + request.max_tokens - request.made, {})[request] = None
        # It has `length + n` tokens in its blocks when step `self.steps + n` begins.
        self._growing[(self.steps - length) % BLOCK_SIZE][request] = None

    def _leave(self, request: Request) -> None:
        """Take a running request out of everything; what it has made is kept."""
        del self.running[request]
        if request.since < 0:
            del self._prefilling[request]
        else:
            length = request.computed
            self._context -= length + self.steps - request.since
            del self._growing[(request.since - length) % BLOCK_SIZE][request]
            end = request.since + request.max_tokens - request.made
            bucket = self._ending.get(end)
            if bucket is not None:
                bucket.pop(request, None)
            request.made = self.made(request)
            request.since = -1
        self.pool.give_back(request.blocks)
        request.blocks = []
        request.computed = 0

    def _preempt(self, request: Request) -> None:
        """Its blocks are needed: it computes all of it again later, before anybody else is admitted."""
        self._leave(request)
        self.waiting.appendleft(request)
        self.preemptions += 1
