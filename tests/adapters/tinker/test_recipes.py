"""A recipe gives the same metrics directly and through a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from tests.support.fake_runs import run_recipe
from tests.support.killed_runs import RECIPES
from tests.support.tinker_server import ByteTinker, serving

# one recipe for each way of using a server: named losses, custom losses, sampling with a policy
# loss, and top log-probabilities of a teacher
QUICK = ("sl_basic", "dpo", "rl", "distillation")
LOCAL_ONLY = ("sl_basic_full",)  # servers train LoRA weights


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("ahead", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in RECIPES
        if name not in LOCAL_ONLY
    ],
)
def test_metrics_equal_those_of_a_direct_run(name: str, ahead: int) -> None:
    server_blobs, blobs, alone = FakeBlobs(), FakeBlobs(), FakeBlobs()
    with serving(FakeTraining(server_blobs), server_blobs) as served:
        through: list[dict[str, Any]] = run_recipe(
            name, ByteTinker(blobs, served.url), blobs, ahead=ahead
        )
    direct = run_recipe(name, FakeTraining(alone), alone, ahead=ahead)
    assert [row["stage"] for row in through] == [row["stage"] for row in direct]
    for mine, theirs in zip(through, direct, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("name", ["sl_basic", "dpo", "rl"])
def test_metrics_equal_over_the_local_engine(name: str, tmp_path: Path) -> None:
    """A Llama of two layers in float32; rank 16, because a server's alpha is always 32."""
    pytest.importorskip("torch")
    from adapters.local.hub import LocalHub
    from adapters.peft.client import PeftTraining
    from adapters.tinker.client import TinkerTraining
    from tests.support.tiny_model import tiny_model

    hub, server_blobs, blobs, alone = (
        LocalHub(cache=str(tmp_path)),
        FakeBlobs(),
        FakeBlobs(),
        FakeBlobs(),
    )
    model = f"path:{tiny_model(tmp_path / 'tiny')}"

    def engine(store: FakeBlobs) -> PeftTraining:
        return PeftTraining(hub, store, device="cpu", dtype="float32", threads=2)

    direct = run_recipe(name, engine(alone), alone, model=model, lora_rank=16)
    with serving(engine(server_blobs), server_blobs, hub, [model]) as served:
        client = TinkerTraining(hub, blobs, base_url=served.url, server="kitchen")
        through = run_recipe(name, client, blobs, model=model, lora_rank=16)
    assert [row["stage"] for row in through] == [row["stage"] for row in direct]
    for mine, theirs in zip(through, direct, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)
