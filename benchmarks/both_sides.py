"""The two measurers that the benchmarks compare: the command lines of `tunetui measure` and `vllm bench serve`.

It starts no server and judges no figure.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripted import Cost, run_tree

# `vllm bench serve` itself, without the rest of vLLM's command line, which some builds cannot start (and which costs
# more CPU than this).
LAUNCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement: open loop at `rate_rps` (else closed with `streams`), the same for both sides."""

    url: str
    model: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    rate_rps: float = 0.0
    streams: int = 0
    poisson: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """What a side printed, and what it took; `problem` instead where it failed."""

    figures: dict
    cost: Cost
    problem: str = ""


def tunetui() -> list[str]:
    return [str(Path(sys.executable).with_name("tunetui")), "measure"]


def has_measure() -> bool:
    return run_tree([*tunetui(), "--help"], 60).returncode == 0


def ours(job: Job) -> Said:
    """`tunetui measure`."""
    if job.streams:
        load = ["--concurrency", str(job.streams)]
    else:
        load = ["--rate", f"{job.rate_rps:g}", "--arrival", "poisson" if job.poisson else "constant"]
    command = [
        *tunetui(), "--url", job.url, *load, "--requests", str(job.requests), "--prompt-tokens",
        str(job.prompt_tokens), "--output-tokens", str(job.output_tokens), "--warmup", "0", "--seed",
        str(job.seed), "--json", "-",
    ]  # fmt: skip
    cost = run_tree(command, 300)
    start = cost.output.find("{")
    if cost.returncode not in (0, 1) or start < 0:
        return Said({}, cost, f"exit code {cost.returncode}: {(cost.errors or cost.output).strip()[-300:]}")
    return Said(json.loads(cost.output[start:]), cost)


def peer(job: Job, python: str, tokenizer: str) -> Said:
    """`vllm bench serve` of the vLLM that `python` has."""
    if job.streams:
        load = ["--max-concurrency", str(job.streams)]
    else:
        load = ["--request-rate", f"{job.rate_rps:g}", "--burstiness", "1" if job.poisson else "inf"]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            python, "-c", LAUNCH, "--backend", "openai", "--base-url", job.url, "--endpoint", "/v1/completions",
            "--model", job.model, "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len",
            str(job.prompt_tokens), "--random-output-len", str(job.output_tokens), "--num-prompts", str(job.requests),
            "--ignore-eos", "--percentile-metrics", "ttft,tpot", "--metric-percentiles", "95", "--seed", str(job.seed),
            "--disable-tqdm", "--save-result", "--result-dir", folder, "--result-filename", "result.json", *load,
        ]  # fmt: skip
        cost = run_tree(command, 400, {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"})
        result = Path(folder) / "result.json"
        if cost.returncode or not result.exists():
            return Said({}, cost, f"exit code {cost.returncode}: {cost.errors.strip()[-300:]}")
        return Said(json.loads(result.read_text()), cost)


def vllm_python() -> str:
    """The Python of a vLLM from the environment: TUNETUI_BENCH_VLLM, or the first word of TUNETUI_TEST_VLLM."""
    first = os.environ.get("TUNETUI_TEST_VLLM", "").split()[:1]
    guess = first[0] if first and "python" in Path(first[0]).name else ""
    return os.environ.get("TUNETUI_BENCH_VLLM", guess)
