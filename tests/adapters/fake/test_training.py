"""The fake training client, beyond the laws."""

from __future__ import annotations

import json

import numpy as np
import pytest

from adapters.fake.bigram import AdamW, Bigram, base_logits
from adapters.fake.blobs import FakeBlobs
from adapters.fake.tokenizer import VOCABULARY, ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.backend.losses import LOSSES
from kitchen.errors import BackendError, CorruptCheckpoint, DataError, RunFailed
from kitchen.types import Adam, Checkpoint, Datum, Lora
from tests.support.imports import HEAVY, imported_by


def datum(text: str = "two eggs") -> Datum:
    ids = ByteTokenizer().encode(text)
    return Datum(ids[:-1], {"target_tokens": ids[1:], "weights": np.ones(len(ids) - 1, np.float32)})


def test_the_gradient_is_a_finite_difference() -> None:
    logits, one, h = base_logits("any"), datum("abba"), 1e-5
    logprob_grads = [np.array([0.5, -2.0, 1.0])]

    def loss(at: np.ndarray) -> float:
        return float((logprob_grads[0] * Bigram(at).score(one.tokens, one.targets)).sum())

    gradient = Bigram(logits).gradient([one], logprob_grads)
    for cell in ((97, 98), (98, 98), (98, 97), (98, 200), (12, 12)):
        nudge = np.zeros_like(logits)
        nudge[cell] = h
        assert gradient[cell] == pytest.approx(
            (loss(logits + nudge) - loss(logits - nudge)) / (2 * h), abs=1e-8
        )


def test_adamw_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    rng, mine = np.random.default_rng(0), AdamW()
    weights = rng.standard_normal((VOCABULARY, VOCABULARY))
    theirs = torch.nn.Parameter(torch.tensor(weights))
    optimiser = torch.optim.AdamW([theirs], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(4):
        adam = Adam(
            learning_rate=0.01 * (step + 1), eps=1e-8, weight_decay=0.1, grad_clip_norm=100.0 * step
        )
        optimiser.param_groups[0]["lr"] = adam.learning_rate
        gradient = rng.standard_normal(weights.shape)
        theirs.grad = torch.tensor(gradient)
        if adam.grad_clip_norm:
            torch.nn.utils.clip_grad_norm_([theirs], adam.grad_clip_norm)
        optimiser.step()
        weights, norm = mine.step(weights, gradient, adam)
        assert norm == pytest.approx(np.linalg.norm(gradient))
        np.testing.assert_allclose(weights, theirs.detach().numpy(), rtol=1e-7, atol=1e-9)


def test_a_step_without_a_gradient_is_an_error_on_the_future() -> None:
    session = FakeTraining().open("any", Lora())
    future = session.optim_step(Adam())
    with pytest.raises(DataError, match="no gradient"):
        future.result()


def test_a_gradient_that_is_not_finite_is_not_stepped_along() -> None:
    optimiser, weights = AdamW(), np.ones((VOCABULARY, VOCABULARY))
    with pytest.raises(RunFailed, match="not finite"):
        optimiser.step(weights, weights * np.inf, Adam())
    assert optimiser.steps == 0
    assert not optimiser.first.any()


def test_it_stands_in_for_every_model() -> None:
    client = FakeTraining()
    names = (
        "packaged:smollm2-135m-instruct",
        "Qwen/Qwen3-0.6B@main",
        "path:../My Models/one",
        "run:20250101-ab@best",
    )
    facts = [client.open(name, Lora()).facts() for name in names]
    assert [fact["model"] for fact in facts] == list(names)
    assert len({fact["model.sha256"] for fact in facts}) == len(names)
    for name in ("", " ", "two words", "/etc", "path:", "a\nb"):
        with pytest.raises(BackendError, match="is not the name of a model"):
            client.open(name, Lora())


def test_it_offers_named_losses_and_no_lora_settings() -> None:
    assert {f"loss {name}" for name in LOSSES} <= FakeTraining.capabilities
    assert not FakeTraining.capabilities & {"lora_alpha", "lora_dropout", "lora_targets"}


def test_the_seed_shows_once_the_weights_move() -> None:
    after = []
    for seed in (0, 0, 1):
        session = FakeTraining().open("any", Lora(seed=seed))
        session.forward_backward([datum()])
        session.optim_step(Adam(0.01))
        after.append(session.forward([datum()]).result().logprobs[0].tolist())
    assert after[0] == after[1] != after[2]


def _flipped(data: bytes) -> bytes:
    """A digit of text, or a bit in the middle of numbers."""
    if b'"step": 0' in data:
        return data.replace(b'"step": 0', b'"step": 1')
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("file", ["weights.npz", "optimiser.npz", "checkpoint.json"])
@pytest.mark.parametrize("harm", ["cut short", "gone", "a bit"])
def test_every_file_of_a_checkpoint_is_watched(file: str, harm: str) -> None:
    blobs = FakeBlobs()
    session = FakeTraining(blobs).open("any", Lora())
    checkpoint = session.save("run/1").result()
    name = f"{checkpoint.path}/{file}"
    data = blobs.read(name) or b""
    blobs.delete(name)
    if harm != "gone":
        blobs.write(name, data[:-9] if harm == "cut short" else _flipped(data))
    with pytest.raises(CorruptCheckpoint, match=name):
        FakeTraining(blobs).open("any", Lora()).load(checkpoint).result()


def test_another_checkpoint_under_the_same_name_is_refused() -> None:
    client = FakeTraining()
    session = client.open("any", Lora())
    first = session.save_weights("best").result()
    session.forward_backward([datum()])
    session.optim_step(Adam(0.01))
    session.save_weights("best", overwrite=True).result()
    with pytest.raises(CorruptCheckpoint, match="best"):
        session.load_weights(first).result()
    client.sampler(Checkpoint("best", 1))  # without a digest there is nothing to compare


def test_checkpoints_are_data_and_their_digests_repeat() -> None:
    manifests = []
    for _ in range(2):
        blobs = FakeBlobs()
        FakeTraining(blobs).open("any", Lora(seed=3)).save("run/1").result()
        manifests.append(json.loads(blobs.read("run/1/checkpoint.json") or b""))
    assert manifests[0] == manifests[1]
    assert set(manifests[0]["files"]) == {"weights.npz", "optimiser.npz"}


def test_conversations_are_roles_bytes_and_ends() -> None:
    ids = ByteTokenizer().render([{"role": "user", "content": "é"}], answer=True)
    assert ids.tolist() == [259, 0xC3, 0xA9, 257, 260]
    assert ByteTokenizer().encode("é", special=True).tolist() == [256, 0xC3, 0xA9]
    with pytest.raises(DataError, match=r"'asistant'.*'assistant'"):
        ByteTokenizer().render([{"role": "asistant", "content": ""}])


def test_the_core_alone_is_enough() -> None:
    program = (
        "import numpy as np\n"
        "from adapters.fake.training import FakeTraining\n"
        "from adapters.fake.datasets import FakeDatasets\n"
        "from adapters.fake.hub import FakeHub\n"
        "from kitchen.types import Lora\n"
        "FakeTraining().open('any', Lora()).snapshot().result().sample(np.array([1]), "
        "max_tokens=3).result()\n"
    )
    assert imported_by(program)[1].isdisjoint(HEAVY)
