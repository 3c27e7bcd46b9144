"""What a judge says: of held-out comparisons, of rollouts, of new answers against old ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from kitchen.artifacts.weights import find_weights
from kitchen.ports import BlobStore, ModelCatalog, Tokenizer, TrainingClient, arrival
from kitchen.stage import Stage
from kitchen.statistics.intervals import interval, paired_permutation
from kitchen.types import Metrics, Table
from stages.chat.conversations import Message, messages_from_dicts
from stages.chat.prompts import render_prompt, strip_separator
from stages.evaluate.reference import Reference
from stages.judge.judge import EVEN, Judge, Judging, answers
from stages.preference.comparisons import Comparison, Comparisons
from stages.rl.rollout_eval import PlayedAfter, PlayedBefore
from stages.rl.rollouts import Rollout, RolloutConfig, Rollouts, alive
from stages.tasks.tasks import TaskBatch, Tasks


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


RULES: Mapping[str, Callable[[str], float]] = MappingProxyType(
    {"shorter": lambda text: -len(text), "json": _is_json}
)


class MeasureJudge(Stage):
    """How often the judge agrees with held-out comparisons, and how often rules would that need no
    judge, set by set.

    By a rule the shorter answer wins, or the one that is valid JSON. Who cannot say is right half
    of the time. What the judge cannot read is counted, and left out.
    """

    memoize = True
    seed: int = 0

    async def run(self, judge: Judge, comparisons: Comparisons) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), []
        for name, some in comparisons.held_out.items():
            if not some:
                continue
            read = await _said(judge, some)
            metrics[f"{name}/judge_unread"] = float(len(some) - len(read))
            if read:
                found = interval([_right(each, EVEN) for each in read], self.seed)
                metrics |= {
                    f"{name}/judge_accuracy": found.estimate,
                    f"{name}/judge_preference": float(np.mean(read)),
                }
                rows.append((name, str(len(read)), "judge", found.format()))
            for rule, worth in RULES.items():
                share = float(
                    np.mean(
                        [_right(worth(one), worth(other)) for _, one, other in map(answers, some)]
                    )
                )
                metrics[f"{name}/{rule}_wins"] = share
                rows.append((name, str(len(some)), f"{rule} wins", f"{share:.3f}"))
        columns = ("held-out set", "comparisons", "by", "right")
        return metrics, Table(
            "The judge on held-out comparisons, 95 % intervals", columns, tuple(rows)
        )


class MeasureJudgeBefore(Stage):
    """How often the weights that the judge begins with agree with held-out comparisons."""

    memoize = True
    model: str  # a name of weights
    how: Judging

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        comparisons: Comparisons,
        blobs: BlobStore | None = None,
    ) -> Metrics:
        found = find_weights(self.model, client, blobs)
        with closing(
            Judge(client.sampler(found.source), models.tokenizer(found.model), self.how)
        ) as judge:
            read = {name: await _said(judge, some) for name, some in comparisons.held_out.items()}
        return Metrics(
            {
                f"{name}/judge_accuracy_before": float(
                    np.mean([_right(each, EVEN) for each in some])
                )
                for name, some in read.items()
                if some
            }
        )


async def _said(judge: Judge, comparisons: Sequence[Comparison]) -> list[float]:
    """How far it prefers the better answer of each that it can read."""
    said = await asyncio.gather(*(judge.prefers(*answers(one)) for one in comparisons))
    return [each for each in said if each is not None]


def _right(better: float, worse: float) -> float:
    return float(np.sign(better - worse) / 2 + EVEN)


class JudgeRollouts(Stage):
    """Rewards by the judge, in the place of what the answers are worth: how far it prefers them to
    the reference's.

    That is what the reference answers to the same problem, greedily. An answer that was cut, or
    that the judge cannot read, is worth 0; `judge_unread` is the share of the latter.
    """

    playing: RolloutConfig
    # whether the data says what answers are worth: `true_reward` is the mean of what was replaced
    known: bool = True

    async def run(
        self,
        judge: Judge,
        reference: Reference,
        tokenizer: Tokenizer,
        batch: TaskBatch,
        rollouts: Rollouts,
    ) -> tuple[Rollouts, Metrics]:
        before = [each.reward for each in alive(rollouts.all())]
        said = [await task.env().reset() for task in batch.tasks]
        drawn = [
            reference.sample(
                render_prompt(each, tokenizer), max_tokens=self.playing.max_tokens, temperature=0.0
            )
            for each in said
        ]
        others = [
            tokenizer.decode(one.tokens) for [one] in await asyncio.gather(*map(arrival, drawn))
        ]
        both = zip(said, rollouts.groups, others, strict=True)
        groups = await asyncio.gather(
            *(
                judged(judge, messages_from_dicts(messages), group, other, tokenizer)
                for messages, group, other in both
            )
        )
        metrics = Metrics(judge_unread=sum(count for _, count in groups) / max(len(before), 1))
        if self.known and before:
            metrics["true_reward"] = float(np.mean(before))
        return Rollouts(tuple(group for group, _ in groups)), metrics


async def judged(
    judge: Judge,
    request: Sequence[Message],
    group: Sequence[Rollout],
    other: str,
    tokenizer: Tokenizer,
) -> tuple[tuple[Rollout, ...], int]:
    """The same rollouts with the judge's word as rewards, and how many it could not read.

    The tokenizer is that of whoever wrote them. The same answers are judged once.
    """
    whole = [each.text for each in group if not each.failed and not each.truncated]
    texts = list(dict.fromkeys(whole))
    said = await asyncio.gather(
        *(
            judge.prefers(
                request, strip_separator(text, tokenizer), strip_separator(other, tokenizer)
            )
            for text in texts
        )
    )
    found = dict(zip(texts, said, strict=True))
    return tuple(
        replace(each, reward=0.0 if each.failed or each.truncated else found[each.text] or 0.0)
        for each in group
    ), sum(found[text] is None for text in whole)


class JudgePlayed(Stage):
    """How far the judge prefers what the saved weights answer to held-out problems to what was
    answered before.

    An answer that was cut, or whose rollout failed, is worth less than one that was not. What the
    judge cannot read is counted, and left out.
    """

    memoize = True
    seed: int = 0

    async def run(
        self,
        judge: Judge,
        tokenizer: Tokenizer,
        tasks: Tasks,
        before: PlayedBefore,
        after: PlayedAfter,
    ) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), []
        for name, some in tasks.held_out.items():
            requests = [messages_from_dicts(await task.env().reset()) for task in some]
            pairs = zip(requests, after.answers[name], before.answers[name], strict=True)
            heard_of = await asyncio.gather(
                *(_preferred(judge, tokenizer, *each) for each in pairs)
            )
            said = [each for each in heard_of if each is not None]
            metrics[f"{name}/unread"] = float(len(heard_of) - len(said))
            if not said:
                continue
            found = interval(said, self.seed)
            metrics |= {
                f"{name}/preferred": found.estimate,
                f"{name}/preferred_low": found.low,
                f"{name}/preferred_p": paired_permutation([EVEN] * len(said), said, self.seed),
            }
            rows.append((name, str(len(said)), found.format()))
        return metrics, Table(
            "How far the judge prefers new answers to old ones, 95 % intervals",
            ("held-out set", "n", "0.5 is no difference"),
            tuple(rows),
        )


async def _preferred(
    judge: Judge, tokenizer: Tokenizer, request: Sequence[Message], new: str | None, old: str | None
) -> float | None:
    if new is None or old is None:
        return EVEN + ((new is not None) - (old is not None)) / 2
    return await judge.prefers(
        request, strip_separator(new, tokenizer), strip_separator(old, tokenizer)
    )
