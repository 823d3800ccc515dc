"""Do `tunetui measure` and `vllm bench serve` agree on a real vLLM? The same constant rate, lengths and count.

    uv run benchmarks/measure_vs_bench_serve.py --vllm COMMAND --model FOLDER [--rate-rps 5] [--requests 60]

It starts one server, warms it up with an untimed run of each side, and then lets the sides measure in turns (the first
of a round changes). Printed are each run, the medians and how far they lie apart: within 5 % of throughput and 10 % of
the latencies is agreement. The peer's constant arrivals come from an infinite burstiness; its TTFT counts from the
sending, so ours is p95_ttft_from_send_ms here. --vllm defaults to TUNETUI_TEST_VLLM, --model to TUNETUI_TEST_MODEL. It
says nothing of the truth of either: measure_truth.py does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median

from both_sides import Job, Said, has_measure, ours, peer, vllm_python

START_S = 240.0
SERVER_OPTIONS = "--enforce-eager --max-model-len 2048 --kv-cache-memory-bytes 512M"
OURS, PEER = "tunetui", "vllm"
# What is compared: its name, the key of each side, and how far apart the medians may lie.
COMPARED = (
    ("token/s", "output_throughput", "output_throughput", 0.05),
    ("P95 TTFT ms", "p95_ttft_from_send_ms", "p95_ttft_ms", 0.10),
    ("P95 TPOT ms", "p95_tpot_ms", "p95_tpot_ms", 0.10),
)


@contextlib.contextmanager
def serving(command: str, model: str, options: str) -> Iterator[str]:
    """A real vLLM that is ready; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = [*shlex.split(command), "--model", model, "--port", str(port), *shlex.split(options)]
    with tempfile.TemporaryFile("w+") as log:
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            wait_until_ready(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}"
        except SystemExit:
            log.seek(0)
            sys.stderr.write(log.read()[-2000:])
            raise
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(url: str, process: subprocess.Popen) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.5)
    raise SystemExit("the server did not get ready")


def values(name: str, said: Said) -> list[float]:
    keys = [mine if name == OURS else theirs for _, mine, theirs, _ in COMPARED]
    return [float(said.figures[key]) for key in keys]


def show(number: int, name: str, said: Said) -> None:
    if said.problem:
        print(f"{number:<6}{name:<9} failed: {said.problem}", flush=True)
        return
    figures = said.figures
    cells = "".join(f"{value:>14.2f}" for value in values(name, said))
    print(
        f"{number:<6}{name:<9}{cells}{figures['request_throughput']:>9.3f}{figures['completed']:>6}{figures['failed']:>8}"
        f"{figures['duration']:>9.2f}{said.cost.cpu_s:>8.1f}",
        flush=True,
    )


def compare(runs: dict[str, list[Said]]) -> bool:
    """Prints the medians; whether all of them agree."""
    agreed = True
    for place, (what, _, _, most) in enumerate(COMPARED):
        mine, theirs = (median(values(name, said)[place] for said in runs[name]) for name in (OURS, PEER))
        apart = mine / theirs - 1
        agreed &= abs(apart) <= most
        verdict = "agree" if abs(apart) <= most else "DISAGREE"
        print(f"median {what:<12} {OURS} {mine:>9.2f}  {PEER} {theirs:>9.2f}  {apart:>+7.1%} of {most:.0%}: {verdict}")
    return agreed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default=os.environ.get("TUNETUI_TEST_VLLM", ""), help="starts the API server")
    parser.add_argument("--vllm-python", default=vllm_python(), help="the Python of a vLLM, for the peer")
    parser.add_argument("--model", default=os.environ.get("TUNETUI_TEST_MODEL", ""), help="a folder with a tokenizer")
    parser.add_argument("--server-options", default=SERVER_OPTIONS)
    parser.add_argument("--rate-rps", type=float, default=5.0)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not (options.vllm and options.vllm_python and options.model):
        raise SystemExit("needs a real vLLM: --vllm, --vllm-python and --model")
    sides: dict[str, Callable[[Job], Said]] = {PEER: lambda job: peer(job, options.vllm_python, options.model)}
    if has_measure():
        sides[OURS] = ours
    else:
        print("tunetui measure is missing: only the peer is measured")
    lengths = (options.requests, options.prompt_tokens, options.output_tokens)
    with serving(options.vllm, options.model, options.server_options) as url:
        job = Job(url, options.model, *lengths, rate_rps=options.rate_rps)
        for side in sides.values():
            side(replace(job, requests=max(2, options.requests // 4), seed=999))
        runs = measure(sides, job, options.rounds)
    if len(runs) == 2 and all(runs.values()) and not compare(runs):
        raise SystemExit(1)


def measure(sides: dict[str, Callable[[Job], Said]], job: Job, rounds: int) -> dict[str, list[Said]]:
    """The runs of each side that went well; each is printed."""
    names = "".join(f"{what:>14}" for what, *_ in COMPARED)
    print(f"{'round':<6}{'side':<9}{names}{'req/s':>9}{'done':>6}{'failed':>8}{'s':>9}{'CPU s':>8}")
    runs: dict[str, list[Said]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sorted(sides, reverse=bool(number % 2)):
            # A seed of its own for each run: a prompt that came before would be answered from the prefix cache.
            said = sides[name](replace(job, seed=2 * number + (name == OURS)))
            show(number + 1, name, said)
            if not said.problem:
                runs[name].append(said)
    return runs


if __name__ == "__main__":
    main()
