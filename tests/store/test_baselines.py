"""A baseline that was written loads to the same value; one that was tampered with is refused with file and key."""

import json
import os
import stat
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from tunetui.core.baseline import TABLES, Baseline, episode_table
from tunetui.core.knobs import Point
from tunetui.core.load import Arrival, Load, Ramp
from tunetui.core.slo import parse_slo
from tunetui.store.baselines import StoreError, make_session_folder, read_baseline, write_baseline
from tunetui.store.schema import json_schema

EXAMPLE = Path(__file__).parents[2] / "sessions" / "example-toy-llama" / "baseline.toml"
# TOML has no lone surrogates, and NUL cannot stand in an argument.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES = st.one_of(TEXT, st.integers(-(2**60), 2**60), st.booleans(), st.floats(allow_nan=False))
TABLE = st.dictionaries(TEXT.filter(bool), VALUES, max_size=4)


def document() -> dict[str, Any]:
    """A whole baseline with no more than it must have."""
    return {
        "schema": 2,
        "model": {"name": "m"},
        "engine": {"version": "0.32.0"},
        "hardware": {"name": "A100"},
        "knobs": {
            "max-num-seqs": 256, "max-num-batched-tokens": 8192, "enable-chunked-prefill": True,
            "gpu-memory-utilization": 0.92, "enable-prefix-caching": True,
        },
        "launch": {"argv": ["vllm", "serve", "m"]},
        "workload": {},
        "episode": {"requests": 400, "rate_rps": 4.0},
        "slo": {"percentile": 95, "ttft_ms": 600.0},
        "result": {"verdict": "PASS", "confirmed": True},
    }  # fmt: skip


def baseline(**more: dict[str, Any]) -> Baseline:
    """With more keys in some tables."""
    tables = document()
    return Baseline.from_tables(tables | {name: tables.get(name, {}) | added for name, added in more.items()})


@given(model=TABLE, result=TABLE, argv=st.lists(TEXT, max_size=5), note=TEXT)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, model: Any, result: Any, argv: list[str], note: str
) -> None:
    folder = tmp_path_factory.mktemp("b")
    odd = {"model": {"name": note}, "launch": {"argv": argv}, "extra": {"note": note, **model}}
    tables = document()
    result = {f"our_{key}": value for key, value in result.items()}
    written = Baseline.from_tables(tables | odd | {"result": result | tables["result"]})
    path = write_baseline(folder, written)
    assert read_baseline(path) == written
    assert tomllib.loads(path.read_text("utf-8"))["launch"]["argv"] == argv


def test_the_example_in_the_repository_loads() -> None:
    example = read_baseline(EXAMPLE)
    assert example.result["confirmed"] is True
    assert example.result["live"]["kv_blocks"] == example.result["confirmation"]["kv_blocks"] == 256
    assert example.point.max_num_seqs == 10


def test_a_baseline_of_the_first_schema_is_upgraded() -> None:
    assert tomllib.loads(EXAMPLE.read_text("utf-8"))["schema"] == 1
    example = read_baseline(EXAMPLE)
    assert example.to_tables()["schema"] == 2
    assert example.point == Point(10, 2048, True, 536870912.0, True, 0)
    assert example.load == Load(6.0)
    assert example.goal == parse_slo(["ttft:1000", "tpot:60"])
    assert example.episode["requests"] == 120
    assert (example.episode["prompt_tokens"], example.episode["output_tokens"]) == ("64-384", "16-48")


@pytest.mark.parametrize(
    "load",
    [
        Load(4.5), Load(concurrency=64), Load(speed=2.0), Load(3.0, arrival=Arrival.GAMMA, burstiness=0.5),
        Load(2.0, ramp=Ramp(20.0, exponential=True)), Load(1.0, arrival=Arrival.CONSTANT),
    ],
)  # fmt: skip
def test_the_load_of_an_episode_comes_back(tmp_path: Path, load: Load) -> None:
    told = episode_table(load, {"seed": 3, "endpoint": "chat"}, cut=7, requests=400)
    found = read_baseline(write_baseline(tmp_path, Baseline.from_tables(document() | {"episode": told})))
    assert found.load == load
    assert (found.episode["seed"], found.episode["cut"], found.episode["requests"]) == (3, 7, 400)


def test_unknown_keys_are_kept(tmp_path: Path) -> None:
    path = write_baseline(tmp_path, baseline(extra={"note": "ours"}, result={"mood": "good"}))
    found = read_baseline(path)
    assert found.extra == {"extra": {"note": "ours"}}
    assert found.result["mood"] == "good"


def without(table: str, key: str = "") -> Callable[[dict[str, Any]], None]:
    return lambda tables: tables[table].pop(key) if key else tables.pop(table)


def with_(table: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda tables: tables[table].update({key: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *((without(table), f"{table} is missing") for table in TABLES),
        (without("model", "name"), "model.name is missing"),
        (without("engine", "version"), "engine.version is missing"),
        (without("knobs", "max-num-seqs"), "knobs.max-num-seqs is missing"),
        (without("launch", "argv"), "launch.argv is missing"),
        (without("slo", "percentile"), "slo.percentile is missing"),
        (without("result", "verdict"), "result.verdict is missing"),
        (without("episode", "requests"), "episode.requests is missing"),
        (without("knobs", "gpu-memory-utilization"), "one of gpu-memory-utilization and kv-cache-memory-bytes"),
        (with_("knobs", "kv-cache-memory-bytes", 1), "one of gpu-memory-utilization and kv-cache-memory-bytes"),
        (with_("knobs", "max-num-seqs", "many"), "knobs.max-num-seqs: expected int, got str"),
        (with_("knobs", "max-num-seqs", 0), "knobs.max-num-seqs: expected int >= 1"),
        (with_("knobs", "gpu-memory-utilization", 1.5), "knobs.gpu-memory-utilization: expected float <= 1"),
        (with_("knobs", "enable-chunked-prefill", 1), "knobs.enable-chunked-prefill: expected bool, got int"),
        (with_("launch", "argv", "vllm serve"), "launch.argv: expected array, got str"),
        (with_("launch", "argv", ["vllm", 3]), r"launch.argv\[1\]: expected str, got int"),
        (with_("slo", "percentile", 42), "slo.percentile: invalid enum value 42"),
        (with_("slo", "ttft_ms", -1), "slo.ttft_ms: expected float > 0"),
        (with_("result", "verdict", "GOOD"), "result.verdict: invalid enum value 'GOOD'"),
    ],
)
def test_files_made_by_hand_with_errors_are_refused_with_file_key_and_reason(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    tables = document()
    change(tables)
    path = tmp_path / "baseline.toml"
    path.write_text(tomli_w.dumps(tables))
    with pytest.raises(StoreError, match=said) as caught:
        read_baseline(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = 99\n", "schema is 99, this tunetui reads 1 and 2: a newer tunetui wrote it"),
        ("x = 1\n", "schema is None, .*: it is no baseline"),
        ("schema = ", "not TOML"),
        ("schema = 1\n", "is missing"),
        ("schema = 1\nknobs = 3\nworkload = 'x'\nresult = []\n", "missing|expected"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "baseline.toml"
    path.write_text(text)
    with pytest.raises(StoreError, match=said) as caught:
        read_baseline(path)
    assert str(path) in str(caught.value)


def test_the_json_schema_that_ships_is_the_one_that_is_checked() -> None:
    shipped = json.loads((files("tunetui.store") / "baseline.schema.json").read_text("utf-8"))
    assert shipped == json_schema()


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    path = write_baseline(tmp_path, baseline())
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_baseline(tmp_path, baseline(knobs={"x": object()}))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["baseline.toml"]


def test_session_folders_are_private_and_numbered(tmp_path: Path) -> None:
    first, second = (make_session_folder(tmp_path / "s", "m") for _ in range(2))
    assert (first.name, second.name) == ("m", "m-2")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700


def test_a_sessions_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(StoreError, match="--sessions-dir"):
        make_session_folder(tmp_path / "f", "m")
