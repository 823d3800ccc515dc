"""`tunetui workload`: the page, the JSON, and one sentence for what cannot be shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunetui import cli
from tunetui.cli import workload


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Three hundred requests, half a second apart, with a long prompt now and then and one broken line."""
    file = tmp_path / "load.jsonl"
    lines = [
        json.dumps(
            {
                "timestamp": n * 500,
                "input_length": 9000 if n % 30 == 0 else 1000,
                "output_length": 1 + n % 200,
                "hash_ids": [0, *range(18 * n + 1, 18 * n + (18 if n % 30 == 0 else 2))],
            }
        )
        for n in range(300)
    ]
    file.write_text("\n".join([*lines[:100], '{"timestamp": 1}', *lines[100:]]))
    return file


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert workload.main(list(words)) == 0
    return capsys.readouterr().out


def test_the_page(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, str(recording)).splitlines()
    assert lines[0] == f"{recording}: mooncake jsonl, 300 requests over 2.5 min"
    assert lines[1] == "  skipped 1 broken of 301: line 101: input_length is missing"
    text = "\n".join(lines)
    assert "prompt tokens       1266.7      1000      1000      9000" in text
    assert "request rate      2 requests/s" in text
    assert "burstiness        not in the recording" in text  # all gaps are equal
    assert "long prompts      3.33% above 4 times the median" in text
    assert "shared prefixes   40.3% of the prompt tokens" in text  # 299 * 512 of 380000
    assert "turns             not in the recording" in text
    bars = [line for line in lines if "█" in line and " - " in line]
    assert any(line.startswith("      1000 - 2000 " + "█" * 40 + "       290  96.7%") for line in bars)
    assert any("5000 - 10000 █▍ " in line and line.endswith("        10   3.3%") for line in bars)
    assert any("0.5 - 1 " + "█" * 40 + "       299 100.0%" in line for line in bars)
    assert lines[-1].startswith("|█")
    assert len(lines[-1]) == 62
    assert max(map(len, lines[1:])) < 80


def test_json_has_the_features_and_the_histograms(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(shown(capsys, str(recording), "--json", "-"))
    assert (data["format"], data["requests"]) == ("mooncake jsonl", 300)
    assert data["broken"] == {"lines": 1, "of": 301, "first": ["line 101: input_length is missing"]}
    assert data["features"]["rate_rps"] == 2.0
    assert data["features"]["shared_prefix_share"] == round(299 * 512 / 380_000, 4)
    assert "turns_per_conversation" not in data["features"]
    assert data["histograms"]["prompt_tokens"] == {
        "edges": [1000, 2000, 5000, 10000], "counts": [290, 0, 10], "below": 0
    }  # fmt: skip
    assert data["histograms"]["gaps_s"]["counts"] == [299]
    rates = data["histograms"]["rate_rps"]
    assert sum(rates["values"]) * rates["bin_s"] == pytest.approx(300)


def test_json_into_a_file_leaves_the_page(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, str(recording), "--json", str(tmp_path / "out.json"))
    assert page == shown(capsys, str(recording))
    assert json.loads((tmp_path / "out.json").read_text())["requests"] == 300


def test_what_a_recording_does_not_tell_is_not_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "texts"
    file.write_text('{"prompt": "hello there"}\n' * 3)
    page = shown(capsys, str(file))
    assert "3 requests, without times" in page
    assert "prompts without output_tokens, taken as 256: 3" in page
    assert "estimates from the texts" in page
    data = json.loads(shown(capsys, str(file), "--json", "-"))
    assert not {"rate_rps", "burstiness", "shared_prefix_share"} & data["features"].keys()
    assert set(data["histograms"]) == {"prompt_tokens", "output_tokens"}
    file.write_text('{"tunetui_trace": 1, "lengths_only": true}\n' + '{"input_length": 5, "output_length": 6}\n' * 3)
    assert "lengths only: their order and correlation are not of the original" in shown(capsys, str(file))


def test_a_coarse_clock_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "steps"
    file.write_text(
        "".join(f'{{"timestamp": {n // 10 * 3000}, "input_length": 5, "output_length": 6}}\n' for n in range(50))
    )
    assert "92% of the requests have the time of the one before" in shown(capsys, str(file))


@pytest.mark.parametrize(
    ("words", "said", "most"),
    [
        ("--max-model-len 2048", "requests that did not fit 2048 tokens, clipped: 10", 2047),
        ("--max-model-len 2048 --fit drop", "requests that did not fit 2048 tokens, dropped: 10", 1000),
        ("--max-model-len 20000", "requests that did not fit 20000 tokens, clipped: 0", 9000),
    ],
)
def test_fitting(recording: Path, capsys: pytest.CaptureFixture[str], words: str, said: str, most: int) -> None:
    assert said in shown(capsys, str(recording), *words.split())
    data = json.loads(shown(capsys, str(recording), "--json", "-", *words.split()))
    assert data["features"]["prompt_tokens_max"] == most
    assert data["requests"] == 300 - data["fit"]["dropped"]


BAD = [
    ("", "the following arguments are required: FILE"),
    ("/nowhere", "no file at /nowhere"),
    ("/", "is a folder"),
    ("LOAD --fit drop", "--fit needs --max-model-len"),
    ("LOAD --max-model-len 1", "fits no request: give 2 or more"),
    ("LOAD --max-model-len 9 --fit drop", "no request fits 9 tokens"),
    ("LOAD --json /nowhere/x.json", "cannot write /nowhere/x.json"),
    ("LOAD --json LOAD", "--json would overwrite the recording itself"),
    ("LOAD --nosuch", "unrecognized arguments"),
]


@pytest.mark.parametrize(("words", "said"), BAD)
def test_bad_input_is_one_sentence(recording: Path, capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["workload", *(str(recording) if word == "LOAD" else word for word in words.split())])
    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert said in printed.err


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tunetui", "workload", *words]
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment}, timeout=60)


def test_without_utf8_the_page_is_ascii(recording: Path) -> None:
    odd = recording.with_name("löad\x1b[2J.jsonl")
    recording.rename(odd)
    done = run(str(odd), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    assert "1000 - 2000 " + "#" * 40 in text
    assert "\x1b" not in text


def test_a_reader_that_leaves_early_gets_no_traceback(recording: Path) -> None:
    command = f"{sys.executable} -m tunetui workload {recording} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
    assert done.stderr == b""
