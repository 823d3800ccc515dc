"""The machines, models and workloads that `--demo` knows by name."""

from __future__ import annotations

from dataclasses import dataclass

from tunetui.core.load import Load
from tunetui.demo import case
from tunetui.demo.machine import A10, A100, H100, LLAMA_70B, MISTRAL_7B, Machine


@dataclass(frozen=True, slots=True)
class Profile:
    """What a demo starts with: the machine, vLLM's flags, the SLO in its KEY:MS form, the load and its lengths.

    `load` None is a closed loop with as many streams as max-num-seqs allows, whatever that is stepped to.
    """

    machine: Machine
    flags: tuple[str, ...]
    slo: tuple[str, ...]
    load: Load | None
    prompt_tokens: str
    output_tokens: str


def _at(machine: Machine, rate_rps: float, *slo: str) -> Profile:
    length = ("--max-model-len", str(machine.model.max_model_len))
    return Profile(machine, length, slo, Load(rate_rps), "64-512", "32-256")


PROFILES = {
    "case": Profile(
        case.MACHINE,
        ("--max-model-len", "4096", "--max-num-seqs", "256", "--max-num-batched-tokens", "4096",
         "--no-enable-chunked-prefill"),
        (f"ttft:{case.TTFT_S * 1000:g}", f"tpot:{case.TPOT_S * 1000:g}"),
        None,
        str(case.WORKLOAD.prompt),
        str(case.WORKLOAD.output),
    ),
    "7b-24gb": _at(Machine(A10, MISTRAL_7B), 3.0, "ttft:1500", "tpot:100"),
    "7b-80gb": _at(Machine(A100, MISTRAL_7B), 14.0, "ttft:600", "tpot:60"),
    "70b-4x80gb": _at(Machine(H100, LLAMA_70B, 4), 10.0, "ttft:800", "tpot:60"),
}  # fmt: skip
