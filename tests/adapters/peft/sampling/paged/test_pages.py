"""Pages are taken and given back, and keep what they hold when there are more of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adapters.peft.sampling.kv_cache import HeadLayout
from adapters.peft.sampling.paged.kernels import PAGE
from adapters.peft.sampling.paged.pages import PagedPrompt, PagedPromptStore, PageStore
from adapters.peft.sampling.paged.row_table import RowTable

HEADS = HeadLayout(4, 2, 8, 1.0)
LAYERS = 3


@pytest.fixture
def moves() -> list[str]:
    return []


@pytest.fixture
def store(moves: list[str]) -> PageStore:
    return PageStore(HEADS, LAYERS, torch.empty(0), lambda: moves.append("moved"))


def test_taken_pages_are_distinct_and_never_the_padding(store: PageStore) -> None:
    first, second = store.take(3), store.take(5)
    assert len({*first, *second}) == 8
    assert 0 not in {*first, *second}


def test_pages_given_back_are_taken_again(store: PageStore, moves: list[str]) -> None:
    pages = store.take(4)
    store.give_back(pages)
    assert sorted(store.take(4)) == sorted(pages)
    assert moves == ["moved"]


def test_prompts_are_read_as_written_after_growth(store: PageStore) -> None:
    rng = np.random.default_rng(0)
    lengths = [PAGE + 7, 5]
    prompts = [PagedPrompt(np.arange(length), store.take(-(-length // PAGE))) for length in lengths]
    writer = PagedPromptStore(store, prompts)
    written = torch.from_numpy(rng.normal(size=(LAYERS, 2, max(lengths), 4, 8))).float()
    for layer in range(LAYERS):
        writer.write_prompts(layer, [0, 1], written[layer])
    store.take(100)
    for row, prompt in enumerate(prompts):
        slots = np.arange(lengths[row])
        read = store.read(np.array(prompt.pages), slots)
        assert torch.equal(read, written[:, row, : lengths[row]])


def test_rows_keep_their_pages_when_others_are_removed(store: PageStore) -> None:
    table = RowTable(torch.device("cpu"))
    table.reserve(4, 2)
    prompts = [PagedPrompt(np.arange(length), store.take(1)) for length in (3, 9)]
    table.append([prompts[0], prompts[1], prompts[1]])
    table.start_step(store)
    table.finish_step()
    pages = [table.completion_pages(row) for row in range(3)]
    assert len({page for of_row in pages for page in of_row}) == 3
    table.retain([0, 2])
    assert [table.completion_pages(row) for row in range(2)] == [pages[0], pages[2]]
    assert [table.length(row) for row in range(2)] == [4, 10]
    table.upload(4)
    assert table.rows[:, 2:].tolist() == [[0, 0]] * 4
    assert table.table[2:].tolist() == [[0] * table.width] * 2
