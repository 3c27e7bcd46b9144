"""A run on a model of the hub, and its weights pushed back to the hub with a model card."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import in_folder, invoke
from tests.support.hub_server import HubServer

pytest.importorskip("torch")
pytest.importorskip("peft")

HERE = ("--hub", "hf", "--set", "training.device=cpu", "--set", "training.dtype=float32")
CARD = "---\nlicense: apache-2.0\n---\n"


@pytest.fixture
def finished_run(
    hub_server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubServer]:
    """A run on a model of the hub."""
    from tests.support.tiny_model import tiny_model

    base = tiny_model(tmp_path / "base")
    files = {path.name: path.read_bytes() for path in base.iterdir()}
    hub_server.repository("owner/tiny", {**files, "README.md": CARD})
    monkeypatch.setenv("HF_TOKEN", "hf_loopback_write")
    rows = [json.dumps({"prompt": "two cups", "completion": "onions"}) + "\n"] * 4
    with in_folder(tmp_path):
        (tmp_path / "data.jsonl").write_text("".join(rows))
        done = invoke(
            "run",
            "recipes.sl_basic",
            *HERE,
            "--name",
            "dish",
            "model=owner/tiny",
            "dataset=data.jsonl",
            "reading.held_out=0.5",
            "epochs=9",
            "batch_size=2",
            "eval_every=0",
            "warmup_steps=0",
            "learning_rate=0.01",
            "evaluation.metric=text",
            "evaluation.max_tokens=4",
        )
        assert done.exit_code == 0, done.output
        yield hub_server


def test_card_reports_the_run(finished_run: HubServer) -> None:
    pushed = invoke("push", "dish", "cook/onions", "--message", "a soup")
    assert (pushed.exit_code, pushed.stdout) == (0, f"{finished_run.url}/cook/onions\n"), (
        pushed.output
    )
    repository = finished_run.repositories["model", "cook/onions"]
    assert repository.private
    assert repository.commits[-1].message == "a soup"
    options = ("two cups", "--temperature", "0", "--max-tokens", "8")
    from_run = invoke("sample", "dish", *options)
    from_hub = invoke("sample", "cook/onions", *options, *HERE)
    assert from_hub.exit_code == 0, from_hub.output
    assert (
        from_hub.stdout == from_run.stdout != invoke("sample", "owner/tiny", *options, *HERE).stdout
    )
    config = json.loads(repository.commits[-1].files["adapter_config.json"])
    assert config["base_model_name_or_path"] == "owner/tiny"
    card = repository.commits[-1].files["README.md"].decode()
    assert "base_model: owner/tiny\n" in card
    assert "license: apache-2.0\n" in card
    commits = len(repository.commits)
    assert invoke("push", "dish", "cook/onions").exit_code == 0
    assert len(repository.commits) == commits, "pushed twice, it is the same"


@pytest.mark.slow
def test_rejected_push_can_be_repeated(
    finished_run: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_loopback_read")
    rejected = invoke("push", "dish", "cook/onions", "--public")
    assert rejected.exit_code == 4
    command = rejected.stderr.strip().split("to try again: kitchen ")[1].split()
    assert command == ["push", "dish", "cook/onions", "--public"]
    assert "hf_loopback_read" not in rejected.output
    monkeypatch.setenv("HF_TOKEN", "hf_loopback_write")
    assert invoke(*command).exit_code == 0
    assert not finished_run.repositories["model", "cook/onions"].private


ROLLOUTS = ("steps=1", "batch_size=2", "group=2", "lora_rank=4", "playing.max_tokens=4")
TRAINED_BY_ROLLOUTS = {
    "rl": (("reward=exact",), ("**Mean reward with greedy decoding, 95 % intervals**",)),
    "rlhf": (
        ("preferences=data.jsonl", "judge.batch_size=2"),
        ("**The judge on held-out comparisons,", "preference for new answers over old ones,"),
    ),
    "distillation": (
        ("instruction=Be brief.", "evaluation.max_tokens=4"),
        (
            "**KL to owner/tiny with the instruction before (k3 estimate,",
            "| loss, nats per token |",
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", TRAINED_BY_ROLLOUTS)
def test_cards_of_rollout_recipes_show_their_evaluation(
    hub_server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    from tests.support.tiny_model import tiny_model

    base = tiny_model(tmp_path / "base")
    hub_server.repository("owner/tiny", {path.name: path.read_bytes() for path in base.iterdir()})
    monkeypatch.setenv("HF_TOKEN", "hf_loopback_write")
    row = {"prompt": "two cups", "completion": "onions"}
    if recipe == "rlhf":
        row = {"prompt": "two cups", "chosen": "onions", "rejected": "no"}
    settings, shown = TRAINED_BY_ROLLOUTS[recipe]
    source = () if recipe == "rlhf" else ("dataset=data.jsonl",)
    own = (*ROLLOUTS, "model=owner/tiny", "reading.held_out=0.25", *source, *settings)
    with in_folder(tmp_path):
        (tmp_path / "data.jsonl").write_text((json.dumps(row) + "\n") * 8)
        done = invoke("run", f"recipes.{recipe}", *HERE, "--name", "dish", *own)
        assert done.exit_code == 0, done.output
        pushed = invoke("push", "dish", "cook/onions", *HERE)
        assert pushed.exit_code == 0, pushed.output
    files = hub_server.repositories["model", "cook/onions"].commits[-1].files
    card = files["README.md"].decode()
    assert all(text in card for text in shown), card
    assert "| train | data.jsonl |" in card
    assert f"with the recipe recipes.{recipe}:" in card
    assert "|  |" not in card
