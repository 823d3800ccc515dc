"""The figures of one measurement as plain data, under the names that `vllm bench serve --save-result` gives them.

It measures nothing and formats nothing: milliseconds and shares, ready to be written as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tunetui.core.episode import Episode, Measurement
from tunetui.core.point_statistics import Statement
from tunetui.core.requests import CANCELLED, FAILED, OK
from tunetui.core.sample import itl_of
from tunetui.core.slo import PERCENTILES, Slo

MS = 1000.0
DIGITS = 4


def figures(episode: Episode, seen: Measurement, slo: Slo) -> dict[str, Any]:
    """Counts, throughput and latencies in milliseconds of the counted requests of `episode`.

    Throughput is what arrived and ended in the window from the first counted request to the end of the last one, of
    whichever request it was. Latencies are of requests that ended well. TTFT and E2EL count from the scheduled moment
    (MEASURES); `_from_send` beside them is what vLLM's own benchmark means by TTFT. ITL is binned to 1 %.
    """
    requests, rows = episode.requests, episode.counted
    ok = requests.outcome[rows] == OK
    outputs, prompts = requests.output_tokens[rows][ok], requests.prompt_tokens[rows][ok]
    duration_s = seen.window_s
    result: dict[str, Any] = {
        "duration": round(duration_s, DIGITS),
        "num_prompts": episode.plan.counted,
        "completed": int(ok.sum()),
        "failed": seen.failed,
        "cancelled": seen.cancelled,
        "left_out": episode.plan.cut,
        "total_input_tokens": int(prompts.sum()),
        "total_output_tokens": int(outputs.sum()),
        "request_throughput": round(seen.requests_per_s, DIGITS),
        "request_goodput": round(seen.goodput_rps, DIGITS) if slo.objectives else None,
        "output_throughput": round(seen.output_tokens_per_s, DIGITS),
        "goodput_tokens": round(seen.goodput_tokens_per_s, DIGITS) if slo.objectives else None,
        "total_token_throughput": round(seen.output_tokens_per_s + float(prompts.sum()) / duration_s, DIGITS)
        if duration_s
        else 0.0,
    }
    for name, values in (
        ("ttft", requests.ttft_s(rows)[ok]),
        ("ttft_from_send", requests.ttft_from_send_s(rows)[ok]),
        ("tpot", requests.tpot_s(rows)[ok]),
        ("e2el", requests.e2el_s(rows)[ok]),
    ):
        result |= _latency(name, values)
    result |= _binned("itl", episode.itl_bins)
    result |= {
        "generator_lateness_p99_ms": None if seen.lateness_p99_s is None else round(seen.lateness_p99_s * MS, DIGITS),
        "one_token_answers": seen.one_token_answers,
        "retries": int(requests.retries[rows].sum()),
        "errors": _errors(episode),
    }
    return result


def _latency(name: str, values_s: Any) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles in milliseconds; None where no request has the latency."""
    import numpy as np

    known = values_s[~np.isnan(values_s)] * MS
    if not known.size:
        return {f"{kind}_{name}_ms": None for kind in ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES))}
    found = {"mean": known.mean(), "median": np.median(known), "std": known.std()}
    found |= {f"p{p}": value for p, value in zip(PERCENTILES, np.percentile(known, PERCENTILES), strict=True)}
    return {f"{kind}_{name}_ms": round(float(value), DIGITS) for kind, value in found.items()}


def _binned(name: str, bins: Counter[int]) -> dict[str, float | None]:
    import numpy as np

    if not bins:
        return _latency(name, np.zeros(0))
    numbers = sorted(bins)
    values, counts = np.array([itl_of(n) for n in numbers]) * MS, np.array([bins[n] for n in numbers])
    mean = float((values * counts).sum() / counts.sum())
    std = float(np.sqrt((counts * (values - mean) ** 2).sum() / counts.sum()))
    at = np.minimum(np.searchsorted(np.cumsum(counts), np.array(PERCENTILES) / 100 * counts.sum()), values.size - 1)
    found = {"mean": mean, "median": values[at[PERCENTILES.index(50)]], "std": std}
    found |= {f"p{p}": values[i] for p, i in zip(PERCENTILES, at, strict=True)}
    return {f"{kind}_{name}_ms": round(float(value), DIGITS) for kind, value in found.items()}


def _errors(episode: Episode) -> dict[str, int]:
    """How often each error came among the counted requests, the most frequent twenty."""
    counted = (text for index, text in episode.requests.errors.items() if index >= episode.plan.cut)
    return dict(Counter(counted).most_common(20))


def judgement(seen: Measurement, statement: Statement, slo: Slo) -> dict[str, Any]:
    """Verdicts: exact ones on this load, and what can be said in general."""
    objectives = {}
    for one, general in zip(seen.objectives, statement.general, strict=True):
        interval, bounds = general.interval, general.percentile
        objectives[one.metric.value] = {
            "limit_ms": one.limit_s * MS,
            "verdict": one.verdict.value,
            "attainment": one.share,
            "general": None if interval is None else [round(interval.low, 5), round(interval.high, 5)],
            "general_verdict": "UNDECIDED" if interval is None else interval.verdict.value,
            "effective_requests": None if interval is None else round(interval.effective_requests, 1),
            f"general_p{slo.percentile}_ms": None
            if bounds is None
            else [round(bounds.low_s * MS, 3), None if bounds.high_s is None else round(bounds.high_s * MS, 3)],
        }
    return {
        "slo": str(slo),
        "percentile": slo.percentile,
        "verdict": seen.verdict.value if slo.objectives else None,
        "on_the_line": seen.on_the_line,
        "attainment": seen.attainment if slo.objectives else None,
        "general_verdict": statement.verdict.value if slo.objectives else None,
        "objectives": objectives,
        "overload": seen.overload,
    }


def request_lines(episode: Episode, zero_s: float) -> Iterator[dict[str, Any]]:
    """Each request with its moments in seconds after `zero_s`, in the order of arrival; None: it never came."""
    requests, plan = episode.requests, episode.plan
    outcomes = {OK: "ok", FAILED: "failed", CANCELLED: "cancelled"}
    for i in range(plan.size):
        moments = {
            name: _moment(getattr(requests, name)[i], zero_s)
            for name in ("scheduled_s", "sent_s", "first_s", "last_s", "ended_s")
        }
        yield {
            "index": i,
            "counted": i >= plan.cut,
            **moments,
            "prompt_tokens": int(requests.prompt_tokens[i]) or plan.prompt_tokens[i],
            "output_tokens": int(requests.output_tokens[i]),
            "outcome": outcomes.get(int(requests.outcome[i]), "open"),
            "retries": int(requests.retries[i]),
            "error": requests.errors.get(i, ""),
        }


def _moment(moment_s: float, zero_s: float) -> float | None:
    return None if moment_s != moment_s else round(float(moment_s) - zero_s, 7)
