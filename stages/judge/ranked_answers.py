"""Comparisons of a model's own answers, by what these are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from zlib import crc32

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from kitchen import Step
from kitchen.artifacts.weights import find_weights
from kitchen.errors import ConfigError, DataError
from kitchen.ports import BlobStore, DatasetStore, ModelCatalog, Tokenizer, TrainingClient
from kitchen.ports.environments import Task
from kitchen.stage import Stage
from kitchen.types import Facts, Metrics, Price, Samples, Table
from stages.chat.conversations import Conversation, Message, messages_from_dicts
from stages.chat.prompts import message_to_dict, prompt_messages, strip_separator
from stages.chat.token_cost import generation_cost_rows
from stages.data.dataset import DEFAULT_DATASET, DatasetLoader, load_splits
from stages.data.splits import DataConfig, DatasetReader, ParsedRows
from stages.preference.comparisons import Comparison, Comparisons, comparison, without_rejected
from stages.rl.rollouts import Rollout, RolloutConfig, RolloutRunner, tokens_asked
from stages.tasks.games import PREFIX as GAMES
from stages.tasks.reasoning_gym import load_tasks_stage
from stages.tasks.rewards import Prompt
from stages.tasks.tasks import Tasks


@dataclass(frozen=True)
class Ranking:
    """How a model's own answers become comparisons."""

    problems: PositiveInt = 200  # to train on that are answered for it; of those held out, all are
    tries: PositiveInt = 4  # answers to each, at temperature 1; one that is cut is not compared
    # comparisons of the answers to one problem: those whose rewards are furthest apart
    pairs: PositiveInt = 1
    margin: NonNegativeFloat = 0.0  # by which one reward must be more than the other

    def __post_init__(self) -> None:
        if self.tries < 2:
            raise ConfigError(
                f"ranking.tries={self.tries} leaves nothing to compare: draw 2 answers or more"
            )


def find_comparisons(
    preferences: str | None,
    dataset: str,
    reading: DataConfig,
    seed: int,
    model: str,
    how: Ranking,
    playing: RolloutConfig,
    rows: int,
    reward: str | None,
    check: Step,
) -> tuple[Step, ...]:
    """Those of a data set, or the model's own answers to problems of one; raises ConfigError.

    `check` looks at what is asked before anything is answered.
    """
    if preferences is None and dataset.startswith(GAMES):
        raise ConfigError(
            f"{dataset} is played in turns, and a judge hears one request and one answer: take "
            "questions"
        )
    if preferences is None:
        return (
            load_tasks_stage(dataset, reading, seed, max(rows, how.problems), reward),
            check,
            RankAnswers(model, how, playing, seed),
            CompareAnswers(),
        )
    if dataset != DEFAULT_DATASET or reward is not None or how != Ranking():
        raise ConfigError(
            f"preferences={preferences} are compared already, and what they answer is asked: leave "
            "dataset, reward and ranking out"
        )
    return LoadPreferences(preferences, reading, seed), check


@dataclass(frozen=True)
class Ranked:
    """Two answers to one problem."""

    task: int  # of its set, from 0
    better: str
    worse: str

    def alone(self, tokenizer: Tokenizer) -> Ranked:
        """Without what joins them to their prompt where there is no template."""
        return replace(
            self,
            better=strip_separator(self.better, tokenizer),
            worse=strip_separator(self.worse, tokenizer),
        )


@dataclass(frozen=True)
class RankedAnswers:
    """Answers that a model wrote itself, by set; those to train on under the empty name."""

    sets: Mapping[str, tuple[Ranked, ...]]


class RankAnswers(Stage):
    """Let a model answer problems several times, and compare its answers by their rewards, once."""

    memoize = True
    model: str  # a name of weights
    how: Ranking
    playing: RolloutConfig
    seed: int = 0

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tasks: Tasks,
        blobs: BlobStore | None = None,
    ) -> tuple[RankedAnswers, Samples]:
        found = find_weights(self.model, client, blobs)
        sampler, tokenizer = client.sampler(found.source), models.tokenizer(found.model)
        sets: dict[str, tuple[Ranked, ...]] = {}
        try:
            player = RolloutRunner(sampler, tokenizer, self.playing)
            for name, places in self._chosen(tasks).items():
                some = [tasks.sets()[name][at] for at in places]
                seeds = [self.seed, crc32(b"rank"), crc32(name.encode())]
                groups = (await player.groups(some, self.how.tries, seeds)).groups
                sets[name] = tuple(
                    pair.alone(tokenizer)
                    for at, group in zip(places, groups, strict=True)
                    for pair in furthest(at, group, self.how)
                )
        finally:
            sampler.close()
        return RankedAnswers(sets), Samples(
            tuple(
                {
                    "when": "ranked",
                    "set": name or "train",
                    "row": each.task,
                    "better": each.better,
                    "worse": each.worse,
                }
                for name, some in sets.items()
                for each in some
            )
        )

    def preview(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tasks: Tasks,
        blobs: BlobStore | None = None,
        price: Price | None = None,
    ) -> Table:
        some = [
            tasks.sets()[name][at] for name, places in self._chosen(tasks).items() for at in places
        ]
        asked = tokens_asked(some, models.tokenizer(find_weights(self.model, client, blobs).model))
        count = len(some) * self.how.tries
        tokens = generation_cost_rows(
            None if asked is None else asked * self.how.tries,
            count * self.playing.max_tokens,
            price,
            trained=False,
        )
        return Table(
            "Answers to be compared", ("what", "count"), (("answers in all", f"{count:,}"), *tokens)
        )

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.model, client, blobs)

    def _chosen(self, tasks: Tasks) -> Mapping[str, Sequence[int]]:
        """Which problems, by set: of those to train on a seeded choice."""
        some = np.random.default_rng([self.seed, crc32(b"rank")]).permutation(len(tasks.train))[
            : self.how.problems
        ]
        return {
            "": sorted(some.tolist()),
            **{name: range(len(each)) for name, each in tasks.held_out.items()},
        }


class CompareAnswers(Stage):
    """The ranked answers with what they answer."""

    async def run(self, tasks: Tasks, ranked: RankedAnswers) -> tuple[Comparisons, Metrics]:
        found = {
            name: [
                await _compared(
                    tasks.sets()[name][each.task], each, f"{name or 'train'} {each.task}"
                )
                for each in some
            ]
            for name, some in ranked.sets.items()
        }
        train = found.pop("")
        check_judgeable(
            train,
            found,
            "let it try more often (ranking.tries), on more problems (ranking.problems) or "
            "longer (playing.max_tokens), or let a smaller difference count (ranking.margin)",
        )
        return Comparisons(train, found), Metrics(
            {
                "data/comparisons": float(len(train)),
                **{f"{name}/comparisons": float(len(some)) for name, some in found.items()},
            }
        )


async def _compared(task: Task, ranked: Ranked, where: str) -> Comparison:
    said = messages_from_dicts(await task.env().reset())
    chosen, rejected = (
        Conversation(
            (*said, Message("assistant", text)), where, single_turn=len(said) == 1, sampled=True
        )
        for text in (ranked.better, ranked.worse)
    )
    return Comparison(chosen, rejected)


def check_judgeable(
    train: Sequence[Comparison], held_out: Mapping[str, Sequence[Comparison]], mend: str
) -> None:
    """Raise DataError where there is nothing to learn from, or to measure on."""
    for some, what in (
        (train, "learn to judge from"),
        ([each for rows in held_out.values() for each in rows], "measure the judge on"),
    ):
        if not some:
            raise DataError(
                f"nothing to {what}: no two answers were worth different rewards; {mend}"
            )


class LoadPreferences(DatasetLoader):
    """Read comparisons, and ask what they answer; held-out sets as LoadDataset makes them."""

    def run(self, store: DatasetStore) -> tuple[Comparisons, Tasks, Facts, Table]:
        found = load_splits(
            DatasetReader(store, self.dataset, self.reading, self.seed, self.max_rows, comparison)
        )
        sets = {
            name: tuple(ParsedRows(data, comparison))
            for name, data in (("", found.train), *found.held_out.items())
        }
        if lacking := without_rejected(sets):
            raise DataError(
                f"{lacking[0].chosen.where}: 'rejected' is missing; a judge learns from answers "
                "that are "
                "wanted and others that are not; where answers are right or wrong, leave "
                "preferences out, "
                "set dataset, and the model's own answers are compared"
            )
        asked = {
            name: tuple(
                Prompt(
                    tuple(map(message_to_dict, prompt_messages(each.chosen))), name or self.dataset
                )
                for each in rows
            )
            for name, rows in sets.items()
        }
        return (
            Comparisons(sets.pop(""), sets),
            Tasks(asked.pop(""), asked),
            found.facts,
            found.table,
        )

    preview = run


def furthest(task: int, group: Sequence[Rollout], how: Ranking) -> list[Ranked]:
    """Of the answers to one problem the pairs furthest apart."""
    worth = {each.text: each.reward for each in group if not each.failed and not each.truncated}
    pairs = sorted(
        (sorted(two, key=lambda text: -worth[text]) for two in combinations(worth, 2)),
        key=lambda two: worth[two[1]] - worth[two[0]],
    )
    return [
        Ranked(task, better, worse)
        for better, worse in pairs
        if worth[better] - worth[worse] > how.margin
    ][: how.pairs]
