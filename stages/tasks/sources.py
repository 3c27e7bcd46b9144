"""Problems of one data set, or of several with weights, each with its reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kitchen import Step, sequence
from kitchen.errors import ConfigError, did_you_mean
from kitchen.ports import DatasetStore
from kitchen.ports.environments import Task
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.data.bad_rows import BadRow
from stages.data.dataset import DEFAULT_DATASET, ROWS_COLUMNS
from stages.data.mixture import check_no_leakage, interleave
from stages.data.splits import DataConfig
from stages.tasks import games
from stages.tasks.grading import GradingConfig
from stages.tasks.gym_options import SETTING, GymOptions
from stages.tasks.open_rubric_judge import OpenRubricJudge
from stages.tasks.reasoning_gym import PREFIX as GYM
from stages.tasks.reasoning_gym import MakeReasoningGym
from stages.tasks.reward_setting import RewardSetting, reward_weights
from stages.tasks.rewards import AS_IS
from stages.tasks.rubric import RUBRIC, RubricConfig
from stages.tasks.tasks import LoadTasks, Tasks

_GENERATED = (GYM, games.PREFIX)


@dataclass(frozen=True)
class ProblemSources:
    """The data sets of problems, and how their answers are rewarded."""

    dataset: str  # the only one, unless there is a mixture
    reading: DataConfig
    seed: int = 0
    max_rows: int | None = None  # problems that the run can train on; None if not known
    reward: RewardSetting = None
    grading: GradingConfig = AS_IS
    mixture: Mapping[str, float] | None = None  # weights by data set
    rewards: Mapping[str, RewardSetting] = field(default_factory=dict)  # by data set
    gym_options: Mapping[str, GymOptions] = field(default_factory=dict)  # by task
    rubric: RubricConfig = field(default_factory=RubricConfig)  # of reward=rubric
    model: str = field(default="", compare=False)  # the judge by default
    rewarded: bool = True  # false for prompts alone, where no reward is set

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the data sets."""
        return (self.dataset,) if self.mixture is None else tuple(self.mixture)

    @property
    def are_rewarded(self) -> bool:
        """True if the reward of every data set is set, or comes with its problems."""
        return all(
            is_generated(name) or self.rewards.get(name, self.reward) is not None
            for name in self.names
        )

    def stage(self) -> Step:
        """Return the stage that loads or generates the problems, and one that opens their judge.

        Raises ConfigError for settings that contradict each other.
        """
        loader = self._stage()
        settings = (self.reward, *self.rewards.values())
        if any(RUBRIC in reward_weights(setting) for setting in settings):
            name = self.rubric.model or self.model
            return sequence(loader, OpenRubricJudge(name, self.rubric, self.seed))
        if self.rubric != RubricConfig():
            raise ConfigError(
                "the settings of rubric have no effect without reward=rubric: set it, or leave "
                "them out"
            )
        return loader

    def _stage(self) -> Stage:
        """Return the stage that loads or generates the problems."""
        self._check_names()
        if self.mixture is None:
            return self._loader(self.dataset, self.reading, self.reward, self.grading)
        if not self.mixture:
            raise ConfigError("the mixture has no data set: add one, as in mixture.ingredients=1")
        counts = self._counts(self.mixture)
        questions = [name for name in self.mixture if not is_generated(name)]
        if not questions and (self.reward is not None or self.grading != AS_IS):
            raise ConfigError(
                "all data sets of the mixture have their own rewards; leave out reward and grading"
            )
        loaders = tuple(self._part(name, counts[name]) for name in self.mixture)
        return LoadTaskMixture(dict(self.mixture), loaders)

    def _part(self, name: str, count: int | None) -> LoadTasks | MakeReasoningGym | games.MakeGames:
        """Return the loader of a data set of the mixture."""
        own = self.rewards.get(name)
        source = replace(self, max_rows=count)
        reading, reward, grading = self.reading, self.reward, self.grading
        if is_generated(name):
            reading = DataConfig(limit=reading.limit, held_out_rows=reading.held_out_rows)
            reward, grading = None, AS_IS
        if own is None:
            return source._loader(name, reading, reward, grading)
        try:
            return source._loader(name, reading, own, grading)
        except ConfigError as error:
            raise ConfigError(f"rewards.{name}: {error}") from error

    def _counts(self, mixture: Mapping[str, float]) -> Mapping[str, int | None]:
        """Return the number of problems of each data set that the run trains on."""
        if self.max_rows is None:
            return dict.fromkeys(mixture)
        order = interleave(mixture, self.max_rows)
        return {name: max(order.count(name), 1) for name in mixture}

    def _loader(
        self, name: str, reading: DataConfig, reward: RewardSetting, grading: GradingConfig
    ) -> LoadTasks | MakeReasoningGym | games.MakeGames:
        if is_generated(name) and reward is not None:
            raise ConfigError(f"{name} has its own reward; leave out reward={reward}")
        if is_generated(name) and grading != AS_IS:
            raise ConfigError(f"{name} has its own reward; leave out the options of grading")
        if name.startswith(GYM):
            options = self.gym_options.get(name.removeprefix(GYM), {})
            return MakeReasoningGym(name, reading, self.seed, self.max_rows, options)
        if name.startswith(games.PREFIX):
            return games.MakeGames(name, reading, self.seed, self.max_rows)
        own = self.rewarded
        return LoadTasks(name, reading, self.seed, self.max_rows, reward, grading, own)

    def _check_names(self) -> None:
        if self.mixture is not None and self.dataset != DEFAULT_DATASET:
            raise ConfigError(
                f"mixture.DATASET=WEIGHT names the data sets: leave dataset={self.dataset} out"
            )
        if self.rewards and self.mixture is None:
            raise ConfigError(
                "rewards.DATASET=REWARD sets the reward of one data set of a mixture, and there is "
                "none: set reward"
            )
        for name in self.rewards:
            if name not in self.names:
                near = did_you_mean(name, self.names)
                raise ConfigError(f"rewards: the mixture has no data set {name!r}; {near}")
        tasks = [name.removeprefix(GYM) for name in self.names if name.startswith(GYM)]
        for task in self.gym_options:
            if task not in tasks:
                near = did_you_mean(task, tasks) if tasks else f"set dataset={GYM}{task}"
                raise ConfigError(
                    f"{SETTING}.{task} has no effect: the run has no problems of {GYM}{task}; "
                    f"{near}"
                )


def is_generated(dataset: str) -> bool:
    """Return whether the problems of this name are generated, and have their own reward."""
    return dataset.startswith(_GENERATED)


@dataclass(frozen=True)
class TaskMixture(Tasks):
    """Problems of several data sets; the tag of a problem is the name of its data set."""

    parts: tuple[Tasks, ...] = ()  # as they were loaded

    def close(self) -> None:
        super().close()
        for part in self.parts:
            part.close()


class LoadTaskMixture(Stage):
    """Load or generate the problems of several data sets; held-out sets are named DATASET/SPLIT."""

    weights: Mapping[str, float]
    loaders: tuple[LoadTasks | MakeReasoningGym | games.MakeGames, ...]  # in the order of weights

    def run(self, store: DatasetStore) -> tuple[Tasks, Facts, Table]:
        loaded = {
            loader.dataset: loader.run(store) if isinstance(loader, LoadTasks) else loader.run()
            for loader in self.loaders
        }
        check_no_leakage({name: facts for name, (_, facts, _) in loaded.items()})
        train: list[Task] = []
        held_out: dict[str, Sequence[Task]] = {}
        facts, rows, bad_rows = Facts(), list[tuple[str, ...]](), list[BadRow]()
        for name, (tasks, part_facts, table) in loaded.items():
            train += [_tagged(task, name) for task in tasks.train]
            for split, problems in tasks.held_out.items():
                held_out[f"{name}/{split}"] = problems
            for key, value in part_facts.items():
                facts[key.replace("data.", f"data.{name}.", 1)] = value
            rows += [(name, *row, "", "")[: len(ROWS_COLUMNS) + 1] for row in table.rows]
            bad_rows += [replace(row, split=f"{name}/{row.split}") for row in tasks.bad_rows]
        parts = tuple(tasks for tasks, _, _ in loaded.values())
        mixture = TaskMixture(
            train, held_out, bad_rows=tuple(bad_rows), weights=dict(self.weights), parts=parts
        )
        return mixture, facts, Table("Problems", ("data set", *ROWS_COLUMNS), tuple(rows))

    preview = run

    def verify(self, store: DatasetStore) -> None:
        for loader in self.loaders:
            if isinstance(loader, LoadTasks):
                loader.verify(store)
            else:
                loader.verify()


def _tagged(task: Any, name: str) -> Any:
    """Return the problem with the name of its data set as its tag."""
    return replace(task, tag=name)
