"""Loading of claims: rows to train on and held-out sets, in SciFact's format or as texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

import structlog

from kitchen.config.splits import SplitRoles, assign_splits, is_training
from kitchen.errors import DataError, did_you_mean
from kitchen.ports import Dataset, DatasetStore, Row
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.chat.conversations import check_label
from stages.chat.row_columns import check_columns
from stages.chat.row_fields import FIELDS, REFUSED_IN_ROWS
from stages.claims.rows import ClaimRow, row_of_texts, scifact_row
from stages.claims.scifact import Document, documents_by_id, parse_claim
from stages.data.bad_rows import BadRow
from stages.data.dataset import DatasetLoader, load_splits
from stages.data.splits import DataConfig, DatasetReader, ParsedRows, RowsConfig, sample_held_out

CORPUS = "corpus"  # the split of documents in a data set of claims
_TEXTS = ("prompt", "completion")
_ONLY_TEXTS = (
    "a claim is read from its prompt and completion, or from SciFact's fields, and from no other "
    "column: write the text into the prompt"
)
_NO_PAIRS = "claims are trained on right answers, not on pairs: write the answer as completion"
# columns that rows of claims do not have, with the reason: those of other formats
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **{
            each.name: _ONLY_TEXTS
            for each in FIELDS
            if each.level == "row" and each.treatment == "supported" and each.name not in _TEXTS
        },
        **dict.fromkeys(("chosen", "rejected"), _NO_PAIRS),
        **REFUSED_IN_ROWS,
    }
)
log = structlog.get_logger("stages.claims")


@dataclass(frozen=True)
class HeldOutClaims:
    """Claims that are never trained on, by the name of their set."""

    sets: Mapping[str, tuple[ClaimRow, ...]]


@dataclass(frozen=True)
class TrainClaims:
    """Claims to train on, in the order of the data."""

    rows: tuple[ClaimRow, ...]


@dataclass(frozen=True)
class ClaimSource:
    """A data set of claims with its documents."""

    store: DatasetStore
    dataset: str
    corpus: str | None = None  # data set of the documents; None for the split `corpus` of `dataset`
    hypothesis: bool = True

    def roles(self, reading: DataConfig) -> SplitRoles:
        """Return the roles of the splits of claims; raises DataError for unknown splits."""
        info = self.store.info(self.dataset)
        claims = {split: rows for split, rows in info.splits.items() if split != CORPUS}
        if not claims:
            raise DataError(f"{self.dataset}: there is no split of claims beside {CORPUS!r}")
        return assign_splits(replace(info, splits=claims), reading.train, reading.test)

    def documents(self) -> tuple[dict[str, Document] | None, Facts]:
        """Read the documents, or None if there is no corpus, with the digest of their data."""
        name, split = self.dataset, CORPUS
        splits = self.store.splits(self.corpus or self.dataset)
        if self.corpus is not None:
            name, split = self.corpus, _corpus_split(self.corpus, splits)
        elif CORPUS not in splits:
            return None, Facts()
        data = self.store.load(name, split=split)
        rows = ((data.where(at), data[at]) for at in range(len(data)))
        return documents_by_id(rows, name), Facts({"data.corpus.sha256": data.fingerprint})

    def parser(self, documents: Mapping[str, Document] | None) -> Callable[[Row, str], ClaimRow]:
        """Return the function that parses a row, given its place."""
        return partial(claim_row, documents=documents, hypothesis=self.hypothesis)


def _corpus_split(name: str, splits: Sequence[str]) -> str:
    if CORPUS in splits:
        return CORPUS
    if len(splits) == 1:
        return splits[0]
    raise DataError(
        f"corpus={name}: no split is called {CORPUS!r}; {did_you_mean(CORPUS, splits)}. Name the "
        "file of the documents"
    )


def claim_row(
    row: Row, where: str, *, documents: Mapping[str, Document] | None, hypothesis: bool
) -> ClaimRow:
    """Parse a row with `claim`, as SciFact has it, or with `prompt` and `completion`.

    Raises DataError naming place and field.
    """
    check_claim_columns(row, where)
    if "claim" in row:
        if documents is None:
            raise DataError(
                f"{where}: the claim cites documents, and there is no corpus; set corpus=FILE, or "
                f"put {CORPUS}.jsonl into the folder of the claims"
            )
        return scifact_row(parse_claim(row, where, documents), documents, hypothesis=hypothesis)
    if set(_TEXTS) <= row.keys():
        prompt, completion = (_text(row, name, where) for name in _TEXTS)
        return row_of_texts(prompt, completion, str(row.get("id", where)), where)
    raise DataError(
        f"{where}: there is neither 'claim', as in SciFact's format, nor 'prompt' and "
        f"'completion'; the row has {', '.join(row)}. Rename columns with reading.columns.OLD=NEW"
    )


def check_claim_columns(row: Row, where: str) -> None:
    """Raise DataError for a column of another format, such as `system`, which is not read."""
    check_columns(row, where, _REFUSED)
    check_label(row, where)


def _text(row: Row, name: str, where: str) -> str:
    value: Any = row[name]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {name} must be a text that is not empty")
    return value


class LoadClaims(DatasetLoader):
    """Read claims to train on, and held-out sets: other splits, another data set, or a share."""

    corpus: str | None = None  # data set of the documents
    held_out: str | None = None  # data set to evaluate on; None for held-out splits of `dataset`
    hypothesis: bool = True  # whether prompts have the hypothesis

    def run(self, store: DatasetStore) -> tuple[TrainClaims, HeldOutClaims, Facts, Table]:
        source = ClaimSource(store, self.dataset, self.corpus, self.hypothesis)
        documents, facts = source.documents()
        parse = source.parser(documents)
        reader = DatasetReader(store, self.dataset, self._reading(source), self.seed, parse=parse)
        if self.held_out is not None:
            return self._with_held_out(reader, parse, facts)
        loaded = load_splits(reader)
        train = TrainClaims(_parsed(loaded.train_split, loaded.train, parse))
        held_out = HeldOutClaims(
            {name: _parsed(name, rows, parse) for name, rows in loaded.held_out.items()}
        )
        _warn_left_out(loaded.bad_rows)
        if shared := self._shared(train.rows, held_out):
            log.warning(f"{shared}: remove them from one of the splits")
        return train, held_out, Facts({**facts, **loaded.facts}), loaded.table

    preview = run

    def verify(self, store: DatasetStore) -> None:
        source = ClaimSource(store, self.dataset, self.corpus)
        self._reading(source)
        for name in filter(None, (self.corpus, self.held_out)):
            store.splits(name)

    def _reading(self, source: ClaimSource) -> DataConfig:
        """Return the reading with the splits of claims named."""
        roles = source.roles(self.reading)
        if roles.train in roles.held_out:
            raise DataError(
                f"{self.dataset}: the split {roles.train!r} is both trained on and held out; "
                "choose others (reading.train, reading.test)"
            )
        return replace(self.reading, train=roles.train, test=roles.held_out)

    def _with_held_out(
        self, reader: DatasetReader, parse: Callable[[Row, str], ClaimRow], facts: Facts
    ) -> tuple[TrainClaims, HeldOutClaims, Facts, Table]:
        """Train on a whole split, and evaluate on another data set."""
        split, _ = reader.splits()
        read = reader.read(split, reader.config.row_limit(None) or 0)
        rows = _parsed(split, read.data, parse)[: reader.config.limit]
        _warn_left_out(read.bad_rows)
        reading = RowsConfig(reader.config.columns, reader.config.bad_rows)
        evaluated = LoadHeldOutClaims(
            self.held_out or "",
            self.corpus,
            None,
            reader.config.held_out_rows,
            self.hypothesis,
            reading,
        )
        held_out, held_out_facts, table = evaluated.run(reader.store)
        if shared := self._shared(rows, held_out):
            raise DataError(
                f"{shared}: remove them from {self.dataset} or from held_out={self.held_out}"
            )
        facts = Facts({**facts, **held_out_facts, f"data.{split}.sha256": read.fingerprint})
        facts[f"data.{split}.dataset"] = self.dataset
        counted = replace(table, rows=(*table.rows, (split, f"{len(rows):,}, to train on")))
        return TrainClaims(rows), held_out, facts, counted

    def _shared(self, train: Sequence[ClaimRow], held_out: HeldOutClaims) -> str:
        """Return a sentence that counts held-out claims that are trained on; empty if none are.

        Without hypotheses, several claims may have the same prompt; answers tell them apart.
        """

        def key(row: ClaimRow) -> str:
            return row.prompt if self.hypothesis else row.content

        trained = {key(row): row for row in train}
        rows = list(chain.from_iterable(held_out.sets.values()))
        shared = [row for row in rows if key(row) in trained]
        if not shared:
            return ""
        first = shared[0]
        return (
            f"{len(shared)} of {len(rows)} claims to evaluate on are trained on, too, the first at "
            f"{first.where} and {trained[key(first)].where}"
        )


class LoadHeldOutClaims(Stage):
    """Read sets of claims to evaluate on: the held-out splits, or all if none is held out."""

    dataset: str
    corpus: str | None = None  # data set of the documents; None for the split `corpus` of `dataset`
    splits: tuple[str, ...] | None = None  # None for the default
    rows: int | None = None  # maximum number of claims per split; None for all
    hypothesis: bool = True  # whether prompts have the hypothesis
    reading: RowsConfig = RowsConfig()

    def run(self, store: DatasetStore) -> tuple[HeldOutClaims, Facts, Table]:
        source = ClaimSource(store, self.dataset, self.corpus, self.hypothesis)
        documents, facts = source.documents()
        parse = source.parser(documents)
        reading = DataConfig(columns=self.reading.columns, bad_rows=self.reading.bad_rows)
        reader = DatasetReader(store, self.dataset, reading, parse=parse)
        sets: dict[str, tuple[ClaimRow, ...]] = {}
        counts = []
        for split in self._splits(source):
            read = reader.read(split, 0)
            _warn_left_out(read.bad_rows)
            chosen = read.data if self.rows is None else sample_held_out(read.data, self.rows)
            name = self._set_name(split)
            sets[name] = _parsed(name, chosen, parse)
            facts[f"data.{name}.sha256"] = read.fingerprint
            counts.append((name, f"{len(chosen):,} of {len(read.data):,}"))
        table = Table(f"Evaluation data of {self.dataset}", ("split", "claims"), tuple(counts))
        return HeldOutClaims(sets), facts, table

    preview = run

    def verify(self, store: DatasetStore) -> None:
        self._splits(ClaimSource(store, self.dataset, self.corpus))
        if self.corpus is not None:
            store.splits(self.corpus)

    def _set_name(self, split: str) -> str:
        """Return the name of a set; the one split of a file is called train, and is held out."""
        is_file = self.splits is None and split == "train"
        return "held_out" if is_file else split

    def _splits(self, source: ClaimSource) -> Sequence[str]:
        available = [split for split in source.store.splits(self.dataset) if split != CORPUS]
        for split in self.splits or ():
            if split not in available:
                raise DataError(
                    f"{self.dataset} has no split {split!r}; {did_you_mean(split, available)}"
                )
        held_out = [split for split in available if not is_training(split)]
        return self.splits or held_out or available


def _parsed(
    split: str, data: Dataset, parse: Callable[[Row, str], ClaimRow]
) -> tuple[ClaimRow, ...]:
    """Parse all rows; raises DataError if there are none, or for an id that occurs twice."""
    rows = tuple(ParsedRows(data, parse))
    if not rows:
        raise DataError(f"the split {split!r} has no claims; add some, or leave the split out")
    places: dict[str, str] = {}
    for row in rows:
        if row.id in places:
            raise DataError(
                f"{row.where}: id {row.id} occurs twice, first at {places[row.id]}; every claim "
                "needs its own id"
            )
        places[row.id] = row.where
    return rows


def _warn_left_out(bad_rows: Sequence[BadRow]) -> None:
    if bad_rows:
        first = bad_rows[0]
        counted = "1 row is" if len(bad_rows) == 1 else f"{len(bad_rows):,} rows are"
        log.warning(
            f"{counted} left out (reading.bad_rows=drop), the first because "
            f"{first.reason} ({first.where})"
        )
