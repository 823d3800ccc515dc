"""`tunetui baseline export` and `import`: what they print, write and refuse."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml
from store.test_baselines import EXAMPLE, document

from tunetui.cli import main as tunetui
from tunetui.cli.baseline import main
from tunetui.cli.baseline.exporting import FORMS
from tunetui.cli.options import Refused
from tunetui.engine.command import read_flags
from tunetui.store.exports import FORMATS

ARGV = ["vllm", "serve", "org/m", "--host", "127.0.0.1", "--port", "8230", "--max-num-seqs", "256", "--x", "a b"]


def saved(folder: Path, **tables: dict[str, Any]) -> str:
    """A session's folder with a baseline."""
    told = document() | {"launch": {"argv": ARGV}}
    (folder / "baseline.toml").write_text(tomli_w.dumps({k: v | tables.get(k, {}) if isinstance(v, dict) else v
                                                         for k, v in told.items()}))  # fmt: skip
    return str(folder)


def test_the_forms_that_the_command_names_are_those_that_are_there() -> None:
    assert tuple(FORMATS) == FORMS


@pytest.mark.parametrize("form", FORMS)
def test_each_form_goes_to_stdout_and_its_notes_to_stderr(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(EXAMPLE.parent), "--as", form]) == 0
    seen = capsys.readouterr()
    assert "toy-llama" in seen.out
    assert "tunetui: it was tuned on a CPU build of vLLM" in seen.err
    if form not in ("shell", "systemd"):
        assert list(yaml.safe_load_all(seen.out))  # JSON is YAML


def test_a_file_is_never_written_over_without_being_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = saved(tmp_path), tmp_path / "vllm.yaml"
    words = ["export", folder, "--as", "yaml", "--out", str(out)]
    assert main(words) == 0
    assert capsys.readouterr().out == ""
    assert yaml.safe_load(out.read_text("utf-8"))["x"] == "a b"
    out.write_text("mine")
    with pytest.raises(Refused, match=r"vllm.yaml is there already: .*--force") as caught:
        main(words)
    assert caught.value.code == 2
    assert out.read_text() == "mine"
    assert main([*words, "--force"]) == 0
    assert out.read_text("utf-8").startswith("# tunetui baseline: org/m on A100, vLLM 0.32.0: PASS")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--as", "xml"], "invalid choice"),
        ([], "required: --as"),
        (["--as", "yaml", "--out", "/nowhere/x.yaml"], "cannot write /nowhere/x.yaml"),
        (["--as", "shell", "--image", "x"], "--image goes with compose, k8s, helm"),
    ],
)
def test_exports_that_cannot_be_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(Refused, match=said) as caught:
        main(["export", saved(tmp_path), *words])
    assert caught.value.code == 2


def test_a_simulated_baseline_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path, engine={"simulated": True})
    with pytest.raises(Refused, match="--simulated-anyway"):
        main(["export", folder, "--as", "shell"])
    assert main(["export", folder, "--as", "shell", "--simulated-anyway"]) == 0
    assert "SIMULATED" in capsys.readouterr().out


def test_no_such_baseline(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot read"):
        main(["export", str(tmp_path / "nothing"), "--as", "shell"])


@pytest.mark.parametrize("form", ["shell", "yaml"])
def test_an_export_is_imported_as_the_command_of_a_session(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / ("vllm.yaml" if form == "yaml" else "vllm.sh")
    assert main(["export", saved(tmp_path), "--as", form, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["import", str(out)]) == 0
    seen = capsys.readouterr()
    words = shlex.split(seen.out)
    assert words[:4] == ["tunetui", "--model", "org/m", "--"]
    given = read_flags(words[4:])
    assert (given.max_num_seqs, given.max_num_batched_tokens, given.utilization) == (256, 8192, 0.92)
    assert given.rest == ("--x", "a b")
    assert "tunetui: --port is not taken over: it is tunetui's own option" in seen.err


def test_import_of_a_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--json", "--", *ARGV]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["flags"]) == ("org/m", ["--max-num-seqs", "256", "--x", "a b"])
    assert [one["what"] for one in told["not_taken"]] == ["--host", "--port"]
    assert main(["import", "--json", "--", shlex.join(ARGV)]) == 0
    assert json.loads(capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.yaml", "model: m\nx:\n", "x.yaml: line 2: x has no value"),
        ("x.yaml", "model: m\nmax-num-seqs: many\n", "x.yaml: cannot read 'many' as the value of --max-num-seqs"),
        ("x.sh", "echo\n", "x.sh: no vLLM command in it"),
        ("x.toml", "schema = 2\n", "start there with tunetui --from"),
        ("x.sh", b"\xff\xfe", "is not text"),
    ],
)
def test_what_cannot_be_imported_is_a_sentence(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(Refused, match=said) as caught:
        main(["import", str(path)])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a FILE, or a command"),
        (["x.sh", "--", "vllm", "serve", "m"], "give a FILE, or a command"),
        (["--", "ls", "-l"], "this is no vLLM command"),
        (["/nowhere/x.sh"], "cannot read /nowhere/x.sh"),
        (["--", "vllm", "serve", "m", "--max-num-seqs"], "--max-num-seqs needs a value"),
    ],
)
def test_words_that_say_nothing_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(Refused, match=said):
        main(["import", *words])


def test_the_console_script_says_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tunetui(["baseline", "import", "--", "ls"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
