"""A driver that drives nothing: the same attributes as the real one, its calls recorded, its state set by the test."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from textual.pilot import Pilot

from tunetui.core.advice import Advice
from tunetui.core.coach import Coach
from tunetui.core.episode import ChartPoint, Measurement, ObjectiveResult
from tunetui.core.expectation import Expectation, Figure
from tunetui.core.general import Interval, LatencyInterval
from tunetui.core.knobs import EngineFacts, How, Knob, MemoryFlag, Point, Step
from tunetui.core.lengths import Bucket, ByLength
from tunetui.core.limits import Finding, Limit
from tunetui.core.load import Load
from tunetui.core.modes import TwoModes
from tunetui.core.point_statistics import Closing, Distribution, General, PointView, Statement
from tunetui.core.session import EngineView, Notice, Phase, PhaseTime, Row, Session
from tunetui.core.slo import Metric, Verdict, parse_slo
from tunetui.core.step_figures import StepFigures
from tunetui.ui.app import TunetuiApp
from tunetui.ui.rows import Rows

POINT = Point(64, 2048, True, 0.9, True)
FACTS = EngineFacts(
    version="0.32.0", model="fake/model", ceiling=Point(256, 8192, True, 0.92, True), live=True, num_blocks=1024,
    bytes_per_block=2**21, block_size=16, blocks_per_max_request=128, max_model_len=2048, least_threshold=16,
    total_memory_bytes=2**33, hardware="A100 80GB",
)  # fmt: skip
BYTES_FACTS = replace(FACTS, memory_flag=MemoryFlag.KV_BYTES, ceiling=replace(FACTS.ceiling, memory=2.0**31))


def result(metric: Metric, verdict: Verdict, limit_s: float) -> ObjectiveResult:
    return ObjectiveResult(metric, limit_s, verdict, 90, 10, 400, 0 if verdict is not Verdict.UNDECIDED else 300, 0.9)


def measurement(ttft: Verdict = Verdict.PASS, tpot: Verdict = Verdict.PASS, suspect: str = "") -> Measurement:
    both = {ttft, tpot}
    overall = Verdict.FAIL if Verdict.FAIL in both else Verdict.PASS if both == {Verdict.PASS} else Verdict.UNDECIDED
    return Measurement(
        episode=1, counted=400, judged=164,
        objectives=(result(Metric.TTFT, ttft, 0.6), result(Metric.TPOT, tpot, 0.08)),
        verdict=overall, on_the_line=False, good=90, attainment=0.9, ttft_s=0.412, tpot_s=0.0651, ttft_from_send_s=0.4,
        mean_e2el_s=1.0, output_tokens_per_s=2090.4, requests_per_s=14.0, goodput_rps=13.5,
        goodput_tokens_per_s=1900.0, window_s=30.0, failed=0, cancelled=0, one_token_answers=0,
        lateness_p99_s=0.0, suspect=suspect,
    )  # fmt: skip


def chart(count: int, end_s: float) -> tuple[ChartPoint, ...]:
    return tuple(
        ChartPoint(end_s - count + 1 + i, 0.4 + 0.03 * (i * 7 % 11), 0.06 + 0.003 * (i * 5 % 7)) for i in range(count)
    )


EDGES_S = tuple(0.05 * 1.16**n for n in range(25))  # 50 ms to 1.76 s
TPOT_EDGES_S = tuple(0.01 * 1.1**n for n in range(25))  # 10 to 98 ms
ONE_HILL = (1, 4, 12, 40, 110, 240, 420, 600, 610, 480, 330, 220, 150, 100, 70, 50, 30, 20, 12, 8, 5, 3, 2, 1)
TWO_HILLS = (5, 40, 160, 420, 610, 480, 220, 80, 20, 6, 2, 1, 4, 20, 60, 130, 190, 160, 90, 40, 12, 4, 1, 1)
MODES = TwoModes(0.015, 0.046, 0.027, 0.26)
FINDING = (
    "prompts of 16-127 tokens wait behind those of 2048-4095: their P95 TTFT is 480 ms, 5 times their P50; half of the "
    "long ones take 520 ms or more"
)
BUCKETS = (
    Bucket(16, 127, 1204, 0.094, 0.480, 0.982), Bucket(128, 255, 1890, 0.110, 0.495, 0.979),
    Bucket(256, 2047, 702, 0.240, 0.560, 0.961), Bucket(2048, 4095, 204, 0.520, 0.830, 0.740),
)  # fmt: skip


def interval(low: float, high: float, requests: int = 12_400, verdict: Verdict = Verdict.UNDECIDED) -> Interval:
    return Interval(low, high, requests, requests / 32.6, 32.6, verdict)


def decided(verdict: Verdict = Verdict.PASS, worst: tuple[float, float] = (0.9534, 0.9812)) -> Statement:
    """A statement after 12,400 requests, and how it closed; TPOT is met more often than `worst`."""
    ttft = General(Metric.TTFT, interval(*worst, verdict=verdict), LatencyInterval(0.380, 0.455))
    tpot = General(Metric.TPOT, interval(0.9761, 0.9952, verdict=Verdict.PASS), LatencyInterval(0.061, None))
    closing = tuple(
        Closing(int(700 * 1.05**n), worst[0] - 0.25 * 0.93**n, min(worst[1] + 0.02 * 0.93**n, 1.0)) for n in range(59)
    )
    return Statement(12_400, (ttft, tpot), verdict, (*closing, Closing(12_400, *worst)), 0.6)


def few(requests: int = 37) -> Statement:
    """A statement that says nothing yet."""
    general = (General(Metric.TTFT, None, None), General(Metric.TPOT, None, None))
    return Statement(requests, general, Verdict.UNDECIDED, utilization=0.6)


def point_view(
    statement: Statement | None = None,
    counts: tuple[int, ...] = ONE_HILL,
    modes: TwoModes | None = None,
    by_length: ByLength | None = None,
) -> PointView:
    """What is known of a point: `counts` are the bars of TTFT, and TPOT has `modes`."""
    tpot = Distribution(Metric.TPOT, TPOT_EDGES_S, TWO_HILLS if modes else counts, modes)
    lengths = ByLength(BUCKETS, "") if by_length is None else by_length
    return PointView(statement or few(), Distribution(Metric.TTFT, EDGES_S, counts), tpot, lengths)


def nothing_seen() -> PointView:
    """The view of a point of which no request has ended."""
    return PointView(few(0), Distribution(Metric.TTFT), Distribution(Metric.TPOT), ByLength((), ""))


FIGURES = StepFigures(
    steps=2000, waiting_share=0.83, slots_full=0.83, stopped_by_seqs=0.83, stopped_by_tokens=0.0, stopped_by_blocks=0.0,
    head_blocked=0.0, mean_running=64.0, mean_waiting=13.0, kv_usage=0.61, kv_peak=0.7, preemptions=0, span_s=60.0,
)  # fmt: skip
FOUND = Finding(Limit.SEQ_CAP, 0.83, "requests wait for a slot on 83% of steps, 13 at a time", FIGURES)
ADVICE = Advice(
    "more sequences", Step(replace(POINT, max_num_seqs=128), How.LIVE), "max-num-seqs 128",
    "requests wait for a slot on 83% of steps, TTFT has 188 ms to spare", Expectation(Figure.TTFT, False), "key",
)  # fmt: skip
OVERLOAD = "overloaded: 140 requests wait for their first token, 3.12 a second get it and 14 arrive"


def live(**changes: Any) -> Session:
    """A session that has been live for a while."""
    now_s = time.monotonic()
    state = Session(
        model="meta-llama/Llama-2-7b-chat-hf", slo=parse_slo(["ttft:600", "tpot:80"]), load=Load(14.0),
        phase=Phase.LIVE, began_s=now_s - 751, version="0.32.0", hardware="A100 80GB", facts=FACTS, point=POINT,
        start_expected_s=95.0, measurement=measurement(), chart=chart(60, now_s), in_flight=40,
        engine=EngineView(running=52, waiting=13, kv_usage=0.61, kv_blocks=1024), coach=Coach(FOUND),
        rows=(Row(1, POINT, Load(14.0), measurement(), kv_blocks=1024),),
    )  # fmt: skip
    return replace(state, **changes)


def starting(**changes: Any) -> Session:
    now_s = time.monotonic()
    phases = (PhaseTime("starting python", 0.0), PhaseTime("loading weights", 4.3))
    fresh = Session(model="m", slo=parse_slo(["ttft:600"]), load=Load(4.0), began_s=now_s - 20)
    return replace(fresh, starting_since_s=now_s - 20, starting=phases, point=POINT, **changes)


def failed(**changes: Any) -> Session:
    lines = ("the card has too little memory", "lower --gpu-memory-utilization", "torch.OutOfMemoryError: CUDA")
    return replace(starting(phase=Phase.FAILED, failure=lines), **changes)


RESTART = Step(replace(POINT, prefix_caching=False), How.RESTART, "vLLM sets it at start")


class StubDriver:
    """Records every call as (name, arguments)."""

    def __init__(self, state: Session, log_path: Path = Path("/nonexistent/server.log")) -> None:
        self.state = state
        self.settings = SimpleNamespace(attached=False, url="", memory_flag=MemoryFlag.UTILIZATION)
        self.engine = SimpleNamespace(
            pid=4242, url="http://127.0.0.1:8000", log=deque(maxlen=5000), log_path=log_path, read_log=lambda: []
        )
        self.calls: list[tuple[Any, ...]] = []
        self.on_change: Callable[[], None] = lambda: None

    def _call(self, *call: Any) -> None:
        self.calls.append(call)

    async def start(self) -> None:
        self._call("start")

    async def close(self) -> None:
        self._call("close")

    async def allow_load(self) -> None:
        self._call("allow_load")

    def say(self, text: str, severity: str = "information") -> None:
        self._call("say", text)
        self.put(notices=(*self.state.notices, Notice(time.monotonic(), severity, text)))

    def step_knob(self, knob: Knob, direction: int, fine: bool = False) -> None:
        self._call("step_knob", knob, direction, fine)

    def set_knob(self, knob: Knob, value: float) -> None:
        self._call("set_knob", knob, value)

    def undo(self) -> None:
        self._call("undo")

    def step_load(self, direction: int) -> None:
        self._call("step_load", direction)

    def sweep(self) -> None:
        self._call("sweep")

    def find_edge(self) -> None:
        self._call("find_edge")

    def take_over(self) -> bool:
        return False

    def toggle_pause(self) -> None:
        self._call("toggle_pause")

    def drop_restart(self) -> None:
        self._call("drop_restart")

    def confirm_restart(self) -> None:
        self._call("confirm_restart")

    def apply_advice(self) -> None:
        self._call("apply_advice")

    def accept(self, confirm: bool) -> None:
        self._call("accept", confirm)

    def put(self, **changes: Any) -> None:
        """Change the state as an event would."""
        self.state = replace(self.state, **changes)
        self.on_change()

    @property
    def asked(self) -> list[tuple[Any, ...]]:
        """The calls that an operator made."""
        return [c for c in self.calls if c[0] not in ("start", "close")]


def make_app(state: Session, log_path: Path = Path("/nonexistent/server.log")) -> tuple[TunetuiApp, StubDriver]:
    driver = StubDriver(state, log_path)

    def make(changed: Callable[[], None]) -> Any:
        driver.on_change = changed
        return driver

    return TunetuiApp(make), driver


def row_text(app: TunetuiApp, name: str) -> str:
    """What a panel shows: the cells of its rows, not the text it was given."""
    panel = app.screen_stack[0].query_one(f"#{name}", Rows)
    return "\n".join(strip.text.rstrip() for strip in panel._strips) if panel.region.height else ""


def screen_text(app: TunetuiApp) -> str:
    """Every cell of the screen on top."""
    screen = app.screen
    return "\n".join("".join(s.text for s in line) for line in screen._compositor.render_strips())


async def until(pilot: Pilot[Any], holds: Callable[[], object], limit_s: float = 60.0) -> None:
    """Wait until `holds`."""
    ends_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < ends_s, f"not within {limit_s} s:\n{screen_text(pilot.app)}"  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
