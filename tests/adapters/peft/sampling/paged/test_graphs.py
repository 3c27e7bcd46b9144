"""Recorded calls stand in for CUDA graphs: they replay what was recorded, on the same tensors."""

from __future__ import annotations

import pytest
import torch

from adapters.peft.sampling.paged.graphs import Graphs
from kitchen.errors import RunFailed


def test_replays_read_the_current_values_of_buffers() -> None:
    x, out = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.zeros(2)
    graphs = Graphs(x.device)

    def work() -> None:
        doubled = x.view(2, 2) * 2
        doubled[0].add_(1)
        out.copy_(doubled.sum(1))

    graphs.record("sum", work)
    assert out.tolist() == [8, 14]
    x.copy_(torch.tensor([0.0, 0.0, 5.0, 5.0]))
    graphs.replay("sum")
    assert out.tolist() == [2, 20]


def test_decisions_of_python_are_fixed_by_the_recording() -> None:
    out, size = torch.zeros(1), [1.0]
    graphs = Graphs(out.device)
    graphs.record("add", lambda: out.add_(size[0]))
    size[0] = 100.0
    graphs.replay("add")
    assert out.item() == 2


def test_values_cannot_be_read_while_recording() -> None:
    x = torch.ones(3)
    with pytest.raises(RunFailed, match="read a value"):
        Graphs(x.device).record("item", lambda: x.sum().item())


def test_cleared_graphs_are_recorded_again() -> None:
    x = torch.zeros(1)
    graphs = Graphs(x.device)
    graphs.record("add", lambda: x.add_(1))
    assert "add" in graphs
    graphs.clear()
    assert "add" not in graphs
