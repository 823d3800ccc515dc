"""The panels' text, as pure functions of the session's state: what each line says and how it is decorated.

Verdicts are words; colour only decorates them. Text that came from the server is never read as markup.
"""

from __future__ import annotations

import textwrap

from rich.text import Text

from tunetui.core.candidates import Stage
from tunetui.core.episode import Measurement
from tunetui.core.knobs import Knob, MemoryFlag
from tunetui.core.progress import Progress
from tunetui.core.session import SIMULATED, Session, StepState
from tunetui.core.slo import Metric, Verdict
from tunetui.ui import format as fmt
from tunetui.ui.fit import Part, fits, fitted, part, shortened
from tunetui.ui.outlook import beside
from tunetui.ui.rows import CONSOLE
from tunetui.ui.styles import BAD, DIM, PHASE_STYLE, VERDICT_STYLE, WARN

NOTICE_S = 15.0
WIDE = 100  # cells from which there is room for full words


def verdict_text(verdict: Verdict) -> Text:
    return Text(verdict.value, VERDICT_STYLE[verdict])


def header(state: Session, now_s: float, width: int) -> Text:
    """Who is served by what on what; where the session is and the load, which never give way to a long name. Of a name
    that does not fit, what stands before its last slash goes first."""
    right = Text.assemble(
        (state.phase.value, PHASE_STYLE.get(state.phase, f"bold {WARN}")), f" {fmt.clock(now_s - state.began_s)}   "
    )
    right.append_text(_load(state, width))
    room, short = width - right.cell_len - 3, state.model.rstrip("/").split("/")[-1]
    for name in (state.model, short) if width >= WIDE else (short,):
        parts = _served(state, name, width)
        if fits(parts, room):
            break
    return fitted(shortened(parts, room, least=20), right, width)


def _load(state: Session, width: int) -> Text:
    """`14 rps EDGE PAUSED`: the load, whether it rides the edge, and whether it is stopped."""
    style = f"bold {WARN}" if state.paused else ""
    text = Text(fmt.load(state.load, width >= WIDE) if state.load_allowed else "no load", style)
    if state.riding is not None:
        text.append(" EDGE", "bold")
    return text.append(" PAUSED") if state.paused else text


def _served(state: Session, name: str, width: int) -> list[Part]:
    """The left side of the header."""
    parts = [part(3, "tunetui", "bold"), part(0, name)]
    if state.simulated:
        parts.insert(1, part(4, "SIMULATED", f"bold {WARN}"))
    if state.version:
        parts.append(part(2, f"vLLM {state.version.removesuffix(SIMULATED)}"))
    if state.hardware and width >= WIDE:
        parts.append(part(1, state.hardware))
    return parts


def knobs(state: Session, chosen: Knob, typed: str, width: int) -> Text:
    """One line a knob: value, and what a step of it takes; then notes, wrapped to `width`, the most telling first, for
    a short panel cuts the last ones off."""
    wide = width >= 40
    lines = [Text("KNOBS", "bold")]
    lines += [_knob_line(state, knob, typed if knob is chosen else "", knob is chosen, wide, width) for knob in Knob]
    head, *details = step_lines(state) or [("", "")]
    notes = [head, *chosen_lines(state, chosen), *details]
    if not wide and state.facts is not None and state.start_expected_s:
        notes.append((f"a restart takes about {state.start_expected_s:.0f} s", DIM))
    for text, style in notes:
        lines.extend(Text(line, style) for line in textwrap.wrap(text, width, break_on_hyphens=False))
    return Text("\n").join(lines)


def chosen_lines(state: Session, chosen: Knob) -> list[tuple[str, str]]:
    """What is to be known of the chosen knob, as (text, style): what a step of it would bring, what its memory gives,
    and why it is not live."""
    point, facts = state.origin, state.facts
    if point is None or facts is None:
        return []
    # Where nothing is live, `step_lines` has said why.
    why = fmt.knob_why(chosen, point, facts) if facts.live or chosen in facts.fixed else ""
    gives = fmt.memory_map(point, facts) if chosen is Knob.MEMORY and chosen not in facts.fixed else ""
    hint = state.coach.hint if chosen is Knob.TOKENS and chosen not in facts.fixed else ""
    expected = beside(state, chosen) if chosen not in facts.fixed else []
    return [(text, DIM) for text in (*expected, gives, hint, why) if text]


def _knob_line(state: Session, knob: Knob, typed: str, chosen: bool, wide: bool, width: int) -> Text:
    point = state.origin
    flag = fmt.memory_flag(point, state.facts)
    value, how, style = "-", "", ""
    if point is not None:
        value = fmt.knob_value(knob, point, state.facts)
        how = fmt.knob_how(knob, point, state.facts, state.start_expected_s if wide else None)
        if state.restart is not None and state.point is not None and point.value(knob) != state.point.value(knob):
            how, style = "restart?", f"bold {WARN}"
    if typed:
        unit = " GiB" if knob is Knob.MEMORY and flag is MemoryFlag.KV_BYTES else ""
        value, how, style = f"{typed}_", f"{unit} enter".strip(), "bold"
    label = fmt.knob_label(knob, flag, wide)
    columns = f"{label:<18} {value:>9}  " if wide else f"{label:<15} {value:>8} "
    line = Text(f"{'>' if chosen else ' '} {columns}").append(how, style)
    line.truncate(width, overflow="ellipsis", pad=chosen)
    if chosen:
        line.stylize("reverse")
    return line


def step_lines(state: Session) -> list[tuple[str, str]]:
    """ASKED, ACCEPTED, SETTLED (or IDLE) with the time that each took, as (text, style); or why nothing is live."""
    if state.facts is not None and not state.facts.live:
        return [(state.facts.why_not_live, DIM)]
    asked_s = state.step_asked_s
    if state.step_state is StepState.NONE or asked_s is None:
        return []
    lines = [(f"step {state.step_state.value}", "bold")]
    if state.step_state is StepState.ASKED:
        lines.append(("written; the scheduler has not read it yet", DIM))
    if state.step_accepted_s is not None:
        lines.append((f"accepted in {max(state.step_accepted_s - asked_s, 0) * 1000:,.0f} ms", DIM))
    if state.step_settled_s is not None:
        lines.append((f"settled in {max(state.step_settled_s - asked_s, 0):.1f} s", DIM))
    if state.step_state is StepState.IDLE:
        lines.append(("applies with the next request", DIM))
    if state.step_state is StepState.ACCEPTED:
        lines.append((f"{state.engine.running} running, going to the new limits", DIM))
    return lines


def chart_title(state: Session, metric: Metric, width: int) -> Text:
    """`P95 TTFT  412 ms   SLO 600   PASS` of the episode."""
    seen = state.measurement
    value = None
    if seen is not None:
        value = seen.ttft_s if metric is Metric.TTFT else seen.tpot_s
    shown = fmt.ms(value, 0 if metric is Metric.TTFT else 1)
    cramped = width < 30
    name = metric.label if cramped else f"P{state.slo.percentile} {metric.label}"
    head = Text.assemble((name, "bold"), f" {shown}" if cramped else f" {shown:>9}")
    gap = " " if cramped else "   "
    objective = state.slo.objective(metric)
    if objective is None:
        return fitted([part(0, head), part(1, "no objective", DIM)], Text(), width, gap)
    parts = [part(0, head), part(3, f"SLO {objective.limit_s * 1000:g}")]
    result = next((o for o in seen.objectives if o.metric is metric), None) if seen is not None else None
    if result is None:
        return fitted([*parts, part(2, "no episode yet", DIM)], Text(), width, gap)
    parts.append(part(4, verdict_text(result.verdict)))
    if result.verdict is Verdict.UNDECIDED:
        parts.append(part(1, f"{result.left} left", DIM))
    elif width >= 50:
        parts.append(part(1, f"met {fmt.percent(result.share, 1)}", DIM))
    return fitted(parts, Text(), width, gap)


def _why_no_load(state: Session) -> str:
    return "no load is sent: L asks" if not state.load_allowed else "paused" if state.paused else ""


def nothing_yet(state: Session) -> str:
    """Why there are no statistics of the present point."""
    why = _why_no_load(state)
    return f"nothing yet: {why}" if why else "nothing yet: no request of this point has been counted"


def met_all(state: Session) -> str:
    """The name of the share of requests that met every objective."""
    return {0: "met", 1: "met", 2: "both met"}.get(len(state.slo.objectives), "all met")


def episode(state: Session, width: int) -> Text:
    """The episode so far: progress, shares, goodput, throughput; the verdict at the right end."""
    seen = state.measurement
    head = Text("EPISODE", "bold")
    if seen is None:
        return Text.assemble(head, "  ", _why_no_load(state) or "none yet")
    both = met_all(state) if width >= WIDE else "met"
    worst = state.point_view.statement.worst if state.point_view is not None else None
    parts = [
        part(11, head.append(f" {seen.judged}/{seen.counted}", "not bold")),
        part(9, f"{both} {fmt.percent(seen.attainment, 1)}"),
        *([part(8, f"in general {fmt.interval(worst.low, worst.high)}")] if worst is not None else []),
        part(7, f"goodput {seen.goodput_rps:.2f} req/s"),
        part(6, f"{seen.output_tokens_per_s:,.0f} tok/s"),
        part(5, f"in flight {state.in_flight}"),
    ]
    if state.errors:
        parts.append(part(10, f"errors {state.errors}", BAD))
    if seen.one_token_answers:
        parts.append(part(2, f"one-token {seen.one_token_answers}", DIM))
    right = Text("ON THE LINE ", WARN) if seen.on_the_line else Text()
    if seen.verdict is Verdict.UNDECIDED and state.decided is not None:
        right.append(f"last {state.decided.verdict.value}  ", DIM)  # of the episode before, at this point
    return fitted(parts, right.append_text(verdict_text(seen.verdict)), width)


def engine(state: Session, width: int) -> Text:
    """What vLLM is doing now; KV usage is of the capacity in force, without held blocks. The limit at the right end."""
    view = state.engine
    parts = [
        part(9, Text.assemble(("ENGINE", "bold"), f" running {view.running}")),
        part(8, f"waiting {view.waiting}"),
        part(7, f"KV {fmt.percent(view.kv_usage)}"),
    ]
    if view.kv_blocks is not None:
        parts.append(part(3, f"of {view.kv_blocks} blocks"))
    if view.held_blocks:
        parts.append(part(2, f"held {view.held_blocks}", DIM))
    parts.append(part(6, f"preempted {view.preemptions}"))
    parts.append(part(5, f"prefix hits {fmt.percent(view.prefix_hit_rate)}"))
    finding = state.coach.finding
    right = Text.assemble("limit: ", (finding.limit.value, "bold")) if finding is not None else Text()
    return fitted(parts, right, width)


def coach(state: Session, width: int) -> Text:
    """What to try and why, with the key that does it at the right end; else what came of the last advice, or the limit.

    The sentences are cut where they must be, never the step that the key would take; they are whole in the log.
    """
    if state.progress is not None and state.progress.running:
        return sweep(state.progress, width)
    said, head = state.coach, Text("COACH ", "bold")
    if said.applied is not None:
        expects = said.applied.advice.expects
        return _cut(Text.assemble(head, said.applied.change, f": {expects.words} expected" if expects else ""), width)
    reason = said.outcome or (said.advice.reason if said.advice is not None else "")
    if said.advice is None or said.advice.step is None:
        found = said.finding.sentence if said.finding is not None else ""
        return _cut(Text.assemble(head, (reason or found, "" if reason else DIM)), width) if reason or found else Text()
    key = Text("[enter] restart" if said.advice.restart else "[enter]", "bold")
    if said.outcome and width < WIDE:
        reason = reason.partition(": ")[2]  # what was done is in the table
    step = Text.assemble("; next " if said.outcome else ": ", (said.advice.change, "bold"))
    why = _cut(Text(reason), width - head.cell_len - step.cell_len - key.cell_len - 2)
    return fitted([part(0, Text.assemble(head, why, step))], key, width, "  ")


def sweep(progress: Progress, width: int) -> Text:
    """Where a sweep stands: stage, what it does, the best point so far, and the time that is left."""
    head = Text("EDGE " if progress.stage is Stage.EDGE and not progress.done[1:] else "SWEEP ", "bold")
    parts = [part(0, Text.assemble(head, progress.stage.value))]
    if progress.doing:
        parts.append(part(1, progress.doing))
    if progress.best is not None and progress.capacity_rps:
        parts.append(part(2, f"best {progress.best.max_num_seqs} seqs {progress.capacity_rps:.2f} req/s"))
    left = "" if progress.left_s is None else f"~{fmt.clock(progress.left_s)} left  "
    return fitted(parts, Text.assemble((left, ""), ("[esc]", "bold")), width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(max(width, 0), overflow="ellipsis")
    return text


def message(state: Session, now_s: float, width: int) -> Text:
    """What asks or tells, in up to two rows: a restart to confirm, the latest notice, or what makes figures suspect."""
    last = next((n for n in reversed(state.notices) if n.severity != "coach"), None)
    if last is not None and now_s - last.time_s >= NOTICE_S:
        last = None
    if state.restart is not None:
        question = Text.assemble(("RESTART? ", f"bold {WARN}"), ("enter", "bold"), " yes  ", ("esc", "bold"), " no")
        parts = [part(0, question), part(9, f"{expected(state)}, no load meanwhile")]
        if last is not None and last.severity != "information":
            parts.append(part(8, last.text, _notice_style(last.severity)))
        room = width - sum(p.text.cell_len + 3 for p in parts)
        reason = Text(state.restart.reason, DIM)
        reason.truncate(max(room, 0), overflow="ellipsis")
        return fitted([*parts, part(1, reason)] if room > 10 else parts, Text(), width)
    if last is not None:
        return _in_rows(Text(last.text.replace("\n", " "), _notice_style(last.severity)), width, "e: all of it")
    if overloaded := overload(state):
        return _overloaded(state, overloaded, width)
    seen = state.measurement
    if seen is not None and seen.suspect:
        return _in_rows(_suspect(seen), width)
    if state.errors and state.last_error:
        return _in_rows(Text(f"last error: {state.last_error}", BAD), width)
    return Text("")


def _in_rows(text: Text, width: int, where: str = "") -> Text:
    """`text` in a row, or in two. Where these do not hold it an ellipsis says so, and `where` the whole of it is."""
    first, *rest = text.wrap(CONSOLE, width)
    if len(rest) < 2:
        return Text("\n").join((first, *rest))
    second = Text(" ").join(line for line in rest)
    return Text("\n").join((first, fitted([part(0, second)], Text(where, DIM), width)))


def overload(state: Session) -> str:
    """Why waiting grows without bound in this episode, or grew in the one before at this point; or empty."""
    seen = [one.overload for one in (state.measurement, state.decided) if one is not None]
    return next(filter(None, seen), "")


def _overloaded(state: Session, sentence: str, width: int) -> Text:
    """The reason of a verdict is not cut off: it takes a second row where it must."""
    seen = state.measurement
    head = "OVERLOADED" if seen is not None and seen.overload else "last OVERLOADED"
    text = Text.assemble((head, BAD), " ", sentence.removeprefix("overloaded: "))
    if seen is not None and seen.suspect and text.cell_len + len(seen.suspect) + 11 <= width:
        return text.append("   ").append_text(_suspect(seen))
    first, *rest = fmt.wrapped(text.plain, width)
    return text if not rest else Text.assemble((head, BAD), first[len(head) :], "\n", " ".join(rest))


def _suspect(seen: Measurement) -> Text:
    return Text.assemble(("SUSPECT ", f"bold {WARN}"), seen.suspect)


def _notice_style(severity: str) -> str:
    return {"error": BAD, "warning": WARN}.get(severity, "")


def expected(state: Session) -> str:
    return f"about {state.start_expected_s:.0f} s" if state.start_expected_s else "the time is not known yet"


def measured(state: Session) -> Measurement | None:
    """What stands for the present point: its decided measurement, else the one under way, else its row's."""
    rows = [r.measurement for r in state.rows if (r.point, r.load) == (state.point, state.load)]
    return state.decided or state.measurement or (rows[-1] if rows else None)


def accept_text(state: Session) -> Text:
    """What accepting the present point would save, with a warning where it does not PASS."""
    seen = measured(state)
    if seen is None:
        return Text("Nothing has been measured at this point yet: wait for its episode.", WARN)
    text = Text.assemble("This point: ", verdict_text(seen.verdict))
    for metric, value in ((Metric.TTFT, seen.ttft_s), (Metric.TPOT, seen.tpot_s)):
        objective = state.slo.objective(metric)
        limit = f" (SLO {objective.limit_s * 1000:g})" if objective else ""
        text.append(f"\nP{state.slo.percentile} {metric.label} {fmt.ms(value, 1)}{limit}")
    text.append(f"\ngoodput {seen.goodput_rps:.2f} req/s, {seen.judged} of {seen.counted} requests judged")
    if seen.verdict is Verdict.FAIL:
        text.append("\nIt does not meet the SLO.", BAD)
        if seen.overload:
            text.append(f"\n{seen.overload}", "not bold")
    elif seen.verdict is Verdict.UNDECIDED:
        text.append("\nNot decided yet: the rest of the episode may turn it.", f"bold {WARN}")
    if seen.suspect:
        text.append(f"\nSUSPECT: {seen.suspect}", f"bold {WARN}")
    return text


def small(state: Session, width: int, height: int, least: tuple[int, int]) -> Text:
    """All that is left on a terminal that is too small: the verdict, an open question, and the size it needs."""
    text = verdict_text(state.measurement.verdict) if state.measurement else Text(state.phase.value, "bold")
    if state.restart is not None:
        text.append("\nRESTART? enter yes  esc no", "not bold")
    return text.append(f"\n\nneeds {least[0]}x{least[1]}, is {width}x{height}", "not bold")
