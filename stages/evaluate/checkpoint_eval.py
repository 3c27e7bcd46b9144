"""Evaluation of weights of any name on held-out data, without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kitchen.artifacts.weights import find_weights, naming_damaged
from kitchen.config.splits import assign_splits, is_training
from kitchen.errors import ConfigError, DataError
from kitchen.ports import BlobStore, Dataset, DatasetStore, ModelCatalog, TrainingClient
from kitchen.stage import Stage
from kitchen.statistics.intervals import Interval, interval, pass_at
from kitchen.statistics.samples import NON_NEGATIVE
from kitchen.types import Facts, Metrics, Price, Samples, Table
from stages.chat.conversations import Conversation
from stages.chat.prompts import prompt_tokens
from stages.chat.render import RenderDataset
from stages.chat.token_cost import answer_cost_rows
from stages.data.bad_rows import BadRow
from stages.data.dataset import HeldOut
from stages.data.splits import (
    DataConfig,
    DatasetReader,
    HeldOutRowsConfig,
    ParsedRows,
    SplitRows,
    sample_held_out,
)
from stages.data.views import select
from stages.evaluate.choices import CHOICE_MEASURES, choice_datums
from stages.evaluate.evaluation import (
    GREEDY,
    DecodingConfig,
    EvalConfig,
    Evaluation,
    EvaluationAfter,
    check_held_out,
    evaluate,
    first_question,
    metrics_by_set,
    render_all,
    sample_records,
)
from stages.evaluate.graded_answers import GradedAnswer, failure_counts, measures_of, score_bounds
from stages.evaluate.metric_functions import row_parser
from stages.evaluate.record import NO_SCORE, counted
from stages.tasks.rubric_judge import RubricJudge


class LoadHeldOut(Stage):
    """Read the splits to evaluate on: the held-out ones, or all if none is held out."""

    dataset: str
    splits: tuple[str, ...] | None = None  # None for the default
    rows: int | None = None  # maximum number of rows per split; None for all
    reading: HeldOutRowsConfig = HeldOutRowsConfig()
    metric: str = "auto"  # with a function of the user, a row needs no answer

    def run(self, store: DatasetStore) -> tuple[HeldOut, Facts, Table]:
        splits = held_out_splits(store, self.dataset, self.splits)
        sets: dict[str, tuple[Conversation, ...]] = {}
        facts, table_rows = Facts(), []
        bad_rows: list[BadRow] = []
        reader, note = self._reader(store), self._note(splits)
        for split in splits:
            read = reader.read(split, 0)
            chosen = sample(self._held_out(reader, read), self.rows)
            name = split if self.reading.held_out is None else "held_out"  # as in training
            sets[name] = tuple(ParsedRows(chosen, reader.parse))
            facts[f"data.{split}.sha256"] = read.fingerprint
            table_rows.append((split, f"{len(chosen):,} of {len(read.data):,}{note}"))
            bad_rows += read.bad_rows
        table = Table(f"Evaluation data of {self.dataset}", ("split", "rows"), tuple(table_rows))
        return HeldOut(sets, tuple(bad_rows)), facts, table

    preview = run

    def verify(self, store: DatasetStore) -> None:
        splits = held_out_splits(store, self.dataset, self.splits)
        if self.reading.held_out is not None and len(splits) > 1:
            raise ConfigError(
                f"reading.held_out={self.reading.held_out:g} is a share of the only split, and "
                f"{self.dataset} has {len(splits)} to evaluate on: choose one (splits), or leave "
                "reading.held_out out"
            )

    def _reader(self, store: DatasetStore) -> DatasetReader:
        reading, parse = self.reading, row_parser(self.metric)
        config = DataConfig(columns=reading.columns, bad_rows=reading.bad_rows)
        if reading.held_out is not None:
            config = replace(config, held_out=reading.held_out)
        config = replace(config, held_out_rows=reading.held_out_rows or config.held_out_rows)
        return DatasetReader(store, self.dataset, config, parse=parse)

    def _held_out(self, reader: DatasetReader, read: SplitRows) -> Dataset:
        """Return the rows of a split that training holds out, or all of them."""
        if self.reading.held_out is not None:
            return select(read.data, reader.held_out_rows(read))
        return sample(read.data, self.reading.held_out_rows)

    def _note(self, splits: Sequence[str]) -> str:
        if self.reading.held_out is not None:
            return ": those that training holds out"
        if not self.splits and any(map(is_training, splits)):
            return "; no split is held out, so the model may have been trained on it"
        return ""


def held_out_splits(
    store: DatasetStore, dataset: str, splits: Sequence[str] | None
) -> Sequence[str]:
    """Return the splits, by default the held-out ones, or all if none is held out.

    Raises DataError if a split is unknown.
    """
    info = store.info(dataset)
    if splits:
        return assign_splits(info, next(iter(info.splits)), splits).held_out
    try:
        held_out = assign_splits(info).held_out
    except DataError:  # no split is one to train on
        held_out = ()
    return held_out or tuple(info.splits)


def sample(data: Dataset, rows: int | None) -> Dataset:
    """Choose at most `rows` rows, in their order."""
    return data if rows is None else sample_held_out(data, rows)


class EvaluateCheckpoint(Stage):
    """Evaluate weights of a run or model on the held-out sets."""

    memoize = True
    weights: str  # a name of weights
    config: EvalConfig
    render: RenderDataset
    decoding: DecodingConfig = GREEDY
    seed: int = 0  # seed of sampled answers

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
        judge: RubricJudge | None = None,
    ) -> tuple[EvaluationAfter, Samples]:
        weights = find_weights(self.weights, client, blobs)
        config, decoding = self.config, self.decoding
        with naming_damaged(weights, client, blobs):
            tokenizer = weights.tokenizer(models)
            sampler = client.sampler(weights.source)
            evaluation = await evaluate(
                sampler, tokenizer, config, self.render, held_out, decoding, self.seed, judge
            )
        result = EvaluationAfter(evaluation.answers, evaluation.losses, evaluation.choices)
        return result, sample_records(evaluation, held_out)

    def preview(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
        price: Price | None = None,
    ) -> tuple[Table, Table]:
        tokenizer = find_weights(self.weights, client, blobs).tokenizer(models)
        check_held_out(held_out, tokenizer, self.config, self.render, self.decoding)
        tokens_read = answers = 0
        metrics = metrics_by_set(held_out, self.config, self.decoding)
        for name, metric in metrics.items():
            rows = held_out.sets[name]
            if metric == "loss":
                datums = render_all(rows, tokenizer, self.render)
                tokens_read += sum(len(datum.tokens) + 1 for datum in datums)
            elif metric == "choice":
                for row in rows:
                    datums = choice_datums(row, tokenizer, self.render)
                    tokens_read += sum(len(datum.tokens) + 1 for datum in datums)
            else:
                tokens_read += sum(len(prompt_tokens(r, tokenizer, self.render)) for r in rows)
                answers += len(rows) * self.decoding.tries
        answer_tokens = answers * self.config.max_tokens
        counts = answer_cost_rows(answers, tokens_read, answer_tokens, "", price)
        first = first_question(held_out, metrics, tokenizer, self.render)
        return Table("Questions", ("quantity", "count"), counts), first

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.weights, client, blobs)


class ReportEvaluation(Stage):
    """Report exact match, field F1, pass@k and truncated answers of each set; or its loss.

    Intervals are of means over problems: several answers to one problem are not independent.
    """

    pass_at: tuple[int, ...] = ()

    def run(self, after: EvaluationAfter) -> tuple[Metrics, Table]:
        return evaluation_report("Evaluation", after, self.pass_at)


def evaluation_report(
    title: str, evaluation: Evaluation, pass_at: Sequence[int] = (), suffix: str = ""
) -> tuple[Metrics, Table]:
    """Return metrics and a table of one evaluation; `suffix` ends the names of its metrics."""
    metrics, rows = Metrics(), list[tuple[str, ...]]()
    for name, answers in evaluation.answers.items():
        problems = len({answer.row for answer in answers})
        for (label, measure), values in problem_scores(answers, pass_at).items():
            n = counted(problems, problems - len(values))
            if not values:
                rows.append((name, n, label, NO_SCORE))
                continue
            mean = interval(values, bounds=score_bounds(answers, measure))
            metrics |= _interval_metrics(f"{name}/{measure}{suffix}", mean)
            rows.append((name, n, label, mean.format()))
        for (label, measure), count in failure_counts(answers).items():
            metrics[f"{name}/{measure}{suffix}"] = float(count)
            rows.append((name, str(problems), label, f"{count} of {len(answers)} answers"))
    for name, choices in evaluation.choices.items():
        for (label, measure), score in CHOICE_MEASURES.items():
            mean = interval([float(score(row)) for row in choices])
            metrics |= _interval_metrics(f"{name}/{measure}{suffix}", mean)
            rows.append((name, str(len(choices)), label, mean.format()))
    for name, loss in evaluation.losses.items():
        for measure, (label, totals, sizes) in loss.measures().items():
            mean = interval(totals, sizes, bounds=NON_NEGATIVE)
            metrics |= _interval_metrics(f"{name}/{measure}{suffix}", mean)
            rows.append((name, str(len(totals)), label, mean.format(4)))
    columns = ("set", "problems", "measure", "value")
    return metrics, Table(f"{title}, 95 % intervals", columns, tuple(rows))


def _interval_metrics(key: str, mean: Interval) -> dict[str, float]:
    metrics = {key: mean.estimate}
    if mean.known:
        metrics |= {f"{key}_low": mean.low, f"{key}_high": mean.high}
    return metrics


def problem_scores(
    answers: Sequence[GradedAnswer], ks: Sequence[int]
) -> dict[tuple[str, str], list[float]]:
    """Return the mean score of each problem over its answers, by label and metric key.

    Answers that failed do not count. A problem is left out if all of its answers failed, and from
    pass@k if fewer than k did not.
    """
    problems: dict[int, list[GradedAnswer]] = {}
    for answer in answers:
        if not answer.failed:
            problems.setdefault(answer.row, []).append(answer)
    scores = dict[tuple[str, str], list[float]]()
    for key, label in measures_of(answers).items():
        scores[label, key] = [_mean(key, tries) for tries in problems.values()]
    for k in ks:
        enough = [tries for tries in problems.values() if len(tries) >= k]
        scores[f"pass@{k}", f"pass_at_{k}"] = [_pass_at(k, tries) for tries in enough]
    return scores


def _mean(key: str, tries: Sequence[GradedAnswer]) -> float:
    return sum(answer.scores[key] for answer in tries) / len(tries)


def _pass_at(k: int, tries: Sequence[GradedAnswer]) -> float:
    return pass_at(k, len(tries), sum(answer.exact for answer in tries))
