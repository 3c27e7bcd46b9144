"""FLOPs that a batch needs; padding and recomputation do not count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kitchen.types import Array, Tokens

# per weight and token; backward is into the activations alone, for the base is frozen
FORWARD, BACKWARD = 2, 2


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama with LoRA on all linear layers of attention and MLP."""

    layers: int
    width: int  # of all query heads together
    body: int  # weights in the linear layers of all layers
    head: int  # weights of the output layer
    lora: int  # weights in training

    @classmethod
    def of(cls, folder: Path, rank: int) -> Shape:
        config = json.loads((folder / "config.json").read_text())
        hidden, middle, layers = (
            config["hidden_size"],
            config["intermediate_size"],
            config["num_hidden_layers"],
        )
        each = config.get("head_dim") or hidden // config["num_attention_heads"]
        width, narrow = each * config["num_attention_heads"], each * config["num_key_value_heads"]
        linear = [
            (hidden, width),
            (hidden, narrow),
            (hidden, narrow),
            (width, hidden),
            (hidden, middle),
            (hidden, middle),
            (middle, hidden),
        ]
        return cls(
            layers,
            width,
            layers * sum(a * b for a, b in linear),
            hidden * config["vocab_size"],
            layers * rank * sum(a + b for a, b in linear),
        )


@dataclass(frozen=True)
class Counted:
    """The tokens and positions that a batch must compute."""

    tokens: int
    scored: int  # positions whose logits are needed
    seen: int  # keys that the tokens attend to, all together

    @classmethod
    def plain(cls, rows: Sequence[Tokens], scored: Sequence[Array]) -> Counted:
        """Count each row by itself; `scored` are (N,) bool masks."""
        lengths = [len(row) for row in rows]
        return cls(
            sum(lengths),
            sum(int(mask.sum()) for mask in scored),
            sum(n * (n + 1) // 2 for n in lengths),
        )

    @classmethod
    def shared(cls, rows: Sequence[Tokens], scored: Sequence[Array]) -> Counted:
        """Count a prefix that several rows share once."""
        depths: dict[bytes, int] = {}
        wanted: set[bytes] = set()
        for row, mask in zip(rows, scored, strict=True):
            for end in range(1, len(row) + 1):
                prefix = row[:end].tobytes()
                depths[prefix] = end
                if mask[end - 1]:
                    wanted.add(prefix)
        return cls(len(depths), len(wanted), sum(depths.values()))

    def training(self, shape: Shape) -> float:
        """Return the FLOPs of forward and backward.

        4 per weight of the body and token, 4 per weight of the head and scored token.
        """
        per_weight = FORWARD + BACKWARD
        # two products forward, four backward
        attention = 3 * 4 * shape.width * shape.layers * self.seen
        return float(
            per_weight * (shape.body * self.tokens + shape.head * self.scored)
            + attention
            + 3 * 2 * shape.lora * self.tokens
        )

    def forward(self, shape: Shape) -> float:
        """Return the FLOPs of a forward pass of the base model, without LoRA."""
        return float(
            FORWARD * (shape.body * self.tokens + shape.head * self.scored)
            + 4 * shape.width * shape.layers * self.seen
        )
