"""The page of points against each other: which figure it ranks by, what it draws, and that it fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ui.stub import POINT, live, make_app, measurement, screen_text, until

from tunetui.core.load import Load
from tunetui.core.session import Row
from tunetui.core.slo import Verdict
from tunetui.ui.tradeoff import tradeoff

SEEN = ((128, 0.2, 0.03, 3000.0), (256, 0.372, 0.0598, 4343.0), (384, 2.97, 0.0754, 4641.0), (448, 0.9, 0.1, 4700.0))


def rows(capacities: tuple[float | None, ...] = (None,) * 4) -> tuple[Row, ...]:
    found = []
    for number, ((seqs, ttft_s, tpot_s, tokens), rps) in enumerate(zip(SEEN, capacities, strict=True), 1):
        verdict = Verdict.FAIL if ttft_s > 0.6 else Verdict.PASS
        seen = replace(measurement(verdict), ttft_s=ttft_s, tpot_s=tpot_s, output_tokens_per_s=tokens)
        found.append(Row(number, replace(POINT, max_num_seqs=seqs), Load(4.0), seen, capacity_rps=rps))
    return tuple(found)


@pytest.mark.parametrize(("width", "height"), [(116, 34), (76, 22), (56, 13)])
def test_both_latencies_are_drawn_with_every_point_and_the_words_fit(width: int, height: int) -> None:
    text = tradeoff(live(rows=rows()), width, height)
    assert all(len(line.rstrip()) <= width for line in text.plain.split("\n"))
    assert "P95 TTFT" in text.plain
    assert "P95 TPOT" in text.plain
    assert "\u254e" in text.plain  # the SLO
    words = " ".join(text.plain.split())
    assert "most inside the SLO: #2; the knee of TTFT is #2" in words
    assert "output tok/s against P95" in words


def test_points_are_ranked_by_capacity_once_two_are_known() -> None:
    text = tradeoff(live(rows=rows((9.0, 14.0, None, 13.0))), 116, 34).plain
    assert "capacity in req/s against P95" in text
    assert "most inside the SLO: #2" in text
    assert "output tok/s" in tradeoff(live(rows=rows((9.0, None, None, None))), 116, 34).plain


def test_before_a_point_is_measured_it_says_so() -> None:
    assert tradeoff(live(rows=()), 76, 22).plain == "no point has been measured yet"
    none = replace(measurement(Verdict.UNDECIDED), ttft_s=None, tpot_s=None)
    assert "no point meets" in tradeoff(live(rows=(Row(1, POINT, Load(4.0), none),)), 76, 22).plain


async def test_its_key_opens_it_and_closes_it() -> None:
    app, _ = make_app(live(rows=rows()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p")
        await until(pilot, lambda: "POINTS AGAINST EACH OTHER" in screen_text(app))
        assert "most inside the SLO" in screen_text(app)
        await pilot.press("p")
        await until(pilot, lambda: "KNOBS" in screen_text(app))
