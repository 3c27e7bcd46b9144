"""Training on from an adapter's folder: the same numbers as from the run that exported it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen.errors import ConfigError
from kitchen.types import Adam, Array, Checkpoint, Datum, Lora
from tests.support.peft_adapters import QV, save_adapter
from tests.support.tiny_model import tiny_model

if TYPE_CHECKING:
    from kitchen.ports.training import TrainingSession

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

TOKENS = np.random.default_rng(7).integers(3, 250, 40)
LORA = Lora(rank=4, alpha=8.0, seed=1)
ADAPTERS: dict[str, dict[str, Any]] = {
    "two targets": {"r": 4, "lora_alpha": 12},
    "rslora": {"r": 8, "lora_alpha": 8, "use_rslora": True},
    "dora": {"r": 4, "lora_alpha": 8, "use_dora": True},
    "one layer": {"r": 2, "lora_alpha": 2, "layers_to_transform": [1]},
    "mlp": {"r": 4, "lora_alpha": 4, "target_modules": ["up_proj", "down_proj"]},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def training(tmp_path: Path) -> PeftTraining:
    hub = LocalHub(cache=str(tmp_path / "cache"))
    return PeftTraining(hub, FakeBlobs(), device="cpu", dtype="float32", threads=1)


@pytest.fixture
def opened(training: PeftTraining) -> Iterator[Callable[..., TrainingSession]]:
    sessions: list[TrainingSession] = []

    def open_session(model: str, lora: Lora | None = None) -> TrainingSession:
        sessions.append(training.open(model, lora or training.lora(model) or LORA))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.close()


Opened = Callable[..., "TrainingSession"]


def train(session: TrainingSession, steps: int = 2) -> None:
    weights = np.ones(len(TOKENS) - 1, np.float32)
    datum = Datum(TOKENS[:-1], {"target_tokens": TOKENS[1:], "weights": weights})
    for _ in range(steps):
        session.forward_backward([datum])
        session.optim_step(Adam(0.01, grad_clip_norm=1.0)).result()


def weights_of(session: Any) -> dict[str, Array]:
    tensors = session.submit(lambda trainer: trainer.adapter.tensors()).result()
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def assert_same_weights(one: TrainingSession, other: TrainingSession) -> None:
    first, second = weights_of(one), weights_of(other)
    assert list(first) == list(second)
    for name, numbers in first.items():
        np.testing.assert_array_equal(second[name], numbers, err_msg=name)


def logprobs(training: PeftTraining, weights: str | Checkpoint) -> Array:
    """(T - 1,) nats."""
    with closing(training.sampler(weights)) as sampler:
        return sampler.logprobs(TOKENS).result()[1:]


def peft_logprobs(folder: Path) -> Array:
    """(T - 1,) nats, of the model as peft opens it."""
    opened = peft.AutoPeftModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    ids = torch.from_numpy(TOKENS)[None]
    with torch.inference_mode():
        scores = torch.log_softmax(opened(input_ids=ids).logits[0, :-1], -1)
    picked: Array = scores.gather(1, ids[0, 1:, None])[:, 0].numpy()
    return picked


def test_an_export_trains_on_like_its_checkpoint(
    base: Path, training: PeftTraining, opened: Opened, tmp_path: Path
) -> None:
    first = opened(f"path:{base}")
    train(first)
    saved = first.save_weights("first").result()
    training.export(saved, tmp_path / "adapter")
    of_run, of_folder = opened(f"path:{base}"), opened(f"path:{tmp_path / 'adapter'}")
    of_run.load_weights(saved).result()
    assert_same_weights(of_run, of_folder)
    train(of_run)
    train(of_folder)
    assert_same_weights(of_run, of_folder)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_of_peft_is_trained_on(
    kind: str, base: Path, training: PeftTraining, opened: Opened, tmp_path: Path
) -> None:
    settings = {"target_modules": QV, "task_type": "CAUSAL_LM", **ADAPTERS[kind]}
    folder = save_adapter(base, tmp_path / "adapter", peft.LoraConfig(**settings))
    name = f"path:{folder}"
    session = opened(name)
    with closing(session.snapshot().result()) as sampler:
        initial = sampler.logprobs(TOKENS).result()[1:]
    np.testing.assert_allclose(initial, peft_logprobs(folder), atol=1e-4)
    train(session)
    saved = session.save_weights("later").result()
    trained = logprobs(training, saved)
    assert np.abs(trained - initial).max() > 0.01
    training.export(saved, tmp_path / "later")
    np.testing.assert_allclose(peft_logprobs(tmp_path / "later"), trained, atol=1e-4)
    np.testing.assert_allclose(logprobs(training, f"path:{tmp_path / 'later'}"), trained, atol=1e-5)
    assert training.lora(f"path:{tmp_path / 'later'}") == training.lora(name)
    training.export(saved, tmp_path / "merged", merged=True)
    merged = logprobs(training, f"path:{tmp_path / 'merged'}")
    np.testing.assert_allclose(merged, trained, atol=1e-4)
    train(opened(f"path:{tmp_path / 'merged'}"))


@pytest.mark.parametrize("kind", ADAPTERS)
def test_gradients_equal_those_of_peft(
    kind: str, base: Path, opened: Opened, tmp_path: Path
) -> None:
    settings = {"target_modules": QV, "task_type": "CAUSAL_LM", **ADAPTERS[kind]}
    folder = save_adapter(base, tmp_path / "adapter", peft.LoraConfig(**settings))
    session = opened(f"path:{folder}")
    before = weights_of(session)
    weights = np.ones(len(TOKENS) - 1, np.float32)
    datum = Datum(TOKENS[:-1], {"target_tokens": TOKENS[1:], "weights": weights})
    session.forward_backward([datum])
    session.optim_step(Adam(1.0, eps=1e6)).result()  # a plain gradient step of rate 1e-6
    theirs: Any = peft.AutoPeftModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, is_trainable=True
    )
    ids = torch.from_numpy(TOKENS)[None]
    scores = torch.log_softmax(theirs.eval()(input_ids=ids).logits[0, :-1], -1)
    (-scores.gather(1, ids[0, 1:, None]).sum()).backward()
    gradients = {
        name.replace(".default", "").replace("vector.weight", "vector"): parameter.grad
        for name, parameter in theirs.named_parameters()
        if parameter.grad is not None
    }
    after = weights_of(session)
    assert gradients.keys() == after.keys()
    for name, gradient in gradients.items():
        moved = (before[name].astype(np.float64) - after[name]) * 1e6
        scale = float(gradient.abs().max())
        np.testing.assert_allclose(moved, gradient.numpy(), atol=0.05 * scale + 0.1, err_msg=name)


def test_a_resumed_session_of_an_adapter_is_identical(
    base: Path, opened: Opened, tmp_path: Path
) -> None:
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=QV, task_type="CAUSAL_LM")
    name = f"path:{save_adapter(base, tmp_path / 'adapter', config)}"
    whole, resumed = opened(name), opened(name)
    train(whole, 2)
    resumed.load(whole.save("two").result()).result()
    train(whole, 2)
    train(resumed, 2)
    assert_same_weights(whole, resumed)


@pytest.mark.parametrize(
    ("lora", "text"),
    [
        (Lora(rank=8, alpha=12.0), "have rank 4, but this session would have rank 8"),
        (Lora(rank=4), "have alpha 12, but this session would have alpha 32"),
        (Lora(rank=4, alpha=8.0), "have alpha 12, but this session would have alpha 8"),
        (Lora(rank=4, alpha=12.0, kind="rslora"), "the kind 'lora', but .* set lora_kind=lora"),
    ],
)
def test_a_session_of_another_shape_is_refused(
    lora: Lora, text: str, base: Path, opened: Opened, tmp_path: Path
) -> None:
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=QV, task_type="CAUSAL_LM")
    name = f"path:{save_adapter(base, tmp_path / 'adapter', config)}"
    with pytest.raises(ConfigError, match=text):
        opened(name, lora).facts()


def test_checkpoints_use_the_tokenizer_of_the_adapter(
    base: Path, training: PeftTraining, opened: Opened, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    config = peft.LoraConfig(r=4, target_modules=QV, task_type="CAUSAL_LM")
    folder = save_adapter(base, tmp_path / "adapter", config)
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    tokenizer.save_pretrained(folder)
    session = opened(f"path:{folder}")
    chat = [{"role": "user", "content": "two cups"}]
    assert session.tokenizer().decode(session.tokenizer().render(chat)) == "<two cups>"
    assert session.facts()["model"] == f"path:{folder}"
    training.export(session.save_weights("later").result(), tmp_path / "later")
    exported = training.tokenizer(f"path:{tmp_path / 'later'}")
    assert exported.decode(exported.render(chat)) == "<two cups>"
    assert exported.stop_ids == training.tokenizer(f"path:{base}").stop_ids
