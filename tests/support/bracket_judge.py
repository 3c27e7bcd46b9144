"""A judge that counts brackets, so that it tells answers apart, as a bigram model cannot."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from adapters.fake.tokenizer import ByteTokenizer
from kitchen import Stage
from kitchen.ports import Done, Future
from kitchen.types import Floats, Tokens
from stages.judge.judge import Judge, JudgeConfig, JudgeWeights

_QUESTION = re.compile(r"Answer A:\n(.*)\n\nAnswer B:\n(.*)\n\nReply", re.DOTALL)


class BracketSampler:
    """Prefers the answer with more brackets, by a nat each, and slightly the one in place A."""

    position_bias = 0.25  # nats for the answer in place A

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        match = _QUESTION.search(ByteTokenizer().decode(tokens))
        assert match is not None, "the judge reads nothing but comparisons"
        first, second = (sum(map(text.count, "{}")) for text in match.groups())
        nats = np.zeros(len(tokens), np.float32)
        # of the letter; the end token after it is certain
        nats[-2] = -np.logaddexp(0.0, second - first - self.position_bias)
        nats[0] = np.nan
        return Done(nats)

    def close(self) -> None:
        """Nothing is open."""


def bracket_judge(max_tokens: int = 1024) -> Judge:
    sampler: Any = BracketSampler()
    return Judge(sampler, ByteTokenizer(), JudgeConfig("letter", max_tokens=max_tokens))


class OpenBracketJudge(Stage):
    """Open the judge that counts brackets in place of the trained one."""

    def run(self, weights: JudgeWeights) -> Judge:
        return bracket_judge()
