"""Metrics and records of the judges that are asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from kitchen.types import Metrics
from stages.tasks.asked_model import Judgement


def judge_metrics(judged: Iterable[Sequence[Judgement]]) -> Metrics:
    """Return the number of replies of a judge and their tokens, and the share without a score.

    Equal judgements count once: equal answers to a problem are judged once.
    """
    distinct = dict.fromkeys(chain.from_iterable(judged))
    replies = list(chain.from_iterable(judgement.replies for judgement in distinct))
    if not replies:
        return Metrics()
    unparsed = sum(reply.score is None for reply in replies)
    return Metrics(
        {
            "judge/replies": float(len(replies)),
            "judge/tokens": float(sum(reply.tokens for reply in replies)),
            "judge/unparsed": unparsed / len(replies),
        }
    )


def recorded_judgements(judgements: Sequence[Judgement]) -> Mapping[str, Any]:
    """Return the judge's prompts and replies as a line of samples.jsonl shows them, if any."""
    return {"judge": list(map(_record, judgements))} if judgements else {}


def _record(judgement: Judgement) -> Mapping[str, Any]:
    replies = [
        {"text": reply.text, "score": reply.score, "problem": reply.problem}
        for reply in judgement.replies
    ]
    record = {"criterion": judgement.criterion, "score": judgement.score}
    return {**record, "prompt": judgement.prompt, "replies": replies}
