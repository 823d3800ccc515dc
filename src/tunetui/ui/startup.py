"""The panel that stands in place of the charts while no server answers: the phases of a start, or why it failed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.text import Text

from tunetui.core.session import Phase, Session
from tunetui.ui import format as fmt
from tunetui.ui.styles import BAD, DIM, WARN

MEASURING = "measuring the same episode"
TAIL = 3
# `(Worker pid=42) INFO 12-02 04:27:12 [file.py:1] ` says nothing to somebody who waits.
_PREFIX = re.compile(
    r"^(?:\([^()]{1,40}\) ?)?(?:(?:DEBUG|INFO|WARNING|ERROR) [-\d]{1,10} [:.,\d]{1,15} (?:\[[^\]]{1,60}\] ?)?)?"
)


def is_starting(state: Session) -> bool:
    """Whether there is no server to draw charts of."""
    if state.phase is Phase.CONFIRMING:
        return state.detail != MEASURING
    return state.phase in (Phase.STARTING, Phase.WARMING, Phase.FAILED)


def startup(state: Session, now_s: float, tail: Sequence[str], width: int, height: int) -> Text:
    """The phases with their times and the log's last lines; or the failure, the next step and the evidence."""
    return _failure(state) if state.phase is Phase.FAILED else _phases(state, now_s, tail, width, height)


def _failure(state: Session) -> Text:
    sentence, *rest = state.failure or ("it ended without a word",)
    text = Text.assemble(("The server is not running: ", BAD), (sentence, "bold"))
    if rest and rest[0]:
        text.append(f"\n\nNext: {rest[0]}")
    text.append("\n\nenter", "bold").append(" start again   ").append("o", "bold").append(" log   ")
    text.append("q", "bold").append(" quit")
    if state.lowered:
        text.append("\n\nTried (sequences/tokens/memory): ", "bold").append(fmt.ceilings_tried(state.lowered))
    if rest[1:]:
        text.append("\n\nWhat vLLM said last:", "bold")
    for line in rest[1:]:
        text.append(f"\n{line}", DIM)
    return text


def _phases(state: Session, now_s: float, tail: Sequence[str], width: int, height: int) -> Text:
    elapsed_s = max(now_s - state.starting_since_s, 0) if state.starting_since_s else now_s - state.began_s
    what = "Confirming: a fresh server with exactly these flags" if state.phase is Phase.CONFIRMING else "Starting vLLM"
    usual = f"   last time it took {state.start_expected_s:.0f} s" if state.start_expected_s else ""
    lines = [Text.assemble((what, "bold"), f"  {elapsed_s:.0f} s"), Text(usual.strip(), DIM)]
    if state.lowered:
        lines[0] = Text.assemble((f"{what}, try {len(state.lowered) + 1}", "bold"), f"  {elapsed_s:.0f} s")
        lines[1:] = [Text(line, WARN) for line in textwrap.wrap(state.lowered[-1].sentence, width)]
    label_width = max(12, min(28, width - 14))
    for number, phase in enumerate(state.starting):
        last = number + 1 == len(state.starting)
        ended_s = elapsed_s if last else state.starting[number + 1].began_s
        waiting = last and not state.detail
        label = phase.label[:label_width]
        took = max(ended_s - phase.began_s, 0)
        lines.append(
            Text(f"{'...' if waiting else 'ok':<4}{label:<{label_width}}{took:6.1f} s", "bold" if waiting else "")
        )
    if state.detail:
        lines.append(Text(f"... {state.detail}", "bold"))
    room = min(TAIL, height - len(lines) - 2)
    if tail and room > 0:
        lines.append(Text())
    for line in list(tail)[-room:] if room > 0 else []:
        text = Text(_PREFIX.sub("", line), DIM)
        text.truncate(width, overflow="ellipsis")
        lines.append(text)
    return Text("\n").join(lines)
