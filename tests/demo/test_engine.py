"""The simulated engine keeps what a scheduler must keep, over random loads and random steps of its knobs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunetui.demo.engine import BLOCK_SIZE, Engine, Request, blocks_for, hashes_of
from tunetui.demo.machine import A100, MISTRAL_7B, Machine
from tunetui.demo.pool import BlockPool

LENGTH = 200  # the model's: no request is longer
MACHINE = Machine(A100, MISTRAL_7B)


def books(engine: Engine) -> None:
    """Every block is free, held, or of as many running requests as it has users; never two of these, never none."""
    pool = engine.pool
    users: dict[int, int] = {}
    for request in engine.running:
        assert len(set(request.blocks)) == len(request.blocks)
        for block in request.blocks:
            users[block] = users.get(block, 0) + 1
    for block in engine.held:
        assert block not in users
        users[block] = 1
    assert all(not request.blocks for request in engine.waiting)
    free = set(pool._free)
    assert free.isdisjoint(users)
    assert free | set(users) == set(range(1, pool.num_blocks))
    assert {block: pool._users[block] for block in users} == users
    assert pool.free == len(free)


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int]:
    lengths = st.tuples(st.integers(1, 120), st.integers(1, 80))
    return draw(st.lists(lengths, min_size=1, max_size=40)), draw(st.integers(0, 2**31))


@settings(max_examples=150, deadline=None)
@given(
    loads(),
    st.integers(blocks_for(LENGTH) + 1, 60),
    st.integers(1, 12),
    st.sampled_from([16, 40, LENGTH, 400]),
    st.booleans(),
    st.booleans(),
)
def test_no_block_is_lost_and_every_request_gets_its_tokens(
    load: tuple[list[tuple[int, int]], int], num_blocks: int, seqs: int, budget: int, chunked: bool, caching: bool
) -> None:
    lengths, seed = load
    rng = random.Random(seed)
    engine = Engine(num_blocks, seqs, budget if chunked else max(budget, LENGTH), chunked, 0, caching)
    prefixes = [[rng.randrange(100) for _ in range(120)] for _ in range(2)]
    to_come, tokens, aborted = [], {}, set()
    for prompt, output in lengths:
        shared = rng.randrange(prompt + 1)
        ids = prefixes[rng.randrange(2)][:shared] + [rng.randrange(1000) for _ in range(prompt - shared)]
        to_come.append(Request(prompt, output, hashes_of(ids)))
    everyone = list(to_come)
    ended: list[Request] = []
    for _ in range(20_000):
        while to_come and rng.random() < 0.3:
            engine.add(to_come.pop(0))
        if rng.random() < 0.05:  # a step of every knob
            engine.max_num_seqs = rng.randint(1, 12)
            engine.chunked = chunked and rng.random() < 0.7
            floor = LENGTH if not engine.chunked else 0
            engine.token_budget = max(rng.choice([16, 64, 400]), floor, engine.max_num_seqs, len(engine.running))
            engine.threshold = rng.choice([0, BLOCK_SIZE, 40])
            engine.hold(rng.randint(0, num_blocks - 1 - blocks_for(LENGTH)))
            books(engine)
        if rng.random() < 0.01 and engine.running:
            gone = rng.choice([*engine.running, *engine.waiting])
            engine.abort(gone)
            aborted.add(gone)
        if engine.idle:
            if not to_come:
                break
            continue
        before = len(engine.running)
        step = engine.schedule()
        assert step.tokens <= engine.token_budget
        assert len(engine.running) <= max(engine.max_num_seqs, before)
        decoding = engine.decoding
        assert len(decoding) == step.decodes
        assert step.context == sum(r.computed + engine.steps - r.since for r in decoding)
        # Work conservation: a step does something, unless all of what ran was preempted.
        assert step.tokens or step.stopped_by
        firsts, now_ended = engine.finish(step)
        for request in (*decoding, *firsts):
            tokens[request] = tokens.get(request, 0) + 1
        ended += now_ended
        books(engine)
    assert engine.idle
    assert len(ended) == len(set(ended))
    assert set(ended) | aborted == set(everyone)
    for request in ended:
        assert tokens[request] == request.made == request.max_tokens
    engine.hold(0)
    assert engine.pool.free == num_blocks - 1


@settings(max_examples=60, deadline=None)
@given(loads(), st.integers(blocks_for(LENGTH) + 1, 60), st.integers(1, 12), st.booleans())
def test_blocks_that_are_only_counted_give_the_same_steps(
    load: tuple[list[tuple[int, int]], int], num_blocks: int, seqs: int, chunked: bool
) -> None:
    lengths, seed = load

    def steps(shares: bool) -> list[tuple[int, int, tuple[tuple[int, int], ...], int, int, int]]:
        rng = random.Random(seed)
        engine = Engine(num_blocks, seqs, LENGTH, chunked, 0, True, shares)
        to_come = [Request(prompt, output) for prompt, output in lengths]
        seen = []
        while to_come or not engine.idle:
            while to_come and (engine.idle or rng.random() < 0.3):
                engine.add(to_come.pop(0))
            if rng.random() < 0.1:
                engine.hold(rng.randint(0, num_blocks - 1 - blocks_for(LENGTH)))
            step = engine.schedule()
            seen.append((step.decodes, step.context, step.prefills, step.stopped_by, engine.pool.free,
                         engine.preemptions))  # fmt: skip
            engine.finish(step)
        return seen

    assert steps(shares=False) == steps(shares=True)


def run_to_the_end(engine: Engine) -> list[int]:
    """Tokens of each step."""
    tokens = []
    while not engine.idle:
        step = engine.schedule()
        tokens.append(step.tokens)
        engine.finish(step)
    return tokens


def test_a_long_prompt_is_chunked_or_taken_whole() -> None:
    engine = Engine(1000, 8, 100)
    engine.add(Request(250, 2))
    assert run_to_the_end(engine) == [100, 100, 50, 1]
    engine = Engine(1000, 8, 300, chunked=False)
    for _ in range(2):
        engine.add(Request(250, 2))
    # The second does not fit beside the first, and then has the step with the first one's token.
    assert run_to_the_end(engine) == [250, 251, 1]


def test_the_threshold_lets_short_prompts_pass() -> None:
    engine = Engine(1000, 8, 100, threshold=30)
    engine.add(Request(90, 1))
    engine.add(Request(20, 1))
    step = engine.schedule()
    assert step.prefills == ((30, 0), (20, 0))


def test_the_youngest_is_preempted_and_computes_again_what_it_had_made() -> None:
    engine = Engine(1 + 5, 8, 1000, prefix_caching=False)
    old, young = Request(16, 40), Request(16, 40)
    engine.add(old)
    engine.add(young)
    while not engine.preemptions:
        engine.finish(engine.schedule())
    assert young in engine.waiting
    assert old in engine.running
    assert young.made == 17  # each holds two blocks of 16; the third for both would make six
    tokens = run_to_the_end(engine)
    assert old.made == young.made == 40
    assert 16 + 17 in tokens


def test_a_known_prefix_is_not_computed_again_but_for_the_last_token() -> None:
    prompt = list(range(64))
    engine = Engine(100, 8, 1000)
    engine.add(Request(64, 1, hashes_of(prompt)))
    assert run_to_the_end(engine) == [64]
    engine.add(Request(64, 1, hashes_of(prompt)))
    assert run_to_the_end(engine) == [16]
    assert (engine.prefix_queries, engine.prefix_hits) == (128, 48)


def test_a_block_is_forgotten_when_it_is_taken_for_something_else() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    pool.learn(blocks, (7, 8, 9))
    pool.give_back(blocks)
    assert pool.known((7, 8, 9)) == blocks
    assert pool.take(1) == [blocks[2]]  # the end of a prefix goes first
    assert pool.known((7, 8, 9)) == blocks[:2]


def test_a_step_takes_longer_with_more_of_anything() -> None:
    engine = Engine(10_000, 64, 4096)
    for _ in range(8):
        engine.add(Request(200, 50))
    prefill = engine.schedule()
    engine.finish(prefill)
    decode = engine.schedule()
    assert MACHINE.step_s(prefill) > MACHINE.step_s(decode)
    # One token reads all the weights: 14.5 GB at four fifths of 2,039 GB/s are 8.9 ms.
    assert MACHINE.step_s(decode) == pytest.approx(0.0089 + 0.003, abs=0.0005)
