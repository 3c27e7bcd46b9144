"""A torch function as a loss: its gradient is the closed form's."""

from dataclasses import dataclass

import numpy as np
import pytest

from kitchen.errors import ConfigError
from kitchen.types import Datum
from stages.train.torch_loss import torch_loss

torch = pytest.importorskip("torch")


@dataclass(frozen=True)
class PairLoss:
    """-log sigmoid(beta * (chosen - rejected)) over adjacent pairs, as in Rafailov et al., 2023,
    less the reference.
    """

    beta: float

    def __call__(self, data, logprobs):
        sums = torch.stack(
            [
                (lp * torch.from_numpy(d.loss_inputs["weights"])).sum()
                for d, lp in zip(data, logprobs, strict=True)
            ]
        )
        margin = self.beta * (sums[0::2] - sums[1::2])
        return -torch.nn.functional.logsigmoid(margin).sum(), {"margin:sum": margin.sum()}


def first_token(data, logprobs):
    return -logprobs[0][0]


def three_numbers(data, logprobs):
    return logprobs[0].repeat(3)


def without_torch(data, logprobs):
    return -logprobs[0].sum().item()


def constant(data, logprobs):
    return torch.tensor(1.0)


def batch(seed=0):
    random = np.random.default_rng(seed)
    data, logprobs = [], []
    for length in (3, 5, 4, 2):
        weights = (np.arange(length) > 0).astype(np.float32)
        data.append(
            Datum(np.arange(length), {"target_tokens": np.arange(length), "weights": weights})
        )
        logprobs.append(random.normal(-1, 0.5, length).astype(np.float32))
    return data, logprobs


def test_value_gradient_and_metrics_equal_the_closed_form():
    beta, (data, logprobs) = 0.3, batch()
    value, gradients, metrics = torch_loss(PairLoss(beta), group=2)(data, logprobs)
    sums = [
        float(lp.astype(float) @ d.loss_inputs["weights"])
        for d, lp in zip(data, logprobs, strict=True)
    ]
    margins = [beta * (sums[i] - sums[i + 1]) for i in (0, 2)]
    assert value == pytest.approx(sum(np.log1p(np.exp(-m)) for m in margins), rel=1e-6)
    assert metrics == {"margin:sum": pytest.approx(sum(margins), rel=1e-5)}
    for index, gradient in enumerate(gradients):
        slope = -beta / (1 + np.exp(margins[index // 2])) * (1 if index % 2 == 0 else -1)
        np.testing.assert_allclose(gradient, slope * data[index].loss_inputs["weights"], rtol=1e-5)
        assert gradient.dtype == np.float32


def test_unread_logprobs_have_zero_gradient():
    data, logprobs = batch()
    kept = [lp.copy() for lp in logprobs]
    with torch.no_grad():  # a backend may well be inside one
        value, gradients, metrics = torch_loss(first_token)(data, logprobs)
    assert (value, metrics) == (pytest.approx(-kept[0][0]), {})
    assert [g.tolist() for g in gradients] == [[-1.0, 0.0, 0.0], [0.0] * 5, [0.0] * 4, [0.0] * 2]
    assert all(np.array_equal(a, b) for a, b in zip(kept, logprobs, strict=True))


def test_repr_is_stable_and_shows_the_options():
    assert repr(torch_loss(PairLoss(0.3), group=2)) == "torch_loss(PairLoss(beta=0.3), group=2)"
    assert repr(torch_loss(first_token)).endswith("test_torch_loss.first_token, group=None)")
    assert torch_loss(PairLoss(0.3)) == torch_loss(PairLoss(0.3)) != torch_loss(PairLoss(0.4))


def test_invalid_losses_are_refused():
    beta, (data, logprobs) = 0.1, batch()

    def closure(data, logprobs):
        return beta * logprobs[0].sum()

    for function in (lambda data, logprobs: logprobs[0].sum(), closure, object().__eq__):
        with pytest.raises(ConfigError, match="no stable name"):
            torch_loss(function)
    for function in (three_numbers, without_torch, constant):
        with pytest.raises(
            ConfigError, match=f"{function.__name__}, group=None. must return one number"
        ):
            torch_loss(function)(data, logprobs)
    with pytest.raises(ConfigError, match="group=0"):
        torch_loss(first_token, group=0)
