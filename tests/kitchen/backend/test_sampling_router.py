from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.text_sampling import FakeSampling
from adapters.fake.training import FakeTraining
from kitchen import run
from kitchen.artifacts.open import open_on
from kitchen.artifacts.weights import find_weights
from kitchen.backend.sampling_router import SamplingRouter
from kitchen.backend.text_tokens import TextPrompt
from kitchen.config.adapters import Kitchen
from kitchen.config.request import Problems
from kitchen.errors import ConfigError
from kitchen.ports.training import find_catalog, require_checkpoints
from kitchen.types import Lora
from recipes.distillation_off_policy import DistillationOffPolicy
from stages.ensemble.client import EnsembleSampling

TEACHER = "openai:cook"


def cook(prompt: TextPrompt, seed: int) -> str:
    return f"answer {seed % 3} to {len(str(prompt.messages[-1]['content']))} letters"


class ServedSampling(FakeSampling):
    """A sampling client whose models are on a server."""

    address = ""

    def server_of(self, model: str) -> str:
        return self.address


@pytest.fixture
def sampling() -> FakeSampling:
    return FakeSampling({"cook": cook})


@pytest.fixture
def router(sampling: FakeSampling) -> Any:
    return SamplingRouter(FakeTraining(), sampling)


def test_a_router_has_the_parts_of_the_training_client(router: Any) -> None:
    assert isinstance(router, FakeTraining)
    assert find_catalog(router) is not None
    assert list(require_checkpoints(router).checkpoints()) == []
    assert router.capabilities == FakeTraining().capabilities


def test_names_decide_who_samples(router: Any) -> None:
    weights = find_weights(TEACHER, router, None)
    tokenizer = router.tokenizer(weights.model)
    prompt = tokenizer.render([{"role": "user", "content": "four"}], answer=True)
    [answer] = router.sampler(weights.source).sample(prompt, max_tokens=9, seed=4).result()
    assert tokenizer.decode(answer.tokens) == "answer 1 to 4 letters"
    assert router.tokenizer("fake/bigram").vocabulary == 262
    assert router.sampler("fake/bigram").logprobs(tokenizer.encode("a") % 256).result().shape


def test_facts_have_the_servers_of_models(tmp_path: Path) -> None:
    sampling, file = ServedSampling({"cook": cook}), tmp_path / "two.yaml"
    file.write_text(f"members: [fake/bigram, {TEACHER}]\n")
    router: Any = SamplingRouter(FakeTraining(), sampling, EnsembleSampling)
    digests = []
    for sampling.address in ("http://a/v1", "http://b/v1"):
        of_model, of_ensemble, local = (
            find_weights(name, router, None).facts(router)
            for name in (TEACHER, f"ensemble:{file}", "fake/bigram")
        )
        assert of_model == {"weights": TEACHER, "machine.weights.server": sampling.address}
        assert of_ensemble["machine.weights.server"] == sampling.address
        assert set(local) == {"weights", "weights.sha256"}
        digests.append(of_ensemble["weights.sha256"])
    assert digests[0] == digests[1]


def test_a_model_of_another_service_cannot_be_trained(router: Any) -> None:
    for call in (
        lambda: router.open(TEACHER, Lora()),
        lambda: router.lora(TEACHER),
        lambda: router.export(TEACHER, Path("x")),
    ):
        with pytest.raises(ConfigError, match=TEACHER):
            call()


def test_an_unknown_model_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(Problems, match="did you mean 'cook'"):
        distil(FakeSampling({"cook": cook}), tmp_path, teacher="openai:cok")


def test_training_on_another_service_is_refused(sampling: FakeSampling, tmp_path: Path) -> None:
    with pytest.raises(Problems, match="not trained"):
        distil(sampling, tmp_path, model=TEACHER)


def distil(sampling: FakeSampling, runs: Path, **settings: Any) -> Mapping[str, float]:
    recipe = DistillationOffPolicy(
        **{
            "model": "fake/bigram",
            "teacher": TEACHER,
            "reading": {"limit": 32},
            "batch_size": 4,
            **settings,
        }
    )
    outcome = run(
        recipe,
        training=FakeTraining(),
        sampling=sampling,
        datasets="local",
        hub="fake",
        runs=runs,
        progress=False,
    )
    return outcome.metrics


def test_a_text_model_can_teach(sampling: FakeSampling, tmp_path: Path) -> None:
    metrics = distil(sampling, tmp_path)
    assert metrics["data/teacher_answers"] == 32
    assert len(sampling.requests) > 32  # and the held-out questions
    assert metrics["data/unusable_answers"] == 0


def test_empty_answers_of_a_teacher_are_not_trained_on(tmp_path: Path) -> None:
    numbers = count()
    teacher = FakeSampling({"cook": lambda *_: ("carrot", "", " \n")[next(numbers) % 3]})
    metrics = distil(teacher, tmp_path, teacher="openai:cook")
    assert metrics["data/teacher_answers"] + metrics["data/unusable_answers"] == 32
    assert metrics["data/unusable_answers"] in (21, 22)


def test_opened_weights_have_the_tokenizer_of_texts(sampling: FakeSampling) -> None:
    kitchen = Kitchen.named(
        {"hub": "fake", "datasets": "fake"},
        {},
        {"training": FakeTraining(), "blobs": FakeBlobs(), "sampling": sampling},
    )
    with open_on(TEACHER, kitchen) as opened, opened.sampler() as sampler:
        prompt = opened.tokenizer().render([{"role": "user", "content": ""}], answer=True)
        assert len(sampler.sample(prompt, count=2, max_tokens=4).result()) == 2
