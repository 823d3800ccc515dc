"""The panels' text, as pure functions of the session's state: what each line says and how it is decorated.

Verdicts are words; colour only decorates them. Text that came from the server is never read as markup.
"""

from __future__ import annotations

from rich.text import Text

from tunetui.core.knobs import Knob
from tunetui.core.session import Phase, Session, StepState
from tunetui.core.slo import Metric, Verdict
from tunetui.ui import format as fmt

VERDICT_STYLE = {Verdict.PASS: "bold green", Verdict.FAIL: "bold red", Verdict.UNDECIDED: "yellow"}
DIM = "dim"


def verdict_text(verdict: Verdict) -> Text:
    return Text(verdict.value, VERDICT_STYLE[verdict])


def header(state: Session, now_s: float, width: int) -> Text:
    """Who is served by what on what, where the session is, and the load."""
    name = state.model if width >= 100 else state.model.rstrip("/").split("/")[-1]
    left = Text.assemble(("tunetui", "bold"), "  ", name)
    if state.version:
        left.append(f"   vLLM {state.version}")
    if state.hardware and width >= 100:
        left.append(f"   {state.hardware}")
    phase = Text(f"   {state.phase.value}", "bold green" if state.phase is Phase.LIVE else "bold yellow")
    if state.phase is Phase.FAILED:
        phase.stylize("bold red")
    left.append_text(phase)
    left.append(f" {fmt.clock(now_s - state.began_s)}")
    load = "no load" if not state.load_allowed else f"load {state.load}"
    right = Text(load + ("  PAUSED" if state.paused else ""), "bold yellow" if state.paused else "")
    room = width - right.cell_len - 2
    left.truncate(max(room, 10), overflow="ellipsis", pad=True)
    return Text.assemble(left, "  ", right)


def knobs(state: Session, chosen: Knob, typed: str, width: int) -> Text:
    """One line a knob: value, and what a step of it takes; then how far the last step has come."""
    lines = [Text("KNOBS", "bold")]
    point = state.restart.target if state.restart else state.point
    for knob in Knob:
        mark = "> " if knob is chosen else "  "
        label = fmt.knob_label(knob, state.facts)
        value = "-"
        if point is not None:
            value = fmt.knob_value(knob, point, state.facts)
        how = ""
        if point is not None:
            how = fmt.knob_how(knob, point, state.facts, state.start_expected_s)
        if knob is chosen and typed:
            value, how = f"{typed}_", "enter"
        line = Text(f"{mark}{label:<18} {value:>9}  {how}", "reverse" if knob is chosen else "")
        line.truncate(width, overflow="ellipsis", pad=knob is chosen)
        lines.append(line)
    lines.append(Text())
    lines.extend(step_lines(state))
    return Text("\n").join(lines)


def step_lines(state: Session) -> list[Text]:
    """ASKED, ACCEPTED, SETTLED (or IDLE) with the seconds that each took."""
    if state.facts is not None and not state.facts.live:
        return [Text(state.facts.why_not_live, DIM)]
    if state.step_state is StepState.NONE or state.step_asked_s is None:
        return []
    line = Text.assemble("step ", (state.step_state.value, "bold"))
    parts = []
    if state.step_accepted_s is not None:
        parts.append(f"accepted in {max(state.step_accepted_s - state.step_asked_s, 0) * 1000:,.0f} ms")
    if state.step_settled_s is not None:
        parts.append(f"settled in {max(state.step_settled_s - state.step_asked_s, 0):.1f} s")
    if state.step_state is StepState.IDLE:
        parts.append("applies with the next request")
    if state.step_state is StepState.ACCEPTED:
        parts.append(f"{state.engine.running} still running")
    lines = [line]
    lines.extend(Text(f"  {part}", DIM) for part in parts)
    return lines


def chart_title(state: Session, metric: Metric) -> Text:
    """`P95 TTFT  412 ms   SLO 600   PASS` of the episode."""
    seen = state.measurement
    value = None
    if seen is not None:
        value = seen.ttft_s if metric is Metric.TTFT else seen.tpot_s
    shown = fmt.ms(value, 0 if metric is Metric.TTFT else 1)
    title = Text.assemble((f"P{state.slo.percentile} {metric.label}", "bold"), f"  {shown:>9}")
    objective = state.slo.objective(metric)
    if objective is None:
        return title
    title.append(f"   SLO {objective.limit_s * 1000:g}   ")
    result = next((o for o in seen.objectives if o.metric is metric), None) if seen is not None else None
    if result is None:
        title.append("no episode yet", DIM)
        return title
    title.append_text(verdict_text(result.verdict))
    if result.verdict is Verdict.UNDECIDED:
        title.append(f" {result.left} left", DIM)
    return title


def episode(state: Session, width: int) -> Text:
    """The episode so far: progress, shares, goodput, throughput, verdict."""
    seen = state.measurement
    if seen is None:
        return Text.assemble(("EPISODE", "bold"), "  none yet" if state.load_allowed else "  no load is sent: L asks")
    text = Text.assemble(("EPISODE", "bold"), f" {seen.judged}/{seen.counted}")
    met = "both met" if len(seen.objectives) == 2 else "met"
    text.append(f"   {met} {fmt.percent(seen.attainment, 1)}")
    text.append(f"   goodput {seen.goodput_rps:.2f} req/s")
    text.append(f"   {seen.output_tokens_per_s:,.0f} tok/s")
    text.append(f"   in flight {state.in_flight}")
    if state.errors:
        text.append(f"   errors {state.errors}", "bold red")
    if seen.one_token_answers and width >= 100:
        text.append(f"   one-token {seen.one_token_answers}", DIM)
    text.append("   ")
    text.append_text(verdict_text(seen.verdict))
    if seen.on_the_line:
        text.append(" ON THE LINE", "yellow")
    return text


def engine(state: Session) -> Text:
    """What vLLM is doing now; KV usage is of the capacity in force, without held blocks."""
    view = state.engine
    text = Text.assemble(("ENGINE", "bold"), f"  running {view.running}  waiting {view.waiting}")
    text.append(f"  KV {fmt.percent(view.kv_usage)}")
    if view.kv_blocks is not None:
        text.append(f" of {view.kv_blocks} blocks")
    text.append(f"  preempted {view.preemptions}  prefix hits {fmt.percent(view.prefix_hit_rate)}")
    if view.limit:
        text.append("  limit: ")
        text.append(view.limit, "bold")
    return text


def message(state: Session, now_s: float) -> Text:
    """The one line that asks or tells: a restart to confirm, what makes the numbers suspect, or the latest notice."""
    if state.restart is not None:
        return Text.assemble(
            ("RESTART? ", "bold yellow"), ("enter", "bold"), " yes  ", ("esc", "bold"), " no   ",
            f"{expected(state)}, no load meanwhile; {state.restart.reason}",
        )  # fmt: skip
    if state.measurement is not None and state.measurement.suspect:
        return Text.assemble(("SUSPECT ", "bold yellow"), state.measurement.suspect)
    if state.notices and now_s - state.notices[-1].time_s < 15:
        last = state.notices[-1]
        style = {"error": "bold red", "warning": "yellow"}.get(last.severity, "")
        return Text(last.text, style)
    if state.errors and state.last_error:
        return Text(f"last error: {state.last_error}", "red")
    return Text("")


def expected(state: Session) -> str:
    return f"about {state.start_expected_s:.0f} s" if state.start_expected_s else "the time is not known yet"


def startup(state: Session, now_s: float) -> Text:
    """The phases of the start with the time each has taken, or why it failed."""
    if state.phase is Phase.FAILED:
        first, *rest = state.failure or ("the server is not running",)
        text = Text.assemble(("The server is not running: ", "bold red"), first)
        for line in rest[:1]:
            text.append(f"\n\n{line}")
        if rest[1:]:
            text.append("\n\nWhat vLLM said last:", "bold")
        for line in rest[1:]:
            text.append(f"\n  {line}", DIM)
        return text.append("\n\nenter start again   o the whole log   q quit", "bold")
    elapsed_s = now_s - state.starting_since_s
    what = "Confirming: a fresh server with exactly these flags" if state.phase is Phase.CONFIRMING else "Starting vLLM"
    usual = f", last time it took {state.start_expected_s:.0f} s" if state.start_expected_s else ""
    text = Text.assemble((f"{what}  ", "bold"), f"{elapsed_s:.0f} s{usual}\n")
    for number, phase in enumerate(state.starting):
        last = number + 1 == len(state.starting)
        ended_s = elapsed_s if last else state.starting[number + 1].began_s
        waiting = last and not state.detail
        took = f"{ended_s - phase.began_s:6.1f} s"
        text.append(f"\n  {'...' if waiting else 'ok':<4}{phase.label:<28}{took}", "bold" if waiting else "")
    if state.detail:
        text.append(f"\n  ... {state.detail}", "bold")
    return text.append("\n\n  o the server's log   q quit", DIM)
