"""What an HTTP client costs and how true it is: the same loads through six minimal clients and tunetui's own.

    uv run --with aiohttp --with h11 benchmarks/clients.py [--only NAME ...]

Each client runs in a process of its own against a scripted server of its own, whose log is the truth. An open loop
(Poisson arrivals drawn beforehand) and a closed one, one after the other. TTFT counts from the scheduled moment in the
open loop; in the closed one from the call of the library (httpx, aiohttp: connecting is in it) or from the writing of
the request (the others, which know it). CPU is that of the client alone, from the first request to the last answer,
over the tokens it read (tunetui: of the load process and of the parent that reads its events); memory is its peak,
imports included. `others` is how much of a core went to what is not of the benchmark: above some 20 % a line is worth
little. It takes no part in tunetui's choice of arrivals or prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

from minimal_clients import CLIENTS, Seen, Send
from scripted import ScriptedServer, Truth, cpu_s, percentile_ms

PROMPT_TOKENS = 64
OURS = "tunetui"


def arrivals_s(options: argparse.Namespace) -> list[float]:
    """Poisson arrivals, the same for every client."""
    draw = random.Random(7)
    at_s, moments = 0.0, []
    for _ in range(options.open_requests):
        at_s += draw.expovariate(options.rate_rps)
        moments.append(at_s)
    return moments


def body(index: int, output_tokens: int) -> bytes:
    prompt = [100 + (index * 7919 + number * 31) % 20_000 for number in range(PROMPT_TOKENS)]
    options = {"include_usage": True}
    limits = {"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True}
    return json.dumps(
        {"model": "scripted", "prompt": prompt, "stream": True, "stream_options": options} | limits
    ).encode()


async def run_open(send: Send, options: argparse.Namespace) -> list[tuple[float, Seen]]:
    """(scheduled moment, what was seen) of each request."""
    loop = asyncio.get_running_loop()
    bodies = [body(index, options.output_tokens) for index in range(options.open_requests)]
    base_s = time.monotonic() + 0.2
    shift_s = loop.time() - time.monotonic()
    due_s = [base_s + offset_s for offset_s in arrivals_s(options)]
    tasks: list[asyncio.Task[Seen]] = []

    def start(index: int) -> None:
        tasks.append(loop.create_task(send(bodies[index])))
        if index + 1 < len(due_s):
            loop.call_at(due_s[index + 1] + shift_s, start, index + 1)

    loop.call_at(due_s[0] + shift_s, start, 0)
    while len(tasks) < len(due_s):
        await asyncio.sleep(0.05)
    return list(zip(due_s, await asyncio.gather(*tasks), strict=True))


async def run_closed(send: Send, options: argparse.Namespace) -> list[tuple[float, Seen]]:
    bodies = iter([body(index, options.output_tokens) for index in range(options.closed_requests)])
    seen: list[Seen] = []

    async def stream() -> None:
        for content in bodies:
            seen.append(await send(content))

    await asyncio.gather(*[stream() for _ in range(options.streams)])
    return [(one.sent_s, one) for one in seen]


async def through_client(name: str, options: argparse.Namespace) -> dict:
    make, _ = CLIENTS[name]
    async with make(options.url) as send:
        began_s = time.process_time()
        rows = await (run_open if options.load == "open" else run_closed)(send, options)
        used_s = time.process_time() - began_s
    moments = [(due_s, one.sent_s, one.first_s, one.last_s, one.tokens) for due_s, one in rows]
    return figures(moments, used_s) | {"peak_mb": peak_mb()}


async def through_tunetui(options: argparse.Namespace) -> dict:
    from tunetui.core.load import Load
    from tunetui.core.workload import EpisodePlan, Material
    from tunetui.load.events import Batch
    from tunetui.load.generator import LoadGenerator, Target

    closed = options.load == "closed"
    count = options.closed_requests if closed else options.open_requests
    load = Load(concurrency=options.streams) if closed else Load(rate_rps=options.rate_rps)
    lengths = ((PROMPT_TOKENS,) * count, (options.output_tokens,) * count)
    moments_s = () if closed else tuple(at_s + 0.2 for at_s in arrivals_s(options))
    generator = LoadGenerator()
    await generator.start(Target(options.url, "scripted", Material(tuple(range(100, 20_000))), return_token_ids=False))
    await asyncio.sleep(0.5)  # it has read its token ids
    child_s, parent_s = cpu_s(generator.pid), time.process_time()
    await generator.episode(EpisodePlan(load, 0, count, moments_s, *lengths), episode_id=1, prompt_seed=[1])
    samples = []
    async for event in generator.events():
        samples += event.samples if isinstance(event, Batch) else ()
        if len(samples) == count:
            break
    used_s = cpu_s(generator.pid) - child_s + time.process_time() - parent_s
    status = Path(f"/proc/{generator.pid}/status").read_text()
    child_mb = int(status.split("VmHWM:")[1].split()[0]) / 1e3
    await generator.stop()
    moments = [(s.scheduled_s, s.sent_s, s.first_s, s.last_s, s.output_tokens) for s in samples]
    return figures(moments, used_s) | {"peak_mb": child_mb, "parent_mb": peak_mb()}


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def figures(moments: list[tuple], used_s: float) -> dict:
    tokens = sum(row[4] for row in moments)
    return {
        "p95_ttft_ms": percentile_ms([first_s - due_s for due_s, _, first_s, _, _ in moments], 95),
        "p95_tpot_ms": percentile_ms([(last_s - first_s) / (n - 1) for _, _, first_s, last_s, n in moments], 95),
        "p99_late_ms": percentile_ms([sent_s - due_s for due_s, sent_s, *_ in moments], 99),
        "cpu_us_per_token": used_s / tokens * 1e6,
        "tokens": tokens,
        "seconds": max(row[3] for row in moments) - min(row[0] for row in moments),
    }


def side(options: argparse.Namespace) -> None:
    """The process of one client: prints its figures."""
    if options.side == OURS:
        print(json.dumps(asyncio.run(through_tunetui(options))))
        return
    work = through_client(options.side, options)
    if CLIENTS[options.side][1]:
        import uvloop

        print(json.dumps(uvloop.run(work)))
    else:
        print(json.dumps(asyncio.run(work)))


def measure(name: str, load: str, options: argparse.Namespace) -> None:
    """One line of the table."""
    requests = options.open_requests if load == "open" else options.closed_requests
    with ScriptedServer("--ttft-ms", "200", "--tpot-ms", str(options.tpot_ms)) as server:
        command = [sys.executable, *sys.argv, "--side", name, "--load", load, "--url", server.url]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120)
        records = server.stop()
    if done.returncode:
        print(f"{load:<7}{name:<17} failed with exit code {done.returncode}")
        return
    truth = Truth.of(records, requests)
    print(line(name, load, json.loads(done.stdout), truth, server), flush=True)


def line(name: str, load: str, said: dict, truth: Truth, server: ScriptedServer) -> str:
    cells = [
        f"{load:<7}{name:<17}{said['p95_ttft_ms'] - truth.p95_ttft_ms:>+9.2f}",
        f"{said['p95_tpot_ms'] - truth.p95_tpot_ms:>+10.3f}{said['p99_late_ms']:>9.2f}{said['cpu_us_per_token']:>9.1f}",
        f"{said['cpu_us_per_token'] * said['tokens'] / 1e4 / said['seconds']:>6.0f}",
        f"{said['tokens'] / said['seconds']:>8.0f}{said['peak_mb']:>7.0f}",
        f" +{said['parent_mb']:<4.0f}" if "parent_mb" in said else " " * 6,
        f"{truth.p95_ttft_ms:>8.1f}{truth.p95_tpot_ms:>8.2f}{server.cpu_s / truth.tokens * 1e6:>7.0f}",
        f"{server.others_percent:>8.0f}",
    ]
    return "".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate-rps", type=float, default=40.0)
    parser.add_argument("--open-requests", type=int, default=200)
    parser.add_argument("--closed-requests", type=int, default=512)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=200)
    parser.add_argument("--tpot-ms", type=float, default=20.0)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"of {', '.join([*CLIENTS, OURS])}")
    for hidden in ("--side", "--load", "--url"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(options)
        return
    print(f"open: {options.rate_rps:g} req/s, {options.open_requests} requests; closed: {options.streams} streams,")
    print(f"{options.closed_requests} requests; each {options.output_tokens} tokens at {options.tpot_ms:g} ms")
    print(
        f"{'':<24}{'error ms, P95':>19}{'late ms':>9}{'CPU':>9}{'':>14}{'RSS':>7}{'':>6}{'truth, ms':>16}"
        f"{'server':>7}{'others':>8}"
    )
    print(
        f"{'load':<7}{'client':<17}{'TTFT':>9}{'TPOT':>10}{'P99':>9}{'us/token':>9}{'%':>6}{'token/s':>8}{'MB':>7}{'':>6}"
        f"{'TTFT':>8}{'TPOT':>8}{'us/t':>7}{'CPU %':>8}"
    )
    for load in ("open", "closed"):
        for name in options.only or [*CLIENTS, OURS]:
            measure(name, load, options)


if __name__ == "__main__":
    main()
