"""Weights of any name, examined on data that is not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from kitchen.artifacts.weights import find_weights
from kitchen.ports import BlobStore, Dataset, DatasetStore, ModelCatalog, TrainingClient
from kitchen.stage import Stage
from kitchen.statistics.intervals import interval, pass_at, ratio_bootstrap
from kitchen.types import Facts, Metrics, Price, Samples, Table
from stages.chat.conversations import parse_conversation
from stages.chat.prompts import prompt_tokens
from stages.chat.render import RenderDataset
from stages.chat.token_cost import AT_MOST, token_cost_rows
from stages.data.dataset import HeldOut
from stages.data.splits import ParsedRows, check_splits, rename_columns, sample_rows
from stages.evaluate.evaluation import (
    GREEDY,
    DecodingConfig,
    EvalConfig,
    Evaluation,
    EvaluationAfter,
    evaluate,
    metrics_by_set,
    render_all,
    sample_records,
)
from stages.evaluate.graded_answers import GradedAnswer, failure_counts


class LoadHeldOut(Stage):
    """Read the splits to be evaluated: all but "train", or that one, whole, where there is no
    other.
    """

    dataset: str
    splits: tuple[str, ...] | None = None  # None: as above
    rows: int | None = None  # of each split, a seeded choice; None: all
    columns: Mapping[str, str] = field(default_factory=dict)  # new name by old
    seed: int = 0

    def run(self, store: DatasetStore) -> tuple[HeldOut, Facts, Table]:
        chosen = held_out_splits(store, self.dataset, self.splits)
        loaded = {split: store.load(self.dataset, split=split) for split in chosen}
        some = {
            split: sample_and_rename(data, self.columns, self.rows, self.seed)
            for split, data in loaded.items()
        }
        seen = (
            ""
            if self.splits or "train" not in loaded
            else "; it has no other split, and may have been trained on"
        )
        rows = tuple(
            (split, f"{len(some[split]):,} of {len(data):,}{seen}")
            for split, data in loaded.items()
        )
        facts = Facts({f"data.{split}.sha256": data.fingerprint for split, data in loaded.items()})
        sets = {split: tuple(ParsedRows(data, parse_conversation)) for split, data in some.items()}
        return HeldOut(sets), facts, Table(f"Evaluated of {self.dataset}", ("split", "rows"), rows)

    preview = run

    def verify(self, store: DatasetStore) -> None:
        held_out_splits(store, self.dataset, self.splits)


def held_out_splits(
    store: DatasetStore, dataset: str, wanted: Sequence[str] | None
) -> Sequence[str]:
    """Those that are wanted, else all but "train", or that one; raises DataError for one that is
    not there.
    """
    there = tuple(store.splits(dataset))
    check_splits(dataset, wanted or (), there)
    return wanted or [split for split in there if split != "train"] or there


def sample_and_rename(
    data: Dataset, columns: Mapping[str, str], rows: int | None, seed: int
) -> Dataset:
    """A seeded choice of at most so many rows, in their order, with their columns renamed."""
    data = rename_columns(data, columns)
    return data if rows is None else sample_rows(data, rows, seed)


class EvaluateCheckpoint(Stage):
    """What weights, of a run or a model, make of the held-out sets."""

    memoize = True
    weights: str
    how: EvalConfig
    render: RenderDataset
    answering: DecodingConfig = GREEDY
    seed: int = 0  # of answers that are drawn

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
    ) -> tuple[EvaluationAfter, Samples]:
        found = find_weights(self.weights, client, blobs)
        tokenizer = models.tokenizer(found.model)
        came = await evaluate(
            client.sampler(found.source),
            tokenizer,
            self.how,
            self.render,
            held_out,
            self.answering,
            self.seed,
        )
        return EvaluationAfter(came.answers, came.losses), sample_records(came)

    def preview(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
        price: Price | None = None,
    ) -> Table:
        tokenizer = models.tokenizer(find_weights(self.weights, client, blobs).model)
        read = answers = 0
        for name, metric in metrics_by_set(held_out, self.how, self.answering).items():
            some = held_out.sets[name]
            if metric == "loss":
                read += sum(
                    len(each.tokens) + 1 for each in render_all(some, tokenizer, self.render)
                )
            else:
                read += sum(len(prompt_tokens(each, tokenizer, self.render)) for each in some)
                answers += len(some) * self.answering.tries
        return Table(
            "Questions",
            ("what", "count"),
            (
                ("answers in all", f"{answers:,}"),
                *token_cost_rows("tokens read", read, "", price),
                *token_cost_rows(
                    "tokens of answers", answers * self.how.max_tokens, AT_MOST, price
                ),
            ),
        )

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.weights, client, blobs)


class ReportEvaluation(Stage):
    """Exact match, field F1, pass@k and what was cut short, set by set; or the loss.

    Intervals are of means over problems: several tries at one are no evidence of another.
    """

    pass_at: tuple[int, ...] = ()
    seed: int = 0

    def run(self, after: EvaluationAfter) -> tuple[Metrics, Table]:
        return evaluation_report("Evaluation", after, self.seed, self.pass_at)


def evaluation_report(
    title: str, found: Evaluation, seed: int, pass_at: Sequence[int] = (), of: str = ""
) -> tuple[Metrics, Table]:
    """An evaluation by itself, set by set; `of` ends the names of its metrics."""
    metrics, rows = Metrics(), list[tuple[str, ...]]()
    for name, answers in found.answers.items():
        count = str(len({each.row for each in answers}))
        for (what, key), values in problem_scores(answers, pass_at).items():
            mean, key = interval(values, seed), f"{name}/{key}{of}"
            metrics |= {key: mean.estimate, f"{key}_low": mean.low, f"{key}_high": mean.high}
            rows.append((name, count, what, mean.format()))
        for (what, key), number in failure_counts(answers).items():
            metrics[f"{name}/{key}{of}"] = float(number)
            rows.append((name, count, what, f"{number} of {len(answers)} answers"))
    for name, loss in found.losses.items():
        for measure, (what, parts, sizes) in loss.measures().items():
            mean, key = ratio_bootstrap(parts, sizes, seed), f"{name}/{measure}{of}"
            metrics |= {key: mean.estimate, f"{key}_low": mean.low, f"{key}_high": mean.high}
            rows.append((name, str(len(parts)), what, mean.format(4)))
    return metrics, Table(
        f"{title}, 95 % intervals", ("set", "problems", "measure", "value"), tuple(rows)
    )


def problem_scores(
    answers: Sequence[GradedAnswer], ks: Sequence[int]
) -> dict[tuple[str, str], list[float]]:
    """Of each problem, the mean over its tries, by what is measured and the key of its metric."""
    problems: dict[int, list[GradedAnswer]] = {}
    for each in answers:
        problems.setdefault(each.row, []).append(each)
    right = [[each.exact for each in tries] for tries in problems.values()]
    found = {
        ("exact match", "exact_match"): [sum(tries) / len(tries) for tries in right],
        ("field F1", "field_f1"): [
            sum(each.f1 for each in tries) / len(tries) for tries in problems.values()
        ],
    }
    return found | {
        (f"pass@{k}", f"pass_at_{k}"): [pass_at(k, len(tries), sum(tries)) for tries in right]
        for k in ks
    }
