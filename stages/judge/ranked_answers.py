"""Comparisons for a judge: from a data set, or of a model's own answers ranked by rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any
from zlib import crc32

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from kitchen import Step
from kitchen.artifacts.weights import find_weights
from kitchen.errors import ConfigError, DataError
from kitchen.ports import BlobStore, DatasetStore, ModelCatalog, Tokenizer, TrainingClient
from kitchen.ports.datasets import Row
from kitchen.ports.environments import Task
from kitchen.stage import Stage
from kitchen.types import Facts, Metrics, Price, Samples, Table, Tries
from stages.chat.conversations import Conversation
from stages.chat.messages import Message
from stages.chat.prompts import (
    answers_by_tool_call,
    prompt_dicts,
    strip_separator,
)
from stages.chat.template import DEFAULT_RENDERING, PromptRendering
from stages.chat.token_cost import generation_cost_rows
from stages.data.dataset import DEFAULT_DATASET, DatasetLoader, load_splits
from stages.data.splits import DatasetReader, ParsedRows
from stages.preference.comparisons import Comparison, Comparisons, comparison
from stages.rl.rollouts import (
    Rollout,
    RolloutConfig,
    RolloutRunner,
    prompt_tokens,
    rewards_equal,
    succeeded,
)
from stages.tasks.games import PREFIX as GAMES
from stages.tasks.rewards import Prompt
from stages.tasks.sources import ProblemSources
from stages.tasks.tasks import Tasks, check_not_empty, prompt_of_task


@dataclass(frozen=True)
class RankingConfig:
    """Ranking of the model's own answers into comparisons."""

    # number of training problems whose answers are compared; all held-out problems are used
    problems: PositiveInt = 200
    # answers sampled per problem, at temperature 1; truncated answers are not compared
    tries: Tries = 4
    # maximum number of comparisons per problem: the pairs whose rewards differ most
    pairs: PositiveInt = 1
    # only answers whose rewards differ by more than this are compared
    margin: NonNegativeFloat = 0.0

    def __post_init__(self) -> None:
        if self.tries < 2:
            raise ConfigError(
                f"ranking.tries={self.tries} gives no two answers to compare: set it to 2 or more."
            )


def comparison_source(
    preferences: str | None, sources: ProblemSources, ranking: RankingConfig, asked: bool = False
) -> Step:
    """Return the stages that load comparisons, or problems whose sampled answers are compared.

    The problems of a judge that is `asked` need no rewards: nothing is ranked by them. Raises
    ConfigError for settings that contradict each other.
    """
    if preferences is None:
        for name in sources.names:
            if name.startswith(GAMES):
                raise ConfigError(
                    f"dataset={name} is a game of several turns, but a judge compares single "
                    "answers to a question: choose a data set of questions."
                )
        if asked:
            if ranking != RankingConfig():
                raise ConfigError(
                    "ranking has no effect with judge.epochs=0: a judge that is not trained needs "
                    "no comparisons. Leave it out."
                )
            return replace(sources, rewarded=False).stage()
        return replace(sources, max_rows=max(sources.max_rows or 0, ranking.problems)).stage()
    reading, seed, max_rows = sources.reading, sources.seed, sources.max_rows
    unset = ProblemSources(DEFAULT_DATASET, reading, seed, max_rows)
    if (sources, ranking) != (unset, RankingConfig()):
        raise ConfigError(
            f"preferences={preferences} has both the comparisons and the prompts to train on, so "
            "dataset, mixture, reward, rewards, rubric, reasoning_gym, grading and ranking have no "
            "effect: leave them out."
        )
    return LoadPreferences(preferences, reading, seed)


@dataclass(frozen=True)
class RankedPair:
    """Two answers to one problem."""

    task: int  # index of the problem in its set
    better: str
    worse: str

    def stripped(self, tokenizer: Tokenizer) -> RankedPair:
        """Return the pair without the separators that join answers to untemplated prompts."""
        return replace(
            self,
            better=strip_separator(self.better, tokenizer),
            worse=strip_separator(self.worse, tokenizer),
        )


@dataclass(frozen=True)
class RankedAnswers:
    """Pairs of a model's own answers by set; the training set has the empty name."""

    sets: Mapping[str, tuple[RankedPair, ...]]

    def samples(self) -> Samples:
        """Return the pairs as lines of samples.jsonl."""
        records: list[dict[str, Any]] = []
        for name, pairs in self.sets.items():
            place = {"when": "ranked", "set": name or "train"}
            records += [
                {**place, "row": pair.task, "better": pair.better, "worse": pair.worse}
                for pair in pairs
            ]
        return Samples(tuple(records))


class RankAnswers(Stage):
    """Sample several answers to each problem, and pair them by their rewards."""

    memoize = True
    model: str  # a name of weights
    ranking: RankingConfig
    playing: RolloutConfig
    seed: int = 0
    render: PromptRendering = DEFAULT_RENDERING

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tasks: Tasks,
        blobs: BlobStore | None = None,
    ) -> tuple[RankedAnswers, Samples]:
        chosen = self._chosen(tasks)
        weights = find_weights(self.model, client, blobs)
        tokenizer = weights.tokenizer(models)
        sets: dict[str, tuple[RankedPair, ...]] = {}
        with closing(client.sampler(weights.source)) as sampler:
            runner = RolloutRunner.sampling(sampler, tokenizer, self.playing, self.render)
            for name, indices in chosen.items():
                problems = [tasks.sets()[name][at] for at in indices]
                seed = [self.seed, crc32(b"rank"), crc32(name.encode())]
                rollouts = await runner.run(problems, self.ranking.tries, seed)
                pairs: list[RankedPair] = []
                for at, group in zip(indices, rollouts.groups, strict=True):
                    pairs += furthest_pairs(at, group, self.ranking)
                templated = self.render.tokenizer(tokenizer)
                sets[name] = tuple(pair.stripped(templated) for pair in pairs)
        ranked = RankedAnswers(sets)
        return ranked, ranked.samples()

    def preview(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tasks: Tasks,
        blobs: BlobStore | None = None,
        price: Price | None = None,
    ) -> Table:
        problems: list[Task] = []
        for name, indices in self._chosen(tasks).items():
            problems += [tasks.sets()[name][at] for at in indices]
        tokenizer = find_weights(self.model, client, blobs).tokenizer(models)
        prompts = prompt_tokens(problems, tokenizer, self.render)
        tries = self.ranking.tries
        answers = len(problems) * tries
        tokens = generation_cost_rows(
            None if prompts is None else prompts * tries,
            answers * self.playing.max_tokens,
            price,
            trained=False,
        )
        rows = (("answers in all", f"{answers:,}"), *tokens)
        return Table("Answers to be compared", ("quantity", "count"), rows)

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.model, client, blobs)

    def _chosen(self, tasks: Tasks) -> Mapping[str, Sequence[int]]:
        """Return the indices of the problems to answer, by set; training problems are sampled.

        Raises DataError if there are none, and for a set whose metric would have the name of the
        training data's.
        """
        check_not_empty(tasks)
        if "data" in tasks.held_out:
            raise DataError(
                "the held-out set 'data' would have the same metric as the training data, "
                "data/comparisons: give the split another name"
            )
        order = np.random.default_rng([self.seed, crc32(b"rank")]).permutation(len(tasks.train))
        train = sorted(order[: self.ranking.problems].tolist())
        held_out = {name: range(len(problems)) for name, problems in tasks.held_out.items()}
        return {"": train, **held_out}


class BuildComparisons(Stage):
    """Turn ranked answers into comparisons, with the prompts of their problems."""

    async def run(self, tasks: Tasks, ranked: RankedAnswers) -> tuple[Comparisons, Metrics]:
        sets = dict[str, list[Comparison]]()
        for name, pairs in ranked.sets.items():
            problems = tasks.sets()[name]
            sets[name] = [
                await _comparison(problems[pair.task], pair, f"{name or 'train'} {pair.task}")
                for pair in pairs
            ]
        train = sets.pop("")
        check_comparisons(train, sets)
        return Comparisons(train, sets), Metrics(
            {
                "data/comparisons": float(len(train)),
                **{f"{name}/comparisons": float(len(rows)) for name, rows in sets.items()},
            }
        )


async def _comparison(task: Task, pair: RankedPair, where: str) -> Comparison:
    prompt = await prompt_of_task(task)
    single_turn = len(prompt.messages) == 1

    def answered(text: str) -> Conversation:
        messages = (*prompt.messages, Message("assistant", text))
        return Conversation(
            messages, where, single_turn=single_turn, sampled=True, inputs=prompt.inputs
        )

    return Comparison(answered(pair.better), answered(pair.worse))


def check_comparisons(
    train: Sequence[Comparison], held_out: Mapping[str, Sequence[Comparison]]
) -> None:
    """Raise DataError if there are no comparisons to train or to evaluate the judge on."""
    purpose = ""
    if not train:
        purpose = "train"
    elif not any(held_out.values()):
        purpose = "evaluate"
    if purpose:
        raise DataError(
            f"no comparisons to {purpose} the judge on: no two answers to the same problem had "
            "different rewards. Sample more answers (ranking.tries) to more problems "
            "(ranking.problems), allow longer ones (playing.max_tokens), or accept smaller "
            "differences (ranking.margin)."
        )


class LoadPreferences(DatasetLoader):
    """Load comparisons, with their prompts as tasks; held-out sets as in LoadDataset."""

    def run(self, store: DatasetStore) -> tuple[Comparisons, Tasks, Facts, Table]:
        data = load_splits(
            DatasetReader(store, self.dataset, self.reading, self.seed, self.max_rows, judged_pair)
        )
        sets = {
            name: tuple(ParsedRows(split, judged_pair))
            for name, split in (("", data.train), *data.held_out.items())
        }
        prompts = {name: _prompts(rows, name or self.dataset) for name, rows in sets.items()}
        return (
            Comparisons(sets.pop(""), sets),
            Tasks(prompts.pop(""), prompts, bad_rows=data.bad_rows),
            data.facts,
            data.table,
        )

    preview = run


def judged_pair(row: Row, where: str) -> Comparison:
    """Parse a comparison of two single messages, as a judge reads it; raises DataError."""
    pair = comparison(row, where)
    if pair.rejected is None:
        raise DataError(
            f"{where}: 'rejected' is missing. A judge is trained on pairs of a chosen and a "
            "rejected answer. If the data has only right answers, set dataset instead of "
            "preferences: then the model's own answers are ranked and compared."
        )
    for field, answered in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        size = len(answered.messages) - answered.prompt_length
        if size > 1:
            raise DataError(
                f"{where}: the answer of {field!r} has {size} messages, but a judge compares "
                "single messages: the two conversations may differ only in their last message."
            )
        if answers_by_tool_call(answered):
            raise DataError(
                f"{where}: the answer of {field!r} is a tool call, but a judge compares texts. "
                "Write the call as the content of the message, or drop the row."
            )
    return pair


def _prompts(rows: Sequence[Comparison], tag: str) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(prompt_dicts(row.chosen), tag, row.chosen.where, row.chosen.inputs) for row in rows
    )


def furthest_pairs(task: int, group: Sequence[Rollout], ranking: RankingConfig) -> list[RankedPair]:
    """Return the pairs of answers to one problem whose rewards differ most."""
    rewarded = succeeded(group)
    rewards = {rollout.text: rollout.reward for rollout in rewarded if rollout.complete}

    def gap(pair: Sequence[str]) -> float:
        return rewards[pair[0]] - rewards[pair[1]]

    pairs = [
        sorted(two, key=lambda text: rewards[text], reverse=True)
        for two in combinations(rewards, 2)
    ]
    ranked = [
        RankedPair(task, better, worse)
        for better, worse in sorted(pairs, key=gap, reverse=True)
        if rewards[better] - rewards[worse] > ranking.margin
        and not rewards_equal([rewards[better], rewards[worse]])
    ]
    return ranked[: ranking.pairs]
