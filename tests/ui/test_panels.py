"""What the panels say, as tables of state -> text."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from rich.style import Style
from ui.stub import ADVICE, BYTES_FACTS, FACTS, FOUND, POINT, RESTART, failed, live, measurement, starting

from tunetui.core.ceilings import Lowering, Shortage, ShortageKind
from tunetui.core.coach import Applied, Coach
from tunetui.core.expectation import Observed
from tunetui.core.knobs import EngineFacts, How, Knob, MemoryFlag, Point, Step
from tunetui.core.load import Load
from tunetui.core.memory import MemoryParts
from tunetui.core.session import Notice, Phase, Riding, Row, Session, StepState
from tunetui.core.slo import Metric, Verdict, parse_slo
from tunetui.ui import panels, styles
from tunetui.ui.board import points_height, series_of
from tunetui.ui.commands import footer
from tunetui.ui.fit import fitted, part, shortened
from tunetui.ui.format import clock, memory_map, ms
from tunetui.ui.pages import events_text, help_text
from tunetui.ui.points import columns_for, points
from tunetui.ui.startup import is_starting, startup

NOW = 1000.0
WIDTHS = (60, 80, 99, 100, 120, 200)


def plain(text: Any) -> list[str]:
    return [line.rstrip() for line in text.plain.split("\n")]


def stepping(step_state: StepState, accepted_s: float | None = None, settled_s: float | None = None) -> Session:
    return live(step_state=step_state, step_asked_s=NOW, step_accepted_s=accepted_s, step_settled_s=settled_s)


@pytest.mark.parametrize(
    ("state", "lines"),
    [
        (stepping(StepState.NONE), []),
        (stepping(StepState.ASKED), ["step ASKED", "written; the scheduler has not read it yet"]),
        (
            stepping(StepState.ACCEPTED, NOW + 0.03),
            ["step ACCEPTED", "accepted in 30 ms", "52 running, going to the new limits"],
        ),
        (
            stepping(StepState.SETTLED, NOW + 0.03, NOW + 1.25),
            ["step SETTLED", "accepted in 30 ms", "settled in 1.2 s"],
        ),
        (stepping(StepState.IDLE), ["step IDLE", "applies with the next request"]),
        (live(facts=replace(FACTS, live=False, why_not_live="attached: read-only")), ["attached: read-only"]),
    ],
)
def test_how_far_a_step_has_come(state: Session, lines: list[str]) -> None:
    assert [text for text, _ in panels.step_lines(state)] == lines


@pytest.mark.parametrize(
    ("state", "typed", "line"),
    [
        (live(), "", "> max-num-seqs              64  live"),
        (live(), "32", "> max-num-seqs             32_  enter"),
        (live(facts=None), "", "> max-num-seqs              64"),
        (live(point=None, facts=None), "", "> max-num-seqs               -"),
    ],
)
def test_the_chosen_knob(state: Session, typed: str, line: str) -> None:
    text = panels.knobs(state, Knob.SEQS, typed, 44)
    assert plain(text)[1] == line
    # The mark and the reversed line do without colours.
    assert any("reverse" in str(span.style) for span in text.spans)
    assert sum(row.startswith(">") for row in plain(text)) == 1


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (live(), "  prefix caching            on  restart 95 s"),
        (live(restart=RESTART), "  prefix caching           off  restart?"),
        (live(facts=BYTES_FACTS, point=replace(POINT, memory=2.0**31)), "  KV cache memory     2.00 GiB  live v"),
        (live(facts=None, point=replace(POINT, memory=2.0**31)), "  KV cache memory     2.00 GiB"),
        (live(), "  gpu-memory-util         0.90  live v"),
    ],
)
def test_each_knob_says_what_a_step_takes(state: Session, line: str) -> None:
    assert line in plain(panels.knobs(state, Knob.SEQS, "", 44))


GIB = 2**30
CARD = replace(
    FACTS, ceiling=replace(FACTS.ceiling, memory=0.90), num_blocks=3680, bytes_per_block=16 * 2**20,
    total_memory_bytes=round(79.2 * GIB), memory=MemoryParts(
        total_bytes=round(79.2 * GIB), weights_bytes=round(12.6 * GIB), activations_bytes=round(1.2 * GIB),
        non_torch_bytes=round(0.14 * GIB), graphs_bytes=round(0.61 * GIB), kv_bytes=round(57.5 * GIB),
    ),
)  # fmt: skip
HERE = replace(POINT, memory=0.90)


def card(**parts: int | bool | None) -> EngineFacts:
    return replace(CARD, memory=replace(CARD.memory, **parts))


@pytest.mark.parametrize(
    ("facts", "memory", "line"),
    [
        (CARD, 0.90, "0.90 of 79.2 GiB = 71.3: KV 57.5 (3,680 blocks), weights 12.6, activations 1.20, graphs 0.61, "
         "non-torch 0.14"),
        (CARD, 0.80, "0.80 of 79.2 GiB = 63.4: KV 49.6 (3,173 blocks), weights 12.6, activations 1.20, graphs 0.61, "
         "non-torch 0.14"),
        (CARD, 0.95, "0.95 of 79.2 GiB = 75.2: KV 61.5 (3,933 blocks), weights 12.6, activations 1.20, graphs 0.61, "
         "non-torch 0.14"),
        (card(activations_bytes=None, non_torch_bytes=None, graphs_bytes=None), 0.80,
         "0.80 of 79.2 GiB = 63.4: KV 49.6 (3,173 blocks), weights 12.6, the rest 1.18"),
        (card(per_card=True, non_torch_bytes=None, graphs_bytes=None), 0.90,
         "0.90 of 79.2 GiB = 71.3: KV 57.5 (3,680 blocks), weights 12.6, activations 1.20 (per card)"),
        (replace(CARD, memory=MemoryParts(worker_bytes=GIB)), 0.90,
         "0.90 of 79.2 GiB = 71.3: KV 57.5 (3,680 blocks), worker 1.00"),
        (replace(CARD, memory=MemoryParts(), bytes_per_block=0), 0.90, "0.90 of 79.2 GiB = 71.3"),
        (replace(CARD, total_memory_bytes=0), 0.90, ""),
        (BYTES_FACTS, 256.0 * 2**20, "256 MiB = 128 blocks of 2 MiB"),
        (replace(BYTES_FACTS, bytes_per_block=0), 256.0 * 2**20, ""),
    ],
)  # fmt: skip
def test_what_the_memory_knob_gives(facts: EngineFacts, memory: float, line: str) -> None:
    assert memory_map(replace(POINT, memory=memory), facts) == line
    lines = [
        text for text, _ in panels.chosen_lines(live(facts=facts, point=replace(POINT, memory=memory)), Knob.MEMORY)
    ]
    assert [text for text in lines if not text.startswith("restart: ")] == ([line] if line else [])


def test_a_step_of_the_other_knobs_says_nothing_of_memory() -> None:
    assert panels.chosen_lines(live(facts=CARD), Knob.SEQS) == []
    assert panels.chosen_lines(live(facts=None), Knob.MEMORY) == []
    assert panels.chosen_lines(live(point=None), Knob.MEMORY) == []


def test_an_offered_restarts_memory_is_the_one_that_is_explained() -> None:
    offered = Step(replace(HERE, memory=0.95), How.RESTART, "above the 0.90 that the server was started with")
    lines = [text for text, _ in panels.chosen_lines(live(facts=CARD, point=HERE, restart=offered), Knob.MEMORY)]
    assert lines[0].startswith("0.95 of 79.2 GiB = 75.2: KV 61.5 (3,933 blocks)")
    assert lines[1] == "restart: above the 0.90 that the server was started with"


@pytest.mark.parametrize(
    ("changes", "chosen", "how", "why"),
    [
        ({}, Knob.PREFIX, "restart 95 s", ["restart: vLLM sets it at start"]),
        ({}, Knob.SEQS, "live", []),
        ({"restart_reasons": {Knob.THRESHOLD: "pipeline parallelism"}}, Knob.THRESHOLD, "restart 95 s",
         ["restart: pipeline parallelism"]),
        ({"fixed": {Knob.MEMORY: "start without it"}}, Knob.MEMORY, "fixed", ["fixed: start without it"]),
        ({"fixed": {Knob.MEMORY: "start without it"}, "live": False, "why_not_live": "attached"}, Knob.MEMORY, "fixed",
         ["fixed: start without it"]),
        ({"live": False, "why_not_live": "attached"}, Knob.SEQS, "restart 95 s", []),  # said once, for all of them
    ],
)  # fmt: skip
def test_the_chosen_knob_says_why_it_is_not_live(
    changes: dict[str, Any], chosen: Knob, how: str, why: list[str]
) -> None:
    state = live(facts=replace(FACTS, **changes))
    assert [text for text, _ in panels.chosen_lines(state, chosen)] == why
    (line,) = (row for row in plain(panels.knobs(state, chosen, "", 44)) if row.startswith(">"))
    assert line.endswith(how)


@pytest.mark.parametrize(("width", "height"), [(34, 14), (44, 22)])
def test_the_memory_notes_and_the_step_fit_into_the_panel(width: int, height: int) -> None:
    facts = card(per_card=True)
    state = replace(stepping(StepState.SETTLED, NOW + 0.03, NOW + 1.25), facts=facts, point=HERE)
    lines = plain(panels.knobs(state, Knob.MEMORY, "", width))
    assert max(map(len, lines)) <= width
    shown = " ".join(lines[:height])
    for words in ("step SETTLED", "KV 57.5 (3,680 blocks)", "weights 12.6", "activations 1.20", "(per card)",
                  "settled in 1.2 s"):  # fmt: skip
        assert words in shown
    assert lines[len(Knob) + 1] == "step SETTLED"  # a short panel cuts off the last notes, not these


@pytest.mark.parametrize("width", [34, 44])
def test_the_reason_that_nothing_is_live_wraps_inside_the_panel(width: int) -> None:
    why = "attached: this server was not started by tunetui, so its knobs cannot be changed from here"
    lines = plain(panels.knobs(live(facts=replace(FACTS, live=False, why_not_live=why)), Knob.PREFIX, "", width))
    assert max(map(len, lines)) <= width
    assert why in " ".join(lines)
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize(
    ("verdict", "title"),
    [
        (Verdict.PASS, "P95 TTFT    412 ms   SLO 600   PASS   met 90.0 %"),
        (Verdict.FAIL, "P95 TTFT    412 ms   SLO 600   FAIL   met 90.0 %"),
        (Verdict.UNDECIDED, "P95 TTFT    412 ms   SLO 600   UNDECIDED   300 left"),
    ],
)
def test_a_chart_is_headed_by_value_limit_and_verdict(verdict: Verdict, title: str) -> None:
    assert panels.chart_title(live(measurement=measurement(verdict)), Metric.TTFT, 74).plain == title


@pytest.mark.parametrize(
    ("state", "width", "title"),
    [
        (live(), 44, "P95 TPOT   65.1 ms   SLO 80   PASS"),
        (live(measurement=measurement(tpot=Verdict.UNDECIDED)), 24, "TPOT 65.1 ms UNDECIDED"),
        (live(measurement=None), 44, "P95 TPOT         -   SLO 80   no episode yet"),
        (live(slo=parse_slo(["ttft:600"], 99)), 44, "P99 TPOT   65.1 ms   no objective"),
    ],
)
def test_a_title_gives_up_its_least_important_words(state: Session, width: int, title: str) -> None:
    assert panels.chart_title(state, Metric.TPOT, width).plain == title


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, ""),
        ({"restart": RESTART},
         "RESTART? enter yes  esc no   about 95 s, no load meanwhile   vLLM sets it at start"),
        ({"restart": RESTART, "start_expected_s": None},
         "RESTART? enter yes  esc no   the time is not known yet, no load meanwhile   vLLM sets it at start"),
        ({"measurement": measurement(suspect="the generator was late")}, "SUSPECT the generator was late"),
        ({"measurement": measurement(suspect="x"), "notices": (Notice(NOW - 3, "information", "nothing to undo"),)},
         "nothing to undo"),
        ({"notices": (Notice(NOW - 16, "warning", "old"),)}, ""),
        ({"errors": 2, "last_error": "503"}, "last error: 503"),
    ],
)  # fmt: skip
def test_the_message_asks_or_tells_one_thing(changes: dict[str, Any], line: str) -> None:
    assert panels.message(live(**changes), NOW, 120).plain == line


def test_what_is_refused_while_a_restart_is_offered_is_said_beside_it() -> None:
    refused = Notice(NOW, "warning", "max-num-seqs must be at least 1")
    line = panels.message(live(restart=RESTART, notices=(refused,)), NOW, 120).plain
    assert line.startswith("RESTART? enter yes  esc no")
    assert "max-num-seqs must be at least 1" in line


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"measurement": None}, "EPISODE  none yet"),
        ({"measurement": None, "paused": True}, "EPISODE  paused"),
        ({"measurement": None, "load_allowed": False}, "EPISODE  no load is sent: L asks"),
    ],
)
def test_an_episode_that_is_not_there_says_why(changes: dict[str, Any], line: str) -> None:
    assert panels.episode(live(**changes), 120).plain == line


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("errors", [0, 123456])
def test_every_line_fits_and_keeps_its_end(width: int, errors: int) -> None:
    name = "a-model-with-a-name-" * 12
    state = live(model=name, errors=errors, measurement=replace(measurement(Verdict.UNDECIDED), on_the_line=True))
    header, episode = panels.header(state, state.began_s + 3661.5, width), panels.episode(state, width)
    engine = panels.engine(state, width)
    assert [header.cell_len, episode.cell_len, engine.cell_len] == [width] * 3
    assert "LIVE 01:01:01   " in header.plain
    assert "14 rps" in header.plain
    assert episode.plain.endswith("ON THE LINE UNDECIDED")
    assert engine.plain.endswith("limit: SEQ CAP")
    assert engine.plain.startswith("ENGINE running 52   waiting 13")
    assert ("errors" in episode.plain) == (errors > 0)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"riding": Riding()}, " EDGE"),  # from the key on, before an edge is found
        ({"riding": Riding(POINT, 14.0), "paused": True}, " EDGE PAUSED"),
        ({"paused": True}, " PAUSED"),
    ],
)
def test_a_load_that_rides_the_edge_says_so_at_any_width(width: int, changes: dict[str, Any], words: str) -> None:
    state = live(model="a-model-with-a-name-" * 12, **changes)
    line = panels.header(state, state.began_s, width)
    assert line.cell_len == width
    assert line.plain.endswith(("load 14 rps poisson" if width >= 100 else "14 rps") + words)
    bold = {line.plain[span.start : span.end] for span in line.spans if span.style == "bold"}
    assert (" EDGE" in bold) == ("riding" in changes)


@pytest.mark.parametrize(
    ("width", "hardware", "name", "shown"),
    [
        (130, "NVIDIA H100 80GB HBM3", "mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
        (120, "NVIDIA H100 80GB HBM3", "mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-Instruct-v0.3"),
        (80, "", "mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-Instruct-v0.3"),
        (120, "A100 80GB", "/models/" + "long-" * 12, "long-long-long-long-long-long-long-l…"),
    ],
)
def test_the_model_is_cut_only_where_there_is_no_room(width: int, hardware: str, name: str, shown: str) -> None:
    state = live(model=name, hardware=hardware, load=Load(concurrency=256))
    line = panels.header(state, state.began_s, width).plain
    left = line.partition("LIVE")[0]
    assert left.split("   ")[1] == shown
    if shown.endswith("…"):  # every cell is used
        assert left.endswith("A100 80GB   ")


def test_what_does_not_stay_cuts_nothing_that_does() -> None:
    parts = [part(3, "tunetui"), part(0, "a-name-of-24-characters-"), part(1, "x" * 30)]
    assert [p.text.plain for p in shortened(parts, 50, least=20)] == ["tunetui", "a-name-of-24-characters-"]
    assert [p.text.plain for p in shortened(parts, 64, least=20)][1:] == ["a-name-of-24-charact…", "x" * 30]
    assert [p.text.plain for p in shortened(parts, 10, least=20)] == ["a-name-of-24-charac…"]
    assert shortened([], 10) == []


LONG_WORDS = " ".join(f"word{n}" for n in range(1, 60))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_message_takes_a_second_row_and_says_where_it_goes_on(width: int) -> None:
    said = Notice(NOW, "warning", LONG_WORDS)
    rows = plain(panels.message(live(notices=(said,)), NOW, width))
    assert len(rows) == 2
    assert max(map(len, rows)) <= width
    assert rows[1].endswith("…   e: all of it")
    assert LONG_WORDS.startswith(rows[0] + " word")  # cut between words
    assert LONG_WORDS in " ".join(events_text((said,), NOW, width).plain.split())


@pytest.mark.parametrize(
    "changes",
    [
        {"notices": (Notice(NOW, "information", LONG_WORDS[:100]),)},
        {"measurement": measurement(suspect=LONG_WORDS[:90])},
        {"errors": 1, "last_error": LONG_WORDS[:85]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_two_rows_hold_a_message_whole(changes: dict[str, Any]) -> None:
    text = panels.message(live(**changes), NOW, 80)
    assert text.plain.count("\n") == 1
    assert max(map(len, plain(text))) <= 80
    assert LONG_WORDS[:85] in " ".join(text.plain.split())
    assert "…" not in text.plain


def test_an_error_that_two_rows_do_not_hold_ends_in_an_ellipsis() -> None:
    rows = plain(panels.message(live(errors=1, last_error=LONG_WORDS), NOW, 80))
    assert len(rows) == 2
    assert rows[1].endswith("…")


APPLIED = Applied(ADVICE, POINT, Observed(measurement()), Load(14.0))
SENT_BEFORE = "40% of the prompt tokens were sent before"
RESTARTING = replace(ADVICE, step=RESTART, change="prefix caching on", reason=SENT_BEFORE)
WORDS = "max-num-seqs 64 -> 128: TTFT 780 -> 550 ms, and the SLO is met, as expected"


@pytest.mark.parametrize(
    ("coach", "wide", "narrow"),
    [
        (Coach(), "", ""),
        (Coach(FOUND), "COACH requests wait for a slot on 83% of steps, 13 at a time",
         "COACH requests wait for a slot on 83% of steps, 13 at a time"),
        (Coach(FOUND, ADVICE),
         "COACH requests wait for a slot on 83% of steps, TTFT has 188 ms to spare: max-num-seqs 128 [enter]",
         "COACH requests wait for a slot on 83% of steps…: max-num-seqs 128 [enter]"),
        (Coach(FOUND, RESTARTING),
         f"COACH {SENT_BEFORE}: prefix caching on [enter] restart",
         "COACH 40% of the prompt tokens were s…: prefix caching on [enter] restart"),
        (Coach(FOUND, replace(ADVICE, step=None, change="", reason="14 req/s arrive and it serves at most 3")),
         "COACH 14 req/s arrive and it serves at most 3", "COACH 14 req/s arrive and it serves at most 3"),
        (Coach(FOUND, applied=APPLIED), "COACH max-num-seqs 64 -> 128: TTFT down expected",
         "COACH max-num-seqs 64 -> 128: TTFT down expected"),
        (Coach(FOUND, outcome=WORDS), f"COACH {WORDS}", f"COACH {WORDS[:67]}…"),
        (Coach(FOUND, ADVICE, outcome=WORDS), f"COACH {WORDS}; next max-num-seqs 128 [enter]",
         "COACH TTFT 780 -> 550 ms, and the SLO is …; next max-num-seqs 128 [enter]"),
    ],
)  # fmt: skip
def test_the_coach_says_what_to_try_and_never_cuts_the_step(coach: Coach, wide: str, narrow: str) -> None:
    for width, line in ((113, wide), (74, narrow)):
        text = panels.coach(live(coach=coach), width)
        assert " ".join(text.plain.split()) == line
        assert text.cell_len <= width


def test_what_the_coach_said_is_kept_in_the_log_and_takes_no_message() -> None:
    said = (Notice(NOW - 5, "information", "nothing to undo"), Notice(NOW, "coach", WORDS))
    assert panels.message(live(notices=said), NOW, 120).plain == "nothing to undo"
    assert WORDS in " ".join(events_text(said, NOW - 61, 200).plain.split())


def test_the_rule_of_thumb_stands_at_the_token_budget_only() -> None:
    state = live(coach=Coach(FOUND, hint="rule of thumb: 1.2 x ..."))
    assert [text for text, _ in panels.chosen_lines(state, Knob.TOKENS)] == ["rule of thumb: 1.2 x ..."]
    assert panels.chosen_lines(state, Knob.SEQS) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("starting_up", [False, True])
def test_the_footer_fits_with_the_most_useful_keys(width: int, starting_up: bool) -> None:
    line = footer(width, starting_up)
    assert len(line) <= width
    assert line.endswith("? help  q quit")
    assert ("step" in line) == (not starting_up)
    assert ("a accept" in line) == (not starting_up)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_the_table_of_points_fits(width: int) -> None:
    text = points(live(), width, 5)
    assert max(len(line) for line in plain(text)) <= width
    heads = [c.head for c in columns_for(width)]
    assert heads[-1] == "kind"
    assert "verdict" in heads or width < 40


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_long_prefill_limit_costs_the_table_no_column(width: int) -> None:
    points_of = (POINT, replace(POINT, long_prefill_token_threshold=16384), replace(POINT, chunked_prefill=False))
    rows = tuple(Row(n, point, Load(14.0), measurement()) for n, point in enumerate(points_of, start=1))
    text = plain(points(live(rows=rows), width, 6))
    head = next(line for line in text if "seqs" in line).split()
    kept = [name for name in head if name != "#"]
    least = ["seqs", "tokens", "chunk", "memory", "tok/s", "goodput", "TTFT", "TPOT", "verdict", "kind"]
    assert [name for name in kept if name in least] == least
    assert (kept == least) == (width == 80)
    assert [line.split()[head.index("chunk") + line.startswith(">")] for line in text[-3:]] == [
        "on", "\u226416384", "off"
    ]  # fmt: skip
    assert max(map(len, text)) <= width


def test_the_present_point_stays_in_the_table_when_newer_rows_push_it_out() -> None:
    others = tuple(Row(n, replace(POINT, max_num_seqs=n), Load(14.0), measurement()) for n in range(2, 30))
    lines = plain(points(live(rows=(Row(1, POINT, Load(14.0), measurement()), *others)), 80, 5))
    assert [line.split()[:2] for line in lines[1:]] == [[">", "1"], ["27", "27"], ["28", "28"], ["29", "29"]]


def test_a_table_without_rows_says_when_there_will_be_one() -> None:
    assert plain(points(live(rows=()), 80, 5))[-1].startswith("  none yet")


@pytest.mark.parametrize(("height", "rows"), [(15, 0), (19, 0), (20, 4), (24, 4), (36, 9), (50, 12)])
def test_the_table_gets_a_share_of_the_height(height: int, rows: int) -> None:
    assert points_height(height) == rows


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (starting(), True),
        (failed(), True),
        (live(), False),
        (live(phase=Phase.CONFIRMING), True),
        (live(phase=Phase.CONFIRMING, detail="measuring the same episode"), False),
        (live(phase=Phase.CONFIRMED), False),
        (live(phase=Phase.ATTACHED), False),
    ],
)
def test_when_there_are_no_charts(state: Session, expected: bool) -> None:
    assert is_starting(state) == expected


def test_the_phases_of_a_start_have_their_seconds_and_the_logs_end_without_its_prefix() -> None:
    state = starting(start_expected_s=95.0)
    tail = ["(Worker pid=42) INFO 12-02 04:27:12 [fake.py:1] Loading weights took 1.50 seconds", "[INFO] odd (line)"]
    assert plain(startup(state, state.starting_since_s + 20, tail, 60, 20)) == [
        "Starting vLLM  20 s",
        "last time it took 95 s",
        "ok  starting python                4.3 s",
        "... loading weights               15.7 s",
        "",
        "Loading weights took 1.50 seconds",
        "[INFO] odd (line)",
    ]
    short = plain(startup(state, state.starting_since_s + 20, tail, 30, 5))
    assert len(short) <= 5
    assert max(map(len, short)) <= 30


def lowering(tokens: int, to: int) -> Lowering:
    top = Point(512, tokens, True, 0.92, True)
    return Lowering(
        top, replace(top, max_num_batched_tokens=to), Shortage(ShortageKind.KV_CACHE), MemoryFlag.UTILIZATION
    )


@pytest.mark.parametrize("width", [41, 71])
def test_a_start_with_a_lower_ceiling_says_what_did_not_start(width: int) -> None:
    state = starting(lowered=(lowering(8192, 4096), lowering(4096, 2048)))
    lines = plain(startup(state, state.starting_since_s + 20, (), width, 13))
    assert lines[0] == "Starting vLLM, try 3  20 s"
    assert max(map(len, lines)) <= width
    assert (
        "the ceiling of 512 sequences and 4096 tokens at 0.92 did not start (no memory left for the KV cache): "
        "trying 2048 tokens ok starting python"
    ) in " ".join(" ".join(lines).split())


def test_a_failure_after_lower_ceilings_lists_what_was_tried() -> None:
    state = failed(lowered=(lowering(8192, 4096), lowering(4096, 2048)))
    text = startup(state, NOW, (), 80, 20).plain
    assert "Tried (sequences/tokens/memory): 512/8192/0.92, 512/4096/0.92, 512/2048/0.92\n" in text
    assert text.index("Next: ") < text.index("Tried") < text.index("What vLLM said last")
    assert "Tried" not in startup(failed(), NOW, (), 80, 20).plain


def test_a_confirmation_says_so() -> None:
    text = startup(starting(phase=Phase.CONFIRMING, detail="warming up"), time.monotonic(), (), 80, 20).plain
    assert text.startswith("Confirming: a fresh server with exactly these flags")
    assert text.endswith("... warming up")


@pytest.mark.parametrize("lines", [(), ("only a sentence",), ("a sentence", ""), ("s", "n", "e1", "e2")])
def test_a_failure_of_any_length(lines: tuple[str, ...]) -> None:
    text = startup(failed(failure=lines), NOW, (), 80, 20).plain
    assert text.startswith("The server is not running: ")
    assert "enter start again" in text
    assert ("Next:" in text) == (len(lines) > 1 and bool(lines[1]))
    assert all(line in text for line in lines)


def test_what_accept_weighs_is_the_decided_measurement_of_this_point() -> None:
    new, old = measurement(Verdict.UNDECIDED), measurement(Verdict.FAIL)
    assert panels.measured(live(measurement=new, decided=old)) == old
    assert panels.measured(live(measurement=new, decided=None)) == new
    assert panels.measured(live(measurement=None, decided=None)) == measurement()
    assert panels.measured(live(measurement=None, decided=None, rows=())) is None
    assert "Nothing has been measured" in panels.accept_text(live(measurement=None, rows=())).plain
    assert "SUSPECT: late" in panels.accept_text(live(measurement=measurement(suspect="late"))).plain


def test_a_chart_ends_at_its_newest_tick() -> None:
    state = live(marks=(time.monotonic() - 30,))
    made = series_of(replace(state, chart=state.chart[-40:]), Metric.TPOT)
    assert made is not None
    assert (made.times_s[-1], made.limit_ms, made.window_s) == (0.0, 80.0, 60.0)
    assert made.marks_s == pytest.approx((-30,), abs=1)
    assert series_of(replace(state, chart=()), Metric.TTFT) is None


@pytest.mark.parametrize("width", [56, 76, 116])
def test_help_and_events_are_wrapped_with_a_hanging_indent(width: int) -> None:
    for text in (help_text(width), events_text([Notice(NOW, "error", "word " * 60)], NOW - 61, width)):
        assert max(len(line) for line in plain(text)) <= width
    assert events_text([Notice(NOW, "error", "hello")], NOW - 61, width).plain == "00:01:01  hello\n"
    assert events_text([], 0.0, width).plain == "nothing yet"


def test_a_line_drops_its_least_important_parts_first() -> None:
    parts = [part(3, "aaa"), part(0, "name"), part(1, "bbb"), part(2, "ccc")]
    right = part(0, "END").text
    assert fitted(parts, right, 30).plain == "aaa   name   bbb   ccc     END"
    assert fitted(parts, right, 24).plain == "aaa   name   ccc     END"
    assert fitted(parts, right, 17).plain == "aaa   name    END"
    assert fitted(parts, right, 10).plain == "name   END"
    assert fitted(parts, right, 8).plain == "n…   END"


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (0.412, "412 ms"), (12.345, "12.35 s"), (0.0, "0 ms")])
def test_latencies(seconds: float | None, text: str) -> None:
    assert ms(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(-1, "00:00:00"), (751, "00:12:31"), (360_000, "100:00:00")])
def test_the_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize("style", [styles.GOOD, panels.BAD, panels.WARN])
def test_colours_stay_legible_as_greys(style: str) -> None:
    """NO_COLOR paints the brightness of a colour; the background is #121212."""
    colour = Style.parse(style).color
    assert colour is not None
    red, green, blue = colour.get_truecolor()
    assert 0.2126 * red + 0.7152 * green + 0.0722 * blue > 140


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_simulated_engine_is_called_one_at_any_width(width: int) -> None:
    state = replace(live(), demo=True, version="0.32.0+simulated", model="mistralai/Mistral-7B-Instruct-v0.3")
    for shown in (state, replace(state, demo=False), replace(state, version="")):
        text = panels.header(shown, 0.0, width).plain
        assert "SIMULATED" in text
        assert "+simulated" not in text
    assert "SIMULATED" not in panels.header(live(), 0.0, width).plain
