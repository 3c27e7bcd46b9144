"""Weights of any name, examined on data that is not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from kitchen.ports import BlobStore, Dataset, DatasetStore, TrainingClient
from kitchen.stage import Stage
from kitchen.types import Checkpoint, Facts, Metrics, Samples, Table
from kitchen.weights import find_weights
from stages.conversations import conversation
from stages.data import HeldOut
from stages.evaluation import After, Answer, Examination, examined
from stages.reading import Rows, check_splits, few, named
from stages.render import RenderDataset
from stages.statistics import Interval, paired_bootstrap, wilson


class LoadHeldOut(Stage):
    """Read the splits to be evaluated: all but "train", or that one, whole, where there is no other."""

    dataset: str
    splits: tuple[str, ...] | None = None  # None: as above
    rows: int | None = None  # of each split, a seeded choice; None: all
    columns: Mapping[str, str] = field(default_factory=dict)  # new name by old
    seed: int = 0

    def run(self, store: DatasetStore) -> tuple[HeldOut, Facts, Table]:
        chosen = held_out_splits(store, self.dataset, self.splits)
        loaded = {split: store.load(self.dataset, split=split) for split in chosen}
        some = {split: some_of(data, self.columns, self.rows, self.seed) for split, data in loaded.items()}
        seen = "" if self.splits or "train" not in loaded else "; it has no other split, and may have been trained on"
        rows = tuple((split, f"{len(some[split]):,} of {len(data):,}{seen}") for split, data in loaded.items())
        facts = Facts({f"data.{split}.sha256": data.fingerprint for split, data in loaded.items()})
        sets = {split: tuple(Rows(data, conversation)) for split, data in some.items()}
        return HeldOut(sets), facts, Table(f"Evaluated of {self.dataset}", ("split", "rows"), rows)

    def verify(self, store: DatasetStore) -> None:
        held_out_splits(store, self.dataset, self.splits)


def held_out_splits(store: DatasetStore, dataset: str, wanted: Sequence[str] | None) -> Sequence[str]:
    """Those that are wanted, else all but "train", or that one; raises DataError for one that is not there."""
    there = tuple(store.splits(dataset))
    check_splits(dataset, wanted or (), there)
    return wanted or [split for split in there if split != "train"] or there


def some_of(data: Dataset, columns: Mapping[str, str], rows: int | None, seed: int) -> Dataset:
    """A seeded choice of at most so many rows, in their order, with their columns renamed."""
    data = named(data, columns)
    return data if rows is None else few(data, rows, seed)


class ExamineWeights(Stage):
    """What weights, of a run or a model, make of the held-out sets."""

    kept = True
    weights: str
    how: Examination
    render: RenderDataset

    async def run(
        self, client: TrainingClient, held_out: HeldOut, blobs: BlobStore | None = None
    ) -> tuple[After, Samples, Facts]:
        found = find_weights(self.weights, client, blobs)
        tokenizer = client.tokenizer(found.model)
        came = await examined(client.sampler(found.source), tokenizer, self.how, self.render, held_out)
        rows = tuple({"set": name, **vars(each)} for name, answers in came.answers.items() for each in answers)
        facts = Facts({"weights": found.name, "model": found.model})
        if isinstance(found.source, Checkpoint):
            facts["weights.sha256"] = found.source.sha256
        return After(came.answers, came.nats), Samples(rows), facts

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.weights, client, blobs)


class ReportExamination(Stage):
    """Exact match with Wilson intervals, field F1 with a bootstrap, and what was cut short, set by set; or the loss."""

    seed: int = 0

    def run(self, after: After, held_out: HeldOut) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), list[tuple[str, ...]]()
        for name, answers in after.answers.items():
            for what, value in (("exact match", _exact(answers)), ("field F1", self._f1(answers))):
                key = f"{name}/{what.replace(' ', '_').lower()}"
                metrics |= {key: value.estimate, f"{key}_low": value.low, f"{key}_high": value.high}
                shown = f"{value.estimate:.3f} [{value.low:.3f}, {value.high:.3f}]"
                rows.append((name, str(len(answers)), what, shown))
            metrics[f"{name}/truncated"] = float(sum(each.truncated for each in answers))
            rows.append((name, str(len(answers)), "cut short", f"{metrics[f'{name}/truncated']:.0f}"))
        for name, nats in after.nats.items():
            metrics[f"{name}/loss"] = nats
            rows.append((name, str(len(held_out.sets[name])), "loss, nats per token", f"{nats:.4f}"))
        return metrics, Table("Evaluation, 95 % intervals", ("set", "n", "measure", "value"), tuple(rows))

    def _f1(self, answers: Sequence[Answer]) -> Interval:
        values = [each.f1 for each in answers]
        return paired_bootstrap([0.0] * len(values), values, seed=self.seed)


def _exact(answers: Sequence[Answer]) -> Interval:
    right = sum(each.exact for each in answers)
    return Interval(right / len(answers), *wilson(right, len(answers)), 0.95)
