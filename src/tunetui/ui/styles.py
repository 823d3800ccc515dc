"""The styles of the screen's words. Verdicts are words; colour only decorates them."""

from __future__ import annotations

from tunetui.core.session import Phase
from tunetui.core.slo import Verdict

# Light enough to stay legible as the greys that NO_COLOR makes of them: plain red turns nearly black. All are among the
# 256 colours.
GOOD, BAD, WARN = "bold #5fd75f", "bold #ff8787", "#ffd75f"
VERDICT_STYLE = {Verdict.PASS: GOOD, Verdict.FAIL: BAD, Verdict.UNDECIDED: WARN}
PHASE_STYLE = {Phase.LIVE: GOOD, Phase.CONFIRMED: GOOD, Phase.FAILED: BAD}
WITHIN = "#5fd7ff"  # of bars that are inside the SLO
DIM = "dim"
