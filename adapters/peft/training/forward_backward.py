"""Micro-batches through a network and back again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import nn

from adapters.peft.batching.micro_batch import MicroBatch, micro_batch
from adapters.peft.batching.prefix_groups import Family, gathered
from adapters.peft.model.logprob_head import Scored, Slope, score, trained_of
from adapters.peft.model.lora_dropout import Dropout
from adapters.peft.model.network import Network
from adapters.peft.model.shared_prefix import Begun
from adapters.peft.runtime.lanes import Lanes
from kitchen.types import Array, Datum

R = TypeVar("R")
Logprobs = dict[int, Array]  # of each datum by its place in the batch, in the shape of its targets
Judge = Callable[[Logprobs], Slope]


class Passes:
    """What all calls of one session have in common."""

    def __init__(
        self,
        network: Network,
        parameters: Sequence[nn.Parameter],
        dropout: Dropout,
        lanes: Lanes,
        *,
        budget: int,
        least: int,
        high: torch.dtype,
    ) -> None:
        self.network, self.dropout, self.high, self.least = network, dropout, high, least
        self._parameters, self._lanes, self._budget = (
            list(parameters),
            lanes,
            max(budget // lanes.count, 1),
        )
        of_head = set(map(id, trained_of(network.head)))
        self.of_body = [one for one in self._parameters if id(one) not in of_head]

    def each(
        self,
        data: Sequence[Datum],
        masks: Sequence[Array],
        work: Callable[[Pass], R],
        *,
        group: int = 1,
        call: int | None = None,
    ) -> list[R]:
        """`work` on all micro-batches, side by side; runs of `group` datums stay together.

        What is too long for one micro-batch and begins alike goes through a lane bit by bit, the
        beginning once. Gradients add up lane by lane, and come to what is there once all have gone
        well, in the order of the lanes: the same sums each time. `call` counts forward_backwards,
        for dropout; without it there is none.
        """
        families, alone = gathered(
            [datum.tokens for datum in data],
            self._budget,
            group=group,
            least=self.least,
            lanes=self._lanes.count,
            carries=self.network.decoder is not None,
        )
        sums = [Sums() for _ in range(self._lanes.count)]

        def go(lane: int, family: Family) -> list[R]:
            begun = (
                self.network.begun(data[family.runs[0][0]].tokens[: family.begins])
                if family.begins
                else None
            )
            found = [
                work(
                    Pass(
                        self,
                        micro_batch(
                            data, masks, run, self.network.device, self.least, family.begins
                        ),
                        data,
                        call,
                        sums[lane],
                        begun,
                    )
                )
                for run in family.runs
            ]
            if begun is not None:
                sums[lane].add(self.of_body, begun.back(self.of_body))
            return found

        done = [*self._lanes.in_parts(go, families, part=1), *self._lanes.in_parts(go, alone)]
        for found in sums:
            for parameter in self._parameters:
                if (gradient := found.of.get(parameter)) is not None:
                    parameter.grad = (
                        gradient if parameter.grad is None else parameter.grad.add_(gradient)
                    )
        return [found for some in done for found in some]


class Sums:
    """Gradients by weight, added up."""

    def __init__(self) -> None:
        self.of: dict[nn.Parameter, torch.Tensor] = {}

    def add(
        self, parameters: Sequence[nn.Parameter], gradients: Sequence[torch.Tensor | None]
    ) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                before = self.of.get(parameter)
                self.of[parameter] = gradient if before is None else before.add_(gradient)


class Pass:
    """One micro-batch on its way."""

    def __init__(
        self,
        passes: Passes,
        batch: MicroBatch,
        data: Sequence[Datum],
        call: int | None,
        sums: Sums,
        begun: Begun | None,
    ) -> None:
        self.batch = batch
        self._passes, self._data, self._call, self._sums, self._begun = (
            passes,
            data,
            call,
            sums,
            begun,
        )

    def there(self) -> Logprobs:
        """The log-probabilities alone."""
        with torch.no_grad(), self._dropping():
            return self._spread(self._score(self._states()))

    def and_back(self, slope: Slope | None = None, judge: Judge | None = None) -> Logprobs:
        """The gradient too, along a slope that is known, or that a judge gives who has seen the
        log-probabilities.
        """
        with self._dropping():
            states = self._states()
            known = states.detach()
            if judge is not None:
                slope = judge(self._spread(self._score(known)))  # the graph waits
            scored = self._score(known, slope)
            if states.requires_grad:
                self._back(states, scored.states)
            self._sums.add(trained_of(self._passes.network.head), scored.head)
            return self._spread(scored)

    def _back(self, states: torch.Tensor, gradient: torch.Tensor | None) -> None:
        body, begun = self._passes.of_body, self._begun
        leaves = [] if begun is None else begun.leaves
        found = torch.autograd.grad(states, [*body, *leaves], gradient, allow_unused=True)
        self._sums.add(body, found[: len(body)])
        if begun is not None:
            begun.add(found[len(body) :])

    def _dropping(self) -> Any:
        if self._call is None:
            return nullcontext()
        return self._passes.dropout.during(self._call, self.batch.rows)

    def _states(self) -> torch.Tensor:
        """(U, H) of the scored tokens, also of what they begin with; where there are none, the
        model is not asked.
        """
        if not len(self.batch.where):
            return torch.zeros(0, 1, device=self.batch.where.device)
        states = self._passes.network.hidden(self.batch.layout, self._begun)
        return states.index_select(0, self.batch.where)

    def _score(self, states: torch.Tensor, slope: Slope | None = None) -> Scored:
        return score(self._passes.network.head, states, self.batch, self._passes.high, slope)

    def _spread(self, scored: Scored) -> Logprobs:
        return {
            index: self.batch.spread(row, scored.logprobs, self._data[index])
            for row, index in enumerate(self.batch.indices)
        }
