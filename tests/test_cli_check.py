"""`tunetui baseline check` on the demo's server, and sessions that begin from a baseline."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from drive.conftest import sessions  # noqa: F401 (a fixture)
from drive.sessions import Sessions, offspring, until
from drive.test_demo import live
from engine.fakes import free_port
from store.test_baselines import document

from tunetui.cli import tune
from tunetui.cli.baseline import main
from tunetui.cli.baseline.starting import episode_words, merged, with_baseline, words_of
from tunetui.cli.options import Refused
from tunetui.core.baseline import Baseline, episode_table
from tunetui.core.load import Arrival, Load, Ramp
from tunetui.core.workload import Workload, parse_lengths
from tunetui.store.baselines import read_baseline


@pytest.fixture
async def accepted(sessions: Sessions) -> Path:  # noqa: F811
    """A baseline of the demo, made by a session that has ended."""
    workload = Workload(parse_lengths("100-200"), parse_lengths("20-40"))
    driver = await live(sessions, load=Load(20.0), workload=workload, episode_requests=60)
    await until(lambda: driver.state.rows and driver.state.rows[-1].measurement.complete)
    driver.accept(confirm=False)
    path = Path(await until(lambda: driver.state.baseline_path))
    await sessions.end(driver)
    return path


def with_result(path: Path, folder: Path, **result: Any) -> str:
    """The same baseline with other figures."""
    tables = tomllib.loads(path.read_text("utf-8"))
    tables["result"] |= result
    other = folder / "other.toml"
    other.write_text(tomli_w.dumps(tables))
    return str(other)


def check(*words: str) -> int:
    """In this process, away from the event loop of the test."""
    return main(["check", "--port", str(free_port()), *words])


def test_a_baseline_holds_or_has_drifted(
    accepted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNETUI_DEMO_START_S", "0.2")
    before = offspring()
    answer = tmp_path / "answer.json"
    assert check(str(accepted), "--tolerance", "100", "--json", str(answer)) == 0
    assert capsys.readouterr().out.startswith("HOLDS   mistralai/")
    told = json.loads(answer.read_text("utf-8"))
    assert told["answer"] == "HOLDS"
    assert [one["name"] for one in told["figures"]] == ["P95 TTFT", "P95 TPOT", "goodput", "throughput"]
    drifted = with_result(accepted, tmp_path, ttft_ms=0.5, goodput_rps=500.0)
    assert check(drifted, "--tolerance", "100") == 1
    said = capsys.readouterr().out
    assert said.startswith("DRIFTED")
    assert "P95 TTFT 0.5 -> " in said
    asyncio.run(until(lambda: not offspring() - before))


def test_what_cannot_be_checked_is_refused_in_a_sentence(tmp_path: Path) -> None:
    told = Baseline.from_tables(document())
    path = tmp_path / "baseline.toml"

    def saved(**tables: Any) -> str:
        path.write_text(tomli_w.dumps(told.to_tables() | tables))
        return str(path)

    with pytest.raises(Refused, match=r"cannot read .*nowhere"):
        check(str(tmp_path / "nowhere"))
    with pytest.raises(Refused, match="give it with --trace"):
        check(saved(episode={"requests": 9, "speed": 1.0, "trace": "mooncake"}))
    with pytest.raises(Refused, match="--yes-load"):
        check(saved(), "--url", "http://10.0.0.1:8000")
    with pytest.raises(Refused, match="--tolerance is in percent"):
        check(saved(), "--tolerance", "0")
    with pytest.raises(Refused, match="no command 'no-such-vllm'"):
        check(saved(), "--vllm", "no-such-vllm")
    with pytest.raises(Refused, match=r"127\.0\.0\.1:1"):
        check(saved(), "--url", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "load",
    [
        Load(4.5), Load(concurrency=64), Load(3.0, arrival=Arrival.GAMMA, burstiness=0.5),
        Load(2.0, ramp=Ramp(20.0, exponential=True)), Load(1.0, arrival=Arrival.CONSTANT), Load(1.0, ramp=Ramp(0.25)),
    ],
)  # fmt: skip
def test_a_session_from_a_baseline_has_its_load_goal_and_point(load: Load) -> None:
    workload = Workload(parse_lengths("64-384"), parse_lengths("16-48"), seed=7)
    told = Baseline.from_tables(document() | {"episode": episode_table(load, workload.asked, 5, 123)})
    options, flags = words_of(told)
    settings = tune.settings_from(tune.parser().parse_args([*options, "--vllm", "/bin/true"]), flags)
    assert settings.load == load
    assert settings.workload == workload
    assert settings.slo == told.goal
    assert settings.episode_requests == 123
    assert settings.model == "m"
    given = settings.given
    assert (given.max_num_seqs, given.max_num_batched_tokens, given.chunked_prefill) == (256, 8192, True)
    assert (given.utilization, given.prefix_caching, given.rest) == (0.92, True, ())


def test_what_the_operator_gives_takes_the_baselines_place(tmp_path: Path) -> None:
    told = document()
    told["launch"]["argv"] = ["/opt/vllm", "serve", "m", "--host", "::1", "--port=9", "--max-num-seqs", "9", "--dtype",
                              "half", "--scheduler-cls", "x.Y"]  # fmt: skip
    path = tmp_path / "baseline.toml"
    path.write_text(tomli_w.dumps(told))
    words = with_baseline(["--from", str(path), "--concurrency", "8", "--slo", "tpot:70", "--", "--max-num-seqs", "64"])
    cut = words.index("--")
    options = tune.parser().parse_args([*words[:cut], "--vllm", "/bin/true"])
    settings = tune.settings_from(options, words[cut + 1 :])
    assert settings.load == Load(concurrency=8)
    assert str(settings.slo) == "tpot:70"
    assert settings.given.max_num_seqs == 64
    assert settings.given.max_num_batched_tokens == 8192  # its argv lacked it; its knobs have it
    assert settings.given.rest == ("--dtype", "half")
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert with_baseline(["--model", "m"]) == ["--model", "m"]
    for wrong in (["--from"], ["--from", "--model"], ["--from=/nowhere"]):
        with pytest.raises(Refused, match=r"--from needs|cannot read"):
            with_baseline(wrong)


def test_words_are_merged_by_what_they_say() -> None:
    ours = ["--model", "a", "--slo", "ttft:1", "tpot:2", "--rate", "4.0", "--seed", "0"]
    assert merged(ours, ["--concurrency=3"]) == ["--model", "a", "--slo", "ttft:1", "tpot:2", "--seed", "0",
                                                 "--concurrency=3"]  # fmt: skip
    assert merged(ours, ["--url", "http://x"])[:2] == ["--slo", "ttft:1"]
    assert merged(ours, ["--seed", "5"])[-2:] == ["--seed", "5"]
    assert "0" not in merged(ours, ["--seed", "5"])
    assert "--rate" not in merged(ours, ["--trace", "today.jsonl"])  # it has times of its own
    assert merged(ours, ["--trace", "today.jsonl", "--rate", "9"])[-2:] == ["--rate", "9"]


def test_the_example_in_the_repository_can_begin_a_session() -> None:
    example = read_baseline(Path(__file__).parents[1] / "sessions" / "example-toy-llama" / "baseline.toml")
    options, flags = words_of(example)
    assert options[:2] == ["--model", "toy-llama"]
    assert episode_words(example)[-2:] == ["--rate", "6.0"]
    assert flags[-1] == "--enforce-eager" or flags[-2:] == ["--long-prefill-token-threshold", "0"]
