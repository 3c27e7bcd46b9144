"""Checkpoints resume training exactly, and damaged or unsuitable ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.peft.session import PeftSession
from kitchen.errors import BackendError, ConfigError, CorruptCheckpoint, DataError, RunFailed
from kitchen.types import Adam, Array, Checkpoint, Datum, Lora, LoraKind

Opened = Callable[..., PeftSession]
LORA = Lora(rank=8, seed=1, dropout=0.2)
KINDS: Sequence[LoraKind] = ("lora", "rslora", "dora")


def train(session: PeftSession, data: list[Datum], steps: int) -> None:
    for _ in range(steps):
        session.forward_backward(data)
        session.optim_step(Adam(0.01, weight_decay=0.1)).result()


def state(session: PeftSession) -> dict[str, Array]:
    """Every number that training goes on from."""
    got: dict[str, Any] = session.submit(
        lambda trainer: {**trainer.weights.named_parameters(), **trainer.optimiser.state()}
    ).result()
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in got.items()}


def assert_same_state(one: PeftSession, other: PeftSession) -> None:
    ours, theirs = state(one), state(other)
    assert ours.keys() == theirs.keys()
    for name, numbers in theirs.items():
        np.testing.assert_array_equal(ours[name], numbers, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("lora", "float32"), ("lora", "bfloat16"), ("rslora", "float32"), ("dora", "bfloat16")],
)
def test_a_resumed_session_matches_bit_for_bit(
    opened: Opened, weighted: list[Datum], kind: LoraKind, dtype: str
) -> None:
    lora = replace(LORA, kind=kind)
    straight, resumed = opened(lora, dtype=dtype), opened(lora, dtype=dtype)
    train(straight, weighted, 3)
    saved = straight.save("three").result()
    resumed.load(saved).result()
    assert_same_state(resumed, straight)
    train(straight, weighted, 2)
    train(resumed, weighted, 2)
    assert_same_state(resumed, straight)
    assert resumed.save("five").result() == Checkpoint(
        "five", 5, "training", straight.save("five again").result().sha256
    )


def test_checkpoint_contents(opened: Opened, blobs: FakeBlobs, weighted: list[Datum]) -> None:
    session = opened(LORA)
    train(session, weighted, 1)
    saved = session.save("runs/a/1").result()
    assert blobs.list("runs/a/1/") == [
        f"runs/a/1/{file}"
        for file in (
            "adapter_config.json",
            "adapter_model.safetensors",
            "checkpoint.json",
            "optimizer.safetensors",
        )
    ]
    content = blobs.read("runs/a/1/checkpoint.json")
    assert content
    manifest = json.loads(content)
    assert (manifest["kind"], manifest["step"], manifest["model"]) == ("training", 1, "tiny")
    assert manifest["model_sha256"] == "5" * 64
    assert Lora(**manifest["lora"]) == LORA
    session.delete(saved).result()
    session.delete(saved).result()
    assert blobs.list("runs/a/1/") == []


@pytest.mark.parametrize(
    "file", ["checkpoint.json", "adapter_model.safetensors", "optimizer.safetensors"]
)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-2] + bytes([content[-2] ^ 1]) + content[-1:],
        lambda content: None,
    ],
    ids=["cut short", "one bit", "gone"],
)
def test_a_damaged_checkpoint_is_named_and_not_loaded(
    opened: Opened,
    blobs: FakeBlobs,
    weighted: list[Datum],
    file: str,
    spoil: Callable[[bytes], bytes | None],
) -> None:
    session = opened(LORA)
    train(session, weighted, 1)
    saved = session.save("one").result()
    before = state(session)
    content = spoil(blobs.read(f"one/{file}") or b"")
    blobs.delete(f"one/{file}")
    if content is not None:
        blobs.write(f"one/{file}", content)
    with pytest.raises(CorruptCheckpoint, match=f"one/{file}"):
        session.load(saved).result()
    after = state(session)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_only_unfinished_checkpoints_are_overwritten(
    opened: Opened, blobs: FakeBlobs, weighted: list[Datum]
) -> None:
    session = opened(LORA)
    blobs.write("one/adapter_model.safetensors", b"half of it")
    saved = session.save("one").result()
    session.load(saved).result()
    with pytest.raises(ConfigError, match="'one' exists already"):
        session.save("one").result()
    with pytest.raises(ConfigError, match="'one' exists already"):
        session.save_weights("one").result()
    assert session.save_weights("one", overwrite=True).result().kind == "weights"
    assert "one/optimizer.safetensors" not in blobs.list()


def test_weights_alone_start_a_fresh_optimiser(opened: Opened, weighted: list[Datum]) -> None:
    session, other = opened(LORA), opened(LORA)
    train(session, weighted, 2)
    alone, full = session.save_weights("alone").result(), session.save("full").result()
    for checkpoint in (alone, full):
        other.load_weights(checkpoint).result()
        loaded, trained = state(other), state(session)
        assert all(np.array_equal(loaded[name], trained[name]) for name in loaded)
        assert all("exp_avg" not in name for name in loaded)
    with pytest.raises(ConfigError, match="load_weights"):
        other.load(alone).result()


def test_a_checkpoint_of_another_alpha_is_refused(opened: Opened) -> None:
    saved = opened(Lora(rank=4, alpha=8)).save("eight").result()
    for load in ("load", "load_weights"):
        with pytest.raises(ConfigError, match="a LoRA scale of 2, but this session has 8"):
            getattr(opened(Lora(rank=4)), load)(saved).result()


def test_a_checkpoint_of_another_kind_is_refused(opened: Opened) -> None:
    of_kind = {kind: Lora(rank=4, alpha=8, kind=kind) for kind in KINDS}
    for kind, lora in of_kind.items():
        session = opened(lora)
        saved = session.save(kind).result()
        session.load(saved).result()
        for other in KINDS:
            if other != kind:
                with pytest.raises(ConfigError, match=f"kind '{kind}', .* set lora_kind={kind}"):
                    opened(of_kind[other]).load_weights(saved).result()


def test_checkpoints_without_a_kind_are_plain_lora(
    opened: Opened, blobs: FakeBlobs, weighted: list[Datum]
) -> None:
    """Manifests of earlier versions name no kind."""
    session = opened(LORA)
    train(session, weighted, 1)
    saved = session.save("old").result()
    manifest = json.loads(blobs.read("old/checkpoint.json") or b"")
    assert manifest["lora"].pop("kind") == "lora"
    blobs.write("old/checkpoint.json", json.dumps(manifest).encode())
    resumed = opened(LORA)
    resumed.load(replace(saved, sha256="")).result()
    assert_same_state(resumed, session)


def test_a_checkpoint_of_other_layers_is_refused(opened: Opened) -> None:
    saved = opened(Lora(rank=4)).save("four").result()
    with pytest.raises(
        ConfigError, match=r"lora_A.*\(4, 128\), but this session expects \(8, 128\)"
    ):
        opened(Lora(rank=8)).load(saved).result()


def test_a_pending_gradient_cannot_be_saved(opened: Opened, weighted: list[Datum]) -> None:
    session = opened()
    session.forward_backward(weighted)
    with pytest.raises(RunFailed, match="not been applied yet"):
        session.save("early").result()
    session.optim_step(Adam()).result()
    assert session.save("early").result().step == 1


def test_the_client_lists_and_deletes(
    client: Callable[..., Any], opened: Opened, blobs: FakeBlobs, weighted: list[Datum]
) -> None:
    session = opened()
    saved = [session.save(f"run/{step}").result() for step in (1, 2)] + [
        session.save_weights("else").result()
    ]
    assert client().checkpoints("run/") == saved[:2]
    client().delete(saved[0])
    assert client().checkpoints() == [saved[2], saved[1]]


def test_the_same_seed_starts_from_the_same_weights(opened: Opened) -> None:
    one, same, other = (
        state(opened(Lora(seed=3))),
        state(opened(Lora(seed=3))),
        state(opened(Lora(seed=4))),
    )
    assert any("lora_A" in name for name in one)
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not any(np.array_equal(one[name], other[name]) for name in one if "lora_A" in name)


def test_a_non_finite_gradient_ends_the_session(opened: Opened, weighted: list[Datum]) -> None:
    session = opened()
    before = state(session)
    adapter = session.submit(lambda trainer: trainer.adapter).result()
    huge = [
        Datum(d.tokens, {**d.loss_inputs, "weights": np.full(len(d.tokens), 1e38)})
        for d in weighted
    ]
    session.forward_backward(huge)
    with pytest.raises(RunFailed, match="optimiser step 1: the norm of the gradient"):
        session.optim_step(Adam()).result()
    with pytest.raises(RunFailed, match=r"accepts no more calls.*optimiser step 1"):
        session.forward(weighted).result()
    after = {name: tensor.numpy() for name, tensor in adapter.tensors().items()}
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_non_finite_loss_names_the_datum(opened: Opened, judged: list[Datum]) -> None:
    far = Datum(judged[2].tokens, {**judged[2].loss_inputs, "logprobs": np.full(40, -2000.0)})
    with pytest.raises(RunFailed, match="datum 2 of 6"):
        opened().forward_backward([*judged[:2], far, *judged[3:]], "importance_sampling").result()


def test_refused_input_leaves_the_session_as_it_was(opened: Opened, weighted: list[Datum]) -> None:
    session = opened()
    bad = Datum(
        weighted[0].tokens, {**weighted[0].loss_inputs, "target_tokens": weighted[0].targets + 9999}
    )
    with pytest.raises(DataError, match=r"datum 6 of 7.*target_tokens"):
        session.forward_backward([*weighted, bad]).result()
    with pytest.raises(DataError, match="no gradient"):
        session.optim_step(Adam()).result()


def test_an_unknown_model_is_an_error_on_the_futures(
    client: Callable[..., Any], weighted: list[Datum]
) -> None:
    session = client().open("nothing", Lora())
    with pytest.raises(BackendError, match="no model 'nothing'"):
        session.forward_backward(weighted).result()
    with pytest.raises(BackendError, match="no model 'nothing'"):
        session.tokenizer()
    session.close()
