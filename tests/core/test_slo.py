import pytest

from tunetui.core.slo import Metric, SloError, parse_slo


def test_reads_vllms_form() -> None:
    slo = parse_slo(["ttft:600", "TPOT:80.5"], 95)
    assert [(o.metric, o.limit_s) for o in slo.objectives] == [(Metric.TTFT, 0.6), (Metric.TPOT, 0.0805)]
    assert slo.share == 0.95
    assert str(slo) == "ttft:600 tpot:80.5"


@pytest.mark.parametrize(
    ("parts", "percentile", "said"),
    [
        (["ttft=600"], 95, "write KEY:MS"),
        (["latency:5"], 95, "KEY ttft, tpot or e2el"),
        (["ttft:"], 95, "milliseconds above 0"),
        (["ttft:abc"], 95, "milliseconds above 0"),
        (["ttft:-3"], 95, "milliseconds above 0"),
        (["ttft:nan"], 95, "milliseconds above 0"),
        (["ttft:inf"], 95, "milliseconds above 0"),
        (["ttft:600", "ttft:700"], 95, "twice"),
        (["ttft:600"], 42, "50, 90, 95, 99"),
    ],
)
def test_says_what_is_wrong(parts: list[str], percentile: int, said: str) -> None:
    with pytest.raises(SloError, match=said):
        parse_slo(parts, percentile)
