"""Attention over keys that completions share, against softmax(scale · q k) v for each head by
itself.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adapters.peft.sampling.kv_grid import HeadLayout, KVGrid

# not what torch's kernel takes by itself, 0.5
HEADS = HeadLayout(queries=6, groups=2, width=4, scale=0.9)
LAYERS = 2


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize(
    ("rows", "lengths"), [([[0], [1]], (5, 3)), ([[0], [1]], (4, 4)), ([[0, 2], [1, -1]], (5, 3))]
)
def test_a_grid_attends_as_its_heads_say(
    rows: list[list[int]], lengths: tuple[int, ...], kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "adapters.peft.sampling.kv_grid.SDPA_DEVICES", {"cpu"} if kernel else {"cuda"}
    )
    generator = torch.Generator().manual_seed(0)
    numbers, count = np.array(rows), max(map(max, rows)) + 1
    grid = KVGrid(HEADS, LAYERS, numbers, lengths, torch.empty(0))
    read = torch.randn(
        LAYERS, len(lengths), max(lengths), 2 * HEADS.groups, HEADS.width, generator=generator
    )
    for layer in range(LAYERS):
        grid.write_prompts(layer, [0, 1], read[layer])
    written = [list[torch.Tensor]() for _ in range(LAYERS)]
    for _ in range(3):
        grid.reserve_token()
        for layer in range(LAYERS):
            qkv = torch.randn(
                count, HEADS.queries + 2 * HEADS.groups, HEADS.width, generator=generator
            )
            written[layer].append(qkv[:, HEADS.queries :])
            got = grid.attend(layer, qkv)
            assert sorted(grid.output_index[0]) == list(range(count))
            assert grid.find_row(count) is None
            for row, lies in zip(*grid.output_index, strict=True):
                place = grid.find_row(row)
                assert place is not None
                assert numbers[place] == row
                prompt = place[0]
                seen = torch.cat(
                    [
                        read[layer, prompt, : lengths[prompt]],
                        *(one[row, None] for one in written[layer]),
                    ]
                )
                torch.testing.assert_close(got[lies], plainly(qkv[row, : HEADS.queries], seen))
                torch.testing.assert_close(grid.sequence_kv(*place)[layer], seen, atol=0, rtol=0)


def plainly(queries: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """(queries, D), and (S, 2 · groups, D) keys and values, to (queries, D)."""
    keys, values = (half.repeat_interleave(HEADS.shared, 1) for half in seen.chunk(2, 1))
    weights = torch.softmax(HEADS.scale * torch.einsum("hd,shd->hs", queries, keys), -1)
    return torch.einsum("hs,shd->hd", weights, values)
