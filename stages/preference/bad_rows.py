"""Stages that leave out comparisons and labelled answers which cannot be rendered."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen.ports import Tokenizer
from kitchen.stage import Stage
from kitchen.types import Metrics, Samples, Table
from stages.chat.render import RenderDataset
from stages.data.bad_rows import BadRow, BadRows, report_bad_rows
from stages.data.dataset import HeldOut
from stages.evaluate.bad_rows import check_rendering, good_held_out
from stages.evaluate.evaluation import EvalConfig
from stages.preference.comparisons import Comparison, Comparisons, pair_of
from stages.preference.kto import LabelledAnswer, LabelledAnswers


class DropBadComparisons(Stage):
    """Leave out comparisons that cannot be rendered, and report those left out."""

    render: RenderDataset
    config: EvalConfig

    def run(
        self, comparisons: Comparisons, held_out: HeldOut, tokenizer: Tokenizer
    ) -> tuple[Comparisons, HeldOut, Metrics, Table, Samples]:
        good, bad_rows = _good_comparisons(comparisons, tokenizer, self.render, one_datum=True)
        kept = good_held_out(held_out, tokenizer, self.render, self.config, all_rendered=True)
        return good, kept, *report_bad_rows(_all_bad_rows(kept, bad_rows))

    preview = run


class DropBadLabelledAnswers(Stage):
    """Leave out labelled answers and comparisons that cannot be rendered, and report them."""

    render: RenderDataset
    config: EvalConfig

    def run(
        self,
        comparisons: Comparisons,
        labelled: LabelledAnswers,
        held_out: HeldOut,
        tokenizer: Tokenizer,
    ) -> tuple[Comparisons, LabelledAnswers, HeldOut, Metrics, Table, Samples]:
        good, bad_rows = _good_comparisons(comparisons, tokenizer, self.render)
        sets: dict[str, tuple[LabelledAnswer, ...]] = {}
        for name, rows in labelled.sets.items():
            bad = BadRows(name or "train")
            sets[name] = bad.keep(
                rows,
                lambda row: check_rendering(row.conversation, tokenizer, self.render),
                lambda row: row.conversation.where,
            )
            bad_rows += bad.rows
        kept = good_held_out(held_out, tokenizer, self.render, self.config, all_rendered=True)
        report = report_bad_rows(_all_bad_rows(kept, bad_rows))
        return good, LabelledAnswers(sets), kept, *report

    preview = run


def _all_bad_rows(held_out: HeldOut, bad_rows: Sequence[BadRow]) -> Sequence[BadRow]:
    """Return all bad rows once: those held out are also among the comparisons or answers."""
    return [*held_out.bad_rows, *(row for row in bad_rows if row not in held_out.bad_rows)]


def _good_comparisons(
    comparisons: Comparisons,
    tokenizer: Tokenizer,
    render: RenderDataset,
    *,
    one_datum: bool = False,
) -> tuple[Comparisons, list[BadRow]]:
    """Return the comparisons whose answers can be rendered, if asked to one datum each."""

    def check(row: Comparison) -> None:
        check_rendering(row.chosen, tokenizer, render)
        if row.rejected is not None:
            check_rendering(row.rejected, tokenizer, render)
        if one_datum:
            pair_of(row.chosen, row.rejected or row.chosen, tokenizer, render)

    bad_rows: list[BadRow] = []
    sets: dict[str, Sequence[Comparison]] = {}
    for name, rows in comparisons.sets().items():
        bad = BadRows(name or "train")
        sets[name] = bad.keep(rows, check, lambda row: row.chosen.where)
        bad_rows += bad.rows
    return Comparisons(sets.pop(""), sets), bad_rows
