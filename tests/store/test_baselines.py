"""A baseline that was written loads to the same value; one that was tampered with is refused with file and key."""

import os
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.core.baseline import TABLES, Baseline
from tunetui.store.baselines import StoreError, make_session_folder, read_baseline, write_baseline

# TOML has no lone surrogates, and NUL cannot stand in an argument.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES = st.one_of(TEXT, st.integers(-(2**60), 2**60), st.booleans(), st.floats(allow_nan=False))
TABLE = st.dictionaries(TEXT.filter(bool), VALUES, max_size=4)


def baseline(**changes: object) -> Baseline:
    empty: dict[str, dict[str, object]] = {name: {} for name in TABLES}
    empty["launch"] = {"argv": ["vllm", "serve", "m"], "environment": {}}
    return Baseline(**{**empty, **changes})  # type: ignore[arg-type]


@given(knobs=TABLE, result=TABLE, argv=st.lists(TEXT, max_size=5))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, knobs: object, result: object, argv: list[str]) -> None:
    folder = tmp_path_factory.mktemp("b")
    written = baseline(knobs=knobs, result=result, launch={"argv": argv, "environment": {}})
    path = write_baseline(folder, written)
    assert read_baseline(path) == written
    assert tomllib.loads(path.read_text("utf-8"))["launch"]["argv"] == argv


def test_the_example_in_the_repository_loads() -> None:
    example = read_baseline(Path(__file__).parents[2] / "sessions" / "example-toy-llama" / "baseline.toml")
    assert example.result["confirmed"] is True
    assert example.result["live"]["kv_blocks"] == example.result["confirmation"]["kv_blocks"] == 256
    assert example.knobs["max-num-seqs"] == 10


def test_unknown_keys_are_kept(tmp_path: Path) -> None:
    path = write_baseline(tmp_path, baseline(extra={"note": "ours"}))
    assert read_baseline(path).extra == {"note": "ours"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = 1\n", r"\[model\] is missing"),
        ("schema = 99\n", "schema is 99"),
        ("schema = ", "not TOML"),
        ("schema = 1\n" + "".join(f"[{t}]\n" for t in TABLES), "launch.argv"),
        (
            "schema = 1\n" + "".join(f"[{t}]\n" + ("argv = 'x'\n" if t == "launch" else "") for t in TABLES),
            "launch.argv",
        ),
    ],
)
def test_damaged_files_are_refused_with_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "baseline.toml"
    path.write_text(text)
    with pytest.raises(StoreError, match=said) as caught:
        read_baseline(path)
    assert str(path) in str(caught.value)


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
