"""Base models: their tokenizers have no chat template."""

from __future__ import annotations

from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining


class Plain(ByteTokenizer):
    """A tokenizer without a chat template."""

    chat = False


class Untemplated(FakeTraining):
    """All of its models read without one."""

    def tokenizer(self, model: str) -> Plain:
        return Plain()
