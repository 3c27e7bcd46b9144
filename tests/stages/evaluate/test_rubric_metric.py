"""A rubric as the metric of an evaluation: a judge of another service scores the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.text_sampling import FakeSampling
from adapters.fake.training import FakeTraining
from kitchen import Kitchen
from kitchen.backend.text_tokens import TextPrompt
from kitchen.engine.preview import preview
from kitchen.errors import KitchenError, QualityError, RunFailed
from kitchen.runs.store import read_journal
from recipes.ensemble import Ensemble
from recipes.evaluate import Evaluate
from recipes.sl_basic import SlBasic
from stages.evaluate import EvalConfig
from tests.support.recording import RecordingObserver

ROWS = [{"prompt": f"Name dish {n}."} for n in range(8)]
DATA = FakeDatasets({"dishes": {"held": ROWS}})
TWO = {"even": {"text": "The number is even.", "weight": 3}, "short": "It is short."}


def by_number(prompt: TextPrompt, seed: int) -> str:
    """Give even dishes 10 of 10 and others 2; short answers 10; and refuse dish 7 at first."""
    text = prompt.messages[-1]["content"]
    number = int(text.partition("Name dish ")[2][0])
    if number == 7 and "An earlier reply" not in text:
        return "I cannot say."
    score = 10 if "It is short." in text or number % 2 == 0 else 2
    return f"As it is dish {number}:\nScore: {score}"


def only_even(prompt: TextPrompt, seed: int) -> str:
    number = int(prompt.messages[-1]["content"].partition("Name dish ")[2][0])
    return "No." if number % 2 else "Score: 1"


def strict(prompt: TextPrompt, seed: int) -> str:
    return "Score: 0"


def brief(prompt: TextPrompt, seed: int) -> str:
    return by_number(prompt, seed).rpartition("\n")[2]


JUDGES = {"by_number": by_number, "only_even": only_even, "strict": strict, "brief": brief}


def settings(**options: Any) -> dict[str, Any]:
    model = options.pop("judge", "openai:by_number")
    rubric = {"model": model, "criteria": TWO, **options.pop("rubric", {})}
    evaluation = {"metric": "rubric", "max_tokens": 4, **options.pop("evaluation", {})}
    defaults = {"weights": "any", "dataset": "dishes", "rubric": rubric}
    return {**defaults, "evaluation": evaluation, **options}


def ports(blobs: FakeBlobs) -> dict[str, Any]:
    return {
        "training": FakeTraining(blobs),
        "datasets": DATA,
        "blobs": blobs,
        "sampling": FakeSampling(JUDGES),
    }


def evaluated(**options: Any) -> tuple[RecordingObserver, list[Any]]:
    seen, blobs = RecordingObserver(), FakeBlobs()
    recipe = Evaluate(**settings(**options))
    kitchen.run(recipe, **ports(blobs), name="run", observers=[seen])
    return seen, list(read_journal(blobs, "run", "samples"))


def test_scores_have_intervals_and_replies_are_recorded() -> None:
    seen, samples = evaluated()
    assert seen.series("held/rubric/even") == [pytest.approx(0.6)]
    assert seen.series("held/rubric/short") == [1.0]
    assert seen.series("held/rubric") == [pytest.approx((3 * 0.6 + 1) / 4)]
    [low], [high] = seen.series("held/rubric_low"), seen.series("held/rubric_high")
    assert 0 < low < 0.7 < high < 1
    assert [row["scores"]["rubric/even"] for row in samples] == [1.0, 0.2] * 4
    problems = [[reply["problem"] for reply in row["judge"][0]["replies"]] for row in samples]
    assert problems[:7] == [[""]] * 7
    assert [bool(problem) for problem in problems[7]] == [True, False]


@pytest.mark.parametrize(
    ("grading", "even"), [("grading:\n  extract: 'Score: (\\d+)'\n", 0.575), ("", 0.0)]
)
def test_judges_vote_on_the_part_that_is_extracted(
    tmp_path: Path, grading: str, even: float
) -> None:
    """Without a pattern, no two replies are equal, and the first member decides.

    Two members refuse to score dish 7, which leaves the strict one's 0.
    """
    file = tmp_path / "judges.yaml"
    file.write_text(f"members: [openai:strict, openai:brief, openai:by_number]\n{grading}")
    seen, samples = evaluated(judge=f"ensemble:{file}")
    assert seen.series("held/rubric/even") == [pytest.approx(even)]
    replies = [reply["text"] for row in samples for reply in row["judge"][0]["replies"]]
    assert {reply.rpartition("\n")[2] for reply in replies[:6]} == (
        {"Score: 10", "Score: 2"} if grading else {"Score: 0"}
    )


def test_a_target_holds_for_the_mean_score() -> None:
    evaluated(evaluation={"at_least": 0.69})
    with pytest.raises(QualityError, match=r"rubric on held is 0.700"):
        evaluated(evaluation={"at_least": 0.71})


def test_too_many_answers_without_a_score_end_the_run() -> None:
    with pytest.raises(RunFailed, match="4 of 8 answers have no score"):
        evaluated(judge="openai:only_even", rubric={"criteria": "It is even."})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"judge": None}, "set rubric.model"),
        ({"evaluation": {"metric": "text"}}, "no effect without evaluation.metric=rubric"),
        ({"judge": "openai:nobody"}, "openai:nobody"),
    ],
)
def test_settings_of_no_judge_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(KitchenError, match=text):
        evaluated(**options)


def test_training_recipes_refer_to_kitchen_eval() -> None:
    with pytest.raises(KitchenError, match="kitchen eval"):
        SlBasic(evaluation={"metric": "rubric"}).workflow()  # type: ignore[arg-type]
    evaluation = EvalConfig(metric="rubric")
    with pytest.raises(KitchenError, match="kitchen eval"):
        Ensemble(members=("any", "openai:by_number"), evaluation=evaluation).workflow()


def test_the_plan_counts_the_calls() -> None:
    answering = {"tries": 3, "temperature": 1.0}
    workflow = Evaluate(**settings(answering=answering)).workflow()
    tables = {each.title: each for each in preview(workflow, Kitchen(**ports(FakeBlobs())).ports())}
    assert ("calls in all", str(8 * 3 * 2)) in tables["The judge"].rows
