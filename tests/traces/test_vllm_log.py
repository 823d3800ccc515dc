"""What vLLM's request logger writes, over its versions, and what can be had from it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tunetui.core.trace import Trace
from tunetui.traces.columns import Reading
from tunetui.traces.lines import TraceError
from tunetui.traces.vllm_log import read_vllm_log


def params(max_tokens: int | None) -> str:
    return (
        f"SamplingParams(n=1, stop=['max_tokens=3,'], ignore_eos=False, max_tokens={max_tokens}, min_tokens=0, "
        "logprobs=None, extra_args=None)"
    )


def old(when: str, name: str, prompt: str | None, ids: list[int] | None, limit: int | None) -> str:
    """The one line of vLLM 0.10."""
    return (
        f"INFO {when} [logger.py:41] Received request {name}: prompt: {prompt!r}, params: {params(limit)}, "
        f"prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None."
    )


def new(when: str, name: str, limit: int | None, prompt: str | None = None, ids: list[int] | None = None) -> list[str]:
    """The lines of vLLM since 0.11: the prompt at DEBUG alone, and here only where `ids` are given."""
    head = "(APIServer pid=7)"
    details = (
        f"{head} DEBUG {when} [entrypoints/.../utils/request_logger.py:54] Request {name} details: "
        f"prompt: {prompt!r}, prompt_token_ids: {ids}, prompt_embeds shape: None."
    )
    received = f"{head} INFO {when} [x.py:64] Received request {name}: params: {params(limit)}, lora_request: None."
    return [details, received] if ids else [received]


def answer(when: str, name: str, how: str, text: str, ids: list[int] | None = None) -> str:
    return (
        f"INFO {when} [logger.py:70] Generated response {name}{how}: output: {text!r}, output_token_ids: {ids}, "
        "finish_reason: stop"
    )


def read(lines: Sequence[str], year: int = 2031) -> tuple[Trace, Reading]:
    return read_vllm_log(enumerate(lines, 1), year)


def test_a_log_of_0_10_with_answers() -> None:
    trace, reading = read(
        [
            "INFO 03-01 09:00:00 [api_server.py:1] Starting",
            old("03-01 09:00:01", "chatcmpl-a", "say 'x'\nprompt_token_ids: [1], params: y", [5, 6, 7], 90),
            answer("03-01 09:00:03", "chatcmpl-a", "", "it, finish_reason: no", [1, 2, 3, 4]),
            old("03-01 09:00:05", "cmpl-b-0", None, [1] * 20, 8),
        ]
    )
    assert trace == Trace("vllm log", (3, 20), (4, 8), arrivals_s=(0.0, 4.0))
    assert reading.notes == (
        "arrivals are logged in whole seconds and spread evenly within each",
        "output lengths taken from max_tokens, an upper bound: 1",
    )


def test_a_debug_log_since_0_11() -> None:
    lines = [
        *new("03-01 09:00:00", "chatcmpl-a", 90, "hello", [1, 2, 3, 4, 5]),
        "DEBUG 03-01 09:00:02 [x.py:1] Generated response chatcmpl-a details: output_token_ids: [1, 2]",
        "INFO 03-01 09:00:02 [x.py:1] Generated response chatcmpl-a: output: 'ab', finish_reason: stop",
        *new("03-01 09:00:03", "chatcmpl-b", 90, "hello", [1, 2]),
    ]
    for number in range(3):
        lines.append(answer(f"03-01 09:00:0{4 + number}", "chatcmpl-b", " (streaming delta)", "x", [number, 9]))
    lines.append(answer("03-01 09:00:08", "chatcmpl-b", " (streaming complete)", "x" * 99))
    lines += [
        *new("03-01 09:00:04", "chatcmpl-c", 90, "hello", [1]),
        answer("03-01 09:00:05", "chatcmpl-c", " (streaming delta)", "x", [9]),
        answer("03-01 09:00:06", "chatcmpl-c", " (streaming complete)", "<streaming_complete: 17 tokens>"),
    ]
    trace, reading = read(lines)
    assert trace == Trace("vllm log", (5, 2, 1), (2, 6, 17), arrivals_s=(0.0, 3.0, 4.0))
    assert "output lengths counted part by part in the logged stream, at least so many: 1" in reading.notes


def test_texts_stand_in_for_missing_ids() -> None:
    trace, reading = read(
        [
            old("03-01 09:00:00", "a", "p" * 40, None, 90),
            "INFO 03-01 09:00:02 [x:1] Generated response a (streaming complete): output: 'abcdefgh', finish_reason: s",
        ]
    )
    assert (trace.prompt_tokens, trace.output_tokens, trace.counted) == ((10,), (2,), False)
    assert "output lengths estimated from the logged text: 1" in reading.notes


def test_requests_of_one_second_are_spread_within_it() -> None:
    lines = [old(f"03-01 09:00:0{second}", f"r{number}", None, [1], 5) for number, second in enumerate((1, 1, 1, 1, 3))]
    assert read(lines)[0].arrivals_s == (0.0, 0.25, 0.5, 0.75, 2.375)


@pytest.mark.parametrize(("year", "hours"), [(2031, 24), (2032, 48)])
def test_days_are_those_of_the_year(year: int, hours: int) -> None:
    lines = [old("02-28 12:00:00", "a", None, [1], 5), old("03-01 12:00:00", "b", None, [1], 5)]
    assert read(lines, year)[0].arrivals_s == (0.0, hours * 3600.0)


def test_the_year_turns() -> None:
    lines = [old("12-31 23:59:59", "a", None, [1], 5), old("01-01 00:00:01", "b", None, [1], 5)]
    assert read(lines)[0].arrivals_s == (0.0, 2.0)


def test_a_json_log_has_finer_times() -> None:
    def line(when: str, name: str) -> str:
        _, _, message = old("03-01 09:00:00", name, None, [1, 2], 5).partition("] ")
        return json.dumps({"asctime": f"2031-03-01 09:00:{when}", "levelname": "INFO", "message": message})

    trace, reading = read(
        [line("00,250", "a"), line("01,500", "b"), '{"message": "Received request "}', "{Received request "]
    )
    assert trace.arrivals_s == (0.0, 1.25)
    assert reading.notes == ("output lengths taken from max_tokens, an upper bound: 2",)


def test_coloured_lines_and_a_prompt_that_looks_like_a_line() -> None:
    inner = old("03-01 09:00:09", "inner", None, [1] * 9, 9)
    outer = old("03-01 09:00:00", "outer", inner, [1, 2], 5)
    trace, _ = read([outer.replace("INFO", "\x1b[32mINFO\x1b[0m").replace("03-01", "\x1b[90m03-01", 1)])
    assert (trace.requests, trace.prompt_tokens, trace.output_tokens) == (1, (2,), (5,))


def test_what_generates_nothing_or_has_no_length_is_left_out() -> None:
    trace, reading = read(
        [
            old("03-01 09:00:00", "a", None, [1], 5),
            old("03-01 09:00:01", "b", None, [1], None),
            old("03-01 09:00:02", "c", None, None, 5),
            old("03-01 09:00:03", "d", None, [1], 5).replace("SamplingParams", "PoolingParams"),
            answer("03-01 09:00:03", "unknown", "", "x", [1]),
        ]
    )
    assert trace.requests == 1
    assert set(reading.notes[1:]) == {
        "arrivals are logged in whole seconds and spread evenly within each",
        "output lengths taken from max_tokens, an upper bound: 1",
        "requests without an output length or max_tokens left out: 1",
        "requests without a prompt length left out: 1",
    }
    assert reading.notes[0] == "requests that generate nothing left out: 1"


def test_lengths_that_a_limit_may_have_cut_are_told() -> None:
    lines = [old("03-01 09:00:00", f"r{n}", None, [1] * min(n, 10), 5) for n in range(1, 15)]
    assert "prompts of exactly 10 token ids, where --max-log-len may have cut them: 5" in read(lines)[1].notes
    assert not any("--max-log-len" in note for note in read(lines[:11])[1].notes)


def test_a_log_without_lengths_takes_drawn_ones() -> None:
    lines = [line for n in range(3) for line in new("03-01 09:00:00", f"r{n}", 7 + n)]
    with pytest.raises(TraceError, match="the log has 3 requests without prompt lengths: start vLLM with VLLM_LOGGING"):
        read(lines)
    trace, reading = read_vllm_log(enumerate(lines, 1), 2031, lambda count: list(range(50, 50 + count)))
    assert (trace.prompt_tokens, trace.output_tokens, trace.lengths_only) == ((50, 51, 52), (7, 8, 9), True)
    assert reading.notes[0] == "prompt lengths drawn, for the log has none: 3"


def test_a_log_without_requests() -> None:
    with pytest.raises(TraceError, match="no request in it: start vLLM with --enable-log-requests"):
        read(["INFO 03-01 09:00:00 [api_server.py:1] Starting"])


def test_a_date_that_does_not_exist_is_a_broken_line() -> None:
    lines = [old("03-01 09:00:00", f"r{n}", None, [1], 5) for n in range(150)]
    _, reading = read([*lines, old("02-31 09:00:00", "x", None, [1], 5)])
    assert reading.first_broken == ("line 151: the date does not exist",)
