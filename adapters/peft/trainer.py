"""One set of LoRA weights under training, call by call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from adapters.peft.base import Base
from adapters.peft.batches import MicroBatch, micro_batch
from adapters.peft.dropout import Dropout
from adapters.peft.head import Slope, score
from adapters.peft.lora import Adapter
from adapters.peft.network import Network, Way
from adapters.peft.optimiser import Optimiser
from adapters.peft.packing import NEVER, pack
from adapters.peft.slopes import GivenSlopes, NamedSlopes, check_finite, combined, own_slopes
from kitchen.datums import check_data
from kitchen.errors import BackendError, ConfigError, DataError, RunFailed
from kitchen.losses import Options, scored, sloped
from kitchen.types import Adam, Array, Datum, Lora, Loss, LossOutput, Stepped


@dataclass
class _Answer:
    """What comes back of a batch, as its micro-batches come in."""

    logprobs: dict[int, Array] = field(default_factory=dict)
    metrics: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)

    def output(self, masks: Sequence[Array] = ()) -> LossOutput:
        ordered = tuple(self.logprobs[index] for index in range(len(self.logprobs)))
        return LossOutput(ordered, combined(self.metrics), tuple(masks))


class Trainer:
    """Gradients add up over calls until a step; every call is synchronous."""

    def __init__(self, base: Base, lora: Lora, high: torch.dtype, budget: int, *, checkpointing: bool = False) -> None:
        self.base, self.lora, self.high, self._budget = base, lora, high, budget
        model = base.tree()
        self.adapter = Adapter(model, lora, high)
        self.adapter.start()
        self.network = Network(model, _way(base, lora), checkpointing=checkpointing)
        self.optimiser = Optimiser(self.adapter.named())
        self.calls = 0  # of forward_backward, which dropout follows
        self.pending = False  # a gradient not yet stepped along
        self._least = NEVER if lora.dropout else self.network.least  # what is dropped of a beginning differs by datum
        self._dropout = Dropout(lora.dropout, lora.seed, list(self.adapter.layers.values()))

    def check(self, data: Sequence[Datum], loss: str | Loss, options: Options | None) -> None:
        """Raises DataError or ConfigError before anything is computed."""
        check_data(data, loss, options, vocabulary=self.network.vocabulary, context=self.network.context)

    def forward(self, data: Sequence[Datum], loss: str | Loss, options: Options | None) -> LossOutput:
        self.check(data, loss, options)
        answer = self._scored_everywhere(data)
        logprobs = [answer.logprobs[index] for index in range(len(data))]
        if not isinstance(loss, str):
            answer.metrics = [(len(data), own_slopes(loss, data, logprobs, range(len(data)), len(data))[0])]
            return answer.output()
        total = 0.0
        for index, (datum, logprob) in enumerate(zip(data, logprobs, strict=True)):
            value, slope = sloped(loss, options, datum, logprob)
            check_finite(index, len(data), value, slope)
            total += float(value.sum())
        answer.metrics = [(len(data), {"loss:sum": total})]
        return answer.output()

    def backward(self, data: Sequence[Datum], loss: str | Loss, options: Options | None) -> LossOutput:
        self.check(data, loss, options)
        masks = [scored(loss, datum) for datum in data]
        self.pending = True
        try:
            answer = self._gradient(data, masks, loss, options)
        except (DataError, ConfigError) as error:  # not refused input any more: a part may have been added
            raise RunFailed(f"the loss failed on the way: {error}") from error
        self.calls += 1
        return answer.output(masks)

    def _gradient(
        self, data: Sequence[Datum], masks: Sequence[Array], loss: str | Loss, options: Options | None
    ) -> _Answer:
        if isinstance(loss, str):
            return self._named(data, masks, loss, options)
        if group := int(getattr(loss, "group", 0) or 0):
            return self._own_in_runs(data, masks, loss, group)
        return self._own_in_two_passes(data, masks, loss)

    def step(self, adam: Adam) -> Stepped:
        if not self.pending:
            raise RunFailed("optim_step has no gradient to step along: call forward_backward first")
        norm = self.optimiser.step(adam)
        self.pending = False
        return Stepped({"grad_norm": norm})

    def _named(self, data: Sequence[Datum], masks: Sequence[Array], loss: str, options: Options | None) -> _Answer:
        answer = _Answer()
        for batch in self._cut(data, masks):
            slopes = NamedSlopes(data, batch, loss, options)
            self._pass(data, batch, answer, slopes)
            answer.metrics.append((len(batch.indices), {"loss:sum": slopes.total}))
        return answer

    def _own_in_two_passes(self, data: Sequence[Datum], masks: Sequence[Array], loss: Loss) -> _Answer:
        answer = _Answer()
        batches = self._cut(data, masks)
        for batch in batches:
            self._pass(data, batch, answer)
        logprobs = [answer.logprobs[index] for index in range(len(data))]
        metrics, slopes = own_slopes(loss, data, logprobs, range(len(data)), len(data))
        answer.metrics = [(len(data), metrics)]
        for batch in batches:
            self._pass(data, batch, _Answer(), GivenSlopes(dict(enumerate(slopes)), batch))
        return answer

    def _own_in_runs(self, data: Sequence[Datum], masks: Sequence[Array], loss: Loss, group: int) -> _Answer:
        """One pass: the graph of a micro-batch waits while its whole runs are judged."""
        answer = _Answer()
        for batch in self._cut(data, masks, group):
            with self._dropout.during(self.calls, batch.rows):
                states = self._states(batch)
                self._keep(data, batch, answer, score(self.network.head, states.detach(), batch, self.high))
                metrics, slopes = own_slopes(loss, [data[i] for i in batch.indices],
                                             [answer.logprobs[i] for i in batch.indices], batch.indices, len(data))
                answer.metrics.append((len(batch.indices), metrics))
                given = GivenSlopes(dict(zip(batch.indices, slopes, strict=True)), batch)
                score(self.network.head, states, batch, self.high, given)
        return answer

    def _scored_everywhere(self, data: Sequence[Datum]) -> _Answer:
        answer = _Answer()
        for batch in self._cut(data, [np.ones(len(datum.tokens), bool) for datum in data]):
            with torch.no_grad():
                states = self._states(batch)
            self._keep(data, batch, answer, score(self.network.head, states, batch, self.high))
        return answer

    def _pass(self, data: Sequence[Datum], batch: MicroBatch, answer: _Answer, slope: Slope | None = None) -> None:
        """Through the model, and back where there is a slope."""
        with self._dropout.during(self.calls, batch.rows):
            with torch.set_grad_enabled(slope is not None):
                states = self._states(batch)
            self._keep(data, batch, answer, score(self.network.head, states, batch, self.high, slope))

    def _states(self, batch: MicroBatch) -> torch.Tensor:
        """(U, H) of the scored tokens; where there are none, the model is not asked."""
        if not len(batch.where):
            return torch.zeros(0, 1, device=batch.where.device)
        return self.network.hidden(batch.layout).index_select(0, batch.where)

    def _cut(self, data: Sequence[Datum], masks: Sequence[Array], group: int = 1) -> list[MicroBatch]:
        packed = pack([datum.tokens for datum in data], self._budget, group=group, least=self._least)
        return [micro_batch(data, masks, indices, self.network.device, self._least) for indices in packed]

    @staticmethod
    def _keep(data: Sequence[Datum], batch: MicroBatch, answer: _Answer, logprobs: Array) -> None:
        for row, index in enumerate(batch.indices):
            answer.logprobs[index] = batch.spread(row, logprobs, data[index])


def _way(base: Base, lora: Lora) -> Way:
    """Dropout needs the layers one by one; raises BackendError where it cannot be."""
    if not lora.dropout or base.way == Way.TILED:
        return base.way
    if base.way == Way.ALONE:
        raise BackendError(f"lora dropout is {lora.dropout}, and a {type(base.model).__name__} reads one sequence at a "
                           "time here, to which dropout has not been fitted; set it to 0")
    return Way.TILED
