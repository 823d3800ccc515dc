"""The metrics page under its old and its new names, several engines, and pages that are not one."""

from __future__ import annotations

import pytest

from tunetui.engine.metrics import EngineGauges, MetricsError, parse_metrics

NEW = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.79e+09
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1.0e+06
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 7.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 99.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 11.0
vllm:generation_tokens_total{engine="0",model_name="m"} 12.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",\
num_gpu_blocks="128",num_cpu_blocks="None"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 2.0
"""
FULL = EngineGauges(3, 4, 0.25, 5, 1_000_000, 7, 11, 12, 16, 128, 0.92, True)


def test_new_names() -> None:
    assert parse_metrics(NEW) == FULL


def test_old_names() -> None:
    old = NEW.replace("vllm:kv_cache_usage", "vllm:gpu_cache_usage").replace("vllm:prefix", "vllm:gpu_prefix")
    assert parse_metrics(old) == FULL


def test_where_both_names_are_there_each_counts_once() -> None:
    old = NEW.replace("vllm:kv_cache_usage", "vllm:gpu_cache_usage").replace("vllm:prefix", "vllm:gpu_prefix")
    assert parse_metrics(NEW + old.split("vllm:kv_")[0].split("# HELP")[0]) == FULL


def test_engines_are_summed_and_their_usage_averaged() -> None:
    second = NEW.replace('engine="0"', 'engine="1"').replace(" 0.25\n", " 0.75\n")
    both = parse_metrics(NEW + second)
    assert (both.running, both.waiting, both.kv_usage, both.generation_tokens_total) == (6, 8, 0.5, 24)
    assert both.num_gpu_blocks == 128


def test_what_is_missing_is_none() -> None:
    assert parse_metrics("vllm:num_requests_running 1.0\n") == EngineGauges(running=1)
    odd = 'vllm:cache_config_info{block_size="None",gpu_memory_utilization="x",enable_prefix_caching="None"} 1.0\n'
    assert parse_metrics(odd) == EngineGauges()
    assert parse_metrics('vllm:kv_cache_usage_perc{model_name="a b{c\\"} 9"} 0.5\n').kv_usage == 0.5


@pytest.mark.parametrize(
    "page",
    ["", "<html>404</html>", "python_info 1.0\n", "vllm:num_requests_running{engine=\n", "vllm:num_requests_running x",
     "vllm:num_requests_running NaN\n", "vllm:num_requests_running +Inf\n", "vllm:num_requests_running\n"],
)  # fmt: skip
def test_what_is_no_metrics_page_is_said(page: str) -> None:
    with pytest.raises(MetricsError, match="the metrics page"):
        parse_metrics(page)
