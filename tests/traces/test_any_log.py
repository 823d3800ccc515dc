"""Whatever stands in a log or on a page of metrics, the answer is a recording or the one error."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tunetui.traces.access_log import read_access_log
from tunetui.traces.lines import TraceError
from tunetui.traces.scrapes import parse_scrape, sampled_trace
from tunetui.traces.vllm_log import read_vllm_log

WORDS = st.sampled_from(
    (
        "INFO 03-01 09:00:00 [x.py:1] ", "INFO 13-41 29:00:00 [x.py:1] ", "Received request ", "a: ", "prompt: ",
        "Request a details: prompt: ", "Generated response ", "a (streaming delta)", "output: 'x'", "params: ",
        "SamplingParams(", "max_tokens=5, min_tokens=", "max_tokens=99999999999999999999)", "prompt_token_ids: [1, 2]",
        "prompt_token_ids: [", "output_token_ids: []", ", finish_reason: ", '{"message": ', '"asctime": ', "{", "}",
        "prompt_tokens=", "completion_tokens=", "5 ", "-1 ", "1e999 ", "[03/Feb/2031:04:05:06 +0000]", "time=", "nan ",
        "[41/Foo/2031:04:05:06 +0000]", '{"ts": 5, "prompt_tokens": 5, "completion_tokens": 5}', '"', "\x1b[31m",
    )
)  # fmt: skip
LINES = st.lists(st.lists(WORDS | st.text(max_size=5), max_size=9).map("".join), max_size=6)


@given(LINES)
def test_any_log(lines: list[str]) -> None:
    with suppress(TraceError):
        trace, _ = read_vllm_log(enumerate(lines, 1), 2031)
        assert trace.requests > 0
    with suppress(TraceError):
        trace, _ = read_access_log(enumerate(lines, 1))
        assert trace.requests > 0


SAMPLES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                'vllm:request_prompt_tokens_bucket{le="5.0"}', 'vllm:request_prompt_tokens_bucket{le="+Inf"}',
                'vllm:request_prompt_tokens_bucket{le="x"}', "vllm:request_prompt_tokens_bucket",
                'vllm:request_generation_tokens_bucket{le="+Inf"}', "vllm:request_generation_tokens_sum",
                'vllm:request_generation_tokens_bucket{le="-7"}', "vllm:request_success_total",
                "vllm:num_requests_running",
            ]
        ),
        st.sampled_from(["0", "3", "7.5", "-2", "NaN", "+Inf", "1e300", "x", ""]),
    ),
    max_size=9,
)  # fmt: skip
GOOD = 'vllm:request_prompt_tokens_bucket{le="+Inf"} 0\nvllm:request_generation_tokens_bucket{le="+Inf"} 0\n'


@given(SAMPLES, SAMPLES)
def test_any_pages(first: list[tuple[str, str]], second: list[tuple[str, str]]) -> None:
    with suppress(TraceError):
        pages = [
            parse_scrape(GOOD + "".join(f"{name} {value}\n" for name, value in samples), at_s)
            for at_s, samples in ((0.0, first), (5.0, second))
        ]
        trace, _ = sampled_trace(pages, seed=0)
        assert all(tokens >= 1 for tokens in (*trace.prompt_tokens, *trace.output_tokens))
