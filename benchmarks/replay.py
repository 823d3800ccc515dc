"""Traces replayed against the scripted server: is their timing kept, and are their lengths exact?

    uv run python benchmarks/replay.py [--requests 2000] [--speed X] TRACE...

For each trace: the first requests through `tunetui measure --trace`, then the server's own log beside the trace.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scripted import ScriptedServer

from tunetui.core.trace import fitted, taken
from tunetui.traces.reading import read_trace


def replayed(path: str, requests: int, speed: float, max_model_len: int) -> str:
    """One line: what was asked, and what the server saw."""
    trace = taken(read_trace(path)[0], requests)
    trace = fitted(trace, max_model_len, "clip")[0]
    assert trace.arrivals_s is not None
    with (
        tempfile.TemporaryDirectory() as folder,
        ScriptedServer("--ttft-ms", "50", "--tpot-ms", "5", "--max-model-len", str(max_model_len)) as server,
    ):
        samples = Path(folder) / "samples"
        command = [sys.executable, "-m", "tunetui", "measure", "--url", server.url, "--trace", path, "--speed",
                   str(speed), "--requests", str(requests), "--warmup", "0", "--samples", str(samples),
                   "--json", "-"]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        lines = [json.loads(line) for line in samples.read_text().splitlines()]
        records = server.stop()
    said = json.loads(done.stdout)
    asked_s = np.array(trace.arrivals_s) / speed
    sent_s = np.array([line["sent_s"] for line in lines])
    received_s = np.array([record["received_s"] for record in records])
    lateness_ms = 1000 * (sent_s - asked_s)
    arrival_ms = 1000 * np.abs((received_s - received_s[0]) - np.sort(sent_s - sent_s[0]))
    # As pairs, whatever their order: those of one moment may overtake each other on the way.
    seen = sorted((record["prompt_tokens"], record["tokens"]) for record in records)
    exact = seen == sorted(zip(trace.prompt_tokens, trace.output_tokens, strict=True))
    return (
        f"{Path(path).name:>32}{len(lines):>9}{asked_s[-1]:>9.1f}{np.median(lateness_ms):>9.2f}"
        f"{np.percentile(lateness_ms, 99):>8.2f}{said['generator_lateness_p99_ms']:>9.2f}"
        f"{np.percentile(arrival_ms, 99):>10.2f}{'yes' if exact else 'NO':>7}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--speed", type=float, default=10.0)
    parser.add_argument("--max-model-len", type=int, default=131_072)
    options = parser.parse_args()
    print(f"{'':>32}{'':>9}{'':>9}{'late by, ms':>17}{'it says':>9}{'received':>10}{'exact':>7}")
    print(f"{'trace':>32}{'requests':>9}{'s':>9}{'P50':>9}{'P99':>8}{'P99':>9}{'P99 off':>10}{'lengths':>7}")
    for path in options.traces:
        print(replayed(path, options.requests, options.speed, options.max_model_len), flush=True)


if __name__ == "__main__":
    main()
