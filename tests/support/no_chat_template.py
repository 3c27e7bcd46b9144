"""A fake of base models, whose tokenizers have no chat template."""

from __future__ import annotations

from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining


class PlainTokenizer(ByteTokenizer):
    """A tokenizer without a chat template."""

    chat = False


class TrainingWithoutTemplate(FakeTraining):
    """A training client whose models have no chat template."""

    def tokenizer(self, model: str) -> PlainTokenizer:
        return PlainTokenizer()
