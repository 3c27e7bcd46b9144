"""sl_basic on the fake: it learns, and its plan refuses workflows that would be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen, RunId, check
from kitchen.errors import QualityError
from kitchen.ports import DatasetStore
from kitchen.workflow import ForEach, Series, Step, When
from recipes.sl_basic import SlBasic
from stages.data.dataset import DataConfig
from stages.evaluate.before_after import QualityGate
from stages.evaluate.evaluation import EvaluationAfter
from tests.support.recording import RecordingObserver

ANSWER = "{}"  # a bigram model can say it
CHATS = [
    {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]}
] * 8
DATA = FakeDatasets({"chats": {"train": CHATS, "held": CHATS[:2]}, "alone": {"train": CHATS * 5}})


def execute(**settings: Any) -> tuple[RecordingObserver, FakeBlobs]:
    seen, blobs = RecordingObserver(), FakeBlobs()
    defaults = {
        "dataset": "chats",
        "batch_size": 2,
        "epochs": 5,
        "learning_rate": 0.5,
        "eval_every": 5,
    }
    recipe = SlBasic(**{**defaults, **settings})
    Kitchen(FakeTraining(blobs), DATA, None, blobs).cook(recipe, seen, name="run")
    return seen, blobs


def test_it_learns_its_data_and_shows_it_on_held_out_answers() -> None:
    seen, _ = execute(warmup_steps=0)
    losses = seen.series("loss")
    assert len(losses) == 20
    assert losses[-1] < 0.1 * losses[0]
    assert (seen.series("held/exact_match_before"), seen.series("held/exact_match_after")) == (
        [0.0],
        [1.0],
    )
    _, table, answers = seen.tables
    assert table.rows[0][:3] == ("held", "2", "exact match")
    assert answers.rows[0][2:] == (ANSWER, ANSWER)


def test_the_learning_rate_warms_up_and_falls_to_its_end() -> None:
    rates = execute(warmup_steps=4, epochs=3)[0].series("learning_rate")
    assert rates[:4] == [0.125, 0.25, 0.375, 0.5]
    assert rates[4:] == pytest.approx([0.5 * (12 - step) / 8 for step in range(4, 12)])


def test_weight_decay_and_clipping_follow_the_settings() -> None:
    default, decayed, clipped = (
        execute(learning_rate=0.05, **settings)[0].series("loss")
        for settings in ({}, {"weight_decay": 5.0}, {"grad_clip_norm": 1e-12})
    )
    assert decayed[-1] > 1.1 * default[-1]
    assert clipped[-1] > 1.1 * default[-1], (
        "steps are half as long if the gradient's norm is that of eps, 1e-12"
    )


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"epochs": 2}, 8),
        ({"epochs": 2, "max_steps": 5}, 5),
        ({"reading": DataConfig(limit=3), "epochs": 1}, 2),
        ({"batch_size": 3, "epochs": 1}, 3),
    ],
)
def test_settings_determine_the_number_of_steps(settings: dict[str, Any], steps: int) -> None:
    seen, _ = execute(**settings)
    assert len(seen.series("loss")) == steps


def test_the_last_exports_and_the_best_are_kept() -> None:
    seen, blobs = execute(keep=2, warmup_steps=0)
    losses = seen.series("held_out_loss")
    best = 5 * (losses.index(min(losses)) + 1)
    saved = {name.split("/")[2] for name in blobs.list("run/weights/")}
    assert len(losses) == 4
    assert saved == {"step-000015", "step-000020", f"step-{best:06d}", "final"}
    assert seen.series("best_held_out_loss")[-1] == min(losses)


def test_rows_are_held_out_if_no_split_is() -> None:
    seen, _ = execute(dataset="alone", epochs=1)
    assert seen.series("data/rows") == [36.0]
    assert len(seen.series("held_out/exact_match_after")) == 1


def test_a_missed_quality_target_fails_the_run() -> None:
    with pytest.raises(
        QualityError, match=r"exact match on held is 0.000, below the target of 0.5"
    ):
        execute(learning_rate=1e-6, epochs=1, evaluation={"at_least": 0.5})


def test_the_quality_gate_does_not_pass_without_answers() -> None:
    with pytest.raises(QualityError, match="no held-out set has graded answers"):
        QualityGate(0.5).run(EvaluationAfter({}, {}))


def test_the_loss_is_the_mean_over_trained_tokens_of_the_batch() -> None:
    seen, _ = execute(epochs=1, learning_rate=1e-6, evaluation={"metric": "loss"})
    after, before = seen.series("held/loss_after")[0], seen.series("held/loss_before")[0]
    assert seen.series("loss")[0] == pytest.approx(before, rel=1e-3)
    assert after == pytest.approx(before, rel=1e-3)


# --- a recipe whose steps are deleted, doubled or swapped with the next one ---

REFUSED = {
    "delete LoadDataset": "nothing leaves TrainRows",
    "delete OpenSession": "nothing leaves Tokenizer",
    "delete RenderDataset": "nothing leaves TrainData",
    "delete RenderHeldOut": "MeasureHeldOut reads HeldOutData",
    "delete EvaluateBase": "CompareEvaluations reads EvaluationBefore",
    "delete StartExports": "TrackBestExport reads SavedExports",
    "delete for_each Epochs": "TrainData is rendered and never trained on",
    "delete for_each ShuffledBatches": "Epoch is read by nobody",
    "delete ForwardBackward": "OptimStep reads LossOutput",
    "delete OptimStep": "the gradient in LossOutput is never stepped along",
    "delete every MeasureHeldOut ExportWeights": (
        "TrackBestExport reads ExportedWeights and HeldOutMeasures"
    ),
    "delete MeasureHeldOut": "TrackBestExport reads HeldOutMeasures",
    "delete ExportWeights": "TrackBestExport reads ExportedWeights",
    "delete every TrackBestExport": "ExportedWeights and HeldOutMeasures are read by nobody",
    "delete TrackBestExport": "the same",
    "delete SaveFinal": "EvaluateWeights reads FinalWeights",
    "delete EvaluateWeights": "CompareEvaluations reads EvaluationAfter",
    "delete CompareEvaluations": "EvaluationBefore is read by nobody",
    "double LoadDataset": "TrainRows twice",
    "double OpenSession": "TrainingSession twice: one of them would be trained and the other saved",
    "double RenderDataset": "TrainData twice",
    "double RenderHeldOut": "HeldOutData twice",
    "double EvaluateBase": "EvaluationBefore twice",
    "double StartExports": "SavedExports twice",
    "double "
    "ForwardBackward": "LossOutput twice: the gradient would be summed twice and logged once",
    "double OptimStep": "OptimStepResult twice: the second step has no gradient",
    "double every MeasureHeldOut ExportWeights": "HeldOutMeasures twice",
    "double MeasureHeldOut": "HeldOutMeasures twice",
    "double ExportWeights": "ExportedWeights twice",
    "double SaveFinal": "FinalWeights twice",
    "double EvaluateWeights": "EvaluationAfter twice",
    "swap for_each Epochs": "saved before it is trained: the training would be lost",
    "swap ForwardBackward": "a step before its gradient",
    "swap every MeasureHeldOut "
    "ExportWeights": "the session moves on while ReportStep waits (look-ahead)",
    "swap SaveFinal": "EvaluateWeights reads FinalWeights before it is there",
    "swap EvaluateWeights": "CompareEvaluations reads EvaluationAfter before it is there",
}
HARMLESS = {
    "delete ReportStep": "trains the same, logs less",
    "delete QualityGate": "no target",
    "double for_each Epochs": "trains on, with a schedule of its own",
    "double for_each ShuffledBatches": "the same data twice an epoch",
    "double ReportStep": "logs the same twice",
    "double every TrackBestExport": "the same export is not counted twice",
    "double TrackBestExport": "the same",
    "double CompareEvaluations": "the same table twice",
    "double QualityGate": "the same question twice",
    "swap LoadDataset": "neither reads what the other leaves",
    "swap OpenSession": "the same",
    "swap StartExports": "the same",
    "swap RenderDataset": "the same",
    "swap RenderHeldOut": "the same",
    "swap EvaluateBase": "the same",
    "swap OptimStep": "measured and exported one step earlier, and its checkpoint says so",
    "swap MeasureHeldOut": "both only look",
    "swap ReportStep": "both only wait",
    "swap CompareEvaluations": "the same",
}


def addresses(step: Step, at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield the address of each step: its index in each of the nested sequences."""
    series = step if isinstance(step, Series) else getattr(step, "body", None)
    for index, inner in enumerate(series.steps if series else ()):
        yield (*at, index)
        yield from addresses(inner, (*at, index))


def edited(
    step: Any, at: tuple[int, ...], edit: Callable[[tuple[Step, ...], int], tuple[Step, ...]]
) -> Any:
    if not isinstance(step, Series):
        return replace(step, body=edited(step.body, at, edit))
    index, *rest = at
    if not rest:
        return replace(step, steps=edit(step.steps, index))
    inner = edited(step.steps[index], tuple(rest), edit)
    return replace(step, steps=(*step.steps[:index], inner, *step.steps[index + 1 :]))


def label(step: Any) -> str:
    match step:
        case ForEach(source):
            return f"for_each {source.title()}"
        case When(_, body):
            return " ".join(["every", *(label(inner) for inner in body.steps)])
    return str(step.title())


def siblings(step: Any, at: tuple[int, ...]) -> tuple[Step, ...]:
    for index in at[:-1]:
        step = (step if isinstance(step, Series) else step.body).steps[index]
    return tuple((step if isinstance(step, Series) else step.body).steps)


EDITS: dict[str, Callable[[tuple[Step, ...], int], tuple[Step, ...]]] = {
    "delete": lambda steps, at: steps[:at] + steps[at + 1 :],
    "double": lambda steps, at: steps[: at + 1] + steps[at:],
    "swap": lambda steps, at: steps[:at] + (steps[at + 1], steps[at]) + steps[at + 2 :],
}


def cases() -> Iterator[Any]:
    workflow = SlBasic().workflow()
    for verb, edit in EDITS.items():
        for at in addresses(workflow):
            around = siblings(workflow, at)
            if verb != "swap" or at[-1] + 1 < len(around):
                yield pytest.param(
                    at,
                    edit,
                    f"{verb} {label(around[at[-1]])}",
                    id=f"{verb} {label(around[at[-1]])}",
                )


@pytest.mark.parametrize(("at", "edit", "case"), list(cases()))
def test_a_recipe_with_a_step_deleted_doubled_or_swapped(
    at: tuple[int, ...], edit: Any, case: str
) -> None:
    available = {
        **Kitchen(FakeTraining(), DATA, None, FakeBlobs()).ports(),
        DatasetStore: DATA,
        RunId: RunId("x"),
    }
    plan = check(edited(SlBasic().workflow(), at, edit), available, SlBasic.outputs)
    assert bool(plan.problems) == (case in REFUSED), plan.problems
    assert case in REFUSED or case in HARMLESS, f"{case}: say why in the table"


def test_the_table_has_no_case_that_does_not_exist() -> None:
    assert {case.id for case in cases()} == REFUSED.keys() | HARMLESS.keys()


@pytest.mark.parametrize(
    ("case", "stage", "kind"),
    [
        ("delete OptimStep", "ForwardBackward", "LossOutput"),
        ("delete for_each Epochs", "RenderDataset", "TrainData"),
        ("delete for_each ShuffledBatches", "Epochs", "Epoch"),
        ("delete SaveFinal", "EvaluateWeights", "FinalWeights"),
    ],
)
def test_refusals_name_the_stage_and_the_type(case: str, stage: str, kind: str) -> None:
    [(at, edit, _)] = [param.values for param in cases() if param.id == case]
    available = {**Kitchen(FakeTraining(), DATA, None, FakeBlobs()).ports(), RunId: RunId("x")}
    plan = check(edited(SlBasic().workflow(), at, edit), available, SlBasic.outputs)
    assert any(stage in problem and kind in problem for problem in plan.problems), plan.problems


def test_the_record_of_answers_is_json_lines() -> None:
    from kitchen.config.order import Order
    from kitchen.runs.execute import execute as cook_order

    blobs = FakeBlobs()
    recipe = SlBasic(dataset="chats", batch_size=2, warmup_steps=0, learning_rate=0.5)
    cook_order(
        Order("recipes.sl_basic:SlBasic", {}),
        recipe,
        Kitchen(FakeTraining(blobs), DATA, None, blobs),
        "run",
    )
    rows = [json.loads(line) for line in (blobs.read("run/samples.jsonl") or b"").splitlines()]
    assert [(row["when"], row["set"]) for row in rows] == [("before", "held")] * 2 + [
        ("after", "held")
    ] * 2
    assert {"prompt", "wanted", "text", "exact", "truncated"} <= rows[0].keys()
