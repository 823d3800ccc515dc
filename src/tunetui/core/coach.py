"""What the coach says in a session: the limit, the advice, an advice that was taken and what came of it.

It knows no session (`coaching` does) and no rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tunetui.core.advice import Advice, change_words
from tunetui.core.expectation import Learned, Observed, Outcome, judge
from tunetui.core.knobs import MemoryFlag, Point
from tunetui.core.limits import Finding
from tunetui.core.load import Load


@dataclass(frozen=True, slots=True)
class Applied:
    """An advice that was taken: from where, under which load, and what had been seen there. `follows`: the load has as
    many streams as max-num-seqs."""

    advice: Advice
    origin: Point
    before: Observed
    load: Load
    flag: MemoryFlag = MemoryFlag.UTILIZATION
    follows: bool = False

    @property
    def change(self) -> str:
        """`max-num-seqs 256 -> 320`."""
        target = self.advice.target
        return "" if target is None else change_words(self.origin, target, self.flag, arrow=True)

    def comparable(self, load: Load) -> bool:
        """Whether what is seen under `load` may be compared: the same load, or the one that goes with the slots."""
        return load == self.load or (self.follows and load.concurrency is not None)

    def judged(self, after: Observed) -> Outcome:
        """What came of it: `max-num-seqs 256 -> 320: goodput 13.5 -> 15.8 req/s, as expected`."""
        assert self.advice.expects is not None
        outcome = judge(self.advice.expects, self.before, after)
        return Outcome(outcome.kept, f"{self.change}: {outcome.sentence}")


@dataclass(frozen=True, slots=True)
class Coach:
    """All that the coach has to say now. `applied` waits for its verdict, `outcome` is the last one's sentence, and
    `hint` the guide's rule of thumb for the token budget. `seen` is the present point's first episode with a verdict:
    points are compared on it, for later ones begin on an engine that is full already."""

    finding: Finding | None = None
    advice: Advice | None = None
    hint: str = ""
    seen: Observed | None = None
    applied: Applied | None = None
    outcome: str = ""
    learned: Learned = field(default_factory=Learned)

    def away(self, point: Point | None) -> Coach:
        """The session goes to `point`: nothing said of the point before holds, but for an advice to go there."""
        kept = self.applied if self.applied is not None and self.applied.advice.target == point else None
        return Coach(applied=kept, learned=self.learned)

    def unseen(self) -> Coach:
        """The load starts over: what was found in the steps before is gone."""
        return replace(self, finding=None, advice=None, seen=None)

    def looked(self, finding: Finding | None, advice: Advice | None, hint: str, seen: Observed | None) -> Coach:
        """One look at the present point; `seen` is what is certain of it so far."""
        first = self.seen is None or (seen is not None and seen.measurement.episode == self.seen.measurement.episode)
        return replace(self, finding=finding, advice=advice, hint=hint, seen=seen if first else self.seen)

    def after(self, outcome: Outcome) -> Coach:
        """The advice that was taken has its verdict."""
        if self.applied is None:
            return self
        learned = self.learned.after(self.applied.advice.key, outcome.kept)
        return replace(self, applied=None, outcome=outcome.sentence, learned=learned)
