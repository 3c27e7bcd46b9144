"""Scorers by name, the judge by a language model, and names that are refused."""

from __future__ import annotations

import asyncio
import math
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.local.hub import LocalHub
from adapters.nli.entailment import NliClassifier
from adapters.nli.similarity import SentenceEmbeddings
from kitchen.errors import ConfigError
from kitchen.ports import arrival
from stages.claims.entailment_judge import EntailmentJudge, judge_conversation
from stages.claims.open_scorers import GROUPS, OpenScorers, ScorerConfig, ScorerSource
from stages.claims.scorers import LexicalEntailment, TextPair, entailment_of
from tests.support.pages import ROOT
from tests.support.tiny_bert import tiny_bert

PAIR = TextPair("Tea lowers fever.", "Tea helps.")


@pytest.mark.parametrize(
    "setting, value, message",
    [
        ("entailment", "lexicl", r"did you mean 'lexical'"),
        ("entailment", "nli", r"no scorer 'nli'.*hub:MODEL"),
        ("entailment", "judge", r"name weights after judge:"),
        ("entailment", "hub:", r"name a model after hub:"),
        ("entailment", "lexical:x", r"takes nothing after the colon"),
        ("similarity", "lexical", r"no scorer 'lexical'"),
        ("similarity", "judge:x", r"no scorer 'judge'"),
    ],
)
def test_unknown_scorers_are_refused(setting: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScorerConfig(**{setting: value})


@pytest.mark.parametrize(
    "value, model",
    [
        ("hub:owner/name@main", "owner/name@main"),
        ("owner/name", "owner/name"),
        ("packaged:minilm", "packaged:minilm"),
        ("path:/models/nli", "path:/models/nli"),
    ],
)
def test_models_are_named_as_on_a_hub(value: str, model: str) -> None:
    assert ScorerSource.of("similarity", value).model == model


@pytest.mark.parametrize("setting", GROUPS)
def test_the_adapters_of_scorers_can_be_imported(setting: str) -> None:
    """Entry points are read from pyproject.toml, which need not be installed again for it."""
    project: Any = tomllib.loads((Path(ROOT) / "pyproject.toml").read_text())["project"]
    for name, value in project["entry-points"][GROUPS[setting]].items():
        assert EntryPoint(name, value, GROUPS[setting]).load().packages


def open_scorers(**settings: str) -> tuple[Any, Any]:
    client = FakeTraining()
    stage = OpenScorers(ScorerConfig(**settings))
    stage.verify(client, FakeHub())
    return stage.run(client, client, FakeHub())


def test_scorers_are_opened_by_name() -> None:
    scorers, facts = open_scorers(entailment="lexical")
    assert isinstance(scorers.entailment, LexicalEntailment)
    assert scorers.similarity is None
    assert facts == {}
    scorers, facts = open_scorers(entailment="judge:tiny")
    assert isinstance(scorers.entailment, EntailmentJudge)
    assert facts["entailment"] == "tiny"
    scorers.close()


def test_the_judge_compares_the_probabilities_of_yes_and_no() -> None:
    client = FakeTraining()
    tokenizer = client.tokenizer("tiny")
    judge = EntailmentJudge(client.sampler("tiny"), tokenizer)
    [found] = asyncio.run(entailment_of(judge, [PAIR]))

    async def logprob(reply: str) -> float:
        [datum] = judge.rendering.datums(judge_conversation(PAIR, reply), tokenizer)
        scored = await arrival(
            client.sampler("tiny").logprobs(np.append(datum.tokens, datum.targets[-1]))
        )
        return float(scored[1:][datum.loss_inputs["weights"] != 0].astype(np.float64).sum())

    yes, no = asyncio.run(logprob("yes")), asyncio.run(logprob("no"))
    assert found == pytest.approx(math.exp(yes) / (math.exp(yes) + math.exp(no)))
    assert 0 < found < 1


def test_the_judge_reads_long_premises_in_windows() -> None:
    client = FakeTraining()
    judge = EntailmentJudge(client.sampler("tiny"), client.tokenizer("tiny"))
    long = TextPair("Tea lowers fever in men. " * 200, "Tea helps.")
    assert not judge.fits(long)
    [found] = asyncio.run(entailment_of(judge, [long]))
    assert 0 < found < 1


def test_models_of_folders_are_opened_and_identified(tmp_path: Path) -> None:
    """The adapters are found by their entry points: needs the package to be installed."""
    classifier = tiny_bert(tmp_path / "nli", labels=("neutral", "entailment"))
    encoder = tiny_bert(tmp_path / "encoder")
    client, hub = FakeTraining(), LocalHub()
    config = ScorerConfig(entailment=f"path:{classifier}", similarity=f"path:{encoder}")
    stage = OpenScorers(config)
    stage.verify(client, hub)
    scorers, facts = stage.run(client, client, hub)
    assert isinstance(scorers.entailment, NliClassifier)
    assert isinstance(scorers.similarity, SentenceEmbeddings)
    assert facts["entailment.sha256"] != facts["similarity.sha256"]
    assert facts["similarity.scorer"] == f"path:{encoder}"
    scorers.close()
