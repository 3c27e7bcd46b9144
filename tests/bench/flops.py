"""FLOPs of a batch, without padding and recomputation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kitchen.types import Array, Tokens

# per weight and token; if the base is frozen, backward computes only activation gradients, and as
# much again for gradients of weights if not
FORWARD, BACKWARD = 2, 2


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama with LoRA on all linear layers of attention and MLP."""

    layers: int
    width: int  # of all query heads together
    body: int  # weights in the linear layers, without the output layer
    head: int  # weights of the output layer
    lora: int  # trained weights

    @classmethod
    def of(cls, folder: Path, rank: int) -> Shape:
        config = json.loads((folder / "config.json").read_text())
        hidden, intermediate = config["hidden_size"], config["intermediate_size"]
        layers = config["num_hidden_layers"]
        head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
        width = head_dim * config["num_attention_heads"]
        kv_width = head_dim * config["num_key_value_heads"]
        linear = [
            (hidden, width),
            (hidden, kv_width),
            (hidden, kv_width),
            (width, hidden),
            (hidden, intermediate),
            (hidden, intermediate),
            (intermediate, hidden),
        ]
        return cls(
            layers,
            width,
            layers * sum(a * b for a, b in linear),
            hidden * config["vocab_size"],
            layers * rank * sum(a + b for a, b in linear),
        )


@dataclass(frozen=True)
class TokenCounts:
    """The numbers of tokens, scored positions and attended keys of a batch."""

    tokens: int
    scored: int  # positions whose logits are needed
    attended: int  # attended keys, summed over the tokens

    @classmethod
    def plain(cls, rows: Sequence[Tokens], scored: Sequence[Array]) -> TokenCounts:
        """Count every row separately; `scored` are (N,) bool masks."""
        lengths = [len(row) for row in rows]
        return cls(
            sum(lengths),
            sum(int(mask.sum()) for mask in scored),
            sum(n * (n + 1) // 2 for n in lengths),
        )

    @classmethod
    def shared(cls, rows: Sequence[Tokens], scored: Sequence[Array]) -> TokenCounts:
        """Count a prefix that several rows share once."""
        depths: dict[bytes, int] = {}
        scored_prefixes: set[bytes] = set()
        for row, mask in zip(rows, scored, strict=True):
            for end in range(1, len(row) + 1):
                prefix = row[:end].tobytes()
                depths[prefix] = end
                if mask[end - 1]:
                    scored_prefixes.add(prefix)
        return cls(len(depths), len(scored_prefixes), sum(depths.values()))

    def training(self, shape: Shape, *, full: bool = False) -> float:
        """Return the FLOPs of forward and backward.

        4 per body weight and token, and 4 per head weight and scored token; 6 instead of 4 if all
        weights are trained.
        """
        per_weight = FORWARD + (2 if full else 1) * BACKWARD
        trained_beside = 0 if full else shape.lora
        # two matrix products forward, four backward
        attention = 3 * 4 * shape.width * shape.layers * self.attended
        return float(
            per_weight * (shape.body * self.tokens + shape.head * self.scored)
            + attention
            + 3 * 2 * trained_beside * self.tokens
        )

    def forward(self, shape: Shape) -> float:
        """Return the FLOPs of a forward pass of the base model, without LoRA."""
        return float(
            FORWARD * (shape.body * self.tokens + shape.head * self.scored)
            + 4 * shape.width * shape.layers * self.attended
        )
