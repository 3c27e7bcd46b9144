"""One set of LoRA weights under training, call by call."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from adapters.peft.batching.packing import NEVER
from adapters.peft.model.base_model import Base
from adapters.peft.model.logprob_head import Slope
from adapters.peft.model.lora import Adapter
from adapters.peft.model.lora_dropout import Dropout
from adapters.peft.model.network import Network, Way
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.training.adamw import Optimiser
from adapters.peft.training.forward_backward import Logprobs, Pass, Passes
from adapters.peft.training.logprob_grads import GivenSlopes, NamedSlopes, combined
from kitchen.backend.custom_loss import check_finite, own_slopes
from kitchen.backend.datum_checks import check_data
from kitchen.backend.losses import Options, scored, value_and_grad
from kitchen.errors import BackendError, ConfigError, DataError, RunFailed
from kitchen.types import Adam, Array, Datum, Lora, Loss, LossOutput, Stepped

_Owned = tuple[Mapping[str, float], Sequence[Array]]  # metrics and slopes of a custom loss
_Answer = tuple[tuple[Array, ...], Mapping[str, float]]  # log-probabilities and metrics


class Trainer:
    """Gradients add up over calls until a step; every call is synchronous."""

    def __init__(
        self,
        base: Base,
        lora: Lora,
        high: torch.dtype,
        budget: int,
        lanes: Lanes,
        *,
        checkpointing: bool = False,
    ) -> None:
        self.base = base
        model = base.tree()
        self.adapter = Adapter(model, lora, high)
        self.adapter.start()
        self.network = Network(model, _way(base, lora), checkpointing=checkpointing)
        self.optimiser = Optimiser(self.adapter.named())
        self.calls = 0  # of forward_backward, which dropout follows
        self.pending = False  # a gradient not yet stepped along
        # what is dropped of a beginning differs by datum
        least = NEVER if lora.dropout else self.network.least
        self._passes = Passes(
            self.network,
            list(self.adapter.named().values()),
            Dropout(lora.dropout, lora.seed, list(self.adapter.layers.values())),
            lanes if self.network.way == Way.FUSED else lanes.one(),
            budget=budget,
            least=least,
            high=high,
        )
        self._together = lanes.together
        self._turn = threading.Lock()  # a custom loss is asked by one lane at a time

    def check(self, data: Sequence[Datum], loss: str | Loss, options: Options | None) -> None:
        """Raises DataError or ConfigError before anything is computed."""
        check_data(
            data, loss, options, vocabulary=self.network.vocabulary, context=self.network.context
        )

    def forward(
        self, data: Sequence[Datum], loss: str | Loss, options: Options | None
    ) -> LossOutput:
        self.check(data, loss, options)
        everywhere = [np.ones(len(datum.tokens), bool) for datum in data]
        logprobs = _ordered(self._passes.each(data, everywhere, lambda one: one.there()))
        if not isinstance(loss, str):
            return LossOutput(
                logprobs, combined([(len(data), self._own(loss, data, logprobs)[0])]), ()
            )
        total = 0.0
        for index, (datum, logprob) in enumerate(zip(data, logprobs, strict=True)):
            value, slope = value_and_grad(loss, options, datum, logprob)
            check_finite(index, len(data), value, slope)
            total += float(value.sum())
        return LossOutput(logprobs, {"loss:sum": total}, ())

    def backward(
        self, data: Sequence[Datum], loss: str | Loss, options: Options | None
    ) -> LossOutput:
        self.check(data, loss, options)
        masks = [scored(loss, datum) for datum in data]
        self.pending = True
        try:
            logprobs, metrics = self._gradient(data, masks, loss, options)
        # not refused input any more: a part may have been added
        except (DataError, ConfigError) as error:
            raise RunFailed(f"the loss failed on the way: {error}") from error
        self.calls += 1
        return LossOutput(logprobs, metrics, tuple(masks))

    def _gradient(
        self,
        data: Sequence[Datum],
        masks: Sequence[Array],
        loss: str | Loss,
        options: Options | None,
    ) -> _Answer:
        if isinstance(loss, str):
            return self._named(data, masks, loss, options)
        if group := int(getattr(loss, "group", 0) or 0):
            return self._own_in_runs(data, masks, loss, group)
        return self._own_in_two_passes(data, masks, loss)

    def step(self, adam: Adam) -> Stepped:
        if not self.pending:
            raise RunFailed("optim_step has no gradient to step along: call forward_backward first")
        norm = self._together(lambda: self.optimiser.step(adam))
        self.pending = False
        return Stepped({"grad_norm": norm})

    def _named(
        self, data: Sequence[Datum], masks: Sequence[Array], loss: str, options: Options | None
    ) -> _Answer:
        def work(one: Pass) -> tuple[Logprobs, float]:
            slopes = NamedSlopes(data, one.batch, loss, options)
            return one.and_back(slopes), slopes.total

        done = self._passes.each(data, masks, work, call=self.calls)
        return _ordered([logprobs for logprobs, _ in done]), {
            "loss:sum": sum(total for _, total in done)
        }

    def _own(self, loss: Loss, data: Sequence[Datum], logprobs: tuple[Array, ...]) -> _Owned:
        return self._together(lambda: own_slopes(loss, data, logprobs, range(len(data)), len(data)))

    def _own_in_two_passes(
        self, data: Sequence[Datum], masks: Sequence[Array], loss: Loss
    ) -> _Answer:
        logprobs = _ordered(
            self._passes.each(data, masks, lambda one: one.there(), call=self.calls)
        )
        metrics, slopes = self._own(loss, data, logprobs)
        known = dict(enumerate(slopes))
        self._passes.each(
            data, masks, lambda one: one.and_back(GivenSlopes(known, one.batch)), call=self.calls
        )
        return logprobs, combined([(len(data), metrics)])

    def _own_in_runs(
        self, data: Sequence[Datum], masks: Sequence[Array], loss: Loss, group: int
    ) -> _Answer:
        """One pass: each micro-batch has whole runs."""

        def work(one: Pass) -> tuple[Logprobs, tuple[int, Mapping[str, float]]]:
            found: list[Mapping[str, float]] = []

            def judge(known: Logprobs) -> Slope:
                indices = one.batch.indices
                with self._turn:
                    metrics, slopes = own_slopes(
                        loss,
                        [data[index] for index in indices],
                        [known[index] for index in indices],
                        indices,
                        len(data),
                    )
                found.append(metrics)
                return GivenSlopes(dict(zip(indices, slopes, strict=True)), one.batch)

            return one.and_back(judge=judge), (len(one.batch.indices), found[0])

        done = self._passes.each(data, masks, work, group=group, call=self.calls)
        return _ordered([logprobs for logprobs, _ in done]), combined(
            [metrics for _, metrics in done]
        )


def _ordered(parts: Sequence[Logprobs]) -> tuple[Array, ...]:
    """By the places of the datums in the batch."""
    everything = {index: logprobs for part in parts for index, logprobs in part.items()}
    return tuple(everything[index] for index in range(len(everything)))


def _way(base: Base, lora: Lora) -> Way:
    """Dropout needs the layers one by one; raises BackendError where it cannot be."""
    if not lora.dropout or base.way == Way.TILED:
        return base.way
    if base.way == Way.ALONE:
        raise BackendError(
            f"lora dropout is {lora.dropout}, and a {type(base.model).__name__} reads one sequence "
            "at a "
            "time here, to which dropout has not been fitted; set it to 0"
        )
    return Way.TILED
