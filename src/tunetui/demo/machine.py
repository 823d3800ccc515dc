"""What a step costs on a machine, and how much KV cache it has: bandwidth and FLOP/s of the cards, size of the model.

The figures are the makers' and the models' own; the efficiencies are what serving engines commonly reach of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunetui.demo.engine import BLOCK_SIZE, Step

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """Memory in GiB, memory bandwidth in GB/s, dense 16-bit tensor TFLOP/s (without sparsity)."""

    name: str
    memory_gib: float
    bandwidth_gb_s: float
    tflop_s: float


@dataclass(frozen=True, slots=True)
class Model:
    """A dense transformer in 16 bits: parameters in billions, layers, query heads, KV heads, width of a head."""

    name: str
    parameters_b: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_model_len: int

    @property
    def weights_bytes(self) -> float:
        return self.parameters_b * 1e9 * 2

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


# Source: NVIDIA's data sheets of the A10, the A100 80GB SXM and the H100 SXM.
A10 = Card("NVIDIA A10 24GB", 22.5, 600.0, 125.0)
A100 = Card("NVIDIA A100 80GB", 79.2, 2039.0, 312.0)
H100 = Card("NVIDIA H100 80GB", 79.2, 3350.0, 989.0)
# Source: the models' config.json.
MISTRAL_7B = Model("mistralai/Mistral-7B-Instruct-v0.3", 7.25, 32, 32, 8, 128, 4096)
LLAMA_70B = Model("meta-llama/Llama-3.1-70B-Instruct", 70.6, 80, 64, 8, 128, 8192)

# Shares of the makers' figures. Large matrix products reach half to two thirds of the FLOP/s, reading weights and KV
# three quarters to nine tenths of the bandwidth.
OF_BANDWIDTH = 0.80
OF_FLOPS = 0.55
OF_EACH_MORE_CARD = 0.85  # tensor parallelism: what a further card adds, for the cards wait for each other
STEP_S = 0.003  # scheduling, launching and sampling, whatever the batch
SEQUENCE_S = 0.000_012  # ... and for each sequence in it: sampling, detokenizing, sending
ACTIVATIONS_BYTES_PER_TOKEN = 0.25e6  # of the largest step, beside ...
ACTIVATIONS_GIB = 0.4
NON_TORCH_GIB = 0.6
GRAPHS_GIB = 0.7


@dataclass(frozen=True, slots=True)
class Machine:
    """A model on `cards` equal cards."""

    card: Card
    model: Model
    cards: int = 1

    @property
    def _speedup(self) -> float:
        return 1 + (self.cards - 1) * OF_EACH_MORE_CARD

    def step_s(self, step: Step) -> float:
        """Seconds that `step` takes.

        The large products read the weights or compute, whichever takes longer (the roofline); attention is a kernel of
        its own after them, and reads the KV cache or computes.
        """
        model = self.model
        flops_s = self.card.tflop_s * 1e12 * OF_FLOPS * self._speedup
        bytes_s = self.card.bandwidth_gb_s * 1e9 * OF_BANDWIDTH * self._speedup
        per_pair = 4 * model.layers * model.heads * model.head_dim  # FLOPs of one token looking at another
        products_s = max(model.weights_bytes / bytes_s, 2e9 * model.parameters_b * step.tokens / flops_s)
        decode_s = max(model.kv_bytes_per_token * step.context / bytes_s, per_pair * step.context / flops_s)
        prefill_s = sum(
            max(model.kv_bytes_per_token * (before + new) / bytes_s, per_pair * new * (before + new / 2) / flops_s)
            for new, before in step.prefills
        )
        sequences = step.decodes + len(step.prefills)
        return STEP_S + SEQUENCE_S * sequences + products_s + decode_s + prefill_s

    @property
    def bytes_per_block(self) -> int:
        """Of KV cache, on one card."""
        return self.model.kv_bytes_per_token * BLOCK_SIZE // self.cards

    @property
    def name(self) -> str:
        return self.card.name if self.cards == 1 else f"{self.cards}x {self.card.name}"

    def activations_bytes(self, token_budget: int) -> float:
        """Of the largest step, on one card."""
        return ACTIVATIONS_BYTES_PER_TOKEN * token_budget + ACTIVATIONS_GIB * GIB

    def fixed_bytes(self, token_budget: int) -> float:
        """What a start takes on one card besides the KV cache: weights, activations, graphs and the driver's own."""
        rest = (NON_TORCH_GIB + GRAPHS_GIB) * GIB
        return self.model.weights_bytes / self.cards + self.activations_bytes(token_budget) + rest

    def num_blocks(self, utilization: float, token_budget: int) -> int:
        """KV blocks at a memory utilization; 0 or less where the rest does not fit."""
        return int((self.card.memory_gib * GIB * utilization - self.fixed_bytes(token_budget)) // self.bytes_per_block)
