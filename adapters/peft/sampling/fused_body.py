"""Decoding with the layers of a decoder computed by hand."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from adapters.peft.model import tiled_attention as attention
from adapters.peft.model.decoder import Decoder
from adapters.peft.runtime.cpu import multiplied_in
from adapters.peft.runtime.worker import stop_if_closed
from adapters.peft.sampling.conversation_cache import MOST, Keys
from adapters.peft.sampling.frozen_linear import Fixed
from adapters.peft.sampling.kv_grid import Grid, Heads, arrange, key, pick, picked
from adapters.peft.sampling.prefill import Place, Reading, batches
from kitchen.types import Tokens

# of prompts by `key`: states (H,), and keys and values
Held = dict[bytes, tuple[torch.Tensor, torch.Tensor]]


class Fused:
    """The rows of a batch, each of which has read a prompt and writes after it, all of them a token
    at a time.
    """

    joined = 0.75  # not at once when one has ended: prompts are read faster several together

    def __init__(
        self,
        decoder: Decoder,
        head: Fixed,
        budget: int,
        begun: dict[bytes, Keys | None],
        held: Held | None = None,
    ) -> None:
        """`budget`: tokens of prompts that are read together; `begun`: by prompts, what is known,
        until it is read; `held`: prompts that need not be read.
        """
        layer = decoder.layers[0]
        self._decoder, self._head, self._budget, self._device = (
            decoder,
            head,
            budget,
            head.weight.device,
        )
        self._heads = Heads(layer.heads, layer.groups, layer.width, layer.scale)
        self._begun, self._room = begun, MOST * budget  # tokens whose keys may be given back
        self._grids: list[Grid] = []
        self._given = dict(held or {})  # until they are asked for
        self._held = Held()
        # (R,) of the next token of each row
        self._positions = torch.empty(0, dtype=torch.int64, device=self._device)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        # not rounded, as where they are scored
        return self._head.forward(states.to(multiplied_in(states)))[0]

    def read(self, prompts: Sequence[Tokens], later: Collection[bytes]) -> torch.Tensor:
        """A row more for each of the prompts; returns their (r, H) states. What is wanted `later`
        again is kept.
        """
        places = self._open(prompts)
        self._held |= {which: self._given.pop(which) for which in places if which in self._given}
        states = {which: state for which, (state, _) in self._held.items() if which in places}
        for which in states:
            place, found = places[which], self._held[which][1]
            for layer, read in enumerate(found):
                place.grid.put(layer, [place.number], read[None])
        unread = {which: place for which, place in places.items() if which not in states}
        states |= self._read(unread)
        new = {
            which: (states[which], place.grid.take(place.number))
            for which, place in places.items()
            if which in later
        }
        self._held = {which: held for which, held in (self._held | new).items() if which in later}
        self._look()
        return torch.stack([states[key(prompt)] for prompt in prompts])

    def hold(self, prompts: Sequence[Tokens]) -> Held:
        """What other bodies need of them to write after them without reading them."""
        with torch.inference_mode():
            self.read(prompts, {key(prompt) for prompt in prompts})
        return self._held

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """(R,) newest tokens of the rows to their (R, H) states."""
        stop_if_closed()
        x = self._decoder.embed(ids)
        rope = self._decoder.rope(x, self._positions)
        self._positions = self._positions + 1
        for grid in self._grids:
            grid.advance()
        for number, layer in enumerate(self._decoder.layers):
            qkv = layer.attend_to(x, rope)
            found = [grid.attend(number, qkv) for grid in self._grids]
            attended = pick(found[0] if len(found) == 1 else torch.cat(found), self._back)
            x = layer.finish(x, attended.view(len(x), -1))
        return self._decoder.norm.alone(x)

    def keep(self, staying: Sequence[int]) -> None:
        """These rows alone go on, in this order."""
        number = np.full(len(self._positions), -1)
        number[list(staying)] = np.arange(len(staying))
        self._positions = self._positions[
            torch.tensor(staying, dtype=torch.int64, device=self._device)
        ]
        self._grids = [grid for grid in self._grids if grid.keep(number)]
        self._look()

    def keys(self, row: int) -> Keys | None:
        """Of what a row has read and written; None where there is no more room for it, so that it
        is read again.
        """
        grid, (prompt, lane) = next(
            (grid, place) for grid in self._grids if (place := grid.place(row)) is not None
        )
        if (size := grid.length(prompt)) > self._room:
            return None
        self._room -= size
        return grid.whole(prompt, lane)

    def _open(self, prompts: Sequence[Tokens]) -> dict[bytes, Place]:
        """Grids for these prompts, whose rows are numbered on; returns where the keys of each will
        lie.
        """
        count, places = len(self._positions), dict[bytes, Place]()
        for numbers in arrange(prompts):
            own = [prompts[first] for first in numbers[:, 0]]
            rows = np.where(numbers >= 0, numbers + count, -1)
            grid = Grid(
                self._heads,
                len(self._decoder.layers),
                rows,
                [len(each) for each in own],
                self._head.weight,
            )
            self._grids.append(grid)
            places |= {
                key(prompt): Place(prompt, grid, number, self._begun.pop(key(prompt), None))
                for number, prompt in enumerate(own)
            }
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        self._positions = torch.cat([self._positions, lengths])
        return places

    def _look(self) -> None:
        """Where in what the grids give the answer to each head of each row lies."""
        back = np.empty((len(self._positions), self._heads.queries), np.int64)
        start = 0
        for grid in self._grids:
            rows, lies = grid.back
            back[rows] = lies + start
            start += grid.rows.size * self._heads.queries
        self._back = picked(back, self._device)

    def _read(self, places: dict[bytes, Place]) -> dict[bytes, torch.Tensor]:
        """The (H,) states after some prompts, whose keys and values go into their places."""
        states = dict[bytes, torch.Tensor]()
        for some in batches(list(places.values()), self._budget):
            states |= zip([key(place.prompt) for place in some], self._read_some(some), strict=True)
        return states

    def _read_some(self, places: Sequence[Place]) -> torch.Tensor:
        """(P, H); of the last layer no more is computed than that."""
        reading = Reading(places, self._device)
        x = self._decoder.embed(reading.layout.ids[reading.fresh])
        rope = self._decoder.rope(x, reading.layout.positions[reading.fresh])
        for number, layer in enumerate(self._decoder.layers):
            stop_if_closed()
            qkv = reading.whole(number, layer.attend_to(x, rope))
            for grid, prompts, lies in reading.spots:
                read = qkv[:, layer.heads :].index_select(0, lies.flatten())
                grid.put(number, prompts, read.view(*lies.shape, *read.shape[1:]))
            attended = attention.forward(*layer.split(qkv), reading.layout, layer.scale).view(
                len(qkv), -1
            )
            if number == len(self._decoder.layers) - 1:
                x, attended = x[reading.last], attended[reading.ends]
            else:
                attended = attended[reading.fresh]
            x = layer.finish(x, attended)
        return self._decoder.norm.alone(x)
