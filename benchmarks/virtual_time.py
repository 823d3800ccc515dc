"""How much faster than real time the simulated engine runs, and the guide's case on it beside the guide's figures.

    uv run python benchmarks/virtual_time.py [REQUESTS]

Walks the case (closed loop at the cap) and the two points past the knee in virtual time; 10,000 requests each.
"""

from __future__ import annotations

import sys

from tunetui.demo import case

GUIDE = ("1850 tok/s, 420 ms, 65 ms", "2300 tok/s, 780 ms, -", "2150 tok/s, 550 ms, 72 ms", "-")


def main(requests: int) -> None:
    """Print a row for each point."""
    print(
        f"{'point':17} {'guide':26} {'tok/s':>6} {'answered':>8} {'TTFT':>6} {'TPOT':>6} {'KV':>4} {'again':>6} speed"
    )
    points = [(point, float("inf"), 0) for point in (*case.POINTS, case.Point(320, False, 4096))]
    points += [(point, case.PATIENCE_S, case.RETRIES) for point in case.PAST_THE_KNEE]
    for (point, timeout_s, retries), guide in zip(points, (*GUIDE, "900 ms", "1400 ms, 30 % again"), strict=True):
        seen = case.walk(point, requests, timeout_s=timeout_s, retries=retries)
        name = f"{point.max_num_seqs} {point.max_num_batched_tokens} {'chunked' if point.chunked_prefill else 'whole'}"
        print(
            f"{name:17} {guide:26} {seen.tokens_per_s:6.0f} {seen.answered_tokens_per_s:8.0f} "
            f"{seen.ttft_s * 1000:6.0f} {seen.tpot_s * 1000:6.1f} {seen.kv_used:4.0%} "
            f"{seen.retried:6.1%} {seen.faster_than_real:5.0f}x",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
