"""The one table of commands: bindings, footer and help are made from it. It carries nothing out; the app does."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding

ALWAYS, TUNING = "always", "tuning"


@dataclass(frozen=True, slots=True)
class Command:
    """One thing that a key does: the keys (none: the app reads them itself), its action, and one sentence of help.

    `hint` is what the footer says (empty: nothing, or an earlier line says it for both), `rank` how long it stays there
    as the terminal gets narrower, and `when` the phases in which it is of use.
    """

    keys: str
    shown: str
    action: str
    text: str
    hint: str = ""
    rank: int = 0
    when: str = TUNING
    everywhere: bool = False


COMMANDS = (
    Command("up,k", "up k", "choose(-1)", "Choose the knob above.", "\u2191\u2193 knob", 8),
    Command("down,j", "down j", "choose(1)", "Choose the knob below."),
    Command("right,l", "right l", "step(1, False)", "Step the chosen knob up (64 sequences, 1,024 tokens, 512 of the "
            "long-prefill limit).", "\u2190\u2192 step", 9),
    Command("left,h", "left h", "step(-1, False)", "Step the chosen knob down."),
    Command("right_square_bracket", "]", "step(1, True)", "A fine step up (8 sequences, 256 tokens, 64 of the "
            "long-prefill limit).", "[ ] fine", 1),
    Command("left_square_bracket", "[", "step(-1, True)", "A fine step down."),
    Command("", "0-9 .", "", "Type a value for the chosen knob.", "0-9 value", 4),
    Command("", "enter", "", "Apply the typed value, do the offered restart, start again after a failure, or "
            "take the step that the coach advises."),
    Command("", "esc", "", "Drop the typed value, or the offered restart."),
    Command("u", "u", "undo", "Go back to the point before.", "u undo", 5),
    Command("plus,equals_sign", "+ =", "load(1)", "Raise the request rate or the concurrency.", "+ - load", 6),
    Command("minus", "-", "load(-1)", "Lower the request rate or the concurrency."),
    Command("space", "space", "pause", "Stop the load, or start it again with a new episode.", "space pause", 3),
    Command("f", "f", "edge", "Find this point's edge, the highest request rate at which it meets the SLO, and after "
            "each step the new point's. f again ends that."),
    Command("s", "s", "sweep", "Sweep: find the best point by itself, or go on with that. A key that changes something "
            "takes over.", "f edge  s sweep", 4),
    Command("w", "w", "sweep_page", "Show the sweep: its plan, what it does now, what it tried and what it left out.",
            "w plan"),
    Command("a", "a", "accept", "Accept this point: confirm it by a restart, or save it unconfirmed.", "a accept", 10),
    Command("o", "o", "log", "Show the server's log.", "o log", 7, ALWAYS),
    Command("e", "e", "events", "Show what happened in this session.", "e events", 2, ALWAYS),
    Command("d", "d", "statistics('d')", "Show how TTFT and TPOT are distributed.", "d n g p statistics", 2),
    Command("n", "n", "statistics('n')", "Show TTFT by prompt length."),
    Command("g", "g", "statistics('g')", "Show what holds in general, beyond this episode."),
    Command("p", "p", "statistics('p')", "Show the points against each other: capacity or throughput against latency, "
            "the SLO and the knee."),
    Command("x", "x", "statistics('x')", "Show what each step would bring, as it is predicted, and how far predictions "
            "were off."),
    Command("L", "L", "allow_load", "Send load to the attached server (asks first)."),
    Command("question_mark", "?", "help", "Show the keys and what the figures mean.", "? help", 11, ALWAYS),
    Command("ctrl+l", "ctrl+l", "redraw", "Paint the whole screen again."),
    Command("q", "q", "leave", "Leave: stop the server, or leave it running.", "q quit", 12, ALWAYS),
    Command("ctrl+c,ctrl+q", "ctrl+c", "leave", "The same, from every page.", everywhere=True),
)  # fmt: skip


def bindings() -> list[Binding]:
    """The app's bindings, one for each command."""
    return [Binding(c.keys, c.action, c.text, show=False, priority=c.everywhere) for c in COMMANDS if c.keys]


def footer(width: int, starting: bool = False) -> str:
    """The footer's line: the commands of use now, the most useful ones where not all fit."""
    kept = [c for c in COMMANDS if c.hint and (c.when == ALWAYS or not starting)]
    while len(kept) > 1 and sum(len(c.hint) + 2 for c in kept) - 2 > width:
        kept.remove(min(kept, key=lambda c: c.rank))
    return "  ".join(c.hint for c in kept)


HELP_FIGURES = (
    ("P95 TTFT", "time to the first token from the moment the request should have left: over the episode in the title, "
     "over the last 10 s in the chart"),
    ("P95 TPOT", "time per output token after the first"),
    ("PASS / FAIL", "certain for this episode, whatever its remaining requests do; UNDECIDED until then"),
    ("both met", "the share of requests that met every objective (two passes at 95 % allow 90 %)"),
    ("in general", "where the long-run share of the objective met least lies; g shows each and how it closed"),
    ("OVERLOADED", "waiting grows without bound: the verdict is FAIL, whatever the first requests met"),
    ("goodput", "requests per second that met every objective"),
    ("limit", "what limits the engine now, from its steps: slots (SEQ CAP), tokens of a step (TOKEN BUDGET), blocks "
     "(KV PRESSURE), long prefills beside or before others (PREFILL BLOCKING), COMPUTE or BANDWIDTH SATURATED, nothing "
     "(UNDERLOADED), or a load that is too late to tell (CLIENT LIMITED)"),
    ("SWEEP", "where the sweep stands: its stage, what it is trying, the best point so far, and about how long it "
     "still takes"),
    ("cap", "the highest request rate at which the point meets the SLO, where f or the sweep looked for it"),
    ("COACH", "what to try and why; enter takes it. e shows its sentences whole, and what came of each"),
    ("ASKED, ACCEPTED, SETTLED", "a step was written; the scheduler has read it; the running batch is inside it"),
    ("live v", "live downwards: KV blocks are held back; above the start value it takes a restart"),
    ("fixed", "one of your flags to vLLM makes this knob useless; its line says which"),
    ("long-prefill limit", "the most tokens of one prompt in a step; 0 is none. In POINTS it is \u2264512 under chunk"),
    ("Notes at the memory", "the share of the card's GiB and where it goes; a step moves the KV cache, the rest stays"),
    ("> in POINTS", "the present point and load; live is measured here, conf on a freshly started server"),
)  # fmt: skip
