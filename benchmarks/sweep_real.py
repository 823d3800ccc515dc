"""Does a sweep on a real vLLM end on a point that holds at least what vLLM's defaults hold?

    uv run benchmarks/sweep_real.py --vllm COMMAND --model FOLDER [--budget 10] [--rounds 2]

It runs `tunetui sweep`, then starts servers with vLLM's defaults and with the accepted flags, in turns, and measures
both at the same rates around the accepted one with `tunetui measure`. Printed are each verdict and, for both, the
highest rate that held in at least half of the rounds. --vllm defaults to TUNETUI_TEST_VLLM, --model to
TUNETUI_TEST_MODEL. The machine should have nothing else to do: on two cores a busy one moves latencies by tens of
percent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from measure_vs_bench_serve import serving

SLO = ("ttft:1500", "tpot:150")
LENGTHS = ("--prompt-tokens", "64-256", "--output-tokens", "16-64")
SERVER = "--enforce-eager --max-model-len 1024"
AROUND = (0.7, 0.85, 1.0, 1.15, 1.3)  # times the accepted rate
DEFAULTS, ACCEPTED = "defaults", "accepted"


def tunetui(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tunetui", *words]
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)


def swept(vllm: str, model: str, budget: float, folder: Path) -> dict:
    """The sweep's answer. Ends the benchmark where no point was accepted."""
    answer = folder / "sweep.json"
    done = tunetui(
        "sweep", "--model", model, "--vllm", vllm, "--slo", *SLO, *LENGTHS, "--episode-requests", "150", "--budget",
        f"{budget:g}", "--max-num-seqs-ceiling", "64", "--out", str(folder), "--json", str(answer), "--",
        *SERVER.split(),
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the sweep ended with {done.returncode}\n{done.stdout}")
    return json.loads(answer.read_text())


def words_of(knobs: dict) -> str:
    """The accepted knobs as vLLM's flags; its memory is left to vLLM, as with the defaults."""
    words = []
    for name, value in knobs.items():
        if "memory" in name:
            continue
        words.append(("--" if value else "--no-") + name if isinstance(value, bool) else f"--{name} {value}")
    return " ".join(words)


def verdict_at(url: str, rate_rps: float, requests: int, seed: int, folder: Path) -> tuple[str, dict]:
    """One measurement; its verdict and figures."""
    found = folder / "measured.json"
    done = tunetui(
        "measure", "--url", url, "--rate", f"{rate_rps:.3f}", "--requests", str(requests), "--slo", *SLO, *LENGTHS,
        "--seed", str(seed), "--json", str(found),
    )  # fmt: skip
    verdict = {0: "PASS", 1: "FAIL", 4: "UNDECIDED"}.get(done.returncode, f"exit {done.returncode}")
    return verdict, json.loads(found.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default=os.environ.get("TUNETUI_TEST_VLLM", ""), help="starts the API server")
    parser.add_argument("--model", default=os.environ.get("TUNETUI_TEST_MODEL", ""))
    parser.add_argument("--budget", type=float, default=10.0, help="minutes of the sweep")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=200, help="of each measurement")
    options = parser.parse_args()
    if not options.vllm or not options.model:
        parser.error("--vllm and --model, or TUNETUI_TEST_VLLM and TUNETUI_TEST_MODEL, are needed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answer = swept(options.vllm, options.model, options.budget, folder)
        accepted_rps = answer["accepted_rps"]
        print(f"{len(answer['trials'])} trials in {answer['seconds']:.0f} s: accepted at {accepted_rps:.2f} req/s with "
              f"{words_of(answer['knobs'])}", flush=True)  # fmt: skip
        passes: dict[str, dict[float, int]] = {DEFAULTS: defaultdict(int), ACCEPTED: defaultdict(int)}
        print(f"{'round':<6}{'server':<10}{'req/s':>7}{'P95 TTFT ms':>13}{'P95 TPOT ms':>13}  verdict")
        for round_ in range(1, options.rounds + 1):
            for server in (DEFAULTS, ACCEPTED) if round_ % 2 else (ACCEPTED, DEFAULTS):
                flags = SERVER + (" " + words_of(answer["knobs"]) if server == ACCEPTED else "")
                with serving(options.vllm, options.model, flags) as url:
                    verdict_at(url, accepted_rps, options.requests // 4, 0, folder)  # warms it up
                    for factor in AROUND:
                        rate_rps = factor * accepted_rps
                        verdict, figures = verdict_at(url, rate_rps, options.requests, round_, folder)
                        passes[server][factor] += verdict == "PASS"
                        print(f"{round_:<6}{server:<10}{rate_rps:>7.2f}{figures['p95_ttft_ms']:>13.0f}"
                              f"{figures['p95_tpot_ms']:>13.1f}  {verdict}", flush=True)  # fmt: skip
        for server, counts in passes.items():
            held = [factor * accepted_rps for factor in AROUND if 2 * counts[factor] >= options.rounds]
            print(f"{server}: held {max(held, default=0.0):.2f} req/s in at least half of {options.rounds} rounds")


if __name__ == "__main__":
    main()
