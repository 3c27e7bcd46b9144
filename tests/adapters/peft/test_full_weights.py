"""Training of all weights equals a plain loop with torch, and checkpoints are whole models."""

from __future__ import annotations

import errno
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from adapters.fake.blobs import FakeBlobs
from adapters.peft.checkpoints import (
    MASTERS,
    OPTIMISER,
    read_checkpoint,
    training_files,
    weight_files,
    write_checkpoint,
)
from adapters.peft.client import PeftTraining
from adapters.peft.model.base_model import read_weights
from adapters.peft.sampler import PeftSampler
from adapters.peft.session import PeftSession
from adapters.tokenizer import FolderTokenizer
from kitchen.artifacts.open import OpenWeights
from kitchen.artifacts.weights import Weights
from kitchen.backend.temporary import MARKER
from kitchen.errors import BackendError, ConfigError, CorruptCheckpoint, RunFailed
from kitchen.ports.sampling import Tokenizer
from kitchen.types import Adam, Array, Checkpoint, Datum, FullWeights, Lora
from tests.support.one_model import OneModel
from tests.support.peft_sessions import step
from tests.support.tiny_gpt2 import tiny_gpt2
from tests.support.tiny_model import byte_level_tokenizer, tiny_model
from tests.support.tiny_qwen import tiny_qwen2, tiny_qwen3

Opened = Callable[..., PeftSession]
MODELS = {
    "llama, tied": tiny_model,
    "qwen2, biases": tiny_qwen2,
    "qwen3, not tied": tiny_qwen3,
    "gpt2": tiny_gpt2,
}
ADAM = Adam(1e-3, weight_decay=0.1)


@pytest.fixture
def opened(folder: Path, blobs: FakeBlobs) -> Iterator[Opened]:
    sessions: list[PeftSession] = []

    def made(
        model: str = "tiny", trainable: FullWeights | Lora | None = None, **settings: Any
    ) -> PeftSession:
        options = {"device": "cpu", "dtype": "float32", "threads": 1, **settings}
        client = PeftTraining(OneModel(folder), blobs, **options)
        sessions.append(cast(PeftSession, client.open(model, trainable or FullWeights())))
        sessions[-1].facts()  # transformers opens one model at a time
        return sessions[-1]

    yield made
    for session in sessions:
        session.close()


def plain_loss(model: Any, data: list[Datum]) -> torch.Tensor:
    """The sum over tokens of -weight · logprob, datum by datum, as transformers computes it."""
    total = torch.zeros((), dtype=torch.float64)
    for datum in data:
        logits = model(torch.from_numpy(datum.tokens)[None]).logits[0]
        targets = torch.from_numpy(datum.targets)[:, None]
        logprobs = torch.log_softmax(logits.double(), -1).gather(1, targets)[:, 0]
        total = total - (torch.from_numpy(datum.loss_inputs["weights"]) * logprobs).sum()
    return total


def plain_model(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


@pytest.mark.parametrize("name", MODELS)
def test_gradient_is_that_of_transformers(
    opened: Opened, weighted: list[Datum], tmp_path: Path, name: str
) -> None:
    folder = MODELS[name](tmp_path / "model")
    session = opened(f"path:{folder}", dtype="float64", checkpointing=name == "gpt2")
    _, gradient = step(session, weighted)
    model = plain_model(folder, torch.float64)
    plain_loss(model, weighted).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert gradient.keys() == expected.keys()
    for key, of_parameter in expected.items():
        np.testing.assert_allclose(gradient[key], of_parameter.numpy(), atol=1e-9, err_msg=key)


def test_steps_equal_a_plain_loop(opened: Opened, weighted: list[Datum], folder: Path) -> None:
    session, model = opened(), plain_model(folder, torch.float32)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(ADAM.beta1, ADAM.beta2), eps=ADAM.eps, weight_decay=0.1
    )
    for number in range(20):
        batch = weighted[number % 3 :: 3]
        session.forward_backward(batch)
        session.optim_step(ADAM)
        optimiser.zero_grad()
        plain_loss(model, batch).backward()
        optimiser.step()
    for name, numbers in state(session).items():
        np.testing.assert_allclose(
            numbers, model.get_parameter(name).detach().numpy(), atol=1e-5, err_msg=name
        )


def test_bfloat16_weights_are_rounded_masters(opened: Opened, weighted: list[Datum]) -> None:
    """Steps too small for bfloat16 add up in the master copies."""
    session = opened(dtype="bfloat16")
    before = state(session)
    for _ in range(3):
        train(session, weighted, Adam(1e-5))

    def compare(trainer: Any) -> None:
        pairs = zip(trainer.weights.rounded.values(), trainer.weights.in_model(), strict=True)
        for master, weight in pairs:
            assert master.dtype == torch.float32
            assert weight.dtype == torch.bfloat16
            assert torch.equal(master.to(torch.bfloat16), weight)

    session.submit(compare).result()
    for name, numbers in state(session).items():
        moved = np.abs(numbers - before[name])
        assert 1e-5 < moved.max() < 4e-5, name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_session_matches_bit_for_bit(
    opened: Opened, weighted: list[Datum], dtype: str
) -> None:
    straight, resumed = opened(dtype=dtype), opened(dtype=dtype)
    for _ in range(2):
        train(straight, weighted)
    resumed.load(straight.save("two").result()).result()
    for session in (straight, resumed):
        train(session, weighted)
    expected = state(straight)
    for name, numbers in state(resumed).items():
        np.testing.assert_array_equal(numbers, expected[name], err_msg=name)
    digest = straight.save("three").result().sha256
    assert resumed.save("three again").result().sha256 == digest


@pytest.mark.parametrize(("dtype", "other"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_session_of_another_dtype_loads_exactly(
    opened: Opened, weighted: list[Datum], dtype: str, other: str
) -> None:
    """The numbers that the optimiser updates are in float32 in both sessions."""
    session, loaded = opened(dtype=dtype), opened(dtype=other)
    train(session, weighted, Adam(1e-5))
    loaded.load(session.save("one").result()).result()
    expected = state(session)
    for name, numbers in state(loaded).items():
        np.testing.assert_array_equal(numbers, expected[name], err_msg=name)
    train(loaded, weighted)


def test_a_full_temporary_folder_keeps_the_old_weights(
    opened: Opened, blobs: FakeBlobs, weighted: list[Datum]
) -> None:
    session = opened()
    session.save_weights("w").result()
    before = {name: blobs.read(name) for name in blobs.list()}
    train(session, weighted)
    with largest_file(50_000), pytest.raises(RunFailed, match=r"cannot be written.*TMPDIR"):
        session.save_weights("w", overwrite=True).result()
    assert {name: blobs.read(name) for name in blobs.list()} == before
    session.save_weights("w", overwrite=True).result()
    assert {name: blobs.read(name) for name in blobs.list()} != before


def test_folders_of_killed_saves_are_deleted(
    opened: Opened, blobs: FakeBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as large as the model; the file that marks them is no part of a checkpoint."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed = tmp_path / "kitchen-model-abcd1234"
    killed.mkdir()
    for file in (MARKER, "model.safetensors"):
        (killed / file).touch()
    opened().save_weights("w").result()
    assert list(tmp_path.glob("kitchen-model-*")) == []
    assert f"w/{MARKER}" not in blobs.list()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_only_a_full_folder_is_reported_as_one(
    opened: Opened, blobs: FakeBlobs, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The blob store is read while the folder is written, and may fail for other reasons."""
    saved = read_checkpoint(blobs, opened().save_weights("w").result())

    def fail(name: str) -> bytes:
        raise OSError(number, "as in this test")

    monkeypatch.setattr(blobs, "read", fail)
    expected = RunFailed if number == errno.ENOSPC else OSError
    with pytest.raises(expected, match="as in this test"), saved.model_folder():
        pass


def test_a_type_of_gguf_is_checked_before_the_model_is_read(
    opened: Opened, folder: Path, blobs: FakeBlobs, tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    saved = opened().save_weights("w").result()
    blobs.delete("w/model.safetensors")
    client = PeftTraining(OneModel(folder), blobs, device="cpu")
    with pytest.raises(BackendError, match="'q4' is not a type of GGUF files"):
        client.export_gguf(saved, tmp_path / "w.gguf", quantization="q4", chat_template=None)


def test_samplers_do_not_read_the_optimisers_files(
    opened: Opened, folder: Path, blobs: FakeBlobs, weighted: list[Datum]
) -> None:
    session = opened(dtype="bfloat16")
    train(session, weighted)
    saved = session.save("one").result()
    client = PeftTraining(OneModel(folder), blobs, device="cpu", dtype="bfloat16", threads=1)
    expected = session.snapshot().result().logprobs(weighted[0].tokens).result()
    for file in (MASTERS, OPTIMISER):
        blobs.delete(f"one/{file}")
    session.load_weights(saved).result()
    with pytest.raises(CorruptCheckpoint, match="one/masters"):
        session.load(saved).result()
    sampler = client.sampler(saved)
    np.testing.assert_array_equal(sampler.logprobs(weighted[0].tokens).result(), expected)
    sampler.close()


def test_transformers_opens_a_checkpoint(
    opened: Opened, blobs: FakeBlobs, weighted: list[Datum], tmp_path: Path
) -> None:
    session = opened()
    train(session, weighted, Adam(1e-2))
    saved = session.save_weights("w").result()
    for name in blobs.list("w/"):
        (tmp_path / Path(name).name).write_bytes(blobs.read(name) or b"")
    expected = session.forward(weighted).result().metrics["loss:sum"]
    with torch.no_grad():
        loss = plain_loss(plain_model(tmp_path, torch.float32), weighted)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    session.delete(saved).result()
    assert blobs.list("w/") == []


@pytest.mark.parametrize("merged", [False, True])
def test_exports_are_whole_models(
    opened: Opened,
    folder: Path,
    blobs: FakeBlobs,
    weighted: list[Datum],
    tmp_path: Path,
    merged: bool,
) -> None:
    session = opened(dtype="bfloat16")
    train(session, weighted, Adam(1e-2))
    client = PeftTraining(OneModel(folder), blobs, device="cpu", dtype="bfloat16", threads=1)
    saved = session.save("trained").result()
    client.export(saved, tmp_path / "out", merged=merged)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    tokens = weighted[0].tokens
    np.testing.assert_array_equal(
        client.sampler(f"path:{tmp_path / 'out'}").logprobs(tokens).result(),
        client.sampler(saved).logprobs(tokens).result(),
    )


def test_a_checkpoint_needs_no_base(
    opened: Opened, blobs: FakeBlobs, weighted: list[Datum], tmp_path: Path
) -> None:
    """Its tokenizer and configuration are its own: another model may be at the base's path."""
    base = tiny_model(tmp_path / "base")
    tokenizer_json = (base / "tokenizer.json").read_bytes()
    session = opened(f"path:{base}")
    expected = session.tokenizer().render([{"role": "user", "content": "two cups"}])
    saved = session.save_weights("w").result()
    shutil.rmtree(base)
    tiny_gpt2(base)
    byte_level_tokenizer(base, ["another text"], 300)
    client = PeftTraining(OneModel(base), blobs, device="cpu", dtype="float32", threads=1)
    sampler = cast(PeftSampler, client.sampler(saved))
    tokenizer = sampler.model.result().tokenizer
    np.testing.assert_array_equal(
        tokenizer.render([{"role": "user", "content": "two cups"}]), expected
    )
    client.export(saved, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == tokenizer_json
    pytest.importorskip("gguf")
    shutil.rmtree(base)
    client.export_gguf(saved, tmp_path / "w.gguf", quantization="f32", chat_template=None)
    assert (tmp_path / "w.gguf").stat().st_size > 300_000
    session.delete(saved).result()
    assert blobs.list() == []


def test_commands_open_the_tokenizer_of_a_checkpoint(
    opened: Opened, blobs: FakeBlobs, tmp_path: Path
) -> None:
    """Commands read it without the weights, whatever lies at the path of the base by then."""
    base = tiny_model(tmp_path / "base")
    of_full, of_lora = opened(f"path:{base}"), opened(f"path:{base}", Lora(rank=4))
    full, lora = of_full.save_weights("full").result(), of_lora.save_weights("lora").result()
    messages = [{"role": "user", "content": "two cups"}]
    expected = of_full.tokenizer().render(messages)
    byte_level_tokenizer(base, ["another text"], 300)
    hub = OneModel(base)
    client = PeftTraining(hub, blobs, device="cpu", dtype="float32", threads=1)

    def tokenizer(source: Checkpoint) -> Tokenizer:
        weights = Weights(f"run:{source.path}", source, f"path:{base}")
        return OpenWeights(weights, client, hub, blobs).tokenizer()

    assert tokenizer(lora).vocabulary == client.tokenizer(f"path:{base}").vocabulary
    shutil.rmtree(base)
    blobs.delete("full/model.safetensors")
    np.testing.assert_array_equal(tokenizer(full).render(messages), expected)


def test_all_chat_templates_are_saved(opened: Opened, blobs: FakeBlobs, tmp_path: Path) -> None:
    base, out = tiny_model(tmp_path / "base"), tmp_path / "out"
    template = base / "additional_chat_templates" / "rag.jinja"
    template.parent.mkdir()
    template.write_text("{{ messages }}")
    session = opened(f"path:{base}")
    saved = session.save_weights("w").result()
    shutil.rmtree(base)
    client = PeftTraining(OneModel(base), blobs, device="cpu")
    tokenizer = cast(FolderTokenizer, client.checkpoint_tokenizer(saved))
    assert tokenizer.inner.chat_template["rag"] == "{{ messages }}"
    client.export(saved, out)
    assert (out / "additional_chat_templates" / "rag.jinja").read_text() == "{{ messages }}"
    session.delete(saved).result()
    assert blobs.list() == []


@pytest.mark.parametrize("left_out", ["tokenizer", "tokenizer.json"])
def test_a_checkpoint_without_a_whole_tokenizer(
    opened: Opened, blobs: FakeBlobs, tmp_path: Path, left_out: str
) -> None:
    """Older versions did not save all files of a tokenizer."""
    saved = read_checkpoint(blobs, opened().save_weights("w").result())
    for name in saved.files:
        if not name.startswith(left_out):
            (tmp_path / name).write_bytes(saved.files[name])
    with pytest.raises(BackendError, match=r"(?s)'w'.*tokenizer.*an older version.*path:FOLDER"):
        saved.tokenizer(tmp_path)


def test_loading_opens_no_model_if_masters_suffice(
    opened: Opened, weighted: list[Datum], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is opened only for weights without master copies, as it was saved."""
    session, read = opened(dtype="bfloat16"), list[set[torch.dtype]]()
    train(session, weighted)
    saved = session.save("one").result()

    def observed(folder: Path) -> dict[str, torch.Tensor]:
        tensors = read_weights(folder)
        read.append({tensor.dtype for tensor in tensors.values()})
        return tensors

    monkeypatch.setattr("adapters.peft.session.read_weights", observed)
    session.load(saved).result()
    assert read == []
    session.load_weights(saved).result()
    assert read == [{torch.bfloat16}]


def test_large_weights_are_saved_as_several_files(
    opened: Opened, blobs: FakeBlobs, weighted: list[Datum]
) -> None:
    session = opened(dtype="bfloat16")
    train(session, weighted)

    def save(trainer: Any) -> Checkpoint:
        files = [
            *weight_files(trainer.weights, trainer.base, 60_000),
            *training_files(trainer.weights, trainer.optimiser.state(), 300_000),
        ]
        metadata = {"kind": "training", "step": 1, "calls": 1, "lora": None}
        metadata |= {"model": "tiny", "model_sha256": trainer.base.sha256}
        return write_checkpoint(blobs, "parts", files, metadata)

    saved = session.submit(save).result()
    parts = [name for name in blobs.list("parts/") if name.endswith(".safetensors")]
    assert {Path(name).name.partition("-")[0] for name in parts} == {
        "masters",
        "model",
        "optimizer",
    }
    assert len(parts) > 6
    assert read_checkpoint(blobs, saved).tensors(OPTIMISER).keys() == optimiser_state(session)
    resumed = opened(dtype="bfloat16")
    resumed.load(saved).result()
    expected = state(session)
    for name, numbers in state(resumed).items():
        np.testing.assert_array_equal(numbers, expected[name], err_msg=name)
    session.delete(saved).result()
    assert blobs.list("parts/") == []


def test_the_base_stays_as_it_was(folder: Path, blobs: FakeBlobs, weighted: list[Datum]) -> None:
    client = PeftTraining(OneModel(folder), blobs, device="cpu", dtype="float32", threads=1)
    reference = client.sampler("tiny")
    tokens = weighted[0].tokens
    before = reference.logprobs(tokens).result()
    session = client.open("tiny", FullWeights())
    np.testing.assert_allclose(
        session.forward(weighted[:1]).result().logprobs[0][:-1], before[1:], atol=1e-4
    )
    session.forward_backward(weighted)
    session.optim_step(Adam(1e-2)).result()
    np.testing.assert_array_equal(reference.logprobs(tokens).result(), before)
    moved = session.snapshot().result().logprobs(tokens).result()
    assert np.abs(moved[1:] - before[1:]).max() > 0.01
    session.close()


@pytest.mark.parametrize(("dtype", "size"), [("float32", 16), ("bfloat16", 18)])
def test_the_preview_shows_the_memory(
    folder: Path, blobs: FakeBlobs, dtype: str, size: int
) -> None:
    client = PeftTraining(OneModel(folder), blobs, device="cpu", dtype=dtype)
    rows = dict(client.notes("tiny", FullWeights()))
    count = sum(weight.numel() for weight in plain_model(folder, torch.float32).parameters())
    assert rows["memory of all weights in training"].endswith(
        f"{count:,} parameters × {size} bytes"
    )


def test_checkpoints_of_another_kind_are_refused(opened: Opened) -> None:
    full, lora = opened(), opened(trainable=Lora(rank=4))
    of_full, of_lora = full.save_weights("full").result(), lora.save_weights("lora").result()
    with pytest.raises(ConfigError, match="LoRA weights, but this session trains all weights"):
        full.load_weights(of_lora).result()
    with pytest.raises(ConfigError, match="all weights, but this session trains LoRA weights"):
        lora.load_weights(of_full).result()


def test_all_weights_of_what_cannot_be_trained(
    opened: Opened, folder: Path, blobs: FakeBlobs, tmp_path: Path
) -> None:
    client = PeftTraining(OneModel(folder), blobs, device="cpu")
    adapter = opened(trainable=Lora(rank=4)).save_weights("adapter").result()
    client.export(adapter, tmp_path / "adapter")
    name = f"path:{tmp_path / 'adapter'}"
    with pytest.raises(ConfigError, match="merge it first"):
        client.notes(name, FullWeights())
    with pytest.raises(ConfigError, match="merge it first"):
        client.open(name, FullWeights()).facts()
    quantised = PeftTraining(OneModel(folder), blobs, quantization="4bit")
    with pytest.raises(ConfigError, match="quantization=none"):
        quantised.open("tiny", FullWeights())


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let files have at most `size` bytes, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def train(session: PeftSession, data: list[Datum], adam: Adam = ADAM) -> None:
    session.forward_backward(data)
    session.optim_step(adam).result()


def state(session: PeftSession) -> dict[str, Array]:
    """The weights that the optimiser updates."""
    parameters: dict[str, torch.Tensor] = session.submit(
        lambda trainer: trainer.weights.named_parameters()
    ).result()
    return {name: tensor.detach().numpy().copy() for name, tensor in parameters.items()}


def optimiser_state(session: PeftSession) -> set[str]:
    return session.submit(lambda trainer: set(trainer.optimiser.state())).result()
