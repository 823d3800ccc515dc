"""Server text is made safe for a terminal, followed as it grows, and read for phases and facts."""

from __future__ import annotations

import os
import time
import unicodedata
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.engine.logs import LINE_CAP, READ_CAP_BYTES, LogFacts, LogFollower, Phase, Phases, clean, facts_from_log

DATA = Path(__file__).with_name("data")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain ünïcode 東京 🙂", "plain ünïcode 東京 🙂"),
        ("\x1b[1;36m(APIServer)\x1b[0;0m ready", "(APIServer) ready"),
        ("a\x1b]0;evil title\x07b\x1b]8;;http://x\x1b\\c", "abc"),
        ("a\x9b31mb\x9d0;title\x9cc", "abc"),
        ("a\x1bP+q\x1b\\b", "ab"),
        ("clear\x1bcscreen\x1b(B", "clearscreen"),
        ("cut off \x1b[", "cut off "),
        ("cut off \x1b", "cut off ␛"),
        ("\x1b[\x1b[0m31m", "31m"),
        ("tab\there", "tab    here"),
        ("bell\x07 null\x00 del\x7f back\x08", "bell␇ null␀ del␡ back␈"),
        ("c1 \x85 end", "c1 \\x85 end"),
        ("a\u202eb\u2066c\u200fd\ufeffe", "abcde"),
        ("two\nlines\u2028more", "two\nlines more"),
        ("[red]markup[/]", "[red]markup[/]"),
        ("lone \ud800", "lone \ufffd"),
        ("x" * (LINE_CAP + 5), "x" * LINE_CAP + " … (5 more characters)"),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown


nasty = st.text(
    st.sampled_from("\x1b\x9b\x9d[]()0;m?P\\\x07\r\t\x00\x7f\u202eab\n ") | st.characters(exclude_categories=[])
)


@given(nasty)
def test_nothing_that_a_terminal_obeys_survives(text: str) -> None:
    shown = clean(text)
    assert not [c for c in shown if c != "\n" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
    assert shown.count("\n") <= text.count("\n")
    assert clean(shown) == shown
    shown.encode()


@pytest.mark.parametrize("piece", ["\x1b", "\x1b[", "\x1b[0", "\x9b", "\x1b]x", "\x1b[0;", "(" * 50, "\x9d", "1,"])
def test_cleaning_and_reading_take_linear_time(piece: str) -> None:
    text = piece * (2_000_000 // len(piece))
    began_s = time.process_time()
    clean(text)
    facts_from_log(
        [
            "KV cache size: " + text,
            "LLM engine (v" + text,
            "init engine (" + text,
            "Free memory on device (" + text,
            "Actual usage is " + text,
            "consumed by non-kv" + text,
        ]
    )
    assert time.process_time() - began_s < 2.0


def test_a_log_is_followed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = LogFollower(path)
    assert follower.read() == []
    with path.open("ab", buffering=0) as log:
        log.write(b"one\ntw")
        assert follower.read() == ["one"]
        assert follower.partial == "tw"
        log.write(b"o\r\n\nth\xff\xc3\xbc\x1b[0m\n")
        assert follower.read() == ["two", "", "th\ufffdü"]
        assert follower.read() == []


def test_of_a_progress_bar_the_last_state_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = LogFollower(path)
    with path.open("ab", buffering=0) as log:
        for percent in range(0, 100, 10):
            log.write(b"\rLoading: %d%%" % percent)
            assert follower.read() == []
        assert follower.partial == "Loading: 90%"
        log.write(b"\rLoading: 100%\n")
    assert follower.read() == ["Loading: 100%"]


def test_a_truncated_or_replaced_log_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first line\npart")
    follower = LogFollower(path)
    assert follower.read() == ["first line"]
    os.truncate(path, 0)
    assert follower.read() == []
    path.write_bytes(b"new\n")
    assert follower.read() == ["new"]
    other = tmp_path / "other"
    other.write_bytes(b"replaced\n")
    other.rename(path)
    assert follower.read() == ["replaced"]
    path.unlink()
    assert follower.read() == []


def test_reads_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (3 * READ_CAP_BYTES) + b"\nend\n")
    follower = LogFollower(path)
    lines = follower.read()
    assert len(lines) == 1
    assert len(lines[0]) < LINE_CAP + 50
    while "end" not in lines:
        lines = follower.read()
        assert lines
    path.write_bytes(b"line\n" * 500_000)
    counts = []
    while lines := follower.read():
        counts.append(len(lines))
    assert sum(counts) == 500_000
    assert len(counts) == 3


GIB = 2**30
KNOWN = {
    "start_cpu_0.32.log": (
        LogFacts("0.32.0", 16384, 8.0, GIB // 4, round(7.96 * GIB), None, 0.21, 0.82, 2048),
        "CONFIG ENGINE WEIGHTS MEMORY KV SERVING READY",
    ),
    "start_gpu_0.10.log": (
        LogFacts(
            "0.10.2",
            451_968,
            3.45,
            round(55.17 * GIB),
            None,
            round(14.9889 * GIB),
            4.532818,
            35.12,
            131_072,
            graphs_bytes=round(0.61 * GIB),
        ),
        "CONFIG ENGINE WEIGHTS MEMORY COMPILE KV GRAPHS SERVING READY",
    ),
    "start_gpu_0.32_tp2.log": (
        LogFacts("0.32.0", 28_048, 3.42, round(4.28 * GIB), None, round(65.75 * GIB), 53.224817, 58.2, 8192),
        "CONFIG ENGINE WEIGHTS MEMORY COMPILE KV GRAPHS SERVING READY",
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_facts_and_phases_of_known_starts(name: str) -> None:
    lines = [clean(line) for line in (DATA / name).read_text().splitlines()]
    facts, seen = KNOWN[name]
    assert facts_from_log(lines) == facts
    phases = Phases.begin(0.0)
    for at_s, line in enumerate(lines, start=1):
        phases = phases.fold(line, float(at_s))
    assert [phase.name for phase, _ in phases.marks[1:]] == seen.split()
    assert phases.current is Phase.READY
    total_s = sum(duration_s for _, duration_s in phases.durations_s(1000.0))
    assert total_s == phases.marks[-1][1]


BEGIN = ("(Worker pid=9) INFO 12-02 10:00:00 [gpu_worker.py:1034] Free memory on device (78.58/79.15 GiB) on startup. "
         "Desired GPU memory utilization is (0.9, 71.24 GiB). ")  # fmt: skip
LOADED = "INFO 12-02 09:59:00 [gpu_model_runner.py:5150] Model loading took 12.55 GiB memory and 3.103442 seconds"
KV = "INFO 12-02 09:59:30 [gpu_worker.py:760] Available KV cache memory: 56.25 GiB"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([BEGIN + "Actual usage is 12.55 GiB for weight, 1.23 GiB for peak activation, 0.14 GiB for non-torch memory, "
          "and 0.61 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1`"],
         {"total_bytes": 79.15, "weights_bytes": 12.55, "activations_bytes": 1.23, "non_torch_bytes": 0.14,
          "graphs_bytes": 0.61}),
        ([LOADED, KV, BEGIN + "Actual usage is 13.05 GiB for consumed memory (weights + non-torch), 1.23 GiB for peak "
          "activation, and 0.61 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with"],
         {"total_bytes": 79.15, "weights_bytes": 12.55, "activations_bytes": 1.23, "non_torch_bytes": 0.5,
          "graphs_bytes": 0.61, "kv_bytes": 56.25}),
        ([LOADED.replace("12.55 GiB memory", "12.5500 GiB"), KV], {"weights_bytes": 12.55, "kv_bytes": 56.25}),
        ([KV, KV.replace("56.25", "56.20"), LOADED, LOADED.replace("12.55", "12.5")],
         {"weights_bytes": 12.55, "kv_bytes": 56.20}),  # two cards: the least KV cache, the most weights
        (["INFO x Estimated CUDA graph memory: 0.75 GiB total"], {"graphs_bytes": 0.75}),
        (["INFO x Estimated CUDA graph memory: 0.75 GiB total",
          "INFO x Graph capturing finished in 4 secs, took 0.61 GiB"], {"graphs_bytes": 0.61}),
        (["INFO 12-02 10:00:00 [cpu_worker.py:260] Auto set (1.86/7.96) GiB for KV cache on node 0, with 3.18 GiB "
          "requested memory for the worker. 1.32 GiB memory was consumed by non-kv usages."],
         {"total_bytes": 7.96, "kv_bytes": 1.86, "worker_bytes": 1.32}),
        (["INFO 12-02 10:00:00 [cpu_worker.py:260] Explicitly set (0.25/7.96) GiB for KV cache on node 0."],
         {"total_bytes": 7.96, "kv_bytes": 0.25}),
        (["WARNING Actual usage is nan GiB for weight, Free memory on device (x/y GiB) on startup. Desired GPU"], {}),
    ],
)  # fmt: skip
def test_where_the_memory_goes(lines: list[str], expected: dict[str, float]) -> None:
    parts = asdict(facts_from_log(lines).memory_parts())
    assert parts.pop("per_card") is False
    found = {name: size for name, size in parts.items() if size is not None}
    assert found == {name: pytest.approx(size * GIB, abs=2) for name, size in expected.items()}
    assert facts_from_log(lines).memory_parts(per_card=True).per_card


def test_an_empty_log_has_no_facts() -> None:
    assert facts_from_log([]) == LogFacts()
    assert facts_from_log(["KV cache size: many tokens"]) == LogFacts()


def test_every_phase_has_a_label() -> None:
    assert all(phase.label for phase in Phase)
    assert Phases.begin(5.0).durations_s(7.0) == ((Phase.STARTING, 2.0),)
