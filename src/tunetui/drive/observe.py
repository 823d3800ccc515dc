"""What the engine does now: from /metrics, and exactly from the control block where there is one. It sends no load."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from tunetui.core.knobs import EngineFacts, Point
from tunetui.core.session import EngineView, usage_without_held
from tunetui.core.step_figures import Look, StepFigures, figures_of, figures_of_looks, shortest_decode_s
from tunetui.core.steps import EngineStep
from tunetui.engine.control import LiveControl, engine_step
from tunetui.engine.metrics import EngineGauges, MetricsError
from tunetui.engine.server_api import ApiError, ServerApi

STEPS = 4096  # newest steps of a point that figures are of; twice what the ring holds
LOOKS = 60  # newest looks at /metrics, where there is no ring


class EngineObserver:
    """Reads one engine; counters count from the last `mark`, which is where an episode begins."""

    def __init__(self) -> None:
        self._marked = EngineGauges()
        self._steps: deque[EngineStep] = deque(maxlen=STEPS)
        self._looks: deque[Look] = deque(maxlen=LOOKS)
        self._ring: LiveControl | None = None
        self._next_step: int | None = None
        self._base_s: float | None = None
        self.unanswered = 0  # how many views in a row got no answer

    async def mark(self, api: ServerApi | None) -> None:
        """Counters count from here, and steps before are of another point or load."""
        self._next_step = None
        self._steps.clear()
        self._looks.clear()
        self._marked = await self._gauges(api) or self._marked

    def figures(
        self, point: Point | None, facts: EngineFacts | None, control: LiveControl | None
    ) -> StepFigures | None:
        """What the engine's steps since the last mark show: exactly where there is a control block, else from looks at
        /metrics. Call it after each `view`."""
        slots = point.max_num_seqs if point is not None else None
        if control is None or facts is None or point is None:
            return figures_of_looks(self._looks, slots)
        if control is not self._ring:  # the warm-up's steps are small: how long these take is known from the start
            _, records = control.records_since(0)
            warm_up = [engine_step(record, facts.num_blocks) for record in records]
            self._ring, self._next_step, self._base_s = control, None, shortest_decode_s(warm_up)
        self._next_step, records = control.records_since(self._next_step)
        self._steps.extend(engine_step(record, facts.num_blocks) for record in records)
        steps = list(self._steps)
        shortest_s = shortest_decode_s(steps)
        if shortest_s is not None:
            self._base_s = min(shortest_s, self._base_s or shortest_s)
        return figures_of(steps, point.max_num_seqs, point.chunked_prefill, self._base_s)

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
        preemptions = max(int((gauges.preemptions_total or 0) - (marked.preemptions_total or 0)), 0)
        view = EngineView(
            running=int(gauges.running or 0),
            waiting=int(gauges.waiting or 0),
            kv_usage=gauges.kv_usage,
            kv_blocks=gauges.num_gpu_blocks,
            preemptions=preemptions,
            prefix_hit_rate=hits / asked if asked > 0 else None,
        )
        self._looks.append(Look(view.running, view.waiting, view.kv_usage, preemptions))
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
    )
