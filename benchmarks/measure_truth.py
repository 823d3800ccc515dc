"""How true `tunetui measure` is and what it costs, beside `vllm bench serve`, against a server that logs what it did.

    uv run benchmarks/measure_truth.py --vllm-python PYTHON --tokenizer FOLDER [--case open40 ...] [--scale 0.25]

The scripted server is a process of its own, a fresh one for each run; the error of a side is its P95 less the P95 in
the server's log of that run. CPU is that of the whole process tree, start and end included (the `start` lines are runs
of one request of one token); memory is the peak of the tree's summed resident sizes, looked at each 50 ms. Either side
may be missing: then it is said, and the other measured. --vllm-python defaults to TUNETUI_BENCH_VLLM, the tokenizer to
TUNETUI_TEST_MODEL. The server's delays do not depend on the load, so errors are those of the clients alone.
"""

from __future__ import annotations

import argparse
import compileall
import os
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from both_sides import Job, Said, has_measure, ours, peer, vllm_python
from scripted import ScriptedServer, Truth

BASE = Job("", "scripted", 800, 64, 200)
CASES = {
    "start": replace(BASE, requests=1, output_tokens=1, streams=1),
    "open40": replace(BASE, rate_rps=40.0),
    "open40-poisson": replace(BASE, rate_rps=40.0, poisson=True),
    "open60": replace(BASE, rate_rps=60.0),
    "closed256": replace(BASE, requests=2560, streams=256),
}
DEFAULT = ("start", "open40", "open60", "closed256")


def run(case: str, name: str, side: Callable[[Job], Said], job: Job, options: argparse.Namespace) -> Said:
    """One run of one side, printed; what it said is returned."""
    script = ["--ttft-ms", "200", "--tpot-ms", "20", "--ttft-jitter", str(options.ttft_jitter)]
    with ScriptedServer(*script) as server:
        said = side(replace(job, url=server.url))
        records = server.stop()
    cost = said.cost
    spent = f"{cost.cpu_s:>8.2f}{cost.peak_mb:>8.0f}{cost.wall_s:>8.1f}"
    if said.problem:
        print(f"{case:<16}{name:<9} failed: {said.problem}", flush=True)
        return said
    truth = Truth.of(records, job.requests)
    cells = ""
    for key, true in (("p95_ttft_ms", truth.p95_ttft_ms), ("p95_tpot_ms", truth.p95_tpot_ms)):
        value = said.figures.get(key)
        cells += f"{value:>10.3f}{true:>10.3f}{value - true:>+9.3f}" if value and true == true else f"{'-':>29}"
    per_token = f"{cost.cpu_s / truth.tokens * 1e6:>9.1f}" if truth.tokens > 1000 else f"{'-':>9}"
    print(f"{case:<16}{name:<9}{cells}{spent}{per_token}   {_counts(said)}", flush=True)
    if truth.tokens > 1000:
        server_us, late_ms = server.cpu_s / truth.tokens * 1e6, truth.p99_late_ms
        print(
            f"{'':<25}(the server took {server_us:.0f} us of CPU a token and was {late_ms:.1f} ms late at P99; what is "
            f"not of this benchmark took {server.others_percent:.0f} % of a core)"
        )
    for key in ("p95_ttft_from_send_ms", "generator_lateness_p99_ms"):
        if said.figures.get(key) is not None and truth.tokens > 1:
            print(f"{'':<25}{key} {said.figures[key]:.3f}", flush=True)
    return said


def _counts(said: Said) -> str:
    figures = said.figures
    rates = f"{figures.get('output_throughput') or float('nan'):.0f} token/s"
    return f"{figures.get('completed')} done, {figures.get('failed', 0)} failed, {rates}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", default=vllm_python(), help="the Python of a vLLM")
    parser.add_argument("--tokenizer", default=os.environ.get("TUNETUI_TEST_MODEL", ""), help="a folder, for the peer")
    parser.add_argument("--case", nargs="+", choices=CASES, default=DEFAULT)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    parser.add_argument("--ttft-jitter", type=float, default=0.1, help="+- this share of 200 ms, uniform")
    parser.add_argument("--side", choices=("tunetui", "vllm", "both"), default="both")
    options = parser.parse_args()
    for folder in (sysconfig.get_path("purelib"), Path(__file__).parents[1] / "src"):
        compileall.compile_dir(folder, quiet=2)  # pip has done so for the peer; uv has not, and it costs a second a run
    sides: dict[str, Callable[[Job], Said]] = {}
    if options.side != "vllm":
        if has_measure():
            sides["tunetui"] = ours
        else:
            print("tunetui measure is missing: not measured")
    if options.side != "tunetui":
        if options.vllm_python and options.tokenizer:
            sides["vllm"] = lambda job: peer(job, options.vllm_python, options.tokenizer)
        else:
            print("no --vllm-python and --tokenizer: vllm bench serve is not measured")
    print(f"{'':<25}{'P95 TTFT ms':>20}{'':>9}{'P95 TPOT ms':>20}{'':>9}{'CPU':>8}{'RSS':>8}{'wall':>8}{'CPU us':>9}")
    header = f"{'said':>10}{'truth':>10}{'error':>9}"
    print(f"{'case':<16}{'side':<9}{header}{header}{'s':>8}{'MB':>8}{'s':>8}{'a token':>9}")
    for case in options.case:
        job = CASES[case]
        if case != "start":
            job = replace(job, requests=max(2, round(job.requests * options.scale)))
        said = {name: run(case, name, side, job, options) for name, side in sides.items()}
        if len(said) == 2 and not any(one.problem for one in said.values()):
            mine, theirs = said["tunetui"].cost, said["vllm"].cost
            cpu, memory = mine.cpu_s / theirs.cpu_s, mine.peak_mb / theirs.peak_mb
            print(f"{case:<16}ours / peer: CPU {cpu:.3f}, memory {memory:.3f}", flush=True)


if __name__ == "__main__":
    main()
