"""A fake of a model with a short context."""

from __future__ import annotations

from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeSession, FakeTraining
from kitchen.types import Lora

SMALL_CONTEXT = 300  # tokens


class SmallTokenizer(ByteTokenizer):
    """The tokenizer of a model that reads few tokens."""

    context_length = SMALL_CONTEXT


class SmallTraining(FakeTraining):
    """A training client whose models have a short context."""

    def tokenizer(self, model: str) -> SmallTokenizer:
        return SmallTokenizer()

    def open(self, model: str, lora: Lora) -> FakeSession:
        return _SmallSession(model, lora, self._blobs)


class _SmallSession(FakeSession):
    def tokenizer(self) -> SmallTokenizer:
        return SmallTokenizer()
