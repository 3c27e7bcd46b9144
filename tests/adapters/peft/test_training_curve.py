"""Training matches a plain loop with torch and PEFT, step by step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.fake.blobs import FakeBlobs
from adapters.peft.session import PeftSession
from kitchen.types import Adam, Array, Checkpoint, Datum, Lora

STEPS = 50


def exported(blobs: FakeBlobs, saved: Checkpoint, folder: Path) -> Path:
    folder.mkdir()
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        content = blobs.read(f"{saved.path}/{file}")
        assert content
        (folder / file).write_bytes(content)
    return folder


def batches() -> list[list[Datum]]:
    rng, data = np.random.default_rng(2), []
    for _ in range(STEPS):
        ids = [rng.integers(3, 60, rng.integers(6, 30)) for _ in range(4)]
        count = sum(len(one) - 1 for one in ids)
        data.append(
            [
                Datum(
                    one[:-1],
                    {"target_tokens": one[1:], "weights": np.full(len(one) - 1, 1 / count)},
                )
                for one in ids
            ]
        )
    return data


def plain_curve(folder: Path, adapter: Path) -> Array:
    """(STEPS,) mean nats per token, datum by datum, with PEFT, autograd and torch's AdamW."""
    import peft
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model: Any = peft.PeftModel.from_pretrained(base, adapter, is_trainable=True)
    optimiser = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=3e-3,
        betas=(0.9, 0.95),
        eps=1e-12,
        weight_decay=0.0,
    )
    curve = []
    for batch in batches():
        total = 0.0
        for datum in batch:
            logits = model(torch.from_numpy(datum.tokens)[None]).logits[0]
            loss = torch.nn.functional.cross_entropy(
                logits, torch.from_numpy(datum.targets), reduction="sum"
            )
            torch.autograd.backward(loss * float(datum.loss_inputs["weights"][0]))
            total += float(loss.detach()) * float(datum.loss_inputs["weights"][0])
        optimiser.step()
        optimiser.zero_grad()
        curve.append(total)
    return np.array(curve)


@pytest.mark.slow
def test_fifty_steps_match_a_plain_loop(
    opened: Callable[..., PeftSession], folder: Path, blobs: FakeBlobs, tmp_path: Path
) -> None:
    session = opened(Lora(rank=8, seed=4))
    adapter = exported(blobs, session.save_weights("start").result(), tmp_path / "start")
    outputs = []
    for batch in batches():
        outputs.append(session.forward_backward(batch))
        session.optim_step(Adam(3e-3))
    ours, plain = (
        np.array([o.result().metrics["loss:sum"] for o in outputs]),
        plain_curve(folder, adapter),
    )
    assert plain[0] - plain[-5:].mean() > 0.5, (
        "the plain loop learns nothing, so the curves say nothing"
    )
    np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-4)


def test_peft_opens_the_export(
    opened: Callable[..., PeftSession],
    folder: Path,
    blobs: FakeBlobs,
    tmp_path: Path,
    weighted: list[Datum],
) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    session = opened(Lora(rank=8, alpha=24.0, seed=4))
    for _ in range(3):
        session.forward_backward(weighted)
        session.optim_step(Adam(1e-2))
    adapter = exported(blobs, session.save_weights("done").result(), tmp_path / "done")
    assert (
        json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "tiny"
    )
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model: Any = peft.PeftModel.from_pretrained(base, adapter)
    for datum, ours in zip(weighted, session.forward(weighted).result().logprobs, strict=True):
        with torch.no_grad():
            logits = model(torch.from_numpy(datum.tokens)[None]).logits[0]
        theirs = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(datum.targets)[:, None])[
            :, 0
        ]
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-5)


def test_a_sampler_opens_the_folder_of_an_adapter(
    client: Callable[..., Any],
    opened: Callable[..., PeftSession],
    blobs: FakeBlobs,
    tmp_path: Path,
    weighted: list[Datum],
) -> None:
    session = opened(Lora(rank=8, alpha=24.0, seed=4))
    session.forward_backward(weighted)
    session.optim_step(Adam(1e-2))
    adapter = exported(blobs, session.save_weights("done").result(), tmp_path / "done")
    sampler = client().sampler(f"path:{adapter}")
    ids = np.append(weighted[0].tokens, weighted[0].targets[-1])
    ours = session.forward(weighted[:1]).result().logprobs[0]
    np.testing.assert_allclose(sampler.logprobs(ids).result()[1:], ours, rtol=0, atol=1e-5)
    sampler.close()
