"""A pipeline of thinker gives the same numbers on the local engine and through a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")
pytest.importorskip("torch")

from safetensors.numpy import load_file

from adapters.fake.blobs import FakeBlobs
from adapters.local.blobs import LocalBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen.runs.store import read_journal, read_run
from tests.support.commands import in_folder
from tests.support.pipeline_files import change, thinker, write_project
from tests.support.recording import without_clocks
from tests.support.tinker_server import KEY, serving
from tests.support.tiny_model import tiny_model


def metrics(run: str) -> list[dict[str, Any]]:
    return [without_clocks(row) for row in read_journal(LocalBlobs("runs"), run, "metrics")]


@pytest.mark.slow
def test_both_backends_give_the_same_weights_and_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 16, because the alpha of a server is always 32."""
    write_project(tmp_path)
    model = f"path:{tiny_model(tmp_path / 'tiny')}"
    change(tmp_path / "lora.yaml", "name: tiny", f"name: {model}")
    change(tmp_path / "lora.yaml", "r: 4", "r: 16")
    evaluation = f"base_model: {model}\n  max_new_tokens: 24"
    change(tmp_path / "pipeline.yaml", "base_model: tiny", evaluation)
    hub, blobs = LocalHub(cache=str(tmp_path / "cache")), FakeBlobs()
    with in_folder(tmp_path), serving(PeftTraining(hub, blobs), blobs, hub, [model]) as served:
        monkeypatch.setenv("TINKER_BASE_URL", served.url)
        monkeypatch.setenv("TINKER_API_KEY", KEY)
        weights = {}
        for backend in ("hf_peft", "tinker"):
            result = thinker("run", "--backend", backend, "--skip-validation", "--name", backend)
            assert result.exit_code == 0, result.output
            weights[backend] = load_file("checkpoints/claims/adapter_model.safetensors")
        local, remote = metrics("hf_peft"), metrics("tinker")
        assert [row["stage"] for row in local] == [row["stage"] for row in remote]
        for mine, theirs in zip(remote, local, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)
        assert weights["hf_peft"].keys() == weights["tinker"].keys()
        for name, array in weights["hf_peft"].items():
            assert np.allclose(array, weights["tinker"][name], atol=1e-4), name
        again = thinker("eval", "--backend", "tinker", "--skip-validation", "--name", "again")
        assert again.exit_code == 0, again.output
        assert read_run(LocalBlobs("runs"), "again")["facts"]["weights"] == "run:tinker@final"
        for name, value in read_run(LocalBlobs("runs"), "again")["metrics"].items():
            # an evaluation has no training, of which some targets are
            if name.startswith("held_out/") and "/targets_" not in name:
                assert value == pytest.approx(remote_value(remote, name), abs=1e-9), name


def remote_value(rows: list[dict[str, Any]], name: str) -> Any:
    return next(row[name] for row in rows if name in row)
