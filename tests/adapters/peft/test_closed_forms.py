"""Losses and gradients in float64, against plain autograd on full logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft.session import PeftSession
from kitchen.types import Adam, Array, Datum, Floats, Lora

Opened = Callable[..., PeftSession]
LORA = Lora(rank=4, alpha=12.0, seed=3)


def plain_loss(name: str, lp: Any, inputs: Mapping[str, Any]) -> Any:
    """Written once more, by the table of the laws, in torch."""
    if name == "cross_entropy":
        return -(lp * inputs["weights"]).sum()
    ratio, advantages = torch.exp(lp - inputs["logprobs"]), inputs["advantages"]
    if name == "importance_sampling":
        return -(ratio * advantages).sum()
    if name == "ppo":
        return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()
    if name == "cispo":
        return -(ratio.clamp(0.0, 4.0).detach() * lp * advantages).sum()
    return -(lp * advantages - 0.5 * 0.05 * (lp - inputs["logprobs"]) ** 2).sum()


def plain_model(folder: Path, session: PeftSession) -> Any:
    """Return the same weights in PEFT's layers; B is made nonzero, so that A has a gradient."""
    import peft
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapter = session.submit(lambda trainer: trainer.adapter).result()
    targets += ["lm_head"] if adapter.lora.train_unembed else []
    config = peft.LoraConfig(r=LORA.rank, lora_alpha=12, target_modules=targets)
    model = peft.get_peft_model(base, config)
    peft.set_peft_model_state_dict(model, adapter.tensors())
    return model.double()


def stir(session: PeftSession) -> None:
    def move(trainer: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for layer in trainer.adapter.layers.values():
                layer.b.copy_(
                    torch.randn(layer.b.shape, generator=generator, dtype=layer.b.dtype) * 0.05
                )

    session.submit(move).result()


def gradients(session: PeftSession) -> dict[str, Array]:
    named = session.submit(
        lambda trainer: {
            name: parameter.grad for name, parameter in trainer.adapter.named_parameters().items()
        }
    ).result()
    return {name: gradient.numpy() for name, gradient in named.items() if gradient is not None}


def plain_gradients(model: Any) -> dict[str, Array]:
    return {
        name.replace(".default", ""): parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def plain_logprobs(model: Any, datum: Datum) -> Any:
    """(N,) or (N, K)."""
    logits = model(torch.from_numpy(datum.tokens)[None]).logits[0]
    targets = torch.from_numpy(np.asarray(datum.targets)).reshape(len(logits), -1)
    logprobs = torch.log_softmax(logits, -1).gather(1, targets)
    return logprobs[:, 0] if np.asarray(datum.targets).ndim == 1 else logprobs


def assert_same_gradients(session: PeftSession, model: Any) -> None:
    ours, theirs = gradients(session), plain_gradients(model)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        np.testing.assert_allclose(
            ours[name], gradient, rtol=1e-5, atol=1e-5 * np.abs(gradient).max(), err_msg=name
        )


def compare(session: PeftSession, folder: Path, name: str, data: Sequence[Datum]) -> None:
    stir(session)
    model = plain_model(folder, session)
    inputs = [{k: torch.from_numpy(np.asarray(v)) for k, v in d.loss_inputs.items()} for d in data]
    expected = [plain_logprobs(model, datum) for datum in data]
    total = sum(plain_loss(name, lp, given) for lp, given in zip(expected, inputs, strict=True))
    total.backward()
    output = session.forward_backward(data, name).result()
    np.testing.assert_allclose(output.metrics["loss:sum"], float(total.detach()), rtol=1e-5)
    for got, lp, mask in zip(output.logprobs, expected, output.scored, strict=True):
        np.testing.assert_allclose(got[mask], lp.detach().numpy()[mask], rtol=1e-5)
        assert (got[~mask] == 0).all()
    for got, lp in zip(session.forward(data, name).result().logprobs, expected, strict=True):
        np.testing.assert_allclose(got, lp.detach().numpy(), rtol=1e-5)
    assert_same_gradients(session, model)


@pytest.mark.parametrize("unembed", [False, True])
def test_cross_entropy(opened: Opened, folder: Path, weighted: list[Datum], unembed: bool) -> None:
    lora = Lora(rank=4, alpha=12.0, seed=3, train_unembed=unembed)
    compare(opened(lora, dtype="float64", micro_batch_tokens=60), folder, "cross_entropy", weighted)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo", "dro"])
def test_policy_losses(opened: Opened, folder: Path, judged: list[Datum], name: str) -> None:
    compare(opened(LORA, dtype="float64", micro_batch_tokens=60), folder, name, judged)


def test_several_targets_at_a_position(opened: Opened, folder: Path, weighted: list[Datum]) -> None:
    rng = np.random.default_rng(1)
    wide = [
        Datum(
            d.tokens,
            {
                "target_tokens": rng.integers(0, 300, (len(d.tokens), k)),
                "weights": rng.normal(size=(len(d.tokens), k)),
            },
        )
        for d, k in zip(weighted[:4], (3, 5, 3, 1), strict=True)
    ]
    compare(opened(LORA, dtype="float64"), folder, "cross_entropy", [*wide, weighted[4]])


class Pairs:
    """-log sigmoid of the difference of two sequences' log-probabilities, as in DPO.

    Rafailov et al., 2023, arXiv:2305.18290.
    """

    def __init__(self, **declared: int) -> None:
        self.__dict__.update(declared)
        self.calls = 0

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats]
    ) -> tuple[float, list[Floats], dict[str, float]]:
        self.calls += 1
        value, grads = 0.0, []
        for better, worse in zip(logprobs[::2], logprobs[1::2], strict=True):
            margin = float(better.sum() - worse.sum())
            value += float(np.logaddexp(0, -margin))
            grad = -1 / (1 + np.exp(margin))
            grads += [np.full(len(better), grad), np.full(len(worse), -grad)]
        return value, grads, {"pairs:sum": len(data) / 2}


@pytest.mark.parametrize(("declared", "calls"), [({}, 1), ({"group": 2}, 3)])
def test_custom_losses_match_autograd(
    opened: Opened, folder: Path, weighted: list[Datum], declared: dict[str, int], calls: int
) -> None:
    session = opened(LORA, dtype="float64", micro_batch_tokens=40)
    stir(session)
    model = plain_model(folder, session)
    scores = [
        (plain_logprobs(model, d) * torch.from_numpy(d.loss_inputs["weights"] != 0)).sum()
        for d in weighted
    ]
    total = sum(
        -torch.nn.functional.logsigmoid(a - b)
        for a, b in zip(scores[::2], scores[1::2], strict=True)
    )
    torch.autograd.backward(torch.as_tensor(total))
    loss = Pairs(**declared)
    output = session.forward_backward(weighted, loss).result()
    np.testing.assert_allclose(
        output.metrics["loss:sum"], float(torch.as_tensor(total).detach()), rtol=1e-5
    )
    assert output.metrics["pairs:sum"] == 3
    assert loss.calls == calls
    assert_same_gradients(session, model)


def test_a_step_is_torchs_adamw(opened: Opened, folder: Path, weighted: list[Datum]) -> None:
    session = opened(LORA, dtype="float64")
    stir(session)
    model = plain_model(folder, session)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, foreach=False)
    for rate, clip in ((0.01, 0.0), (0.02, 0.5), (0.005, 1e9)):
        for datum in weighted:
            torch.autograd.backward(
                plain_loss(
                    "cross_entropy",
                    plain_logprobs(model, datum),
                    {"weights": torch.from_numpy(datum.loss_inputs["weights"])},
                )
            )
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip or float("inf"))
        optimiser.param_groups[0].update(lr=rate, betas=(0.8, 0.9), eps=1e-8, weight_decay=0.1)
        optimiser.step()
        optimiser.zero_grad()
        session.forward_backward(weighted)
        stepped = session.optim_step(Adam(rate, 0.8, 0.9, 1e-8, 0.1, clip)).result()
        np.testing.assert_allclose(stepped.metrics["grad_norm"], float(norm), rtol=1e-5)
    expected = np.concatenate([plain_logprobs(model, d).detach().numpy() for d in weighted])
    np.testing.assert_allclose(
        np.concatenate(session.forward(weighted).result().logprobs), expected, rtol=1e-5
    )
