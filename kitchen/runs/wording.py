"""Durations, names of stages and outcomes of trackers as people read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# where the name of a stage is not how people say it
_ACTIVITIES = {
    "EvaluateBase": "Evaluating the base model",
    "EvaluateBaseJudge": "Evaluating the judge before training",
    "EvaluateBasePolicy": "Evaluating the base model",
    "EvaluateClaimWeights": "Evaluating the weights on claims",
    "EvaluateTeacher": "Evaluating the teacher",
    "EvaluateTrainedPolicy": "Evaluating the trained model",
    "EvaluateWeights": "Evaluating the trained model",
    "ComputeReferenceLogprobs": "Computing reference log-probabilities",
    "OpenSession": "Opening the session",
    "PrecomputeReferenceLogprobs": "Computing reference log-probabilities",
    "RenderDataset": "Rendering the training data",
    "RenderHeldOut": "Rendering the held-out data",
    "LoadDataset": "Reading the data set",
}
# verbs that begin the name of a stage
_VERBS = """
Act Attach Build Calibrate Check Compare Compute Drop Evaluate Export Flag Generate Identify Judge
Load Make Measure Monitor Open Precompute Publish Rank Read Render Replace Report Require Run Sample
Save Score Skip Start Track Unpack Validate Write
"""
# metrics that the list shows, the first that a run has
_RESULTS = (
    "held_out_reward",
    "reward",
    "held_out_accuracy",
    "held_out_loss",
    "loss",
)
_DOUBLED = frozenset({"Drop", "Flag", "Run", "Skip"})  # their last letter is doubled before -ing
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def clock(seconds: float) -> str:
    """Return a duration such as 3.2 s, 4:05 or 1:04:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def result_of(metrics: Mapping[str, Any]) -> str:
    """Return the metric that shows best how a run went: the first of these, or of an evaluation.

    A metric of an evaluation has the name of its set before its own.
    """
    of_sets = (name for name in metrics if "/" in name and not name.startswith("data/"))
    name = next((name for name in _RESULTS if name in metrics), next(of_sets, ""))
    value = metrics.get(name)
    return f"{name.replace('_', ' ')} {value:.4g}" if isinstance(value, (int, float)) else ""


def tracker_text(outcome: Mapping[str, Any]) -> str:
    """Return what a tracker received, from its entry in run.json."""
    if outcome.get("state") != "failed":
        return f"{outcome.get('sent', 0):,} values sent"
    return f"{outcome.get('unsent', 0):,} values not sent: {outcome.get('reason', '')}"


def activity(title: str) -> str:
    """Return what a stage does while it runs: `Evaluating the base model` for `EvaluateBase`."""
    return _ACTIVITIES.get(title) or _present_participle(words(title))


def _present_participle(text: str) -> str:
    """Return `Rendering pairs` for `Render pairs`; a text that starts with no verb as it is."""
    verb, _, others = text.partition(" ")
    if verb not in _VERBS.split():
        return text
    stem = verb.removesuffix("e")
    return f"{stem}{stem[-1] * (verb in _DOUBLED)}ing {others}".strip()


def words(title: str) -> str:
    """Return the name of a stage as words: `Evaluate base` for `EvaluateBase`."""
    parts = _WORD_START.sub(" ", title).split()
    others = [part if part.isupper() else part.lower() for part in parts[1:]]
    return " ".join([*parts[:1], *others])
