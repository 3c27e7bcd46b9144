"""Entailment by a language model that is asked whether a premise supports a claim."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kitchen.errors import DataError
from kitchen.ports import Sampler, Tokenizer, arrival
from kitchen.types import Datum
from stages.chat.conversations import Conversation
from stages.chat.messages import Message
from stages.chat.render import RenderDataset
from stages.claims.scorers import TextPair
from stages.evaluate.reference import check_logprobs

MAX_TOKENS = 1024  # of a question with its reply
REPLIES = ("yes", "no")


def judge_conversation(pair: TextPair, reply: str) -> Conversation:
    """Return the question whether a premise supports a claim, and a reply to it."""
    question = (
        f"Premise:\n{pair.premise}\n\nClaim: {pair.hypothesis}\n\n"
        "Does the premise support the claim? Reply with yes or no."
    )
    messages = (Message("user", question), Message("assistant", reply))
    return Conversation(messages, "the judge's input", single_turn=True)


@dataclass(frozen=True)
class EntailmentJudge:
    """A language model whose probability of "yes", against "no", is the score of a pair."""

    sampler: Sampler
    tokenizer: Tokenizer
    name: str = ""  # of its weights, for errors

    @property
    def rendering(self) -> RenderDataset:
        """The rendering of questions with a reply, which leaves out those that are too long."""
        context = self.tokenizer.context_length or MAX_TOKENS
        return RenderDataset("last_assistant_message", min(context, MAX_TOKENS), "drop")

    def fits(self, pair: TextPair) -> bool:
        """Return whether the judge reads the question whole."""
        return all(self._datum(pair, reply) is not None for reply in REPLIES)

    async def score(self, pairs: Sequence[TextPair]) -> Sequence[float]:
        """Return the probability of "yes", 0..1, among the two replies."""
        return await asyncio.gather(*map(self._score, pairs))

    async def _score(self, pair: TextPair) -> float:
        yes, no = await asyncio.gather(*(self._logprob(pair, reply) for reply in REPLIES))
        return math.exp(-float(np.logaddexp(0.0, no - yes)))

    async def _logprob(self, pair: TextPair, reply: str) -> float:
        """Return the log-probability of a whole reply, nats."""
        datum = self._datum(pair, reply)
        if datum is None:
            raise DataError(f"the judge cannot read a premise of {len(pair.premise)} characters")
        logprobs = await arrival(self.sampler.logprobs(np.append(datum.tokens, datum.targets[-1])))
        of_reply = logprobs[1:].astype(np.float64)[datum.loss_inputs["weights"] != 0]
        check_logprobs(of_reply, f"the judge {self.name}".rstrip())
        return float(of_reply.sum())

    def _datum(self, pair: TextPair, reply: str) -> Datum | None:
        data = self.rendering.datums(judge_conversation(pair, reply), self.tokenizer)
        return data[0] if data else None

    def close(self) -> None:
        self.sampler.close()
