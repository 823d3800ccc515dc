"""How well points are predicted before they are tried: a model fitted at one point, six other points, random machines.

    uv run python benchmarks/prediction.py [MACHINES]

Machines, models, workloads and objectives are those of the sweep's benchmark; step times vary by 5 %. The truth of a
capacity is the machine's own, without that noise, searched for in the same way on other requests. The six points are
predicted one after the other, and what was wrong with each is known for the next. Of a point at which either is
overloaded only that is compared. 10 machines by default: some eight minutes.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
from random_machines import START, TRUTH_SEED, Setting, noisy, settings

from tunetui.core.knobs import Point
from tunetui.core.load import Load
from tunetui.core.predictions import Predicted, PredictionErrors, Range
from tunetui.core.step_model import StepModel, StepModelFit
from tunetui.core.workload import plan_episode
from tunetui.demo.virtual import VirtualLoad
from tunetui.drive.predict import Prediction, learned, predict
from tunetui.drive.predict_capacity import predict_capacity, virtual_capacity
from tunetui.drive.virtual_episode import VirtualRun, engine_at, virtual_episode

COUNTED, CUT = 400, 100
AT = 0.85  # of the capacity at the start point: the load of the fit and of the predictions
OTHERS = (
    Point(64, 8192, True, 0.92, True), Point(128, 8192, True, 0.92, True), Point(384, 8192, True, 0.92, True),
    Point(256, 4096, False, 0.92, True), Point(256, 1024, True, 0.92, True), Point(128, 2048, True, 0.92, True, 512),
)  # fmt: skip


class Tally:
    """Errors, hits of the intervals and CPU seconds, each by figure."""

    def __init__(self) -> None:
        self.errors: dict[str, list[float]] = defaultdict(list)
        self.inside: dict[str, list[bool]] = defaultdict(list)
        self.cpu_s: dict[str, list[float]] = defaultdict(list)
        self.overloads: list[bool] = []
        self.flagged = 0

    def add(self, figure: Predicted, said: Range | None, modelled: float | None, truth: float | None) -> None:
        if said is not None and modelled and truth:
            self.errors[figure.value].append(said.value / truth - 1)
            self.errors[f"{figure.value}, model alone"].append(modelled / truth - 1)
            self.inside[figure.value].append(truth in said)

    def show(self) -> None:
        print(f"{'':24} {'n':>4} {'median':>7} {'P90':>7} {'bias':>7} {'inside':>7}")
        for figure, errors in self.errors.items():
            off = np.abs(errors)
            inside = self.inside.get(figure)
            print(
                f"{figure:24} {len(errors):4} {np.median(off):7.1%} {np.percentile(off, 90):7.1%} "
                f"{np.median(errors):+7.1%} {'' if inside is None else format(np.mean(inside), '7.0%')}"
            )
        print(f"overloaded or not, as it was: {np.mean(self.overloads):.0%} of {len(self.overloads)}")
        print(f"flagged predictions: {self.flagged}")
        for what, seconds in self.cpu_s.items():
            print(f"CPU of {what}: median {np.median(seconds):.2f} s, P90 {np.percentile(seconds, 90):.2f} s")


def fitted_at(setting: Setting, load: Load) -> StepModel | None:
    """The model of one episode at the start point."""
    engine = engine_at(setting.facts, START, setting.workload)
    virtual = VirtualLoad(engine, noisy(setting, 1))
    found = StepModelFit(setting.facts.block_size)
    for _ in virtual.reports(plan_episode(setting.workload, load, CUT, COUNTED), 1, 1.0):
        found.add(list(virtual.ring))
        virtual.ring.clear()
    return found.model()


def judge(setting: Setting, model: StepModel, load: Load, tally: Tally) -> None:
    """The six other points: predicted, then measured, which tells the errors for the next one."""
    errors = PredictionErrors()
    facts, workload, slo = setting.facts, setting.workload, setting.slo
    for number, point in enumerate(OTHERS):
        began_s = time.process_time()
        said = predict(model, facts, point, workload, load, slo, CUT, COUNTED, errors)
        tally.cpu_s["an episode"].append(time.process_time() - began_s)
        seen = virtual_episode(
            lambda _, number=number: noisy(setting, 100 + number), facts, point, workload, load, slo, CUT, COUNTED
        )
        compare(said, seen, tally)
        errors = learned(errors, said, seen.measurement)
        began_s = time.process_time()
        capacity = predict_capacity(model, facts, point, workload, load, slo, errors)
        tally.cpu_s["a capacity"].append(time.process_time() - began_s)
        other = replace(workload, seed=TRUTH_SEED)
        truth = virtual_capacity(lambda _: setting.machine, facts, point, other, load, slo)
        tally.add(Predicted.CAPACITY, capacity.rps, capacity.modelled_rps, truth.rate_rps)
        errors = errors.after(Predicted.CAPACITY, capacity.modelled_rps, truth.rate_rps)


def compare(said: Prediction, seen: VirtualRun, tally: Tally) -> None:
    tally.flagged += bool(said.flags)
    modelled, truth = said.measurement, seen.measurement
    tally.overloads.append(bool(modelled.overload) == bool(truth.overload))
    if modelled.overload or truth.overload:
        return
    tally.add(Predicted.THROUGHPUT, said.throughput, modelled.output_tokens_per_s, truth.output_tokens_per_s)
    tally.add(Predicted.TTFT, said.ttft_s, modelled.ttft_s, truth.ttft_s)
    tally.add(Predicted.TPOT, said.tpot_s, modelled.tpot_s, truth.tpot_s)


def main(machines: int) -> None:
    """Print the table."""
    tally = Tally()
    model_errors = []
    for setting in settings(machines):
        own = virtual_capacity(
            lambda _, setting=setting: setting.machine, setting.facts, START, setting.workload, Load(1.0), setting.slo
        )
        if not own.rate_rps:
            continue
        load = Load(AT * own.rate_rps)
        began_s = time.process_time()
        model = fitted_at(setting, load)
        if model is None:
            continue
        model_errors.append(model.error)
        tally.cpu_s["an episode and its fit"].append(time.process_time() - began_s)
        judge(setting, model, load, tally)
    print(f"{len(model_errors)} machines; step times within {np.median(model_errors):.1%} (median of medians)")
    tally.show()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
