"""Rewards by a judge, and evaluations of the judge and by the judge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from kitchen.artifacts.weights import find_weights
from kitchen.errors import RunFailed
from kitchen.ports import BlobStore, ModelCatalog, Tokenizer, TrainingClient, arrival
from kitchen.ports.environments import Task
from kitchen.stage import Stage
from kitchen.statistics.intervals import Interval, interval
from kitchen.statistics.significance import sign_flip
from kitchen.types import Metrics, Samples, Table
from stages.chat.conversations import Conversation
from stages.chat.messages import Message
from stages.chat.prompts import strip_separator, whole_prompt_tokens
from stages.chat.template import DEFAULT_RENDERING, NO_INPUTS, PromptRendering, TemplateInputs
from stages.evaluate.record import counted, record_row
from stages.evaluate.reference import Reference
from stages.judge.judge import EVEN, UNREAD, Judge, JudgeConfig, Preference, request_and_answers
from stages.preference.comparisons import Comparison, Comparisons, recorded_comparison
from stages.rl.rollout_eval import PolicyAfter, PolicyBefore, recorded_task
from stages.rl.rollouts import Rollout, RolloutConfig, Rollouts, succeeded
from stages.tasks.judge_records import recorded_judgements
from stages.tasks.tasks import TaskBatch, Tasks, prompt_of_task


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# baselines that the judge is compared with: the answer with the higher value is better
RULES: Mapping[str, Callable[[str], float]] = MappingProxyType(
    {"shorter": lambda text: -len(text), "json": _is_json}
)


class EvaluateJudge(Stage):
    """Measure how often the judge, and simple rules, agree with held-out comparisons, set by set.

    The rules prefer the shorter answer, or the one that is valid JSON. A tie counts as half right.
    Comparisons that the judge cannot read are counted (`judge_unread`) and left out of the others.
    """

    memoize = True

    async def run(self, judge: Judge, comparisons: Comparisons) -> tuple[Metrics, Table, Samples]:
        metrics, rows = Metrics(), list[tuple[str, ...]]()
        records: list[dict[str, Any]] = []
        for name, comparisons_of_set in comparisons.held_out.items():
            if not comparisons_of_set:
                continue
            judged = await _judge_all(judge, comparisons_of_set)
            records += _accuracy_records(name, comparisons_of_set, judged, "after")
            measured, lines = _compare_with_rules(comparisons_of_set, judged)
            metrics |= {f"{name}/{key}": value for key, value in measured.items()}
            rows += [(name, *line) for line in lines]
        columns = ("held-out set", "comparisons", "judge or rule", "accuracy")
        title = "The judge on held-out comparisons, 95 % intervals"
        return metrics, Table(title, columns, tuple(rows)), Samples(tuple(records))


def _compare_with_rules(
    comparisons: Sequence[Comparison], judged: Sequence[float | None]
) -> tuple[Mapping[str, float], Sequence[tuple[str, ...]]]:
    """Return metrics of the judge and of the rules on a set, and a row of the table for each."""
    preferences = _read(judged)
    unread = len(judged) - len(preferences)
    metrics, rows = {"judge_unread": float(unread)}, list[tuple[str, ...]]()
    if preferences:
        accuracy = interval([_right(preference, EVEN) for preference in preferences])
        metrics["judge_accuracy"] = accuracy.estimate
        metrics["judge_preference"] = float(np.mean(preferences))
        rows.append((counted(len(judged), unread), "judge", accuracy.format()))
    for rule, value in RULES.items():
        metrics[f"{rule}_wins"] = share = _rule_accuracy(value, comparisons)
        rows.append((str(len(judged)), f"{rule} wins", f"{share:.3f}"))
    return metrics, rows


class EvaluateBaseJudge(Stage):
    """Measure how often the judge's initial weights agree with held-out comparisons."""

    memoize = True
    model: str  # a name of weights
    config: JudgeConfig

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        comparisons: Comparisons,
        blobs: BlobStore | None = None,
    ) -> tuple[Metrics, Samples]:
        weights = find_weights(self.model, client, blobs)
        sampler, tokenizer = client.sampler(weights.source), weights.tokenizer(models)
        metrics = Metrics()
        records: list[dict[str, Any]] = []
        with closing(Judge(sampler, tokenizer, self.config, name=self.model)) as judge:
            for name, comparisons_of_set in comparisons.held_out.items():
                judged = await _judge_all(judge, comparisons_of_set)
                records += _accuracy_records(name, comparisons_of_set, judged, "before")
                if preferences := _read(judged):
                    right = [_right(preference, EVEN) for preference in preferences]
                    metrics[f"{name}/judge_accuracy_before"] = float(np.mean(right))
        return metrics, Samples(tuple(records))


async def _judge_all(judge: Judge, comparisons: Sequence[Comparison]) -> list[float | None]:
    """Return the judge's preference for each better answer; None for one that it cannot read."""
    return await asyncio.gather(
        *(judge.prefers(*request_and_answers(row), row.chosen.inputs) for row in comparisons)
    )


def _read(judged: Sequence[float | None]) -> list[float]:
    """Return the preferences for answers that the judge could read."""
    return [preference for preference in judged if preference is not None]


def _accuracy_records(
    name: str, comparisons: Sequence[Comparison], judged: Sequence[float | None], when: str
) -> list[dict[str, Any]]:
    """Return the judge's decisions on the comparisons of a set as lines of samples.jsonl."""
    records: list[dict[str, Any]] = []
    for at, (row, preference) in enumerate(zip(comparisons, judged, strict=True)):
        item = recorded_comparison(row, row.rejected)
        if preference is None:
            records.append(record_row(item, name, at, {}, when=when, failed=UNREAD))
        else:
            scores = {"judge_accuracy": _right(preference, EVEN)}
            records.append(record_row(item, name, at, scores, when=when))
    return records


def _rule_accuracy(value: Callable[[str], float], comparisons: Sequence[Comparison]) -> float:
    right = []
    for row in comparisons:
        _, better, worse = request_and_answers(row)
        right.append(_right(value(better), value(worse)))
    return float(np.mean(right))


def _right(better: float, worse: float) -> float:
    """Return 1 if the better answer has the higher value, 0.5 for a tie, else 0."""
    return float(np.sign(better - worse) / 2 + EVEN)


class JudgeRollouts(Stage):
    """Replace rewards by the judge's preference for each answer over the reference model's answer.

    The reference model answers the same problem, greedily. A truncated answer, or one that the
    judge cannot read, has reward 0; `judge_unread` is the share of the latter. If a judge that is
    asked replies in another form, the rollout fails.
    """

    playing: RolloutConfig
    has_true_rewards: bool = True  # whether to report the mean of the original rewards, true_reward
    render: PromptRendering = DEFAULT_RENDERING

    async def run(
        self,
        judge: Judge,
        reference: Reference,
        tokenizer: Tokenizer,
        batch: TaskBatch,
        rollouts: Rollouts,
    ) -> tuple[Rollouts, Metrics]:
        true_rewards = [rollout.reward for rollout in succeeded(rollouts.all())]
        prompts = [await prompt_of_task(task) for task in batch.tasks]
        baselines = await self._greedy_answers(reference, tokenizer, prompts)
        tokenizer = self.render.tokenizer(tokenizer)
        groups = await asyncio.gather(
            *(
                judge_group(judge, prompt.messages, group, baseline, tokenizer, prompt.inputs)
                for prompt, group, baseline in zip(prompts, rollouts.groups, baselines, strict=True)
            )
        )
        judged = checked(Rollouts(tuple(group for group, _ in groups)), self.playing.max_failed)
        unread = sum(unread for _, unread in groups) / max(len(list(rollouts.all())), 1)
        metrics = Metrics(judge_unread=unread)
        if self.has_true_rewards and true_rewards:
            metrics["true_reward"] = float(np.mean(true_rewards))
        return judged, metrics

    async def _greedy_answers(
        self,
        reference: Reference,
        tokenizer: Tokenizer,
        prompts: Sequence[Conversation],
    ) -> list[str]:
        futures = [
            reference.sample(
                whole_prompt_tokens(prompt, tokenizer, self.render),
                max_tokens=self.playing.max_tokens,
                temperature=0.0,
            )
            for prompt in prompts
        ]
        sampled = await asyncio.gather(*map(arrival, futures))
        return [tokenizer.decode(answer.tokens) for [answer] in sampled]


async def judge_group(
    judge: Judge,
    request: Sequence[Message],
    group: Sequence[Rollout],
    baseline: str,
    tokenizer: Tokenizer,
    inputs: TemplateInputs = NO_INPUTS,
) -> tuple[tuple[Rollout, ...], int]:
    """Return the rollouts with the judge's rewards, and the number of answers it could not read.

    The tokenizer is the policy's. Equal answers are judged once.
    """
    complete = [rollout.text for rollout in group if rollout.complete]
    texts = list(dict.fromkeys(complete))
    other = strip_separator(baseline, tokenizer)
    preferences = await asyncio.gather(
        *(judge.compare(request, strip_separator(text, tokenizer), other, inputs) for text in texts)
    )
    by_text = dict(zip(texts, preferences, strict=True))
    rewarded = [
        _rewarded(rollout, by_text[rollout.text]) if rollout.complete else _without_reward(rollout)
        for rollout in group
    ]
    return tuple(rewarded), sum(by_text[text].value is None for text in complete)


def _without_reward(rollout: Rollout) -> Rollout:
    """Return a rollout that failed or was truncated, with the reward 0."""
    return replace(rollout, reward=0.0, abstained=False)


def _rewarded(rollout: Rollout, preference: Preference) -> Rollout:
    """Return a rollout with its reward; it fails if a judge that is asked gave no preference."""
    judged = replace(rollout, judgements=preference.judgements, abstained=False)
    if preference.value is None and preference.judgements:
        return judged.failing(preference.problem)
    return replace(judged, reward=preference.value or 0.0)


def checked(rollouts: Rollouts, max_failed: float) -> Rollouts:
    """Return judged rollouts; raises RunFailed if too many have no preference of the judge."""
    everything = list(rollouts.all())
    failed = [rollout for rollout in everything if rollout.failed and rollout.judgements]
    if len(failed) > max_failed * len(everything):
        raise RunFailed(
            f"the judge gave no preference for {len(failed)} of {len(everything)} answers, more "
            f"than the {max_failed:.0%} that playing.max_failed allows. The first error: "
            f"{failed[0].error}"
        )
    return rollouts


class CompareByJudge(Stage):
    """Measure how much the judge prefers held-out answers of the final weights to the initial ones.

    An answer that was truncated, or whose rollout failed, loses to any other. Answers that the
    judge cannot read are counted (`unread`) and left out of the other numbers.
    """

    memoize = True
    render: PromptRendering = DEFAULT_RENDERING

    async def run(
        self,
        judge: Judge,
        tokenizer: Tokenizer,
        tasks: Tasks,
        before: PolicyBefore,
        after: PolicyAfter,
    ) -> tuple[Metrics, Table, Samples]:
        tokenizer = self.render.tokenizer(tokenizer)
        metrics, rows, records = Metrics(), [], list[dict[str, Any]]()
        for name, problems in tasks.held_out.items():
            answers = zip(problems, after.answers[name], before.answers[name], strict=True)
            judged = await asyncio.gather(*(compare_new(judge, tokenizer, *row) for row in answers))
            records += _preference_records(name, problems, judged)
            preferences = _read([preference.value for preference in judged])
            unread = len(judged) - len(preferences)
            metrics[f"{name}/unread"] = float(unread)
            if preferences:
                mean = interval(preferences)
                metrics |= self._preference_metrics(name, mean, preferences)
                rows.append((name, counted(len(judged), unread), mean.format()))
        title = "The judge's preference for new answers over old ones, 95 % intervals"
        columns = ("held-out set", "answers", "preference (0.5: none)")
        return metrics, Table(title, columns, tuple(rows)), Samples(tuple(records))

    def _preference_metrics(
        self, name: str, mean: Interval, preferences: Sequence[float]
    ) -> Mapping[str, float]:
        even = [EVEN] * len(preferences)
        return {
            f"{name}/preferred": mean.estimate,
            f"{name}/preferred_low": mean.low,
            f"{name}/preferred_p": sign_flip(even, preferences).p_value,
        }


def _preference_records(
    name: str, problems: Sequence[Task], judged: Sequence[Preference]
) -> list[dict[str, Any]]:
    """Return the judge's preferences for new answers as lines of samples.jsonl."""
    records: list[dict[str, Any]] = []
    for at, (task, preference) in enumerate(zip(problems, judged, strict=True)):
        scores = {} if preference.value is None else {"preferred": preference.value}
        shown = {"failed": preference.problem, **recorded_judgements(preference.judgements)}
        item = recorded_task(task, at)
        records.append(record_row(item, name, at, scores, when="after", **shown))
    return records


async def prefers_new(
    judge: Judge, tokenizer: Tokenizer, task: Task, new: str | None, old: str | None
) -> float | None:
    """Return the judge's preference for the new answer; None if it cannot read one of them."""
    return (await compare_new(judge, tokenizer, task, new, old)).value


async def compare_new(
    judge: Judge, tokenizer: Tokenizer, task: Task, new: str | None, old: str | None
) -> Preference:
    """Return the judge's preference for the new answer; a missing answer loses to any other."""
    if new is None or old is None:
        return Preference(EVEN + ((new is not None) - (old is not None)) / 2)
    request = await prompt_of_task(task)
    answers = strip_separator(new, tokenizer), strip_separator(old, tokenizer)
    return await judge.compare(request.messages, *answers, request.inputs)
