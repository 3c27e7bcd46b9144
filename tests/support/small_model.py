"""A fake of a model with a short context."""

from __future__ import annotations

from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeSession, FakeTraining
from kitchen.types import Trainable

SMALL_CONTEXT = 300  # tokens


class SmallTokenizer(ByteTokenizer):
    """The tokenizer of a model that reads few tokens."""

    context_length = SMALL_CONTEXT


class SmallTraining(FakeTraining):
    """A training client whose models have a short context."""

    def tokenizer(self, model: str) -> SmallTokenizer:
        return SmallTokenizer()

    def open(self, model: str, trainable: Trainable) -> FakeSession:
        return _SmallSession(model, trainable, self._blobs)


class _SmallSession(FakeSession):
    def tokenizer(self) -> SmallTokenizer:
        return SmallTokenizer()
