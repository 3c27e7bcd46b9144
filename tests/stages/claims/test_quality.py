"""Targets of claim extraction: which names they may have."""

from __future__ import annotations

import pytest

from kitchen.engine.preview import verify
from kitchen.errors import ConfigError
from kitchen.recipe import Recipe
from recipes.claim_evaluation import ClaimEvaluation
from recipes.claim_extraction import ClaimExtraction

OWN = "tests.stages.claims.test_evaluation:same_words"


@pytest.mark.parametrize("recipe", [ClaimEvaluation, ClaimExtraction])
def test_metrics_of_your_own_can_have_targets(recipe: type[Recipe]) -> None:
    targets = {"at_least": {"same_words": 0.1, "citation_valid_sampled": 0.5}}
    evaluation = {"metrics": (OWN,), "draws": 1}
    assert verify(recipe(targets=targets, evaluation=evaluation).workflow(), {}) == []
    [problem] = verify(recipe(targets={"at_least": {"same_words": 0.1}}).workflow(), {})
    assert "there is no measure 'same_words'" in str(problem)


def test_a_target_of_drawn_answers_needs_draws() -> None:
    recipe = ClaimEvaluation(targets={"at_least": {"citation_valid_sampled": 0.5}})
    [problem] = verify(recipe.workflow(), {})
    assert isinstance(problem, ConfigError)
    assert "evaluation.draws=0" in str(problem)


def chirality(answer: str, reference: str) -> float:
    return float(answer == reference)


def test_a_metric_with_the_name_of_a_measure_is_refused() -> None:
    recipe = ClaimEvaluation(evaluation={"metrics": (f"{__name__}:chirality",)})
    [problem] = verify(recipe.workflow(), {})
    assert "there is already a measure 'chirality'" in str(problem)
