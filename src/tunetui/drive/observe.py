"""What the engine does now: from /metrics, and exactly from the control block where there is one. It sends no load."""

from __future__ import annotations

from contextlib import suppress

from tunetui.core.knobs import EngineFacts
from tunetui.core.session import EngineView, usage_without_held
from tunetui.engine.control import LiveControl
from tunetui.engine.metrics import EngineGauges, MetricsError
from tunetui.engine.server_api import ApiError, ServerApi

LIMITS = {1: "SEQ CAP", 2: "TOKEN BUDGET", 3: "KV BLOCKS", 4: "OTHER"}


class EngineObserver:
    """Reads one engine; counters count from the last `mark`, which is where an episode begins."""

    def __init__(self) -> None:
        self._marked = EngineGauges()
        self.unanswered = 0  # how many views in a row got no answer

    async def mark(self, api: ServerApi | None) -> None:
        """Counters count from here."""
        self._marked = await self._gauges(api) or self._marked

    async def _gauges(self, api: ServerApi | None) -> EngineGauges | None:
        if api is not None:
            with suppress(ApiError, MetricsError, RuntimeError):  # the last: its client was closed meanwhile
                return await api.gauges()
        return None

    async def view(
        self, old: EngineView, api: ServerApi | None, facts: EngineFacts | None, control: LiveControl | None
    ) -> EngineView:
        """The engine as it is; what cannot be read stays as in `old`."""
        gauges = await self._gauges(api)
        self.unanswered = 0 if gauges is not None or api is None else self.unanswered + 1
        if gauges is None:
            return old
        marked = self._marked
        asked = (gauges.prefix_queries_total or 0) - (marked.prefix_queries_total or 0)
        hits = (gauges.prefix_hits_total or 0) - (marked.prefix_hits_total or 0)
        view = EngineView(
            running=int(gauges.running or 0),
            waiting=int(gauges.waiting or 0),
            kv_usage=gauges.kv_usage,
            kv_blocks=gauges.num_gpu_blocks,
            preemptions=max(int((gauges.preemptions_total or 0) - (marked.preemptions_total or 0)), 0),
            prefix_hit_rate=hits / asked if asked > 0 else None,
        )
        return with_exact(view, facts, control)


def with_exact(view: EngineView, facts: EngineFacts | None, control: LiveControl | None) -> EngineView:
    """`view` with what the control block says: it is exact, and knows of the blocks that are held."""
    now = control.in_force() if control is not None else None
    if control is None or now is None or facts is None or now.disabled:
        return view
    return EngineView(
        running=now.running,
        waiting=now.waiting,
        kv_usage=usage_without_held(now.free_blocks, facts.num_blocks, now.held_blocks),
        kv_blocks=facts.num_blocks - now.held_blocks,
        held_blocks=now.held_blocks,
        preemptions=view.preemptions,
        prefix_hit_rate=view.prefix_hit_rate,
        limit=admission_limit([record.stopped_by for record in control.new_records()]),
    )


def admission_limit(stopped_by: list[int]) -> str:
    """What stopped admission in at least half of these steps, in one or two words; empty where nothing did."""
    if not stopped_by:
        return ""
    most = max(set(stopped_by), key=stopped_by.count)
    return LIMITS.get(most, "") if stopped_by.count(most) * 2 >= len(stopped_by) else ""
