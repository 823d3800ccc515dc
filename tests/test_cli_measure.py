"""`tunetui measure` as its users run it: exit codes, figures that agree with the server's own log, and clean output."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunetui import cli
from tunetui.cli import measure
from tunetui.cli.options import Refused
from tunetui.core.load import Arrival, Load, Ramp
from tunetui.core.slo import parse_slo
from tunetui.core.workload import Workload, parse_lengths
from tunetui.drive.loop import LoadLoop
from tunetui.drive.settings import Settings
from tunetui.engine.server_api import ServerApi

SERVER = Path(__file__).parent / "load" / "scripted_server.py"


@dataclass
class Scripted:
    """A scripted server in a process of its own."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def records(self) -> list[dict[str, Any]]:
        """End it; what it did, in the order in which the requests came."""
        self.process.terminate()
        assert self.process.wait(20) == 0
        return sorted(map(json.loads, self.log.read_text().splitlines()), key=lambda record: record["received_s"])


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Callable[..., Scripted]]:
    started: list[Scripted] = []

    def start(*options: str) -> Scripted:
        log = tmp_path / f"server-{len(started)}.log"
        command = [sys.executable, str(SERVER), "--port", "0", "--log", str(log), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        started.append(Scripted(f"http://127.0.0.1:{process.stdout.readline().strip()}", process, log))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()
        assert server.process.stdout is not None
        server.process.stdout.close()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tunetui", "measure", *words], capture_output=True, text=True, timeout=120
    )


BAD = [
    ("", "how much load"),
    ("--rate 0", "rate must be above 0"),
    ("--rate 1 --concurrency 2", "not both"),
    ("--rate 1 --ramp 1:2", "not both"),
    ("--ramp 5", "FROM:TO"),
    ("--arrival ramp", "--ramp FROM:TO"),
    ("--rate 1 --arrival steps", "invalid choice"),
    ("--rate 1 --burstiness 2 --arrival constant", "gamma"),
    ("--rate 1 --burstiness 0", "burstiness"),
    ("--concurrency 2 --arrival gamma", "need a request rate"),
    ("--rate 1 --speed 2", "--speed"),
    ("--rate 1 --requests 0", "--requests must be"),
    ("--rate 1 --seconds 0", "--seconds must be"),
    ("--rate 1 --warmup x", "--warmup"),
    ("--rate 1 --seed -1", "--seed"),
    ("--rate 1 --timeout 0", "--timeout"),
    ("--rate 1 --retries -1", "--retries"),
    ("--rate 1 --max-in-flight 0", "--max-in-flight"),
    ("--concurrency 5 --max-in-flight 2", "for an open loop"),
    ("--rate 1 --warmup \u00b2", "--warmup"),
    ("--rate 1 --samples -", "goes into a file"),
    ("--rate 1 --samples x --json ./x", "the same file"),
    ("--rate 1 --slo ttft", "KEY:MS"),
    ("--rate 1 --prompt-tokens x", "token count"),
    ("--rate 1 --fit drop", "--trace"),
    ("--trace /nowhere/trace", "/nowhere/trace"),
    ("--trace x --prompt-tokens 5", "its own lengths"),
    ("--rate 1 --url nowhere", "give a URL"),
    ("--rate 1 --url http://192.0.2.1:8000", "--yes-load"),
    ("--rate 1 --compare-rates 1,2", "leave out --rate"),
    ("--compare-rates 1,x", "with commas"),
    ("--compare-rates 1,0", "rate must be above 0"),
    ("--rate 1 --json /nowhere/folder/x.json", "cannot write"),
    ("--rate 1 --endpoint embeddings", "invalid choice"),
]


@pytest.mark.parametrize(("words", "said"), BAD)
def test_bad_input_is_one_sentence_and_2(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["measure", *words.split()])
    seen = capsys.readouterr()
    assert ended.value.code == 2
    assert said in seen.err
    assert seen.err.startswith("tunetui: ")
    assert seen.err.count("\n") == 1
    assert not seen.out


def loads(*words: str) -> list[Load]:
    return measure.settings_from(measure.parser().parse_args(words))[1]


def test_loads_are_read() -> None:
    assert loads("--rate", "5") == [Load(5.0)]
    assert loads("--rate", "5", "--arrival", "constant") == [Load(5.0, arrival=Arrival.CONSTANT)]
    assert loads("--rate", "5", "--burstiness", "0.5") == [Load(5.0, arrival=Arrival.GAMMA, burstiness=0.5)]
    assert loads("--ramp", "2:9", "--arrival", "ramp") == [Load(2.0, ramp=Ramp(9.0))]
    assert loads("--concurrency", "7") == [Load(concurrency=7)]
    assert loads("--compare-rates", "1,2", "--arrival", "constant") == [
        Load(rate, arrival=Arrival.CONSTANT) for rate in (1.0, 2.0)
    ]


def test_how_many_requests_there_are() -> None:
    settings = measure.settings_from(measure.parser().parse_args(["--rate", "1"]))[0]
    assert measure.requests_of(settings, Load(5.0), None, None) == 400
    assert measure.requests_of(settings, Load(5.0), 7, None) == 7
    assert measure.requests_of(settings, Load(5.0), None, 10.0) == 50
    assert measure.requests_of(settings, Load(5.0, ramp=Ramp(15.0)), None, 10.0) == 100
    assert measure.requests_of(settings, Load(concurrency=3), None, 2.0) == 120


def test_no_server_is_3(tmp_path: Path) -> None:
    done = run("--url", "http://127.0.0.1:9", "--rate", "1")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("tunetui: nothing answers at http://127.0.0.1:9")
    assert done.stderr.count("\n") == 1


def test_the_figures_are_the_servers_own(scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    server = scripted("--ttft-ms", "60", "--tpot-ms", "5", "--ttft-jitter", "0.5")
    samples = tmp_path / "samples.jsonl"
    done = run(
        "--url", server.url, "--rate", "50", "--requests", "200", "--warmup", "20", "--prompt-tokens", "30-60",
        "--output-tokens", "8-30", "--slo", "ttft:500", "tpot:50", "--json", "-", "--samples", str(samples),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "50 rps poisson" in done.stderr
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    records = server.records()
    assert len(records) == len(lines) == 220
    assert [line["counted"] for line in lines] == [False] * 20 + [True] * 200
    # In the order of arrival the server's log and the samples are the same requests.
    for line, record in zip(lines, records, strict=True):
        assert (line["prompt_tokens"], line["output_tokens"]) == (record["prompt_tokens"], record["tokens"])
    counted = records[20:]
    ttft_ms = [1000 * (r["first_s"] - r["received_s"]) for r in counted]
    tpot_ms = [1000 * (r["last_s"] - r["first_s"]) / (r["tokens"] - 1) for r in counted]
    # What a busy machine adds is allowed for here; benchmarks/measure_truth.py shows the exactness.
    assert said["p95_ttft_from_send_ms"] == pytest.approx(np.percentile(ttft_ms, 95), abs=10)
    assert said["median_ttft_from_send_ms"] == pytest.approx(np.median(ttft_ms), abs=5)
    assert said["p95_tpot_ms"] == pytest.approx(np.percentile(tpot_ms, 95), abs=1.5)
    assert said["mean_itl_ms"] == pytest.approx(5, abs=1)
    assert (said["completed"], said["failed"], said["left_out"], said["verdict"]) == (200, 0, 20, "PASS")
    assert said["total_output_tokens"] == sum(r["tokens"] for r in counted)
    assert said["total_input_tokens"] == sum(r["prompt_tokens"] for r in counted)
    span_s = max(r["last_s"] for r in counted) - counted[0]["received_s"]
    assert said["duration"] == pytest.approx(span_s, abs=0.1)
    assert said["request_throughput"] == pytest.approx(200 / span_s, rel=0.1)
    assert said["output_throughput"] == pytest.approx(said["total_output_tokens"] / span_s, rel=0.1)
    assert said["features"]["prompt_tokens_max"] <= 60
    assert said["objectives"]["ttft"]["attainment"] == 1.0
    assert said["generator_lateness_p99_ms"] < 50


def test_names_are_those_of_vllm_bench_serve(scripted: Callable[..., Scripted]) -> None:
    done = run("--url", scripted("--ttft-ms", "5", "--tpot-ms", "1").url, "--concurrency", "4", "--requests", "20",
               "--output-tokens", "5", "--json", "-")  # fmt: skip
    said = json.loads(done.stdout)
    # As vLLM 0.32 writes them with --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 95,99.
    names = {
        "date", "backend", "endpoint_type", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency",
        "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
        "request_goodput", "output_throughput", "total_token_throughput",
        *(f"{kind}_{metric}_ms" for kind in ("mean", "median", "std", "p95", "p99")
          for metric in ("ttft", "tpot", "itl", "e2el")),
    }  # fmt: skip
    assert names <= set(said)
    assert (said["max_concurrency"], said["request_rate"], said["verdict"]) == (4, "inf", None)
    assert done.returncode == 0


@pytest.mark.parametrize(("slo", "code", "word"), [("ttft:1", 1, "FAIL"), ("ttft:5000", 0, "PASS")])
def test_the_exit_code_is_the_verdict(scripted: Callable[..., Scripted], slo: str, code: int, word: str) -> None:
    server = scripted("--ttft-ms", "20", "--tpot-ms", "2")
    done = run("--url", server.url, "--rate", "40", "--requests", "40", "--output-tokens", "5", "--slo", slo)
    assert done.returncode == code
    assert f"verdict       {word} on this load" in done.stdout
    assert all(len(line) < 80 for line in done.stdout.splitlines())


def test_chats_are_measured_and_the_server_counts_their_prompts(scripted: Callable[..., Scripted]) -> None:
    server = scripted("--ttft-ms", "20", "--tpot-ms", "2")
    done = run("--url", server.url, "--concurrency", "3", "--requests", "20", "--warmup", "0", "--endpoint", "chat",
               "--output-tokens", "6", "--json", "-")  # fmt: skip
    assert done.returncode == 0, done.stderr
    said, records = json.loads(done.stdout), server.records()
    assert said["completed"] == 20
    assert said["total_output_tokens"] == 120
    assert said["total_input_tokens"] == sum(record["prompt_tokens"] for record in records)


def test_a_trace_is_replayed_with_its_times_and_lengths(scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    offsets_ms = np.cumsum(rng.exponential(8.0, 300)).round().astype(int)
    prompts, outputs = rng.integers(1, 400, 300), rng.integers(1, 20, 300)
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2024-05-10 00:00:{ms // 1000:02d}.{ms % 1000:03d}0000,{p},{o}\n"
        for ms, p, o in zip(offsets_ms, prompts, outputs, strict=True)
    ))  # fmt: skip
    server = scripted("--ttft-ms", "20", "--tpot-ms", "2")
    samples = tmp_path / "samples.jsonl"
    done = run("--url", server.url, "--trace", str(trace), "--speed", "0.8", "--samples", str(samples))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    scheduled_s = np.array([line["scheduled_s"] for line in lines])
    assert np.allclose(np.diff(scheduled_s), np.diff(offsets_ms) / 1000 / 0.8, atol=1e-6)
    assert np.percentile([line["sent_s"] - line["scheduled_s"] for line in lines], 90) < 0.02
    records = server.records()[-300:]
    assert [r["prompt_tokens"] for r in records] == prompts.tolist()
    assert [r["tokens"] for r in records] == outputs.tolist()


def test_requests_that_do_not_fit_are_clipped_or_dropped_and_said(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": i * 10, "input_length": 900 if i == 5 else 10, "output_length": 2} for i in range(20)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    server = scripted("--ttft-ms", "5", "--tpot-ms", "1", "--max-model-len", "100")
    for fit, said, completed in (("clip", "1 clipped", 20), ("drop", "1 dropped", 19)):
        done = run("--url", server.url, "--trace", str(trace), "--fit", fit, "--json", "-")
        assert said in done.stderr
        assert json.loads(done.stdout)["completed"] == completed
    done = run("--url", server.url, "--rate", "5", "--prompt-tokens", "99", "--output-tokens", "9")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "do not fit the model's 100" in done.stderr


def test_rates_are_compared_and_a_backlog_does_not_leak_into_the_next(scripted: Callable[..., Scripted]) -> None:
    # Four slots of about 0.25 s: 16 requests/s are its capacity.
    server = scripted("--ttft-ms", "50", "--tpot-ms", "10", "--slots", "4")
    done = run("--url", server.url, "--compare-rates", "60,8", "--requests", "80", "--output-tokens", "20",
               "--slo", "ttft:400", "--warmup", "0", "--json", "-")  # fmt: skip
    assert done.returncode == 1, done.stderr
    crowded, quiet = json.loads(done.stdout)["runs"]
    assert (crowded["verdict"], quiet["verdict"]) == ("FAIL", "PASS")
    assert crowded["overload"].startswith("overloaded: ")
    assert crowded["p95_ttft_ms"] > 1500
    assert quiet["overload"] == ""
    assert quiet["median_ttft_ms"] < 100
    assert quiet["p99_ttft_ms"] < 1000


async def test_a_step_to_a_lower_load_is_measured_without_what_the_one_before_left(
    scripted: Callable[..., Scripted],
) -> None:
    """The session's own way from point to point: arrivals stop, the backlog is cancelled, the turnover is left out."""
    server = scripted("--ttft-ms", "50", "--tpot-ms", "10", "--slots", "4")
    settings = Settings(
        slo=parse_slo(["ttft:400"]), load=Load(60.0), workload=Workload(parse_lengths("20"), parse_lengths("20")),
        episode_requests=40, sessions_dir=Path(), url=server.url,
    )  # fmt: skip
    api, loop = ServerApi(server.url), LoadLoop(settings)
    try:
        await loop.point_at(server.url, "scripted", api)
        await loop.warm_up(4)
        await loop.begin()
        async with asyncio.timeout(20):
            while loop.meter.awaiting < 30:
                await asyncio.sleep(0.02)
        loop.hold()
        await loop.drain("unstarted")
        loop.load = Load(4.0)
        await loop.begin()
        async with asyncio.timeout(40):
            while not (done := loop.meter.completed(0.0)):
                await asyncio.sleep(0.05)
    finally:
        await loop.close()
        await api.aclose()
    # Alone on the server a request waits 50 ms; the backlog would have taken seconds to work off.
    assert done[0].verdict.value == "PASS"
    assert done[0].ttft_s is not None
    assert done[0].ttft_s < 0.4
    assert done[0].cancelled == 0


def test_an_interrupt_ends_it_with_what_it_has(scripted: Callable[..., Scripted]) -> None:
    server = scripted("--ttft-ms", "50", "--tpot-ms", "5")
    child = subprocess.Popen(
        [sys.executable, "-m", "tunetui", "measure", "--url", server.url, "--rate", "20", "--requests", "1000",
         "--warmup", "0", "--output-tokens", "10", "--json", "-"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stderr is not None
    assert child.stderr.readline().startswith("20 rps")
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(3)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert child.returncode == 130, err
    said = json.loads(out)
    assert said["interrupted"] is True
    assert 5 < said["completed"] < 200
    assert said["num_prompts"] < 200


def test_seconds_end_the_arrivals_and_every_answer_is_waited_for(scripted: Callable[..., Scripted]) -> None:
    server = scripted("--ttft-ms", "50", "--tpot-ms", "5")
    done = run("--url", server.url, "--concurrency", "8", "--seconds", "2", "--warmup", "0", "--output-tokens", "10",
               "--json", "-")  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["completed"] == said["num_prompts"] == len(server.records())
    assert said["cancelled"] == said["failed"] == 0
    # One after the other on every stream, about 0.1 s each and never less than 0.08: none is sent after two seconds.
    assert 16 < said["completed"] <= 8 * 26


class Bad(BaseHTTPRequestHandler):
    """A server whose completions fail, hang or say nothing, and whose metrics may hang; `server.mode` says which."""

    protocol_version = "HTTP/1.1"
    served = 0

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, body: bytes, code: int = 200, kind: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.reply(b'{"data":[{"id":"bad","max_model_len":4096}]}')
        elif self.server.mode == "slow metrics":  # type: ignore[attr-defined]
            time.sleep(30)
        else:
            self.reply(b"", 404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/tokenize":
            self.reply(b'{"tokens":[11,12,13]}')
            return
        mode = self.server.mode  # type: ignore[attr-defined]
        Bad.served += 1
        if mode == "fails":
            self.reply(b'{"error":{"message":"broken"}}', 500)
        elif mode == "hangs" or (mode == "hangs after 10" and Bad.served > 10):
            time.sleep(30)
        else:
            chunk = b'data: {"choices":[{"index":0,"text":"abcd","finish_reason":"length"}]}\n\n'
            tokens = b"0" if mode == "counts nothing" else b"8"
            usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%b}}\n\ndata: [DONE]\n\n'
            self.reply(chunk * 2 + usage % tokens, kind="text/event-stream")


@pytest.fixture
def bad() -> Iterator[Callable[[str], str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(mode: str) -> str:
        Bad.served = 0
        server = ThreadingHTTPServer(("127.0.0.1", 0), Bad)
        server.daemon_threads = True
        server.block_on_close = False
        server.mode = mode  # type: ignore[attr-defined]
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_server_that_answers_nothing_is_no_success(bad: Callable[[str], str]) -> None:
    url = bad("fails")
    done = run("--url", url, "--rate", "40", "--requests", "20", "--warmup", "0", "--json", "-")
    said = json.loads(done.stdout)
    assert done.returncode == 3
    assert (said["completed"], said["failed"], said["request_throughput"]) == (0, 20, 0)
    assert said["errors"] == {"HTTP 500: broken": 20}
    done = run("--url", url, "--compare-rates", "40,80", "--requests", "20", "--warmup", "0")
    assert done.returncode == 3
    assert done.stdout.count("20 failed: HTTP 500: broken") == 2


def test_a_count_of_no_tokens_is_not_believed_and_chunks_without_ids_have_no_itl(bad: Callable[[str], str]) -> None:
    words = ("--concurrency", "2", "--requests", "10", "--output-tokens", "2", "--slo", "ttft:5000", "tpot:5000",
             "--json", "-")  # fmt: skip
    said = json.loads(run("--url", bad("counts nothing"), *words).stdout)
    assert (said["total_output_tokens"], said["verdict"], said["attainment"]) == (20, "PASS", 1.0)
    said = json.loads(run("--url", bad("answers"), *words).stdout)
    assert said["total_output_tokens"] == 80
    assert said["mean_itl_ms"] is None


def interrupted(served: int, *words: str, by: signal.Signals = signal.SIGINT) -> tuple[int, str, str, float]:
    """Signalled when the bad server has had `served` requests: exit code, stdout, stderr and how long it took then."""
    child = subprocess.Popen([sys.executable, "-m", "tunetui", "measure", *words], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)  # fmt: skip
    ends_s = time.monotonic() + 60
    while Bad.served < served:
        assert child.poll() is None
        assert time.monotonic() < ends_s, f"{Bad.served} requests came"
        time.sleep(0.02)
    time.sleep(0.2)
    child.send_signal(by)
    began_s = time.monotonic()
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err, time.monotonic() - began_s


def test_an_interrupt_does_not_flatter_a_server_that_hangs(bad: Callable[[str], str]) -> None:
    code, out, err, _ = interrupted(
        40, "--url", bad("hangs after 10"), "--rate", "10", "--requests", "100", "--warmup", "0",
        "--output-tokens", "2", "--slo", "ttft:200", "--json", "-",
    )  # fmt: skip
    assert code == 130, err
    said = json.loads(out)
    assert said["verdict"] == "FAIL"  # most of what was cancelled had waited for longer than 200 ms
    assert said["completed"] == 10


def test_what_an_interrupt_cut_short_stays_unknown(bad: Callable[[str], str]) -> None:
    code, out, err, _ = interrupted(
        30, "--url", bad("hangs after 10"), "--rate", "10", "--requests", "100", "--warmup", "0",
        "--output-tokens", "2", "--slo", "ttft:60000", "--json", "-",
    )  # fmt: skip
    assert (code, json.loads(out)["verdict"]) == (130, "UNDECIDED"), err


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_of_the_warm_up_ends_it_at_once(bad: Callable[[str], str], by: signal.Signals) -> None:
    code, out, err, took_s = interrupted(1, "--url", bad("hangs"), "--rate", "10", "--json", "-", by=by)
    assert (code, out) == (130, "")
    assert err == "warming up\ntunetui: interrupted before any request was measured\n"
    assert took_s < 20  # the request would have hung for 30 s


def test_metrics_that_hang_hold_up_nothing(bad: Callable[[str], str]) -> None:
    began_s = time.monotonic()
    done = run("--url", bad("slow metrics"), "--rate", "20", "--seconds", "2", "--warmup", "0", "--output-tokens", "2",
               "--json", "-")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 5 <= json.loads(done.stdout)["completed"] <= 41
    assert time.monotonic() - began_s < 25  # two looks of 5 s before the load, and a start on a busy machine


def test_nothing_due_is_said(bad: Callable[[str], str]) -> None:
    done = run("--url", bad("answers"), "--rate", "0.1", "--seconds", "0.2", "--warmup", "0", "--output-tokens", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no request was due within 0.2 s" in done.stderr


def test_a_full_disk_costs_no_report(bad: Callable[[str], str]) -> None:
    done = run("--url", bad("answers"), "--concurrency", "2", "--requests", "10", "--output-tokens", "2", "--json",
               "/dev/full")  # fmt: skip
    assert done.returncode == 2
    assert "10 of 10" in done.stdout
    assert done.stderr.endswith("cannot write /dev/full (No space left on device): give another file\n")


def test_a_refused_run_leaves_no_file(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert run("--url", "http://127.0.0.1:9", "--rate", "1", "--json", str(figures)).returncode == 3
    assert not figures.exists()


def test_a_model_that_is_not_served_is_named(scripted: Callable[..., Scripted]) -> None:
    done = run("--url", scripted().url, "--rate", "1", "--model", "other")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "does not serve 'other', but scripted" in done.stderr


def test_a_rate_list_that_is_empty_is_refused() -> None:
    with pytest.raises(Refused, match="with commas"):
        measure.rates_of("")
