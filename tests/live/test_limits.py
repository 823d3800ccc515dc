"""Limits on a stand-in for vLLM's scheduler: every clamp, the draining batch, held blocks, and switching itself off.

The real schedulers are driven by the end-to-end tests; here each limit is seen alone.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tunetui_live import scheduler as live
from tunetui_live.block import ControlBlock, InForce, ServerBlock, Targets


class Pool:
    """As vLLM's: it raises when asked for more than it has."""

    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks))

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def get_new_blocks(self, count: int) -> list[int]:
        if count > len(self.free):
            raise ValueError("Cannot get that many")
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def free_blocks(self, blocks: Any) -> None:
        self.free.extend(blocks)


class Spec:
    page_size_bytes = 1024
    block_size = 16

    def max_memory_usage_bytes(self, config: Any) -> int:
        return 16 * 1024


def config(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "scheduler_config": SimpleNamespace(
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
            async_scheduling=False,
        ),
        "parallel_config": SimpleNamespace(pipeline_parallel_size=1),
        "kv_transfer_config": None,
    }
    return SimpleNamespace(**{**values, **changes})


class Base:
    """The parts of vLLM's Scheduler that the limits touch, as of 0.31 and later."""

    attribute = "max_num_active_reqs"

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.scheduler_config = vllm_config.scheduler_config
        self.cache_config = SimpleNamespace(block_size=16)
        self.kv_cache_config = SimpleNamespace(
            num_blocks=101, kv_cache_groups=[SimpleNamespace(kv_cache_spec=Spec(), layer_names=["a", "b"])]
        )
        self.kv_cache_manager = SimpleNamespace(block_pool=Pool(100))
        setattr(self, self.attribute, 256)
        self.max_num_running_reqs = 256
        self.max_num_scheduled_tokens = 8192
        self.max_model_len = 2048
        self.num_spec_tokens = 0
        self.running: list[int] = []
        self.waiting: list[int] = []

    def add_request(self, request: Any) -> None:
        self.waiting.append(request)

    def schedule(self) -> Any:
        assert len(self.running) <= self.max_num_running_reqs  # what versions to 0.30 assert
        return SimpleNamespace(total_num_scheduled_tokens=len(self.running), num_scheduled_tokens={})

    def update_from_output(self) -> None:
        return None

    def reset_prefix_cache(self) -> bool:
        return len(self.kv_cache_manager.block_pool.free) == 100


class OldBase(Base):
    """To 0.30 one limit is both admission and the assertion."""

    attribute = "max_num_running_reqs"


class Rig:
    def __init__(self, tmp_path: Path, base: Any = Base, **changes: Any) -> None:
        self.ours = ControlBlock.create(str(tmp_path / "block"))
        self.scheduler = live.live_class(base)(config(**changes))
        self.scheduler.tunetui_limits.connect(ServerBlock.open(str(tmp_path / "block")))
        self.step = 0

    def ask(self, seqs: int = 256, tokens: int = 8192, chunked: int = 1, threshold: int = 0, held: int = 0) -> InForce:
        self.step += 1
        self.ours.ask(Targets(self.step, seqs, tokens, chunked, threshold, held))
        return self.go()

    def go(self) -> InForce:
        self.scheduler.schedule()
        state = self.ours.in_force()
        assert state is not None
        return state


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_hello_says_what_the_engine_is(rig: Rig) -> None:
    hello = rig.ours.hello()
    assert hello is not None
    assert hello[1:15] == (0, 101, 16, 16, 2048, 256, 8192, 2048, 2048, 1, 0, 16, 1, 0)
    assert (hello.base_class, hello.memory_restart) == ("Base", "")


def test_a_step_is_in_force_at_the_next_schedule(rig: Rig) -> None:
    state = rig.ask(seqs=8, tokens=4096)
    assert (state.step, state.settled) == (1, 1)
    assert (rig.scheduler.max_num_active_reqs, rig.scheduler.max_num_scheduled_tokens) == (8, 4096)


def test_while_idle_the_next_request_brings_it_into_force(rig: Rig) -> None:
    rig.ours.ask(Targets(1, 4, 8192, 1, 0, 0))
    rig.scheduler.add_request(1)
    state = rig.ours.in_force()
    assert state is not None
    assert (state.step, state.max_num_seqs) == (1, 4)


def test_limits_of_the_start_are_never_exceeded(rig: Rig) -> None:
    state = rig.ask(seqs=9999, tokens=99999, held=9999)
    assert (state.max_num_seqs, state.max_num_batched_tokens) == (256, 8192)
    # 101 blocks less the null block and one request of the model's length, 16.
    assert state.held_blocks == 84


def test_the_batch_drains_before_a_step_down_has_settled(rig: Rig) -> None:
    rig.scheduler.running = list(range(40))
    assert rig.ask(seqs=8).settled == 0
    rig.scheduler.running = list(range(8))
    assert rig.go().settled == 1


def test_older_versions_follow_the_batch_down(tmp_path: Path) -> None:
    rig = Rig(tmp_path, OldBase)
    rig.scheduler.running = list(range(40))
    for running in (40, 25, 9):
        rig.scheduler.running = list(range(running))
        state = rig.ask(seqs=8) if running == 40 else rig.go()
        assert (rig.scheduler.max_num_running_reqs, state.settled) == (running, 0)
    rig.scheduler.running = list(range(3))
    assert (rig.go().settled, rig.scheduler.max_num_running_reqs) == (1, 8)


def test_the_budget_never_starves_the_running_batch(rig: Rig) -> None:
    rig.scheduler.running = list(range(100))
    assert rig.ask(seqs=10, tokens=10).max_num_batched_tokens == 100
    rig.scheduler.running = []
    assert rig.ask(seqs=10, tokens=10).max_num_batched_tokens == 10


def test_drafted_tokens_and_their_slots_need_room(tmp_path: Path) -> None:
    class Drafting(Base):
        def __init__(self, vllm_config: Any) -> None:
            super().__init__(vllm_config)
            self.num_spec_tokens = 3
            self.num_prefill_lookahead = 2

    rig = Rig(tmp_path, Drafting, speculative_config=SimpleNamespace(max_num_new_slots_for_drafting=1))
    hello = rig.ours.hello()
    assert hello is not None
    assert (hello.tokens_per_decode, hello.least_prefill, hello.whole_request) == (5, 2, 2049)
    assert rig.ask(seqs=10, tokens=1).max_num_batched_tokens == 52
    assert rig.ask(seqs=10, tokens=1, chunked=0).max_num_batched_tokens == 2049


def test_the_watermark_is_a_share_of_the_blocks_there_are(tmp_path: Path) -> None:
    class Watermarked(Base):
        def __init__(self, vllm_config: Any) -> None:
            super().__init__(vllm_config)
            self.kv_cache_manager.watermark_blocks = 10

    rig = Rig(tmp_path, Watermarked)
    manager = rig.scheduler.kv_cache_manager
    rig.ask(held=50)
    assert manager.watermark_blocks == 5
    rig.scheduler.reset_prefix_cache()
    assert manager.watermark_blocks == 10
    rig.go()
    assert manager.watermark_blocks == 5
    rig.ask(held=0)
    assert manager.watermark_blocks == 10


@pytest.mark.parametrize(
    ("flags", "knobs", "reason"),
    [
        ({"disable_chunked_mm_input": True}, ("tokens_restart", "threshold_restart"), "not chunked"),
        ({"max_num_partial_prefills": 2}, ("threshold_restart",), "several partial prefills"),
        ({"max_num_batched_tokens": 9000}, ("tokens_restart",), "set apart"),
    ],
)
def test_a_budget_or_threshold_that_is_not_ours_to_move_stays(
    tmp_path: Path, flags: dict[str, Any], knobs: tuple[str, ...], reason: str
) -> None:
    given = vars(config().scheduler_config)
    rig = Rig(tmp_path, scheduler_config=SimpleNamespace(**given | {"long_prefill_token_threshold": 64} | flags))
    hello = rig.ours.hello()
    assert hello is not None
    for knob in ("seqs_restart", "tokens_restart", "chunked_restart", "threshold_restart", "memory_restart"):
        assert (reason in getattr(hello, knob)) == (knob in knobs), knob
    state = rig.ask(seqs=10, tokens=300, threshold=32)
    assert state.max_num_batched_tokens == (8192 if "tokens_restart" in knobs else 300)
    assert state.long_prefill_token_threshold == (64 if "threshold_restart" in knobs else 32)


def test_with_data_parallelism_nothing_moves(tmp_path: Path) -> None:
    rig = Rig(tmp_path, parallel_config=SimpleNamespace(pipeline_parallel_size=1, data_parallel_size=2))
    hello = rig.ours.hello()
    assert hello is not None
    assert all("data parallelism" in reason for reason in hello[-5:])
    state = rig.ask(seqs=10, tokens=300, chunked=0, threshold=32, held=9)
    assert (state.max_num_seqs, state.max_num_batched_tokens, state.chunked_prefill) == (256, 8192, 1)
    assert (state.long_prefill_token_threshold, state.held_blocks) == (0, 0)


def test_idle_streaming_sessions_keep_their_slots(rig: Rig) -> None:
    rig.scheduler.running = list(range(2))
    rig.scheduler.num_waiting_for_streaming_input = 4
    assert rig.ask(seqs=3).max_num_seqs == 7
    rig.scheduler.num_waiting_for_streaming_input = 0
    assert rig.ask(seqs=3).max_num_seqs == 3


def test_with_chunking_off_the_budget_holds_a_whole_request_and_the_threshold_is_off(rig: Rig) -> None:
    state = rig.ask(tokens=300, chunked=0, threshold=64)
    assert (state.chunked_prefill, state.max_num_batched_tokens, state.long_prefill_token_threshold) == (0, 2048, 0)
    state = rig.ask(tokens=300, chunked=1, threshold=5)
    assert (state.chunked_prefill, state.max_num_batched_tokens, state.long_prefill_token_threshold) == (1, 300, 16)


def test_chunking_that_vllm_switched_off_is_never_switched_on(tmp_path: Path) -> None:
    scheduler_config = SimpleNamespace(
        max_num_batched_tokens=8192, enable_chunked_prefill=False, long_prefill_token_threshold=0
    )
    rig = Rig(tmp_path, scheduler_config=scheduler_config)
    hello = rig.ours.hello()
    assert hello is not None
    assert "started without it" in hello.chunked_restart
    assert rig.ask(chunked=1).chunked_prefill == 0


def test_the_model_runners_config_object_never_moves(rig: Rig) -> None:
    rig.ask(chunked=0)
    assert rig.scheduler.scheduler_config.enable_chunked_prefill is False
    assert rig.scheduler.vllm_config.scheduler_config.enable_chunked_prefill is True


def test_blocks_are_held_as_they_become_free_and_given_back(rig: Rig) -> None:
    pool = rig.scheduler.kv_cache_manager.block_pool
    in_use = pool.get_new_blocks(70)
    assert rig.ask(held=50).held_blocks == 30
    assert rig.go().settled == 0
    pool.free_blocks(in_use[:40])
    state = rig.go()
    assert (state.held_blocks, state.settled, pool.get_num_free_blocks()) == (50, 1, 20)
    state = rig.ask(held=10)
    assert (state.held_blocks, state.settled, pool.get_num_free_blocks()) == (10, 1, 60)


def test_a_reset_of_the_prefix_cache_works_while_blocks_are_held(rig: Rig) -> None:
    rig.ask(held=50)
    assert rig.scheduler.reset_prefix_cache() is True
    assert rig.go().held_blocks == 50


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_transfer_config": object()}, "KV connector"),
        ({"parallel_config": SimpleNamespace(pipeline_parallel_size=2)}, "pipeline"),
    ],
)
def test_the_memory_knob_stays_still_where_it_must(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    rig = Rig(tmp_path, **changes)
    hello = rig.ours.hello()
    assert hello is not None
    assert reason in hello.memory_restart
    state = rig.ask(held=50)
    assert (state.held_blocks, state.settled) == (0, 1)


def test_a_failure_gives_everything_back_and_is_said_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.ask(seqs=8, tokens=500, chunked=0, held=50)
    pool = rig.scheduler.kv_cache_manager.block_pool
    pool.get_new_blocks = None  # anything that breaks inside our part
    rig.ask(held=60)
    state = rig.go()
    assert (state.disabled, rig.scheduler.max_num_active_reqs, rig.scheduler.max_num_scheduled_tokens) == (1, 256, 8192)
    assert "NoneType" in state.error
    assert rig.scheduler.scheduler_config.enable_chunked_prefill is True
    assert pool.get_num_free_blocks() == 100
    rig.scheduler.schedule()
    assert len([r for r in caplog.records if "switched itself off" in r.message]) == 1


def test_a_block_that_turns_to_rubbish_never_reaches_vllm(rig: Rig) -> None:
    rig.ours._memory[64:4096] = b"\x01" * (4096 - 64)
    for _ in range(3):
        rig.scheduler.add_request(1)
        rig.scheduler.schedule()
        rig.scheduler.update_from_output()
    assert rig.scheduler.max_num_active_reqs == 256


def test_each_step_leaves_a_record(rig: Rig) -> None:
    rig.scheduler.waiting = [1]
    rig.scheduler.running = list(range(8))
    rig.ask(seqs=8)
    _, records = rig.ours.records(0)
    assert [(r.running, r.waiting, r.stopped_by) for r in records] == [(8, 1, 1)]


def test_without_a_usable_block_the_scheduler_is_vllms_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(live, "base_class", lambda _: Base)
    monkeypatch.setenv("TUNETUI_CONTROL_BLOCK", str(tmp_path / "missing"))
    assert type(live.make_scheduler(config())) is Base
    monkeypatch.delenv("TUNETUI_CONTROL_BLOCK")
    assert type(live.make_scheduler(vllm_config=config())) is Base
