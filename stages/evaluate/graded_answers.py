"""Answers, against those that are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kitchen.ports import Tokenizer
from kitchen.ports.environments import StepResult
from kitchen.types import Sampled
from stages.chat.conversations import Conversation
from stages.chat.prompts import prompt_messages, reference_answer
from stages.tasks.rewards import grade_answers

# their rewards
METRIC_REWARDS: Mapping[str, str] = MappingProxyType(
    {"json": "field_f1", "text": "exact", "math": "math"}
)


@dataclass(frozen=True)
class GradedAnswer:
    """One held-out problem, and what the model made of it."""

    prompt: str
    expected: str
    text: str
    exact: bool  # and not cut short
    f1: float  # 0..1, over JSON fields; for others 1 if exact
    parsed: bool  # whether it could be read as what was asked for
    truncated: bool  # it hit the token limit, which counts as wrong
    row: int = 0  # of the set, from 0
    attempt: int = 0  # at this problem, from 0
    where: str = ""  # the row's place in the data: "chats.jsonl:12"
    failed: str = ""  # why it could not be compared, which counts as wrong; empty where it could


async def grade_samples(
    metric: str, answered: Sequence[tuple[Conversation, Sampled]], tokenizer: Tokenizer
) -> list[GradedAnswer]:
    """Answers against those that are right, by one of METRICS; one that was cut is worth nothing."""
    texts = [tokenizer.decode(sampled.tokens) for _, sampled in answered]
    whole = [at for at, (_, sampled) in enumerate(answered) if sampled.stop_reason != "length"]
    came = await grade_answers(
        METRIC_REWARDS[metric], [(texts[at], reference_answer(answered[at][0])) for at in whole]
    )
    worth = dict(zip(whole, came, strict=True))
    return [_answer(each, texts[at], worth.get(at)) for at, (each, _) in enumerate(answered)]


def _answer(conversation: Conversation, text: str, worth: StepResult | str | None) -> GradedAnswer:
    """`worth`: what it is worth, why nobody knows, or None where it was cut."""
    found = worth if isinstance(worth, StepResult) else StepResult(0.0, parsed=False)
    return GradedAnswer(
        prompt_messages(conversation)[-1].content,
        reference_answer(conversation),
        text,
        found.reward == 1,
        found.reward,
        found.parsed,
        worth is None,
        where=conversation.where,
        failed=worth if isinstance(worth, str) else "",
    )


def failure_counts(answers: Sequence[GradedAnswer]) -> Mapping[tuple[str, str], int]:
    """How many count as wrong and may not be, by what is counted and the key of its metric."""
    failed = sum(bool(each.failed) for each in answers)
    return {("cut short", "truncated"): sum(each.truncated for each in answers)} | (
        {("could not be compared", "uncompared"): failed} if failed else {}
    )
