"""Where vLLM is found, what its flags say, the argv of a start, and what of it a baseline may carry."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tunetui.core.knobs import Knob, MemoryFlag, Point, knob_argv
from tunetui.engine import command
from tunetui.engine.command import (
    API_SERVER_MODULE,
    CommandError,
    GivenFlags,
    VllmCommand,
    VllmNotFound,
    find_vllm,
    kept_environment,
    read_flags,
    serve_argv,
    server_environment,
    without_secrets,
)  # fmt: skip

POINT = Point(64, 2048, True, 0.9, False)


@pytest.fixture
def bin_path(tmp_path: Path) -> Path:
    """A folder for PATH that holds a `vllm`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    made = folder / "vllm"
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    return folder


def found(explicit: str | None, **environment: str) -> VllmCommand:
    return find_vllm(explicit, environment)


def test_the_command_is_looked_for_in_the_order_that_help_gives(bin_path: Path, tmp_path: Path) -> None:
    vllm, python = str(bin_path / "vllm"), sys.executable
    module = f"{python} -m {API_SERVER_MODULE}"
    assert found(module, TUNETUI_VLLM=vllm, PATH=str(bin_path)) == VllmCommand(tuple(module.split()), "--vllm")
    assert found(None, TUNETUI_VLLM=vllm, PATH=str(bin_path)) == VllmCommand((vllm, "serve"), "TUNETUI_VLLM")
    assert found(None, TUNETUI_VLLM="", PATH=str(bin_path)) == VllmCommand((vllm, "serve"), "PATH")
    assert found("vllm", PATH=str(bin_path)).words == ("vllm", "serve")
    assert found("vllm serve", PATH=str(bin_path)).words == ("vllm", "serve")


def test_without_a_command_the_module_of_this_python_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: name == "vllm" or None)
    assert found(None, PATH=str(tmp_path)) == VllmCommand((sys.executable, "-m", API_SERVER_MODULE), "this Python")
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(VllmNotFound, match="pip install vllm"):
        found(None, PATH=str(tmp_path))


@pytest.mark.parametrize("explicit", ["/nowhere/vllm serve", "nosuchcommand", "", "   ", 'an "open quote'])
def test_a_command_that_is_not_there_is_named(tmp_path: Path, explicit: str) -> None:
    with pytest.raises(VllmNotFound, match="--vllm"):
        found(explicit, PATH=str(tmp_path))
    if explicit:
        with pytest.raises(VllmNotFound, match="TUNETUI_VLLM"):
            found(None, PATH=str(tmp_path), TUNETUI_VLLM=explicit)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", GivenFlags()),
        ("--max-num-seqs 64", GivenFlags(max_num_seqs=64)),
        ("--max_num_seqs=64", GivenFlags(max_num_seqs=64)),
        ("--max-num-batched-tokens 4k", GivenFlags(max_num_batched_tokens=4000)),
        ("--max-num-batched-tokens 4K", GivenFlags(max_num_batched_tokens=4096)),
        ("--gpu-memory-utilization 0.8", GivenFlags(utilization=0.8)),
        ("--kv-cache-memory-bytes 2G", GivenFlags(kv_cache_bytes=2 * 2**30)),
        # vLLM still looks whether the share is free, and without the flag at its own default.
        (
            "--gpu-memory-utilization .5 --kv-cache-memory-bytes 2G",
            GivenFlags(utilization=0.5, kv_cache_bytes=2 * 2**30, rest=("--gpu-memory-utilization", "0.5")),
        ),
        ("--enable-chunked-prefill --no-enable-prefix-caching", GivenFlags(chunked_prefill=True, prefix_caching=False)),
        ("--no-enable-chunked-prefill", GivenFlags(chunked_prefill=False)),
        ("--max-num-seqs 8 --max-num-seqs 16", GivenFlags(max_num_seqs=16)),
        ("--max-model-len 4k", GivenFlags(max_model_len=4000, rest=("--max-model-len", "4k"))),
        ("--max-model-len auto", GivenFlags(rest=("--max-model-len", "auto"))),
        ("--max-model-len -1", GivenFlags(rest=("--max-model-len", "-1"))),
        ("--served-model-name a b", GivenFlags(served_model_name="a", rest=("--served-model-name", "a", "b"))),
        ("--dtype bfloat16 -tp 2 --x_y=1", GivenFlags(rest=("--dtype", "bfloat16", "-tp", "2", "--x_y=1"))),
    ],
)
def test_our_knobs_are_taken_out_of_the_flags(words: str, expected: GivenFlags) -> None:
    assert read_flags(words.split()) == expected


@pytest.mark.parametrize(
    ("words", "blocks", "several"),
    [
        ("--dtype bfloat16", "", False),
        ("--num-gpu-blocks-override 512 -tp 1", "512", False),
        ("--num_gpu_blocks_override=512 --tensor-parallel-size=2", "512", True),
        ("-tp 4", "", True),
    ],
)
def test_flags_that_decide_what_the_memory_figures_mean(words: str, blocks: str, several: bool) -> None:
    flags = read_flags(words.split())
    assert (flags.blocks_override, flags.several_cards) == (blocks, several)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--model m", "give --model to tunetui itself"),
        ("--host=0.0.0.0", "give --host to tunetui itself"),
        ("--port 1", "give --port to tunetui itself"),
        ("--max-num-seqs", "needs a value"),
        ("--max-num-seqs --dtype", "cannot read '--dtype'"),
        ("--max-num-seqs 0", "cannot read '0'"),
        ("--max-num-seqs -8", "cannot read '-8'"),
        ("--max-num-seqs 8.5", "cannot read '8.5'"),
        ("--max-num-batched-tokens infk", "cannot read 'infk'"),
        ("--gpu-memory-utilization 0", "cannot read '0'"),
        ("--gpu-memory-utilization 1.5", "cannot read '1.5'"),
        ("--gpu-memory-utilization nan", "cannot read 'nan'"),
        ("--kv-cache-memory-bytes x", "cannot read 'x'"),
        ("--max-model-len -7", "cannot read '-7'"),
    ],
)
def test_a_flag_that_cannot_be_read_is_named(words: str, sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        read_flags(words.split())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", ""),
        ("-dp 1", ""),
        ("-tp 4 --pipeline-parallel-size 2", ""),
        ("--data-parallel-size 2", "data parallelism"),
        ("--data_parallel_size=2", "data parallelism"),
        ("-dp 4", "data parallelism"),
        ("--scheduler-cls mine.Scheduler", "another scheduler class"),
        ("--scheduler_cls=mine.Scheduler", "another scheduler class"),
    ],
)
def test_what_leaves_no_single_scheduler_of_ours_is_said(words: str, reason: str) -> None:
    parallel = read_flags(words.split()).parallel
    assert parallel.startswith(reason)
    assert bool(parallel) == bool(reason)


@pytest.mark.parametrize(
    ("words", "model"),
    [(("vllm", "serve"), ["m"]), (("python", "-m", API_SERVER_MODULE), ["--model", "m"])],
)
def test_every_knob_is_explicit_in_an_argv_and_the_operators_flags_come_last(
    words: tuple[str, ...], model: list[str]
) -> None:
    def argv(live: bool) -> list[str]:
        made = VllmCommand(words, "test")
        rest = ("--dtype", "auto")
        return list(serve_argv(made, "m", "::1", 8001, POINT, MemoryFlag.UTILIZATION, rest, live))

    knobs = knob_argv(POINT, MemoryFlag.UTILIZATION)
    assert argv(live=False) == [*words, *model, "--host", "::1", "--port", "8001", *knobs, "--dtype", "auto"]
    assert set(argv(live=True)) - set(argv(live=False)) == {"--scheduler-cls", command.SCHEDULER}
    assert sum(knob.value in word for knob in Knob for word in knobs) == len(Knob)
    assert "--kv-cache-memory-bytes" in serve_argv(
        VllmCommand(words, ""), "m", "", 1, POINT, MemoryFlag.KV_BYTES, (), live=False
    )


def test_a_baseline_carries_what_a_start_depends_on_and_no_secret() -> None:
    kept = {"VLLM_USE_V1": "1", "CUDA_VISIBLE_DEVICES": "0", "HF_HOME": "/h", "OMP_NUM_THREADS": "4", "NCCL_P2P": "1"}
    left_out = {
        "VLLM_API_KEY": "s", "HF_TOKEN": "s", "VLLM_TOKEN": "s", "VLLM_my_secret": "s", "CUDA_PASSWORD": "s",
        "PATH": "/bin", "TUNETUI_API_KEY": "s", "TUNETUI_CONTROL_BLOCK": "/x", "HOME": "/root", "AWS_CREDENTIALS": "s",
    }  # fmt: skip
    assert kept_environment(kept | left_out) == kept


@pytest.mark.parametrize(
    ("argv", "kept", "left_out"),
    [
        ("vllm serve m --dtype auto", "vllm serve m --dtype auto", ()),
        ("vllm --api-key s --dtype auto", "vllm --dtype auto", ("--api-key",)),
        ("vllm --api_key=s --dtype auto", "vllm --dtype auto", ("--api-key",)),
        ("vllm --api-key s t", "vllm", ("--api-key",)),
        ("vllm --api-key s --hf-token t --x", "vllm --x", ("--api-key", "--hf-token")),
    ],
)
def test_an_argv_is_kept_without_its_secrets(argv: str, kept: str, left_out: tuple[str, ...]) -> None:
    assert without_secrets(argv.split()) == (tuple(kept.split()), left_out)


def test_only_our_package_and_the_block_come_into_the_servers_environment(tmp_path: Path) -> None:
    before = {"PYTHONPATH": "/theirs", "TUNETUI_CONTROL_BLOCK": "/old", "A": "1"}
    live = server_environment(before, tmp_path / "live", tmp_path / "block")
    assert live == {
        "PYTHONPATH": f"{tmp_path / 'live'}:/theirs", "TUNETUI_CONTROL_BLOCK": str(tmp_path / "block"), "A": "1"
    }  # fmt: skip
    assert server_environment(before, None, None) == {"PYTHONPATH": "/theirs", "A": "1"}
