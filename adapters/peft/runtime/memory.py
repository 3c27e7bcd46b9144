"""Memory of a training session, computed from the sizes of its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SCALE_BLOCK, DOUBLE_BLOCK = 64, 256  # weights per scale of NF4, scales per scale of the scales
# bytes of a weight: half a byte, and its part of the scales (Dettmers et al., 2023,
# arXiv:2305.14314)
QUANTIZED_BYTES = {
    "4bit": 0.5 + 4 / SCALE_BLOCK,
    "4bit-double": 0.5 + 1 / SCALE_BLOCK + 4 / (SCALE_BLOCK * DOUBLE_BLOCK),
}
LORA_BYTES = 16  # of a float32 weight, its gradient and two moments
FULL_BYTES = 18  # the same for all weights, and the weight in bfloat16
LOGIT_ROWS = 1024  # positions whose logits exist at the same time
# models that transformers computes save more than the hand-written layers: 1.6 times in float32
# and 1.8 times in bfloat16 (tests/adapters/peft/runtime/test_memory.py)
TRANSFORMERS_FACTOR = 1.8
# of a micro-batch; more than the upper limit were not measured to be faster
MIN_TOKENS, MAX_TOKENS = 1024, 8192
USABLE = 0.9  # of a device's memory; the rest is the CUDA context and fragmentation
SHARE = 0.5  # of what weights leave; the rest is for samplers and other models


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder."""

    layers: int
    hidden: int
    vocabulary: int
    linear: tuple[tuple[int, int], ...]  # inputs and outputs of the linear layers but the last
    tied: bool  # the output layer is the embedding matrix

    @classmethod
    def of(cls, model: Any) -> ModelShape:
        """Return the sizes of a model of transformers."""
        config, embeddings = model.config.get_text_config(), model.get_input_embeddings()
        head = model.get_output_embeddings()
        sizes = [_sizes(module) for module in model.modules() if module is not head]
        return cls(
            int(config.num_hidden_layers),
            int(embeddings.embedding_dim),
            int(embeddings.num_embeddings),
            tuple(pair for pair in sizes if pair is not None),
            head is not None and head.weight is embeddings.weight,
        )

    def weight_bytes(self, item: int, quantization: str = "none") -> float:
        """Return the bytes of the weights, `item` bytes each unless they are in 4 bits."""
        body = sum(inputs * outputs for inputs, outputs in self.linear)
        outside = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return body * QUANTIZED_BYTES.get(quantization, item) + outside * item

    def full_bytes(self) -> int:
        """Return the bytes of all weights in training, with masters, gradients and moments."""
        return int(FULL_BYTES * self.weight_bytes(1))

    def lora_bytes(self, rank: int) -> int:
        """Return the bytes of LoRA weights on all linear layers, with gradients and moments."""
        return LORA_BYTES * rank * sum(inputs + outputs for inputs, outputs in self.linear)

    def saved_bytes(
        self, rank: int, item: int, *, checkpointing: bool = False, fused: bool = True
    ) -> float:
        """Return the bytes that each token of a micro-batch saves for the backward pass.

        A layer saves its input, the outputs of its linear layers, and A x of each LoRA layer; with
        checkpointing only its input. The output of the last one is not saved, and counts in place
        of the attention's, which has the same size in most models.
        """
        inputs = self.hidden * (self.layers + 1)  # of the layers, and of the final norm
        if checkpointing:
            return item * inputs
        outputs = sum(outputs for _, outputs in self.linear) + rank * len(self.linear)
        return item * (inputs + outputs) * (1 if fused else TRANSFORMERS_FACTOR)

    def token_bytes(
        self, rank: int, item: int, *, checkpointing: bool = False, fused: bool = True
    ) -> float:
        """Return the bytes of activations that each token of a micro-batch takes at the peak.

        That is what all layers save, and in the backward pass the activations of one layer and
        their gradients.
        """
        of_layer = self.saved_bytes(rank, item, fused=fused) / self.layers
        saved = self.saved_bytes(rank, item, checkpointing=checkpointing, fused=fused)
        return saved + 2 * of_layer

    def fixed_bytes(self, item: int, quantization: str = "none") -> int:
        """Return the bytes of logits and of the largest weight if it has to be dequantised."""
        largest = max(inputs * outputs for inputs, outputs in self.linear)
        logits = LOGIT_ROWS * self.vocabulary * item
        return logits + (largest * item if quantization in QUANTIZED_BYTES else 0)


def micro_batch_tokens(
    memory: int,
    shape: ModelShape,
    rank: int | None,
    item: int,
    *,
    quantization: str = "none",
    checkpointing: bool = False,
    fused: bool = True,
) -> int:
    """Return how many tokens go through a model at once on a device of `memory` bytes.

    `rank`: of LoRA; None if all weights are trained. The result is a power of two, and depends on
    the device's whole memory instead of the free part: sums are rounded by micro-batch, and the
    same run must have the same micro-batches whatever else runs on the device.
    """
    if rank is None:
        taken: float = shape.full_bytes()
    else:
        taken = shape.weight_bytes(item, quantization) + shape.lora_bytes(rank)
    taken += shape.fixed_bytes(item, quantization)
    token_bytes = shape.token_bytes(rank or 0, item, checkpointing=checkpointing, fused=fused)
    left = max(USABLE * memory - taken, 0) * SHARE
    tokens = max(int(left / token_bytes), 1)
    return min(max(1 << tokens.bit_length() - 1, MIN_TOKENS), MAX_TOKENS)


def _sizes(module: Any) -> tuple[int, int] | None:
    """Return the inputs and outputs of a linear layer, quantised or not; None for others."""
    if type(module).__name__ == "Conv1D":  # GPT-2 stores (in, out)
        inputs, outputs = module.weight.shape
        return int(inputs), int(outputs)
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return int(module.in_features), int(module.out_features)
    return None
