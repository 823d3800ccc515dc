"""The one table of commands: bindings, footer and help are made from it. It carries nothing out; the app does."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Command:
    """One thing that a key does: the keys, the app's action, two words for the footer, one sentence of help."""

    keys: str
    shown: str
    action: str
    label: str
    text: str
    footer: bool = False


COMMANDS = (
    Command("up,k", "up", "choose(-1)", "knob", "Choose the knob above."),
    Command("down,j", "down", "choose(1)", "knob", "Choose the knob below."),
    Command("right,l", "right", "step(1, False)", "step up", "Step the chosen knob up (64 sequences, 1,024 tokens)."),
    Command("left,h", "left", "step(-1, False)", "step down", "Step the chosen knob down."),
    Command("right_square_bracket", "]", "step(1, True)", "fine up", "A fine step up (8 sequences, 256 tokens)."),
    Command("left_square_bracket", "[", "step(-1, True)", "fine down", "A fine step down."),
    Command("u", "u", "undo", "undo", "Go back to the point before.", True),
    Command("plus,equals_sign", "+", "load(1)", "more load", "Raise the request rate or the concurrency."),
    Command("minus", "-", "load(-1)", "less load", "Lower the request rate or the concurrency."),
    Command("space", "space", "pause", "pause", "Stop the load, or start it again with a new episode.", True),
    Command("a", "a", "accept", "accept", "Accept this point: confirm it by a restart, or save it unconfirmed.", True),
    Command("o", "o", "log", "log", "Show the server's log.", True),
    Command("e", "e", "events", "events", "Show what happened in this session."),
    Command("L", "L", "allow_load", "send load", "Send load to the attached server (asks first)."),
    Command("question_mark", "?", "help", "help", "Show the keys and what the figures mean.", True),
    Command("ctrl+l", "ctrl+l", "redraw", "redraw", "Paint the whole screen again."),
    Command("q,ctrl+c", "q", "leave", "quit", "Leave: stop the server, or leave it running.", True),
)

FOOTER = "up/down knob  left/right step  [ ] fine  0-9 value  +/- load  "


def bindings() -> list[Binding]:
    """The app's bindings, one for each command."""
    return [Binding(c.keys, c.action, c.label, show=False) for c in COMMANDS]


def footer(width: int) -> str:
    """The footer's line, as much of it as fits."""
    tail = "  ".join(f"{c.shown} {c.label}" for c in COMMANDS if c.footer)
    return FOOTER + tail if len(FOOTER + tail) <= width else tail


HELP_FIGURES = (
    ("P95 TTFT", "time to the first token from the moment the request should have left: over the episode in the title, "
     "over the last 10 s in the chart"),
    ("P95 TPOT", "time per output token after the first"),
    ("PASS / FAIL", "certain for this episode, whatever its remaining requests do; UNDECIDED until then"),
    ("both met", "the share of requests that met every objective (two passes at 95 % allow 90 %)"),
    ("goodput", "requests per second that met every objective"),
    ("ASKED, ACCEPTED, SETTLED", "a step was written; the scheduler has read it; the running batch is inside it"),
    ("live v", "live downwards: KV blocks are held back; above the start value it takes a restart"),
)  # fmt: skip
