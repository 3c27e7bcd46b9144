"""Tasks: problems, each with an environment that rewards answers."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np

from kitchen.errors import DataError
from kitchen.ports import DatasetStore, Tokenizer
from kitchen.ports.environments import Task
from kitchen.stage import Stage
from kitchen.types import Facts, Metrics, Samples, Table, Tokens
from stages.chat.conversations import Conversation, parse_conversation
from stages.chat.items import item_digest, object_digest
from stages.chat.messages import messages_from_dicts
from stages.chat.model_limits import has_room
from stages.chat.prompts import (
    env_inputs,
    graded_prefill,
    item_of,
    prompt_dicts,
    reference_answer,
    reference_answers,
    render_prompt,
)
from stages.chat.template import DEFAULT_RENDERING, PromptRendering
from stages.data.bad_rows import BadRow, BadRows, BadRowsName, report_bad_rows
from stages.data.dataset import DatasetLoader, load_splits
from stages.data.mixture import interleave
from stages.data.splits import DatasetReader, ParsedRows
from stages.tasks.function_workers import FunctionPool
from stages.tasks.grading import GradingConfig
from stages.tasks.json_score import default_metric
from stages.tasks.named_rewards import NamedRewards, find_rewards, grading_of
from stages.tasks.own_reward import parse_question
from stages.tasks.reward_setting import RewardSetting, reward_weights
from stages.tasks.rewards import (
    AS_IS,
    MAY_HANG,
    REWARDS,
    Prompt,
    Question,
    check_grading,
    first_ungradable,
    require_extra,
    ungradable,
)
from stages.tasks.rubric_judge import RubricJudge
from stages.tasks.step_results import open_env, reset_env
from stages.tasks.subprocesses import WorkerPool
from stages.train.schedules import PlannedSteps


@dataclass(frozen=True)
class Tasks:
    """Problems to train on, and held-out problems by the name of their set."""

    train: Sequence[Task]
    held_out: Mapping[str, Sequence[Task]]
    workers: WorkerPool = field(default_factory=WorkerPool)  # for rewards that may hang
    bad_rows: tuple[BadRow, ...] = ()  # rows left out of the data
    functions: FunctionPool = field(default_factory=FunctionPool)  # for functions of the user
    # sampling weights by data set, which is the tag of its problems; empty for all problems equally
    weights: Mapping[str, float] = field(default_factory=dict)
    judge: RubricJudge | None = None  # of the problems with reward=rubric

    def sets(self) -> Mapping[str, Sequence[Task]]:
        """Return all sets by name; the training set has the empty name."""
        return {"": self.train, **self.held_out}

    def close(self) -> None:
        self.workers.close()
        self.functions.close()
        if self.judge is not None:
            self.judge.close()


@dataclass(frozen=True)
class TaskBatch:
    """The problems of one batch of rollouts."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class PlannedTasks:
    """All problems of a run in the order of its batches, for its plan."""

    tasks: tuple[Task, ...]  # with repetitions


class LoadTasks(DatasetLoader):
    """Read a data set of questions with reference answers; held-out sets as in LoadDataset."""

    # names of REWARDS, rubric, or MODULE:function: one, or several with weights; None for field_f1
    # if all references are JSON objects, else exact
    reward: RewardSetting = None
    grading: GradingConfig = AS_IS
    rewarded: bool = True  # false for prompts alone, without rewards, if `reward` is None

    def __post_init__(self) -> None:
        super().__post_init__()
        find_rewards(self.reward)
        check_grading(self.grading, self.reward)

    def run(self, store: DatasetStore) -> tuple[Tasks, Facts, Table]:
        if rewards := find_rewards(self.reward):
            return self._run_with_rewards(store, rewards)
        if self.reward is None and not self.rewarded:
            return self._run_without_reward(store)
        name = next(iter(reward_weights(self.reward)), None)
        return self._run_with_built_in(store, name)

    def _run_with_built_in(
        self, store: DatasetStore, name_of_reward: str | None
    ) -> tuple[Tasks, Facts, Table]:
        """Read questions whose answers one reward compares with the reference answers."""
        reader = DatasetReader(
            store, self.dataset, self.reading, self.seed, self.max_rows, parse_conversation
        )
        loaded = load_splits(reader)
        sets = {"": loaded.train, **loaded.held_out}
        rows = {name: list(ParsedRows(data, parse_conversation)) for name, data in sets.items()}
        bad_rows = list(loaded.bad_rows)
        if self.reading.bad_rows == "drop" and name_of_reward is not None:
            for name, part in rows.items():
                bad = BadRows(name or loaded.train_split)
                rows[name] = gradable_rows(
                    name_of_reward, part, f"reward={name_of_reward}", bad, self.grading
                )
                bad_rows += bad.rows
        all_rows = list(chain.from_iterable(rows.values()))
        reward = choose_reward(name_of_reward, all_rows, self.grading)
        workers = WorkerPool()
        questions = {
            name: self._questions(name, part, reward, workers) for name, part in rows.items()
        }
        train = questions.pop("")
        tasks = Tasks(train, questions, workers, tuple(bad_rows))
        return tasks, loaded.facts, loaded.table

    def _run_without_reward(self, store: DatasetStore) -> tuple[Tasks, Facts, Table]:
        """Read the prompts of questions, which need no answer."""
        reader = DatasetReader(
            store, self.dataset, self.reading, self.seed, self.max_rows, parse_question
        )
        loaded = load_splits(reader)
        prompts = dict[str, tuple[Prompt, ...]]()
        for name, data in {"": loaded.train, **loaded.held_out}.items():
            tag = name or self.dataset
            rows = ParsedRows(data, parse_question)
            prompts[name] = tuple(
                Prompt(prompt_dicts(row), tag, row.where, row.inputs) for row in rows
            )
        tasks = Tasks(prompts.pop(""), prompts, bad_rows=loaded.bad_rows)
        return tasks, loaded.facts, loaded.table

    def _run_with_rewards(
        self, store: DatasetStore, rewards: NamedRewards
    ) -> tuple[Tasks, Facts, Table]:
        """Read questions whose answers a user's function or several rewards judge."""
        reader = DatasetReader(
            store, self.dataset, self.reading, self.seed, self.max_rows, rewards.parse
        )
        loaded = load_splits(reader)
        workers, functions, bad_rows = WorkerPool(), FunctionPool(), list(loaded.bad_rows)
        questions = dict[str, tuple[Question, ...]]()
        for name, data in {"": loaded.train, **loaded.held_out}.items():
            rows = list(ParsedRows(data, rewards.parse))
            bad = BadRows(name or loaded.train_split)
            gradable = {id(row) for row in self._gradable(rows, rewards.built_in, bad)}
            bad_rows += bad.rows
            questions[name] = tuple(
                rewards.question(question, row, own, workers)
                for question, row, own in zip(
                    self._questions(name, rows, "exact", workers),
                    rows,
                    rewards.of_rows(data, functions),
                    strict=True,
                )
                if id(row) in gradable
            )
        tasks = Tasks(questions.pop(""), questions, workers, tuple(bad_rows), functions)
        return tasks, loaded.facts, loaded.table

    def _gradable(
        self, rows: Sequence[Conversation], built_in: Sequence[str], bad: BadRows
    ) -> Sequence[Conversation]:
        """Return the rows that all built-in rewards can grade; the others are errors or recorded.

        Raises DataError for the first of the others unless bad rows are dropped.
        """
        for reward in built_in:
            grading = grading_of(reward, self.grading)
            if self.reading.bad_rows == "drop":
                rows = gradable_rows(reward, rows, f"reward={reward}", bad, grading)
            else:
                choose_reward(reward, rows, grading)
        return rows

    def _questions(
        self, name: str, rows: Sequence[Conversation], reward: str, workers: WorkerPool
    ) -> tuple[Question, ...]:
        return tuple(
            Question(
                prompt_dicts(row),
                reference_answer(row),
                REWARDS[reward],
                name or self.dataset,
                workers if reward in MAY_HANG else None,
                reference_answers(row)[1:],
                self.grading,
                row.where,
                row.inputs,
                graded_prefill(row),
                item_of(row),
                row.columns,
            )
            for row in rows
        )

    preview = run

    def verify(self, store: DatasetStore) -> None:
        if "math" in reward_weights(self.reward):
            require_extra("math_verify", "reward=math")
        super().verify(store)


def problem_facts(
    dataset: str, train: Sequence[str], held_out: Sequence[str]
) -> tuple[Facts, Table]:
    """Return the digests of generated problems as facts, and a table of their counts."""
    digests = {
        f"data.{name}.sha256": hashlib.sha256(json.dumps(list(problems)).encode()).hexdigest()
        for name, problems in (("train", train), ("held_out", held_out))
    }
    rows = (
        ("train", "trained on", f"{len(train):,}"),
        ("held_out", "held out", f"{len(held_out):,}"),
    )
    return Facts(digests), Table(f"Problems of {dataset}", ("split", "use", "problems"), rows)


def choose_reward(
    reward: str | None, rows: Sequence[Conversation], grading: GradingConfig = AS_IS
) -> str:
    """Return the reward, by default field_f1 if all references are JSON objects, else exact.

    Raises DataError for a reference answer that the given reward cannot compare with any answer.
    """
    references = [reference_answers(row) for row in rows]
    if reward is None:
        texts = map(grading.reference, chain.from_iterable(references))
        reward = "field_f1" if default_metric(texts) == "json" else "exact"
    if problem := first_ungradable(reward, references, grading):
        row, reason = problem
        raise DataError(f"{rows[row].where}: reward={reward}: {reason}")
    return reward


def gradable_rows(
    reward: str,
    rows: Sequence[Conversation],
    setting: str,
    bad: BadRows,
    grading: GradingConfig = AS_IS,
) -> list[Conversation]:
    """Return the rows whose reference answers can be graded; the others are recorded."""
    problems = ungradable(reward, list(map(reference_answers, rows)), grading)
    for index, reason in problems.items():
        bad.add(DataError(f"{setting}: {reason}"), rows[index].where)
    if len(problems) == len(rows):
        raise bad.all_bad()
    return [row for index, row in enumerate(rows) if index not in problems]


class CheckPrompts(Stage):
    """Check that all prompts can be rendered, with room for an answer in the model's context."""

    max_tokens: int  # maximum tokens per answer
    render: PromptRendering = DEFAULT_RENDERING

    def run(self, tasks: Tasks, tokenizer: Tokenizer) -> None:
        check_not_empty(tasks)
        check_tags(tasks.train)
        for task in chain.from_iterable(tasks.sets().values()):
            check_prompt(task, tokenizer, self.max_tokens, self.render)

    preview = run


class DropBadTasks(Stage):
    """Leave out problems whose prompts cannot be answered, and report all rows left out."""

    max_tokens: int  # maximum tokens per answer
    render: PromptRendering = DEFAULT_RENDERING

    def run(self, tasks: Tasks, tokenizer: Tokenizer) -> tuple[Tasks, Metrics, Table, Samples]:
        good = good_tasks(tasks, tokenizer, self.max_tokens, self.render)
        return good, *report_bad_rows(good.bad_rows)

    preview = run


def checked_prompts(bad_rows: BadRowsName, max_tokens: int, render: PromptRendering) -> Stage:
    """Return the stage that checks all prompts, or that leaves bad ones out."""
    if bad_rows == "drop":
        return DropBadTasks(max_tokens, render)
    return CheckPrompts(max_tokens, render)


def good_tasks(
    tasks: Tasks, tokenizer: Tokenizer, max_tokens: int, render: PromptRendering
) -> Tasks:
    """Return the problems whose prompts can be answered, and the others as bad rows."""
    check_not_empty(tasks)
    check_tags(tasks.train)
    bad_rows = list(tasks.bad_rows)
    sets: dict[str, Sequence[Task]] = {}
    check = partial(check_prompt, tokenizer=tokenizer, max_tokens=max_tokens, render=render)
    for name, problems in tasks.sets().items():
        bad = BadRows(name or "train")
        sets[name] = bad.keep(problems, check, place_of)
        bad_rows += bad.rows
    return replace(tasks, train=sets.pop(""), held_out=sets, bad_rows=tuple(bad_rows))


def check_not_empty(tasks: Tasks) -> None:
    """Raise DataError if there are no problems to train on, or in a held-out set."""
    for name, problems in tasks.sets().items():
        if not problems and name:
            raise DataError(
                f"the held-out set {name!r} has no problems: add some, or leave the set out"
            )
        if not problems:
            raise DataError("there are no problems to train on: Tasks.train is empty")


def check_tags(tasks: Sequence[Task]) -> None:
    """Raise DataError for two tags whose metrics would have the same name."""
    tags = {task.tag for task in tasks}
    for tag in sorted(tags):
        if f"{tag}_std" in tags:
            raise DataError(
                f"the tags {tag!r} and {tag + '_std'!r} have metrics of the same name "
                f"(reward/{tag}_std): rename one of the tags"
            )


def check_prompt(
    task: Task, tokenizer: Tokenizer, max_tokens: int, render: PromptRendering
) -> None:
    """Raise DataError for a question that cannot be rendered, or leaves no room for an answer."""
    if not isinstance(task, Question | Prompt):
        return
    where = place_of(task)
    try:
        prompt = question_tokens(task, tokenizer, render)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    has_room(prompt, max_tokens, "playing.max_tokens", tokenizer, where)


def question_tokens(
    question: Question | Prompt, tokenizer: Tokenizer, render: PromptRendering
) -> Tokens:
    """Return the (T,) tokens of the prompt of a question."""
    inputs = question.inputs.over(render.chat_template_kwargs)
    tokenizer = render.tokenizer(tokenizer)
    return render_prompt(question.messages, tokenizer, None, inputs.tools, inputs.kwargs)


def place_of(task: Task) -> str:
    """Return the place of a task's row in the data, or its tag."""
    where = task.where if isinstance(task, Question | Prompt) else ""
    return where or f"a prompt of {task.tag or 'the data'}"


def item_of_task(task: Task, index: int = 0) -> str:
    """Return the item of a task: that of its row, or else the digest of its attributes.

    A task that its attributes do not tell apart is an item by its index in its set.
    """
    if isinstance(task, Question):
        asked, wanted = [task.messages, task.inputs], [task.answer, task.other_answers]
        return task.item or item_digest(asked, wanted)
    if isinstance(task, Prompt):
        return item_digest([task.messages, task.inputs], None)
    return object_digest(task, index)


async def prompt_of_task(task: Task) -> Conversation:
    """Return the first messages of a problem, with the tools that its environment offers."""
    env = await open_env(task)
    messages = messages_from_dicts(await reset_env(env))
    return Conversation(messages, place_of(task), inputs=env_inputs(env))


class TaskBatches(Stage):
    """Make `steps` batches of `size` problems, in passes over all problems, each in a new order.

    In a mixture, the shares of the data sets by weight hold at any point, to about one problem, and
    each data set is read in separate passes.
    """

    size: int
    steps: int
    seed: int = 0

    def preview(self, tasks: Tasks) -> tuple[PlannedTasks, PlannedSteps, Table]:
        planned = PlannedTasks(tuple(chain.from_iterable(batch.tasks for batch in self.run(tasks))))
        return planned, PlannedSteps(self.steps), _planned_table(tasks, planned)

    def run(self, tasks: Tasks) -> Iterable[TaskBatch]:
        check_not_empty(tasks)
        needed = self.size * self.steps
        if tasks.weights:
            order = np.array(mixed_order(tasks, needed, self.seed))
        else:
            count = len(tasks.train)
            passes = range(-(-needed // count))
            orders = [
                np.random.default_rng([self.seed, number]).permutation(count) for number in passes
            ]
            order = np.concatenate(orders)[:needed]
        batches = order.reshape(self.steps, self.size)
        return [_batch(tasks, indices) for indices in batches.tolist()]


def mixed_order(tasks: Tasks, count: int, seed: int) -> list[int]:
    """Return the indices of `count` problems of a mixture, in the order of the batches.

    Raises DataError for a data set without problems.
    """
    indices: dict[str, list[int]] = {name: [] for name in tasks.weights}
    for index, task in enumerate(tasks.train):
        indices[task.tag].append(index)
    for name, problems in indices.items():
        if not problems:
            raise DataError(
                f"{name}: no problem is left to train on; leave the data set out of the mixture"
            )
    streams = {
        name: _passes(problems, [seed, source])
        for source, (name, problems) in enumerate(indices.items())
    }
    return [next(streams[name]) for name in interleave(tasks.weights, count)]


def _passes(indices: Sequence[int], seed: Sequence[int]) -> Iterator[int]:
    """Yield indices forever, each pass in a new order."""
    for number in itertools.count():
        random = np.random.default_rng([*seed, number])
        yield from random.permutation(indices).tolist()


def _planned_table(tasks: Tasks, planned: PlannedTasks) -> Table:
    """Return how many problems of each data set a run trains on, and in how many passes."""
    available = Counter(task.tag for task in tasks.train)
    used = Counter(task.tag for task in planned.tasks)
    rows = [
        (name, f"{count:,}", f"{used[name]:,}", f"{used[name] / count:.2f}")
        for name, count in available.items()
    ]
    columns = ("data set", "problems", "trained on", "passes")
    return Table("Problems in batches", columns, tuple(rows))


def _batch(tasks: Tasks, indices: Sequence[int]) -> TaskBatch:
    return TaskBatch(tuple(tasks.train[at] for at in indices))
