"""The trainer of one set of weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import structlog
import torch

from adapters.peft.adapter_folder import AdapterFolder
from adapters.peft.batching.packing import NO_SHARING
from adapters.peft.model.base_model import BaseModel
from adapters.peft.model.full_weights import FullModel
from adapters.peft.model.hf_attention import IMPLEMENTATION
from adapters.peft.model.logprob_head import LogprobGradFn
from adapters.peft.model.lora import (
    LoraAdapter,
    adapted_paths,
    check_fit,
    report_untrained,
    target_paths,
)
from adapters.peft.model.lora_dropout import Dropout
from adapters.peft.model.network import ForwardMode, Network
from adapters.peft.runtime.devices.peers import Peers
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.training.adamw import Optimiser
from adapters.peft.training.forward_backward import Logprobs, MicroBatchPass, MicroBatchRunner
from adapters.peft.training.logprob_grads import NamedLossGrads, PrecomputedGrads, combine_metrics
from kitchen.backend.custom_loss import custom_loss_grads
from kitchen.backend.datum_checks import check_data
from kitchen.backend.losses import (
    Options,
    check_finite,
    find_loss,
    named_loss_grads,
    scored_positions,
    value_and_logprob_grads,
)
from kitchen.errors import BackendError, ConfigError, DataError, RunFailed
from kitchen.types import (
    Adam,
    Array,
    Datum,
    FullWeights,
    Lora,
    Loss,
    LossOutput,
    OptimStepResult,
    Trainable,
)

log = structlog.get_logger("kitchen.peft")

Metrics = Mapping[str, float]


class Trainer:
    """Weights in training; gradients accumulate over synchronous calls until a step."""

    def __init__(
        self,
        base: BaseModel,
        trainable: Trainable,
        accum_dtype: torch.dtype,
        budget: int,
        lanes: Lanes,
        *,
        checkpointing: bool = False,
        initial: AdapterFolder | None = None,
    ) -> None:
        """Set up new LoRA weights or the `initial` ones, or the weights of a separate base.

        `budget` is the number of tokens in a micro-batch.
        """
        self.base, self.budget = base, budget
        model = base.copy_modules()
        self.weights = _insert_weights(model, trainable, accum_dtype, initial)
        self.network = Network(model, _forward_mode(base, trainable), checkpointing=checkpointing)
        self.optimiser = Optimiser(self.weights.named_parameters())
        self.calls = 0  # of forward_backward; dropout depends on it
        self.pending = False  # whether a gradient has not been applied yet
        self._runner = MicroBatchRunner(
            self.network,
            self.weights,
            _dropout(self.weights),
            lanes if self.network.mode == ForwardMode.FUSED else lanes.single(),
            budget=budget,
            # dropout of a prefix differs from datum to datum
            min_shared=NO_SHARING if _has_dropout(trainable) else self.network.min_shared,
            accum_dtype=accum_dtype,
        )
        self._run = lanes.run
        self._loss_lock = threading.Lock()  # a custom loss is called by one lane at a time

    @property
    def adapter(self) -> LoraAdapter:
        """The LoRA weights of a session that trains some."""
        assert isinstance(self.weights, LoraAdapter)
        return self.weights

    def attach_peers(self, peers: Peers) -> None:
        """Compute a part of each batch; the trainers of other devices compute the others."""
        self._runner.peers = peers

    def synchronise(self) -> None:
        """Send the weights to all other devices, of which there are none here."""

    def check(self, data: Sequence[Datum], loss: str | Loss, options: Options | None) -> None:
        """Raise DataError or ConfigError for bad input, before anything is computed."""
        vocabulary, context = self.network.vocab_size, self.network.context_length
        check_data(data, loss, options, vocabulary=vocabulary, context=context)

    def forward(
        self, data: Sequence[Datum], loss: str | Loss, options: Options | None
    ) -> LossOutput:
        """Return the log-probabilities of all positions and the loss."""
        self.check(data, loss, options)
        all_positions = [np.ones(len(datum.tokens), bool) for datum in data]
        logprobs = _in_order(self._runner.run(data, all_positions, MicroBatchPass.forward))
        if not isinstance(loss, str):
            metrics, _ = self._call_loss(loss, data, logprobs)
            return LossOutput(logprobs, combine_metrics([(len(data), metrics)]), ())
        metrics, _ = named_loss_grads(loss, options, data, logprobs)
        return LossOutput(logprobs, metrics, ())

    def forward_backward(
        self, data: Sequence[Datum], loss: str | Loss, options: Options | None
    ) -> LossOutput:
        """Add the gradient of the loss to the accumulated one."""
        self.check(data, loss, options)
        masks = [scored_positions(loss, datum) for datum in data]
        self.pending = True
        try:
            if isinstance(loss, str):
                logprobs, metrics = self._named_loss(data, masks, loss, options)
            elif group := int(getattr(loss, "group", 0) or 0):
                logprobs, metrics = self._custom_loss_by_group(data, masks, loss, group)
            else:
                logprobs, metrics = self._custom_loss_in_two_passes(data, masks, loss)
        # the input was accepted: part of the gradient may have been added already
        except (DataError, ConfigError) as error:
            raise RunFailed(f"the loss failed during forward_backward: {error}") from error
        self.calls += 1
        return LossOutput(_in_order(logprobs), metrics, tuple(masks))

    def step(self, adam: Adam) -> OptimStepResult:
        """Apply the accumulated gradient; raises RunFailed if there is none."""
        if not self.pending:
            raise RunFailed("optim_step has no gradient to apply: call forward_backward first")
        self._runner.all_reduce_gradients()
        norm = self._run(lambda: self._apply(adam))
        self.pending = False
        return OptimStepResult({"grad_norm": norm})

    def _apply(self, adam: Adam) -> float:
        norm = self.optimiser.step(adam)
        self.weights.write_to_model()
        return norm

    def discard_gradient(self) -> None:
        """Discard the accumulated gradient; the weights stay as they are."""
        self.optimiser.clear()
        self.pending = False

    def _named_loss(
        self, data: Sequence[Datum], masks: Sequence[Array], loss: str, options: Options | None
    ) -> tuple[list[Logprobs], Metrics]:
        if find_loss(loss)[0].per_sequence:
            return self._sequence_loss(data, masks, loss, options)

        def work(batch_pass: MicroBatchPass) -> tuple[Logprobs, float]:
            grads = NamedLossGrads(data, batch_pass.batch, loss, options)
            return batch_pass.forward_backward(grads), grads.total

        results = self._runner.run(data, masks, work, call=self.calls)
        logprobs = [batch_logprobs for batch_logprobs, _ in results]
        return logprobs, {"loss:sum": sum(total for _, total in results)}

    def _sequence_loss(
        self, data: Sequence[Datum], masks: Sequence[Array], loss: str, options: Options | None
    ) -> tuple[list[Logprobs], Metrics]:
        """Compute a named loss that couples the tokens of a datum, once all of them are scored."""

        def work(batch_pass: MicroBatchPass) -> tuple[Logprobs, float]:
            totals: list[float] = []

            def loss_fn(logprobs: Logprobs) -> LogprobGradFn:
                grads = {}
                for index in batch_pass.batch.indices:
                    pair = value_and_logprob_grads(loss, options, data[index], logprobs[index])
                    check_finite(index, len(data), *pair)
                    totals.append(float(pair[0].sum()))
                    grads[index] = pair[1]
                return PrecomputedGrads(grads, batch_pass.batch)

            return batch_pass.forward_backward(loss_fn=loss_fn), sum(totals)

        results = self._runner.run(data, masks, work, call=self.calls)
        logprobs = [batch_logprobs for batch_logprobs, _ in results]
        return logprobs, {"loss:sum": sum(total for _, total in results)}

    def _call_loss(
        self, loss: Loss, data: Sequence[Datum], logprobs: tuple[Array, ...]
    ) -> tuple[Metrics, Sequence[Array]]:
        """Return metrics and d loss / d logprob of a custom loss over the whole batch."""
        return self._run(
            lambda: custom_loss_grads(loss, data, logprobs, range(len(data)), len(data))
        )

    def _custom_loss_in_two_passes(
        self, data: Sequence[Datum], masks: Sequence[Array], loss: Loss
    ) -> tuple[list[Logprobs], Metrics]:
        """Call the loss after a forward pass of the whole batch, then run forward and backward."""
        logprobs = self._runner.run(data, masks, MicroBatchPass.forward, call=self.calls)
        metrics, grads = self._call_loss(loss, data, _in_order(logprobs))
        by_index = dict(enumerate(grads))

        def work(batch_pass: MicroBatchPass) -> None:
            batch_pass.forward_backward(PrecomputedGrads(by_index, batch_pass.batch))

        self._runner.run(data, masks, work, call=self.calls)
        return logprobs, combine_metrics([(len(data), metrics)])

    def _custom_loss_by_group(
        self, data: Sequence[Datum], masks: Sequence[Array], loss: Loss, group: int
    ) -> tuple[list[Logprobs], Metrics]:
        """Call the loss on each micro-batch, which holds whole groups, in a single pass."""

        def work(batch_pass: MicroBatchPass) -> tuple[Logprobs, tuple[int, Metrics]]:
            indices = batch_pass.batch.indices
            metrics: list[Metrics] = []

            def loss_fn(logprobs: Logprobs) -> LogprobGradFn:
                datums = [data[index] for index in indices]
                datum_logprobs = [logprobs[index] for index in indices]
                with self._loss_lock:
                    batch_metrics, grads = custom_loss_grads(
                        loss, datums, datum_logprobs, indices, len(data)
                    )
                metrics.append(batch_metrics)
                return PrecomputedGrads(dict(zip(indices, grads, strict=True)), batch_pass.batch)

            return batch_pass.forward_backward(loss_fn=loss_fn), (len(indices), metrics[0])

        results = self._runner.run(data, masks, work, group=group, call=self.calls)
        logprobs = [batch_logprobs for batch_logprobs, _ in results]
        return logprobs, combine_metrics([metrics for _, metrics in results])


def _in_order(parts: Sequence[Logprobs]) -> tuple[Array, ...]:
    """Return the arrays of all micro-batches in the order of the datums."""
    by_index = dict(chain.from_iterable(part.items() for part in parts))
    return tuple(by_index[index] for index in range(len(by_index)))


def _insert_weights(
    model: Any, trainable: Trainable, dtype: torch.dtype, initial: AdapterFolder | None
) -> LoraAdapter | FullModel:
    if isinstance(trainable, FullWeights):
        return FullModel(model, dtype)
    return _insert_adapter(model, trainable, dtype, initial)


def _dropout(weights: LoraAdapter | FullModel) -> Dropout:
    if isinstance(weights, FullModel):
        return Dropout(0.0, 0, [])
    return Dropout(weights.lora.dropout, weights.lora.seed, list(weights.layers.values()))


def _has_dropout(trainable: Trainable) -> bool:
    return isinstance(trainable, Lora) and trainable.dropout > 0


def _insert_adapter(
    model: Any, lora: Lora, dtype: torch.dtype, initial: AdapterFolder | None
) -> LoraAdapter:
    """Insert LoRA layers: new ones, or those of an adapter's folder."""
    if initial is None:
        for note in report_untrained(model, lora, target_paths(model, lora)):
            log.warning(note)
        adapter = LoraAdapter(model, lora, dtype)
        adapter.initialise()
        return adapter
    tensors = initial.tensors()
    check_fit(model, initial.config, tensors, initial.name)
    adapter = LoraAdapter(model, lora, dtype, adapted_paths(tensors, model))
    adapter.load(tensors, initial.name)
    return adapter


def _forward_mode(base: BaseModel, trainable: Trainable) -> ForwardMode:
    """Return the base's forward mode; for dropout, DoRA and all weights, one of transformers.

    Raises BackendError if there is none.
    """
    has_dropout = _has_dropout(trainable)
    of_modules = isinstance(trainable, FullWeights) or trainable.kind == "dora" or has_dropout
    if isinstance(trainable, Lora) and has_dropout and base.mode == ForwardMode.SEQUENTIAL:
        raise BackendError(
            f"dropout is {trainable.dropout}, but is not supported for a "
            f"{type(base.model).__name__}, which the local engine computes one sequence at a time: "
            "set dropout to 0"
        )
    if base.mode != ForwardMode.FUSED or not of_modules:
        return base.mode
    is_packed = base.model.config._attn_implementation == IMPLEMENTATION
    return ForwardMode.PACKED if is_packed else ForwardMode.SEQUENTIAL
