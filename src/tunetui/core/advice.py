"""The coach's advice: the first rule that holds and whose step is possible, a live one before a restart.

It applies nothing. What was promised is judged by `expectation`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tunetui.core.expectation import Expectation, Learned
from tunetui.core.knobs import How, Knob, MemoryFlag, Point, Step, format_memory, plan_step
from tunetui.core.rules import HINT_FACTOR, RULES, Rule
from tunetui.core.situation import Situation

NAMES = {Knob.CHUNKED: "chunked prefill", Knob.PREFIX: "prefix caching", Knob.THRESHOLD: "long-prefill limit"}


@dataclass(frozen=True, slots=True)
class Advice:
    """One step to try and why. `step` None: no knob will do, and `reason` says what will. `change` are the knobs in
    words, `key` is what the session learns it by."""

    rule: str
    step: Step | None
    change: str
    reason: str
    expects: Expectation | None
    key: str

    @property
    def target(self) -> Point | None:
        return None if self.step is None else self.step.target

    @property
    def restart(self) -> bool:
        return self.step is not None and self.step.how is How.RESTART

    @property
    def sentence(self) -> str:
        """`requests wait for a slot on 83 % of steps, TTFT has 188 ms to spare: max-num-seqs 320`."""
        if self.step is None:
            return self.reason
        return f"{self.reason}: {self.change}" + (" (a restart)" if self.restart else "")


def advise(situation: Situation, learned: Learned | None = None) -> Advice | None:
    """What to try, or None where no rule holds. What `learned` silences is passed over."""
    learned = learned or Learned()
    possible = [advice for advice in _advices(situation) if not learned.silences(advice.key)]
    steps = [advice for advice in possible if advice.step is not None]
    live = [advice for advice in steps if not advice.restart]
    return next(iter(live or steps or possible), None)


def _advices(s: Situation) -> Iterator[Advice]:
    for rule in RULES:
        if not rule.when(s):
            continue
        for step in _steps(rule, s):
            if step.how is not How.REFUSED:
                yield advice_of(rule, s, step)
        if rule.of_load:
            yield Advice(rule.name, None, "", rule.reason(s, s.point), None, rule.name)


def _steps(rule: Rule, s: Situation) -> Iterator[Step]:
    return (plan_step(s.point, target, s.facts) for target in rule.targets(s) if target != s.point)


def advice_of(rule: Rule, s: Situation, step: Step) -> Advice:
    """The advice of `rule` to take `step`."""
    return Advice(
        rule=rule.name,
        step=step,
        change=change_words(s.point, step.target, s.facts.memory_flag),
        reason=rule.reason(s, step.target),
        expects=rule.expects(s),
        key=_key(rule, s.point, step.target),
    )


def moved(before: Point, after: Point) -> list[Knob]:
    """The knobs in which two points differ."""
    return [knob for knob in Knob if before.value(knob) != after.value(knob)]


def _key(rule: Rule, before: Point, after: Point) -> str:
    """Rule, direction and region: an octave of the value that is left."""
    parts = [rule.name]
    for knob in moved(before, after):
        value = float(before.value(knob))
        region = math.floor(math.log2(value)) if value >= 1 else round(value, 1)
        parts.append(f"{knob.value} {'+' if after.value(knob) > before.value(knob) else '-'} {region}")
    return ", ".join(parts)


def change_words(before: Point, after: Point, flag: MemoryFlag, arrow: bool = False) -> str:
    """The knobs that move, in words: `max-num-seqs 320`, with `arrow` also where from."""

    def word(point: Point, knob: Knob) -> str:
        value = point.value(knob)
        if knob is Knob.MEMORY:
            return format_memory(point.memory, flag)
        if isinstance(value, bool):
            return "on" if value else "off"
        return str(value or "none") if knob is Knob.THRESHOLD else str(value)

    found = []
    for knob in moved(before, after):
        name = flag.value if knob is Knob.MEMORY else NAMES.get(knob, knob.value)
        was = f"{word(before, knob)} -> " if arrow else ""
        found.append(f"{name} {was}{word(after, knob)}")
    return ", ".join(found)


def budget_hint(situation: Situation) -> str:
    """The guide's rule for the token budget beside the present one: a hint, for no engine is bound by it."""
    output = situation.number("output_tokens_mean")
    if not output:
        return ""
    wanted = HINT_FACTOR * situation.point.max_num_seqs * output
    return (
        f"rule of thumb: max-num-batched-tokens 1.2 x {situation.point.max_num_seqs} x {output:.0f} = {wanted:,.0f}, "
        f"now {situation.point.max_num_batched_tokens:,}"
    )
