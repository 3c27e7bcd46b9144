"""Stages that leave out rows which the model's tokenizer or the grader cannot take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kitchen.artifacts.weights import find_weights
from kitchen.config.user_functions import is_function_name
from kitchen.ports import BlobStore, ModelCatalog, Tokenizer, TrainingClient
from kitchen.stage import Stage
from kitchen.types import Metrics, Samples, Table
from stages.chat.conversations import Conversation, TrainRows
from stages.chat.prompts import prompt_tokens, prompts_with_room
from stages.chat.render import RenderDataset
from stages.data.bad_rows import BadRow, BadRows, report_bad_rows
from stages.data.dataset import HeldOut
from stages.data.mixture import MixtureRows
from stages.evaluate.choices import check_choices, choice_datums
from stages.evaluate.evaluation import MAX_TOKENS, UNSAMPLED, EvalConfig
from stages.evaluate.graded_answers import METRIC_REWARDS
from stages.evaluate.metric_functions import find_metric
from stages.tasks.tasks import gradable_rows


class DropBadRows(Stage):
    """Leave out training and held-out rows that cannot be rendered, and report those left out."""

    render: RenderDataset
    config: EvalConfig

    def run(
        self, rows: TrainRows, held_out: HeldOut, tokenizer: Tokenizer
    ) -> tuple[TrainRows, HeldOut, Metrics, Table, Samples]:
        good, bad_rows = renderable(rows.conversations, tokenizer, self.render, "train")
        kept = good_held_out(held_out, tokenizer, self.render, self.config, all_rendered=True)
        return TrainRows(good), kept, *report_bad_rows([*kept.bad_rows, *bad_rows])

    preview = run


class DropBadMixtureRows(Stage):
    """Leave out rows of a mixture that cannot be rendered, and report those left out."""

    render: RenderDataset
    config: EvalConfig

    def run(
        self, sources: MixtureRows, held_out: HeldOut, tokenizer: Tokenizer
    ) -> tuple[MixtureRows, HeldOut, Metrics, Table, Samples]:
        bad_rows: list[BadRow] = []
        good: dict[str, Sequence[Conversation]] = {}
        for name, rows in sources.rows.items():
            good[name], bad = renderable(rows, tokenizer, self.render, f"{name}/train")
            bad_rows += bad
        kept = good_held_out(held_out, tokenizer, self.render, self.config, all_rendered=True)
        return MixtureRows(good), kept, *report_bad_rows([*kept.bad_rows, *bad_rows])

    preview = run


class DropBadQuestions(Stage):
    """Leave out held-out rows that the weights cannot be evaluated on, and report them."""

    weights: str  # by any name
    render: RenderDataset
    config: EvalConfig

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
    ) -> tuple[HeldOut, Metrics, Table, Samples]:
        tokenizer = find_weights(self.weights, client, blobs).tokenizer(models)
        kept = good_held_out(held_out, tokenizer, self.render, self.config)
        return kept, *report_bad_rows(kept.bad_rows)

    preview = run


def renderable(
    rows: Sequence[Conversation], tokenizer: Tokenizer, render: RenderDataset, split: str
) -> tuple[tuple[Conversation, ...], Sequence[BadRow]]:
    """Return the conversations that can be rendered, and the others as bad rows."""
    bad = BadRows(split)
    good = bad.keep(rows, lambda row: check_rendering(row, tokenizer, render), place_of)
    return good, bad.rows


def check_rendering(row: Conversation, tokenizer: Tokenizer, render: RenderDataset) -> None:
    """Raise DataError for a conversation, or a prompt of one, that cannot be rendered."""
    check_prompt(row, tokenizer, render)
    render.datums(row, tokenizer)


def check_prompt(row: Conversation, tokenizer: Tokenizer, render: RenderDataset) -> None:
    """Raise DataError for a prompt that cannot be rendered; a plain text has none."""
    if not row.plain_text:
        prompt_tokens(row, tokenizer, render)


def check_room(
    row: Conversation, tokenizer: Tokenizer, render: RenderDataset, config: EvalConfig
) -> None:
    """Raise DataError for a prompt that leaves no room for an answer in the model's context."""
    prompts_with_room([row], tokenizer, render, config.max_tokens, MAX_TOKENS)


def place_of(row: Conversation) -> str:
    return row.where


def good_held_out(
    held_out: HeldOut,
    tokenizer: Tokenizer,
    render: RenderDataset,
    config: EvalConfig,
    *,
    all_rendered: bool = False,
) -> HeldOut:
    """Return the held-out rows that can be evaluated, and the others as bad rows.

    Answers need only a prompt; a loss, or `all_rendered`, needs the whole row rendered.
    """
    bad_rows = list(held_out.bad_rows)
    sets: dict[str, tuple[Conversation, ...]] = {}
    function = find_metric(config.metric) if is_function_name(config.metric) else None
    for name, rows in held_out.sets.items():
        bad = BadRows(name)
        rows = bad.keep(rows, lambda row: check_prompt(row, tokenizer, render), place_of)
        if reward := METRIC_REWARDS.get(config.metric):
            setting = f"evaluation.metric={config.metric}"
            rows = tuple(gradable_rows(reward, rows, setting, bad, config))
        if function is not None:
            rows = bad.keep(rows, lambda row: function.arguments(row.row, row.where), place_of)
        if config.metric == "choice":
            rows = bad.keep(rows, lambda row: check_choices([row]), place_of)
            rows = bad.keep(rows, lambda row: choice_datums(row, tokenizer, render), place_of)
        metric = config.metric_for(rows)
        if all_rendered or metric == "loss":
            rows = bad.keep(rows, lambda row: check_rendering(row, tokenizer, render), place_of)
        if metric not in UNSAMPLED:
            rows = bad.keep(rows, lambda row: check_room(row, tokenizer, render, config), place_of)
        sets[name] = rows
        bad_rows += bad.rows
    return replace(held_out, sets=sets, bad_rows=tuple(bad_rows))
