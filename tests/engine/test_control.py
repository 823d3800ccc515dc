"""Our end of live control: what is laid out for a start, and what an ask writes."""

import os
from pathlib import Path

from tunetui_live.block import Hello, ServerBlock

from tunetui.core.knobs import MemoryFlag, Point
from tunetui.engine.control import LiveControl, facts_from_hello, lay_out

CEILING = Point(256, 8192, True, 0.92, True)
HELLO = Hello(
    1, 1, 1000, 16, 128, 2**21, 256, 8192, 2048, 2050, 3, 1, 16, 1, 64, "0.32.0", "AsyncScheduler", *("",) * 5
)


def test_nothing_but_our_package_comes_onto_the_servers_path(tmp_path: Path) -> None:
    files = lay_out(tmp_path)
    assert os.listdir(files.python_path) == ["tunetui_live"]
    assert {"__init__.py", "block.py", "scheduler.py", "start.py"} == set(
        os.listdir(files.python_path / "tunetui_live")
    )


def test_an_ask_carries_the_point_the_held_blocks_and_the_threshold(tmp_path: Path) -> None:
    control = LiveControl(lay_out(tmp_path))
    server = ServerBlock.open(str(tmp_path / "control.block"))
    server.say_hello(HELLO)
    hello = control.hello()
    assert hello is not None
    facts = facts_from_hello(hello, "m", CEILING, MemoryFlag.UTILIZATION, 2**31 * 10, "A100")
    assert (facts.live, facts.asynchronous, facts.base_class, facts.tokens_per_decode) == (
        True,
        True,
        "AsyncScheduler",
        3,
    )
    assert control.ask(Point(8, 4096, True, 0.90, True, 64), facts) == 1
    targets = server.targets()
    assert targets is not None
    # 0.02 of 20 GiB in blocks of 2 MiB
    assert targets == (1, 8, 4096, 1, 64, 205)
    assert control.ask(Point(9, 4096, False, 0.90, True), facts) == 2


def test_a_threshold_that_vllm_chose_and_keeps_is_what_is_in_force() -> None:
    own = HELLO._replace(long_prefill_token_threshold=81, threshold_restart="vLLM sets it for several partial prefills")
    for hello, threshold in ((own, 81), (HELLO, 0)):
        facts = facts_from_hello(hello, "m", CEILING, MemoryFlag.UTILIZATION, 0, "A100")
        assert facts.ceiling.long_prefill_token_threshold == threshold


def test_a_block_that_is_rubbish_is_lost_not_raised(tmp_path: Path) -> None:
    control = LiveControl(lay_out(tmp_path))
    with open(tmp_path / "control.block", "r+b") as file:
        file.seek(1024)
        file.write(b"\x01" * 64)
    assert control.in_force() is None
    assert "half-written" in control.lost


def test_several_engine_cores_mean_no_live_control(tmp_path: Path) -> None:
    control = LiveControl(lay_out(tmp_path))
    ServerBlock.open(str(tmp_path / "control.block")).say_hello(HELLO)
    (tmp_path / "control.block.1").touch()
    assert control.hello() == HELLO
    (tmp_path / "control.block.2").touch()
    assert control.hello() is None
    assert "2 engine cores" in control.lost
