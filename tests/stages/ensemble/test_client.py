"""ensemble:FILE.yaml as weights: its file, its sampler, and commands and recipes that use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from kitchen import Kitchen
from kitchen.artifacts.weights import find_weights
from kitchen.backend.sampling_router import SamplingRouter
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.config.order import Order
from kitchen.engine.preview import preview
from kitchen.errors import BackendError, ConfigError
from kitchen.ports.training import require_catalog
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal
from recipes.distillation_off_policy import DistillationOffPolicy
from recipes.evaluate import Evaluate
from stages.ensemble.client import EnsembleSampling
from stages.ensemble.file import read_ensemble
from tests.support.voters import DATA, Voters

TEXT = TextTokenizer()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "three.yaml"
    path.write_text("members: [a-1, b-1, c-0]\n")
    return path


def router(voters: Voters | None = None) -> Any:
    return SamplingRouter(voters or Voters(), None, EnsembleSampling)


def ask(client: Any, file: Path, word: str = "yes", **options: Any) -> list[str]:
    prompt = TEXT.render([{"role": "user", "content": f"{word}?"}], answer=True)
    sampler = client.sampler(f"ensemble:{file}")
    try:
        answers = sampler.sample(prompt, max_tokens=8, **options).result(60)
    finally:
        sampler.close()
    assert all(np.isnan(answer.logprobs).all() for answer in answers)
    return [f"{TEXT.decode(answer.tokens)}/{answer.stop_reason}" for answer in answers]


def test_answer_is_that_of_the_majority(file: Path) -> None:
    assert ask(router(), file) == ["yes/stop"]
    assert ask(router(), file, "no", count=2) == ["no/stop"] * 2


def test_votes_may_be_weighted_in_the_file(file: Path) -> None:
    file.write_text("members: [a-1, b-1, c-0]\nvote: weighted\nweights: [1, 1, 3]\n")
    assert ask(router(), file) == ["no/stop"]


def test_cascade_spares_the_last_member(file: Path) -> None:
    file.write_text("members: [a-1, b-1, c-0]\nmode: cascade\n")
    voters = Voters()
    assert ask(router(voters), file) == ["yes/stop"]
    assert voters.asked == {"a-1": 1, "b-1": 1}


def test_undecided_votes_have_an_empty_answer(file: Path) -> None:
    file.write_text("members: [a-1, c-0]\nvote: unanimous\n")
    assert ask(router(), file) == ["/length"]


def test_member_that_fails_leaves_the_vote_to_the_others(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("members: [a-1, b-1-die1, c-1]\n")
    assert ask(router(), file) == ["yes/stop"]
    assert "1 answers of b-1-die1 did not arrive" in capsys.readouterr().err
    file.write_text("members: [a-1-die1, b-1-die1]\n")
    with pytest.raises(BackendError):
        ask(router(), file)


def test_ensemble_gives_no_logprobs(file: Path) -> None:
    sampler = router().sampler(f"ensemble:{file}")
    for future in (sampler.logprobs(TEXT.encode("a")), sampler.top_logprobs(TEXT.encode("a"), 2)):
        with pytest.raises(BackendError):
            future.result()
    sampler.close()
    sampler.close()


def test_stop_tokens_are_refused(file: Path) -> None:
    with pytest.raises(ConfigError):
        ask(router(), file, stop=[7])


def test_weights_have_the_digest_of_file_and_members(file: Path) -> None:
    client, name = router(), f"ensemble:{file}"
    weights = find_weights(name, client, None)
    before = weights.facts(client)["weights.sha256"]
    assert before == require_catalog(client).sha256(name)
    file.write_text("members: [a-1, b-1, c-0.5]\n")
    assert before != require_catalog(client).sha256(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("members: [a-1, b-1]\nvot: majority\n", (":2", "vot", "vote")),
        ("members: [a-1, b-1]\nvote: mojority\n", (":2", "vote")),
        ("members: [a-1, b-1]\ndraws: many\n", (":2", "draws")),
        ("members: [a-1, b-1]\nvote: os:system\n", (":2", "vote")),
        ("members: [a-1, b-1]\ngrading:\n  extrct: a\n", (":3", "grading.extrct", "extract")),
        ("members: [a-1, b-1]\nvote: weighted\n", ("weights",)),
        ("members: [a-1, b-1]\nweights: [1, 2]\n", ("weights",)),
        ("members: [a-1, b-1]\nvote: weighted\nweights: [0, 0]\n", ("weights", "majority")),
        ("members: [a-1, ensemble:other.yaml]\n", ("ensemble:other.yaml",)),
        ("members: [a-1]\n", ("draws",)),
        ("members: []\n", ("members",)),
        ("members: [a-1, b-1]\nenough: 0.5\n", ("enough", "cascade")),
        ("members: [a-1\n", (":2", "YAML")),
    ],
)
def test_errors_name_file_line_and_setting(file: Path, text: str, words: tuple[str, ...]) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_ensemble(f"ensemble:{file}")
    message = str(error.value)
    assert message.startswith(str(file))
    assert all(word in message for word in words), message


def test_missing_file_and_unknown_members_are_errors(file: Path) -> None:
    with pytest.raises(ConfigError):
        find_weights(f"ensemble:{file}x", router(), None)
    file.write_text("members: [a-1, run:nothing]\n")
    with pytest.raises(ConfigError):
        find_weights(f"ensemble:{file}", router(), FakeBlobs())


def test_folders_are_relative_to_the_file(file: Path) -> None:
    file.write_text("members: [path:models/a, a-1]\n")
    assert read_ensemble(f"ensemble:{file}").members == (f"path:{file.parent}/models/a", "a-1")


def test_ensemble_is_evaluated_and_teaches(file: Path) -> None:
    blobs, teacher = FakeBlobs(), f"ensemble:{file}"
    evaluation = {"metric": "text", "max_tokens": 8}
    evaluate: dict[str, Any] = {"weights": teacher, "evaluation": evaluation}
    teach: dict[str, Any] = {"model": "student-0.5", "teacher": teacher, "max_steps": 1}
    teach["evaluation"] = evaluation
    for cls, settings in ((Evaluate, evaluate), (DistillationOffPolicy, teach)):
        recipe = cls(dataset="votes", **settings)
        kitchen = Ensembles(Voters(), DATA, None, blobs)
        list(preview(recipe.workflow(), kitchen.ports()))
        order = Order(f"{cls.__module__}:{cls.__name__}", recipe.model_dump(mode="json"))
        execute(order, recipe, kitchen, cls.__name__)
    rows = read_journal(blobs, "Evaluate", "samples")
    assert {row["text"] for row in rows} == {"yes"}
    metrics = read_journal(blobs, "DistillationOffPolicy", "metrics")
    assert (metrics[0]["data/teacher_answers"], metrics[0]["data/unusable_answers"]) == (16, 0)


class Ensembles(Kitchen):
    """A kitchen that needs no installed entry point to open ensembles."""

    def _open_ensembles(self, client: Any) -> Any:
        return EnsembleSampling(client, self.blobs)
