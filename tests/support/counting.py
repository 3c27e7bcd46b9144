"""A judge that counts letters, for whom two answers differ as they do not for a bigram."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from adapters.fake.tokenizer import ByteTokenizer
from kitchen import Stage
from kitchen.ports import Done, Future
from kitchen.types import Floats, Tokens
from stages.judge.judge import Judge, JudgeConfig, JudgeWeights

_ASKED = re.compile(r"Answer A:\n(.*)\n\nAnswer B:\n(.*)\n\nReply", re.DOTALL)


class Counting:
    """Says A as likely as the first answer has more brackets than the second, and a place more
    where that is A's.
    """

    place = 0.25  # nats for the first place

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        found = _ASKED.search(ByteTokenizer().decode(tokens))
        assert found is not None, "a judge is asked nothing else"
        first, second = (sum(map(text.count, "{}")) for text in found.groups())
        nats = np.zeros(len(tokens), np.float32)
        # of the letter; its end is sure
        nats[0], nats[-2] = np.nan, -np.logaddexp(0.0, second - first - self.place)
        return Done(nats)

    def close(self) -> None:
        """Nothing is open."""


def counting(max_tokens: int = 1024) -> Judge:
    sampler: Any = Counting()
    return Judge(sampler, ByteTokenizer(), JudgeConfig("letter", max_tokens=max_tokens))


class CallCounting(Stage):
    """The counting judge, in the place of the one that was trained."""

    def run(self, weights: JudgeWeights) -> Judge:
        return counting()
