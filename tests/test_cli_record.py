"""`tunetui record`: recordings from logs and from a live server's metrics, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tunetui import cli
from tunetui.cli import record
from tunetui.traces.reading import read_trace

PARAMS = "SamplingParams(n=1, max_tokens=8, min_tokens=0, extra_args=None)"


def received(second: int, ids: list[int] | None) -> str:
    prompt = "" if ids is None else "prompt: None, "
    rest = "" if ids is None else f"prompt_token_ids: {ids}, prompt_embeds shape: None, "
    return (
        f"INFO 03-01 09:00:{second:02} [logger.py:41] Received request r{second}: {prompt}params: {PARAMS}, {rest}"
        "lora_request: None.\n"
    )


LOG = "".join(received(second, [1] * (second + 1)) for second in range(10))
ACCESS = "".join(
    json.dumps({"ts": f"2031-02-03T04:05:{n:02}Z", "prompt_tokens": 10 + n, "completion_tokens": 5}) + "\n"
    for n in range(9)
)


def test_a_vllm_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vllm.log").write_text(LOG + LOG[: LOG.index("\n") + 1])
    target = tmp_path / "load.jsonl"
    assert record.main(["--vllm-log", str(tmp_path / "vllm.log"), "-o", str(target)]) == 0
    printed = capsys.readouterr()
    assert printed.out == (
        f"recorded 11 requests over 9 s in {target} (arrivals are logged in whole seconds and spread evenly within "
        "each; output lengths taken from max_tokens, an upper bound: 11; "
        "requests that stood after a later one, sorted by time: 1)\n"
    )
    assert printed.err == ""
    trace, reading = read_trace(target)
    assert trace.prompt_tokens == (1, *range(1, 11))
    assert trace.output_tokens == (8,) * 11
    assert trace.arrivals_s == (0.0, 0.5, 1.25, 2.25, 3.25, 4.25, 5.25, 6.25, 7.25, 8.25, 9.25)
    assert "output lengths taken from max_tokens, an upper bound: 11" in reading.notes
    assert not list(tmp_path.glob("*.part"))


def test_stdin_and_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ACCESS.encode())))
    assert record.main(["--access-log", "-", "-o", "-"]) == 0
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert lines[0] == {"timestamp": 0, "input_length": 10, "output_length": 5}
    assert len(lines) == 9
    assert printed.err == "recorded 9 requests over 8 s in stdout\n"


def test_prompt_lengths_can_be_drawn(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("".join(received(second, None) for second in range(20)))
    recorded = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        target = tmp_path / name
        words = ["--vllm-log", str(log), "-o", str(target), "--prompt-tokens", "64-512", "--seed", seed]
        assert record.main(words) == 0
        recorded.append(read_trace(target)[0])
    assert all(64 <= tokens <= 512 for tokens in recorded[0].prompt_tokens)
    assert recorded[0].lengths_only
    assert recorded[0] == recorded[1] != recorded[2]


def test_an_access_log_with_other_names_and_a_broken_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "access.log"
    good = '{"ts": 5, "in": 4, "made": {"n": 6}}\n'
    log.write_text(good * 150 + '{"ts": 5, "in": -4, "made": {"n": 6}}\n')
    words = ["--access-log", str(log), "--fields", "prompt=in,output=made.n", "-o", str(tmp_path / "load")]
    assert record.main(words) == 0
    assert "recorded 150 requests" in (said := capsys.readouterr().out)
    assert "broken lines skipped: 1, line 151: prompt is -4, below 1" in said


def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "access.log").write_text(ACCESS)
    target = tmp_path / "load"
    target.write_text("mine")
    words = ["record", "--access-log", str(tmp_path / "access.log"), "-o", str(target)]
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    assert f"{target} exists: give another -o TRACE, or --force" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert record.main([*words[1:], "--force"]) == 0
    assert read_trace(target)[0].requests == 9


BAD = [
    ("-o x", 2, "one of the arguments --vllm-log --access-log --url is required"),
    ("--vllm-log LOG", 2, "required: -o/--output"),
    ("--vllm-log LOG --access-log LOG -o OUT", 2, "not allowed with"),
    ("--vllm-log /nowhere -o OUT", 2, "no file at /nowhere"),
    ("--vllm-log LOG -o LOG --force", 2, "the recording would overwrite the log itself"),
    ("--vllm-log LOG -o /nowhere/x", 2, "there is no folder for /nowhere/x"),
    (f"--vllm-log LOG -o {'n' * 3000}", 2, "File name too long"),
    ("--vllm-log LOG -o /dev/null --force", 2, "/dev/null is not a file"),
    ("--vllm-log LOG -o OUT", 2, "the log has no request in it"),
    ("--access-log LOG -o OUT", 2, "no line of the log has token counts"),
    ("--access-log LOG -o OUT --fields x=y", 2, "cannot read the field 'x=y'"),
    ("--vllm-log LOG -o OUT --fields time=y", 2, "--fields goes with --access-log"),
    ("--vllm-log LOG -o OUT --seconds 5", 2, "--seconds goes with --url"),
    ("--vllm-log LOG -o OUT --prompt-tokens 9-2", 2, "the range must be 1 or more and rise"),
    ("--vllm-log LOG -o OUT --seed -1", 2, "--seed must be 0 or more"),
    ("--url nonsense -o OUT", 2, "cannot record from 'nonsense'"),
    ("--url http://127.0.0.1:9 -o OUT --seconds nan", 2, "--every must be 0.1 or more"),
    ("--url http://127.0.0.1:9 -o OUT --every 0", 2, "--every must be 0.1 or more"),
    ("--url http://127.0.0.1:9 -o OUT", 3, "nothing answers at http://127.0.0.1:9/metrics"),
]


@pytest.mark.parametrize(("words", "code", "said"), BAD)
def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, said: str
) -> None:
    (tmp_path / "log").write_text("INFO 03-01 09:00:00 [x.py:1] Starting\n")
    names = {"LOG": str(tmp_path / "log"), "OUT": str(tmp_path / "out")}
    with pytest.raises(SystemExit) as caught:
        cli.main(["record", *(names.get(word, word) for word in words.split())])
    printed = capsys.readouterr()
    assert caught.value.code == code
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not (tmp_path / "out").exists()


class Server(ThreadingHTTPServer):
    """Answers /metrics as a vLLM on which ten requests finish between any two pages; keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.failing: set[int] = set()
        self.finished = 70

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def page(self) -> str:
        self.finished += 10
        rows = [f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {self.finished}.0']
        for name, mean in (("prompt", 30), ("generation", 4)):
            for edge, share in (("2.0", 0.0), ("5.0", mean == 4), ("50.0", 1), ("+Inf", 1)):
                rows.append(f'vllm:request_{name}_tokens_bucket{{engine="0",le="{edge}"}} {self.finished * share}')
            rows.append(f'vllm:request_{name}_tokens_sum{{engine="0"}} {self.finished * mean}.0')
        return "\n".join(rows) + "\n"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        self.send_response(500 if len(self.server.asked) in self.server.failing else 200)
        self.end_headers()
        self.wfile.write(self.server.page().encode())

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_live_server_is_asked_for_its_metrics_alone(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "load"
    words = ["--url", f"{server.url}/v1/", "--seconds", "0.5", "--every", "0.1", "-o", str(target)]
    assert record.main(words) == 0
    assert server.asked == ["GET /metrics"] * 6
    trace, reading = read_trace(target)
    assert trace.requests == 50
    assert trace.lengths_only
    assert set(trace.prompt_tokens) <= set(range(6, 51))
    assert set(trace.output_tokens) <= {3, 4, 5}
    assert trace.arrivals_s is not None
    assert 0.3 < trace.arrivals_s[-1] < 5
    assert sum(trace.prompt_tokens) / 50 == pytest.approx(30, abs=1)
    assert reading.notes[0].startswith("lengths drawn from the histograms of 50 requests that finished in")
    assert "recorded 50 requests" in capsys.readouterr().out


def test_a_page_that_fails_is_missed_and_many_end_it(server: Server, tmp_path: Path) -> None:
    words = ["record", "--url", server.url, "--seconds", "0.8", "--every", "0.1", "-o", str(tmp_path / "load")]
    server.failing = {3, 4}
    assert record.main(words[1:]) == 0
    assert read_trace(tmp_path / "load")[0].requests == 80
    server.failing = set(range(12, 40))
    with pytest.raises(SystemExit) as caught:
        cli.main([*words, "--force"])
    assert caught.value.code == 3


def test_ctrl_c_keeps_what_was_seen(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        if len(server.asked) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(record.time, "sleep", interrupt)
    assert record.main(["--url", server.url, "-o", str(tmp_path / "load")]) == 0
    assert read_trace(tmp_path / "load")[0].requests == 20
