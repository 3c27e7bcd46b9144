"""Forward and backward passes of micro-batches through a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

from adapters.peft.batching.distribution import distribute
from adapters.peft.batching.micro_batch import MicroBatch, build_micro_batch
from adapters.peft.batching.prefix_groups import PrefixGroup, group_by_prefix
from adapters.peft.model.frozen_head import choose_score
from adapters.peft.model.gradient_sums import GradientSums
from adapters.peft.model.logprob_head import HeadOutput, LogprobGradFn, trainable_parameters
from adapters.peft.model.lora_dropout import Dropout
from adapters.peft.model.network import Network
from adapters.peft.model.shared_prefix import SharedPrefix
from adapters.peft.model.trained_weights import TrainedWeights
from adapters.peft.runtime.devices.peers import Peers
from adapters.peft.runtime.lanes import Lanes
from kitchen.types import Array, Datum

R = TypeVar("R")
Logprobs = Mapping[int, Array]  # by the index of each datum, in the shape of its targets
LossFn = Callable[[Logprobs], LogprobGradFn]
Gradients = GradientSums[nn.Parameter]


class MicroBatchRunner:
    """Cuts batches into micro-batches and runs them in lanes; one for all calls of a session."""

    def __init__(
        self,
        network: Network,
        weights: TrainedWeights,
        dropout: Dropout,
        lanes: Lanes,
        *,
        budget: int,
        min_shared: int,
        accum_dtype: torch.dtype,
    ) -> None:
        """`budget`: tokens of the micro-batches of all lanes together."""
        self.network, self.dropout, self.accum_dtype = network, dropout, accum_dtype
        self.min_shared = min_shared
        self.peers: Peers | None = None  # the devices that compute the rest of each batch
        # gradients of the first are summed in the second; without master copies they are the same
        self._parameters = list(weights.in_model())
        self._updated = list(weights.named_parameters().values())
        self._lanes = lanes
        self._budget = max(budget // lanes.count, 1)
        self.score = choose_score(network.head)
        of_body = set(map(id, network.model.base_model.parameters()))  # embeddings may be tied
        self.body_parameters = [p for p in self._parameters if id(p) in of_body]

    def run(
        self,
        data: Sequence[Datum],
        masks: Sequence[Array],
        work: Callable[[MicroBatchPass], R],
        *,
        group: int = 1,
        call: int | None = None,
    ) -> list[R]:
        """Return the results of `work` on all micro-batches; runs of `group` datums stay together.

        Sequences with a long common prefix that do not fit into one micro-batch go through one lane
        micro-batch by micro-batch, and their prefix once. Gradients are summed in each lane, and
        added to those of the parameters once all lanes have succeeded, in the order of the lanes,
        so that sums are reproducible. `call` counts forward_backwards, for dropout; without it
        there is no dropout.
        """
        groups, singles = self._micro_batches(data, group)
        sums = [Gradients(self.accum_dtype) for _ in range(self._lanes.count)]

        def run_group(lane: int, prefix_group: PrefixGroup) -> list[R]:
            return self._run_group(data, masks, work, prefix_group, sums[lane], call)

        results = [
            *self._lanes.map_in_chunks(run_group, groups, chunk=1),
            *self._lanes.map_in_chunks(run_group, singles),
        ]
        for of_lane in sums:
            self._add_to_parameters(of_lane)
        of_datums = list(chain.from_iterable(results))
        return of_datums if self.peers is None else self.peers.gather(of_datums)

    def all_reduce_gradients(self) -> None:
        """Sum the gradients of all parameters over the devices, if there are several."""
        if self.peers is None:
            return
        gradients = []
        for parameter in self._updated:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        self.peers.all_reduce(gradients)

    def _micro_batches(
        self, data: Sequence[Datum], group: int
    ) -> tuple[list[PrefixGroup], list[PrefixGroup]]:
        """Cut the batch, or the part of it that this device computes, into micro-batches."""
        tokens = [datum.tokens for datum in data]
        members = list(range(len(tokens)))
        if self.peers is not None:
            members = distribute(tokens, self.peers.count, group=group)[self.peers.rank]
        groups, singles = group_by_prefix(
            [tokens[index] for index in members],
            self._budget,
            group=group,
            min_shared=self.min_shared,
            lanes=self._lanes.count,
            carries_prefix=self.network.decoder is not None,
        )
        if self.peers is None:
            return groups, singles
        return [part.of(members) for part in groups], [part.of(members) for part in singles]

    def _run_group(
        self,
        data: Sequence[Datum],
        masks: Sequence[Array],
        work: Callable[[MicroBatchPass], R],
        group: PrefixGroup,
        sums: Gradients,
        call: int | None,
    ) -> list[R]:
        length, device, prefix = group.prefix_length, self.network.device, None
        if length:
            prefix = self.network.shared_prefix(data[group.micro_batches[0][0]].tokens[:length])
        results = []
        for indices in group.micro_batches:
            batch = build_micro_batch(data, masks, indices, device, self.min_shared, length)
            results.append(work(MicroBatchPass(self, batch, data, call, sums, prefix)))
        if prefix is not None:
            sums.add(self.body_parameters, prefix.backward(self.body_parameters))
        return results

    def _add_to_parameters(self, sums: Gradients) -> None:
        for parameter, updated in zip(self._parameters, self._updated, strict=True):
            gradient = sums.totals.pop(parameter, None)
            if gradient is None:
                continue
            if updated.grad is None:
                updated.grad = gradient
            else:
                updated.grad.add_(gradient)


class MicroBatchPass:
    """The forward and backward passes of one micro-batch."""

    def __init__(
        self,
        runner: MicroBatchRunner,
        batch: MicroBatch,
        data: Sequence[Datum],
        call: int | None,
        sums: Gradients,
        prefix: SharedPrefix | None,
    ) -> None:
        self.batch = batch
        self._runner, self._data, self._call = runner, data, call
        self._sums, self._prefix = sums, prefix

    def forward(self) -> Logprobs:
        """Return the log-probabilities."""
        with torch.no_grad(), self._dropout():
            return self._unpack(self._score(self._states()))

    def forward_backward(
        self, grad_fn: LogprobGradFn | None = None, loss_fn: LossFn | None = None
    ) -> Logprobs:
        """Add the gradient to the sums of the lane, and return the log-probabilities.

        d loss / d logprob comes from `grad_fn`, or from what `loss_fn` returns for the
        log-probabilities of the whole micro-batch.
        """
        with self._dropout():
            states = self._states()
            detached = states.detach()
            if loss_fn is not None:
                # the graph of the body stays in memory meanwhile
                grad_fn = loss_fn(self._unpack(self._score(detached)))
            output = self._score(detached, grad_fn)
            if states.requires_grad:
                self._backward(states, output.dstates)
            self._sums.add(trainable_parameters(self._runner.network.head), output.dhead)
            return self._unpack(output)

    def _backward(self, states: torch.Tensor, dstates: torch.Tensor | None) -> None:
        body = self._runner.body_parameters
        leaves = [] if self._prefix is None else self._prefix.leaves
        gradients = torch.autograd.grad(states, [*body, *leaves], dstates, allow_unused=True)
        self._sums.add(body, gradients[: len(body)])
        if self._prefix is not None:
            self._prefix.accumulate(gradients[len(body) :])

    def _dropout(self) -> AbstractContextManager[None]:
        if self._call is None:
            return nullcontext()
        return self._runner.dropout.active(self._call, self.batch.datum_lengths)

    def _states(self) -> torch.Tensor:
        """(U, H) of the scored tokens, those of the prefix included.

        The model is not run if there are none.
        """
        if not len(self.batch.scored_slots):
            return torch.zeros(0, 1, device=self.batch.scored_slots.device)
        states = self._runner.network.hidden(self.batch.layout, self._prefix)
        return states.index_select(0, self.batch.scored_slots)

    def _score(self, states: torch.Tensor, grad_fn: LogprobGradFn | None = None) -> HeadOutput:
        head, accum_dtype = self._runner.network.head, self._runner.accum_dtype
        return self._runner.score(head, states, self.batch, accum_dtype, grad_fn)

    def _unpack(self, output: HeadOutput) -> Logprobs:
        return {
            index: self.batch.unpack(row, output.logprobs, self._data[index])
            for row, index in enumerate(self.batch.indices)
        }
