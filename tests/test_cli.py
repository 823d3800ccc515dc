"""The command line: bad input is one sentence and an exit code, good input is the session that was asked for."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from engine.fakes import FAKE

from tunetui import cli
from tunetui.cli import tune
from tunetui.core.load import Load
from tunetui.drive.settings import Settings, ceiling_of, first_point, least_ceiling
from tunetui.engine.gpu import GpuReading

VLLM = f"{sys.executable} {FAKE}"


def asked(*words: str) -> Settings:
    cut = words.index("--") if "--" in words else len(words)
    return tune.settings_from(tune.parser().parse_args(words[:cut]), words[cut + 1 :])


@pytest.fixture(autouse=True)
def fake_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNETUI_VLLM", VLLM)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model of 1,024 tokens."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 1024}))
    return str(folder)


BAD = [
    ("", 2, "give --model MODEL"),
    ("--model m --url http://h", 2, "give --model MODEL"),
    ("--model", 2, "expected one argument"),
    ("--demo nosuch", 2, "no demo 'nosuch': give case, 7b-24gb, 7b-80gb, 70b-4x80gb"),
    ("--demo --model m", 2, "a demo has its own model"),
    ("--demo case --url http://h", 2, "a demo has its own model"),
    ("--model m --nosuch", 2, "unrecognized arguments: --nosuch"),
    ("--model m --mod x", 2, "unrecognized"),
    ("--model /nowhere/model", 2, "no model at /nowhere/model"),
    ("--model ./nowhere", 2, "no model at ./nowhere"),
    ("--model ~/nosuchmodel", 2, "no model at ~/nosuchmodel"),
    ("--model m --vllm /nowhere/vllm", 3, "no command '/nowhere/vllm'"),
    ("--model m --vllm 'x", 3, "--vllm"),
    ("--model m --port 0", 2, "port 0 is not a port"),
    ("--model m --port 65536", 2, "port 65536 is not a port"),
    ("--model m --port x", 2, "invalid int value"),
    ("--model m --host no.such.host.invalid", 3, "no address of this machine"),
    ("--model m --rate 0", 2, "rate must be above 0"),
    ("--model m --rate -1", 2, "rate must be above 0"),
    ("--model m --rate nan", 2, "rate must be above 0"),
    ("--model m --rate 1 --concurrency 1", 2, "not both"),
    ("--model m --concurrency 0", 2, "concurrency must be 1 or more"),
    ("--model m --prompt-tokens abc", 2, "cannot read the token count"),
    ("--model m --prompt-tokens 0", 2, "must be 1 or more"),
    ("--model m --output-tokens 9-3", 2, "must be 1 or more and rise"),
    ("--model m --slo ttft", 2, "ttft"),
    ("--model m --slo ttft:fast", 2, "fast"),
    ("--model m --slo speed:10", 2, "speed"),
    ("--model m --slo ttft:-1", 2, "ttft"),
    ("--model m --percentile 94", 2, "invalid choice"),
    ("--model m --seed -1", 2, "--seed must be 0 or more"),
    ("--model m --episode-requests 0", 2, "--episode-requests must be from 1"),
    ("--model m --episode-requests 99999999", 2, "--episode-requests must be from 1"),
    ("--model m --max-num-seqs-ceiling 0", 2, "--max-num-seqs-ceiling must be from 1"),
    ("--model m --max-num-batched-tokens-ceiling 0", 2, "--max-num-batched-tokens-ceiling must be from 1"),
    ("--model m --max-num-seqs-ceiling 8 -- --max-num-seqs 16", 2, "above --max-num-seqs-ceiling 8"),
    ("--model m --max-num-batched-tokens-ceiling 64", 2, "is below the 256"),
    ("--model m -- --max-num-seqs 64 --max-num-batched-tokens 32", 2, "below --max-num-seqs 64"),
    ("--model m -- --no-enable-chunked-prefill --max-model-len 4096 --max-num-batched-tokens 1024", 2, "4096"),
    ("--model m -- --max-model-len 256", 2, "do not fit the model's 256"),
    ("--model m -- --max-num-seqs 0", 2, "cannot read '0'"),
    ("--model m -- --max-num-seqs", 2, "needs a value"),
    ("--model m -- --port 1", 2, "give --port to tunetui itself"),
    ("--url ftp://h", 2, "cannot attach"),
    ("--url localhost:8000", 2, "cannot attach"),
    ("--url http://", 2, "cannot attach"),
    ("--url http://h:x", 2, "cannot attach"),
    ("--url http://[h", 2, "cannot attach"),
    ("--url http://h -- --max-num-seqs 8", 2, "go with --model"),
]


@pytest.mark.parametrize(("line", "code", "sentence"), BAD)
def test_bad_input_is_one_sentence_and_an_exit_code(
    line: str, code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tune, "refuse_unusable_terminal", lambda: None)
    sessions = tmp_path / "sessions"
    words = line.split()
    with pytest.raises(SystemExit) as left:
        cli.main([*words[:1], *words[1:]] if "--" in words else [*words, *(["--sessions-dir", str(sessions)])])
    said = capsys.readouterr()
    assert left.value.code == code
    assert said.out == ""
    assert said.err.startswith("tunetui: ")
    assert said.err.count("\n") == 1
    assert sentence in said.err
    assert not sessions.exists()


def test_a_held_port_is_named_with_its_holder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "refuse_unusable_terminal", lambda: None)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        with pytest.raises(SystemExit) as left:
            cli.main(["--model", "m", "--port", port, "--sessions-dir", str(tmp_path / "s")])
    assert left.value.code == 3
    assert f"port {port} is held by pid" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_sessions_folder_that_cannot_be_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "refuse_unusable_terminal", lambda: None)
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(SystemExit) as left:
        cli.main(["--url", "http://127.0.0.1:9", "--sessions-dir", str(taken)])
    assert left.value.code == 2
    assert "--sessions-dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "out"),
    [(["--version"], 0, "tunetui "), (["--help"], 0, "exit codes"), (["--model", "m"], 2, "needs a terminal")],
)
def test_the_command_itself_without_a_terminal(words: list[str], code: int, out: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tunetui", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        cwd=tmp_path, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert out in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_defaults_are_the_ones_that_help_gives() -> None:
    settings = asked("--model", "org/name")
    assert settings.load == Load(rate_rps=4.0)
    assert (settings.episode_requests, settings.slo.percentile, settings.port) == (400, 95, 8000)
    assert [(o.metric.value, o.limit_s) for o in settings.slo.objectives] == [("ttft", 0.6), ("tpot", 0.08)]
    assert (str(settings.workload.prompt), str(settings.workload.output)) == ("64-512", "32-256")
    assert not settings.attached
    assert settings.command is not None
    assert settings.command.source == "TUNETUI_VLLM"


def test_options_and_flags_become_the_session(model: str) -> None:
    settings = asked(
        "--model", model, "--concurrency", "64", "--slo", "e2el:2000", "--percentile", "99", "--prompt-tokens", "100",
        "--output-tokens", "10-20", "--seed", "7", "--port", "8123", "--max-num-seqs-ceiling", "128",
        "--", "--max-num-seqs", "32", "--no-enable-prefix-caching", "--dtype", "bfloat16",
    )  # fmt: skip
    assert settings.model == model
    assert settings.load == Load(concurrency=64)
    assert (settings.episode_requests, settings.workload.seed, settings.port) == (2000, 7, 8123)
    assert settings.given.rest == ("--dtype", "bfloat16")
    ceiling = ceiling_of(settings, ())
    first = first_point(settings, ceiling, ())
    assert (ceiling.max_num_seqs, first.max_num_seqs) == (128, 32)
    assert not first.prefix_caching


def test_without_chunked_prefill_ceiling_and_first_point_hold_the_models_length() -> None:
    settings = asked("--model", "m", "--", "--no-enable-chunked-prefill", "--max-model-len", "32768")
    ceiling = ceiling_of(settings, ())
    first = first_point(settings, ceiling, ())
    assert ceiling.max_num_batched_tokens == first.max_num_batched_tokens == 32768
    assert not first.chunked_prefill


A100 = GpuReading(0, "A100", 80 * 2**30, 0, 0)


@pytest.mark.parametrize(
    ("flags", "gpus", "least"),
    [
        ("", (A100,), (32, 2048, 0.5)),
        ("", (), (32, 2048, 0.1)),
        ("--max-num-seqs 300 --max-num-batched-tokens 4096 --gpu-memory-utilization 0.85", (A100,), (300, 4096, 0.85)),
        ("--max-num-seqs 4000", (A100,), (4000, 4000, 0.5)),
        ("--no-enable-chunked-prefill --max-model-len 6000", (A100,), (32, 6000, 0.5)),
        ("--no-enable-chunked-prefill", (A100,), (32, 8192, 0.5)),  # the length is not known: no lower
        ("--kv-cache-memory-bytes 2G", (A100,), (32, 2048, 2.0**31)),
    ],
)
def test_a_ceiling_is_never_lowered_below_what_was_asked_for(
    flags: str, gpus: tuple[GpuReading, ...], least: tuple[int, int, float]
) -> None:
    settings = asked("--model", "m", "--", *flags.split())
    found = least_ceiling(settings, ceiling_of(settings, gpus), gpus)
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.memory) == least


def test_a_home_folder_is_resolved_and_a_url_has_no_trailing_slash(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path(model).parent))
    assert asked("--model", "~/model").model == model
    settings = asked("--url", "http://127.0.0.1:8000/")
    assert settings.attached
    assert settings.url == "http://127.0.0.1:8000"


def test_a_demo_is_a_session_like_any_other() -> None:
    case = asked("--demo")
    assert case.simulated
    assert case.command is not None
    assert case.command.words[1:] == ("-m", "tunetui.demo", "--profile", "case")
    assert (case.load, case.follows_seqs, case.episode_requests) == (Load(concurrency=256), True, 200)
    assert case.cards is not None
    point = first_point(case, ceiling_of(case, case.cards), case.cards)
    assert (point.max_num_seqs, point.max_num_batched_tokens, point.chunked_prefill) == (256, 4096, False)
    own = asked(
        "--demo", "70b-4x80gb", "--rate", "3", "--slo", "ttft:99", "--prompt-tokens", "7", "--", "--max-num-seqs", "9"
    )
    assert (own.load, own.follows_seqs, len(own.cards or ())) == (Load(3.0), False, 4)
    assert own.slo.objectives[0].limit_s == 0.099
    assert own.workload.prompt.largest == 7
    assert own.given.max_num_seqs == 9


def test_a_demo_takes_another_port_where_its_own_is_taken() -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", tune.PORT))
            sock.listen()
        except OSError:
            pass  # somebody else holds it: as good
        assert asked("--demo").port != tune.PORT
