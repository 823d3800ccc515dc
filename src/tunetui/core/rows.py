"""Which measurements become rows of the table of points, and which row stands for the present point.

Plain functions of the session: they read no clock and emit nothing.
"""

from __future__ import annotations

from tunetui.core.episode import Measurement
from tunetui.core.session import Phase, Row, Session
from tunetui.core.slo import Verdict


def current_row(session: Session, confirmed: bool = False) -> Row | None:
    """The row of the present point and load, live or confirmed."""
    wanted = (session.point, session.load, confirmed)
    return next((r for r in reversed(session.rows) if (r.point, r.load, r.confirmed) == wanted), None)


def row_of(session: Session, measurement: Measurement) -> Row:
    """A row (not yet numbered) for `measurement` at the present point and load, with the engine as it is seen now."""
    view = session.engine
    return Row(
        number=0,
        point=session.point,
        load=session.load,
        measurement=measurement,
        confirmed=session.phase in (Phase.CONFIRMED, Phase.CONFIRMING),
        kv_blocks=view.kv_blocks,
        prefix_hit_rate=view.prefix_hit_rate,
        preemptions=view.preemptions,
        capacity_rps=session.capacity_of(session.point),
    )


def certain(completed: list[Measurement], shown: Measurement | None) -> Measurement | None:
    """What may go into the table now: the newest complete episode, else the shown one once its verdict is certain."""
    if completed:
        return completed[-1]
    return shown if shown is not None and shown.verdict is not Verdict.UNDECIDED else None


def row_on_leaving(session: Session) -> Row | None:
    """The row to keep when the present point or load is left: an undecided measurement where there is no better one."""
    shown = session.measurement
    if shown is None or not shown.judged:
        return None
    row = row_of(session, shown)
    old = current_row(session, row.confirmed)
    if old is not None and (old.measurement.verdict is not Verdict.UNDECIDED or old.measurement.judged > shown.judged):
        return None
    return row


def compared(percentile: int, live: Row | None, confirmed: Row) -> str:
    """One sentence on what the confirmation gave, beside what was seen live."""
    parts = [f"confirmed {confirmed.measurement.verdict.value}"]
    if live is not None:
        parts[0] += f" (live {live.measurement.verdict.value})"
    before, after = (live.measurement if live else None), confirmed.measurement
    figures = (
        (f"P{percentile} TTFT", after.ttft_s, before.ttft_s if before else None),
        (f"P{percentile} TPOT", after.tpot_s, before.tpot_s if before else None),
    )
    for name, now_s, live_s in figures:
        if now_s is not None:
            parts.append(f"{name} {_ms(now_s)} ms" + (f" (live {_ms(live_s)})" if live_s is not None else ""))
    if confirmed.kv_blocks is not None:
        seen = f" (live {live.kv_blocks})" if live is not None and live.kv_blocks is not None else ""
        parts.append(f"KV blocks {confirmed.kv_blocks}{seen}")
    return ", ".join(parts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}" if seconds >= 0.1 else f"{seconds * 1000:.1f}"
