"""Recipes that start from the folder of an adapter, with the local engine and others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from adapters.local.blobs import LocalBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen import Kitchen, Recipe
from kitchen.config.order import Order
from kitchen.engine.preview import preview, verify
from kitchen.errors import BackendError, ConfigError, ResumeError
from kitchen.runs.execute import execute
from kitchen.runs.store import read_run
from kitchen.types import Lora
from recipes.chat_sl import ChatSl
from recipes.dpo import Dpo
from recipes.kto import Kto
from recipes.rl import Rl
from recipes.sl_basic import SlBasic
from stages.train.session import FinalWeights, OpenSession
from tests.support.killed_runs import DATA
from tests.support.peft_adapters import QV, edit_config, save_adapter
from tests.support.tinker_server import MODELS
from tests.support.tiny_model import tiny_model

SMALL = {"lora_rank": 4, "batch_size": 2, "learning_rate": 1e-3}
QUICK = {"max_steps": 2, "eval_every": 0, "evaluation": {"max_tokens": 2}, "warmup_steps": 0}
PLAY = {"steps": 2, "group": 2, "playing": {"max_tokens": 3}}
READ = {"reading": {"limit": 6, "held_out_rows": 2}}
RECIPES: dict[str, tuple[type[Recipe], dict[str, Any]]] = {
    "sl_basic": (SlBasic, {**QUICK, "dataset": "chats"}),
    "chat_sl": (ChatSl, {"mixture": {"chats": 1.0}, "steps": 2, "eval_every": 0}),
    "dpo": (Dpo, {**QUICK, "dataset": "pairs"}),
    "kto": (Kto, {**QUICK, "dataset": "rated"}),
    "rl": (Rl, {**PLAY, **READ, "dataset": "chats", "kl_penalty": 0.1}),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("peft")
    return tiny_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def saved(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter as TRL trains one: alpha and targets are not those of a recipe."""
    from peft import LoraConfig

    config = LoraConfig(r=4, lora_alpha=12, target_modules=QV, task_type="CAUSAL_LM")
    return save_adapter(base, tmp_path_factory.mktemp("saved"), config)


@pytest.fixture
def adapter(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "adapter"))


def local(folder: Path) -> Kitchen:
    blobs = LocalBlobs(str(folder))
    hub = LocalHub(cache=str(folder / "cache"))
    training = PeftTraining(hub, blobs, device="cpu", dtype="float32", threads=1)
    return Kitchen(training, FakeDatasets(DATA), hub, blobs)


def cook(kitchen: Kitchen, recipe: Recipe, run: str) -> Any:
    name = f"{type(recipe).__module__}:{type(recipe).__qualname__}"
    return execute(Order(name, recipe.model_dump(mode="json")), recipe, kitchen, run)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_continue_from_an_adapter(name: str, adapter: Path, tmp_path: Path) -> None:
    cls, settings = RECIPES[name]
    recipe: Any = cls(**{**SMALL, **settings, "model": f"path:{adapter}"})
    kitchen = local(tmp_path / "runs")
    assert verify(recipe.workflow(), kitchen.ports()) == []
    list(preview(recipe.workflow(), kitchen.ports()))
    cook(kitchen, recipe, "first")
    facts = read_run(LocalBlobs(str(tmp_path / "runs")), "first")["facts"]
    assert facts["model"] == facts["weights"] == f"path:{adapter}"
    assert facts["lora"] == "rank 4, alpha 12, layers of the adapter"
    assert len(facts["weights.sha256"]) == 64
    further: Any = cls(**{**SMALL, **settings, "model": "run:first"})
    final = cook(kitchen, further, "second")[FinalWeights]
    training: Any = kitchen.training
    training.export(final, tmp_path / "exported")
    config = json.loads((tmp_path / "exported/adapter_config.json").read_text())
    assert (config["lora_alpha"], config["target_modules"]) == (12, QV)


@pytest.mark.parametrize("name", ["sl_basic", "dpo", "rl"])
def test_recipes_train_all_weights(name: str, base: Path, tmp_path: Path) -> None:
    """A second run continues from the weights; transformers opens those that it exports."""
    from transformers import AutoModelForCausalLM

    cls, settings = RECIPES[name]
    full = {**SMALL, **settings, "lora_rank": 16, "train": "full", "save_every": 1}
    kitchen = local(tmp_path / "runs")
    for run, model in (("first", f"path:{base}"), ("second", "run:first")):
        recipe: Any = cls(**{**full, "model": model})
        list(preview(recipe.workflow(), kitchen.ports()))
        final = cook(kitchen, recipe, run)[FinalWeights]
    facts = read_run(LocalBlobs(str(tmp_path / "runs")), "second")["facts"]
    assert facts["trained"] == "all weights"
    training: Any = kitchen.training
    training.export(final, tmp_path / "exported")
    trained: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    before: Any = AutoModelForCausalLM.from_pretrained(base)
    moved = trained.get_input_embeddings().weight - before.get_input_embeddings().weight
    assert 1e-4 < moved.abs().max() < 0.1
    with pytest.raises(ConfigError, match="all weights of its model were trained"):
        cook(kitchen, cls(**{**SMALL, **settings, "model": "run:first"}), "lora")


@pytest.mark.parametrize(
    ("fields", "settings", "error", "text"),
    [
        ({}, {"lora_rank": 8}, ConfigError, "the adapter has rank 4, but .* set lora_rank=4"),
        ({}, {"lora_kind": "rslora"}, ConfigError, "the kind 'lora', .* set lora_kind=lora"),
        ({"use_rslora": True}, {}, ConfigError, "the kind 'rslora', .* set lora_kind=rslora"),
        ({"layer_replication": [[0, 2]]}, {}, BackendError, r"layer_replication is \[\[0, 2\]\]"),
        ({"base_model_name_or_path": "/gone"}, {}, BackendError, "its base model .* be found"),
    ],
)
def test_check_names_what_cannot_be_continued(
    fields: dict[str, Any],
    settings: dict[str, Any],
    error: type[Exception],
    text: str,
    adapter: Path,
    tmp_path: Path,
) -> None:
    edit_config(adapter, **fields)
    kitchen = local(tmp_path / "runs")
    for cls, values in RECIPES.values():
        recipe: Any = cls(**{**SMALL, **values, **settings, "model": f"path:{adapter}"})
        problems = [str(problem) for problem in verify(recipe.workflow(), kitchen.ports())]
        assert len(problems) == 1
        with pytest.raises(error, match=text) as caught:
            list(preview(recipe.workflow(), kitchen.ports()))
        assert str(caught.value) == problems[0]
        with pytest.raises(error, match=text):
            cook(kitchen, recipe, cls.__name__)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lora_alpha": 6.0}, "the adapter has alpha 12, but lora_alpha=6"),
        ({"lora_layers": "mlp"}, "leave lora_layers out"),
    ],
)
def test_settings_that_differ_from_an_adapter_are_refused(
    settings: dict[str, Any], text: str, adapter: Path, tmp_path: Path
) -> None:
    recipe: Any = SlBasic(**{**SMALL, **settings, "dataset": "chats", "model": f"path:{adapter}"})
    [problem] = verify(recipe.workflow(), local(tmp_path / "runs").ports())
    assert text in str(problem)


def test_an_rslora_adapter_trains_on_with_its_alpha(adapter: Path, tmp_path: Path) -> None:
    edit_config(adapter, use_rslora=True)
    kitchen = local(tmp_path / "runs")
    settings: Any = {**SMALL, **QUICK, "dataset": "chats", "lora_kind": "rslora"}
    final = cook(kitchen, SlBasic(**settings, model=f"path:{adapter}"), "first")[FinalWeights]
    facts = read_run(LocalBlobs(str(tmp_path / "runs")), "first")["facts"]
    assert facts["lora"] == "rslora, rank 4, alpha 12, layers of the adapter"
    training: Any = kitchen.training
    training.export(final, tmp_path / "exported")
    config = json.loads((tmp_path / "exported/adapter_config.json").read_text())
    assert (config["lora_alpha"], config["use_rslora"]) == (12, True)


def test_the_card_names_the_base_of_an_adapter(adapter: Path, base: Path, tmp_path: Path) -> None:
    from adapters.fake.hub import FakeHub
    from kitchen.artifacts.publish import publish
    from kitchen.artifacts.weights import find_weights

    kitchen = local(tmp_path / "runs")
    training: Any = kitchen.training
    blobs: Any = kitchen.blobs
    settings: Any = {**SMALL, **QUICK, "dataset": "chats", "model": f"path:{adapter}"}
    cook(kitchen, SlBasic(**settings), "first")
    hub = FakeHub({})
    publish(find_weights("run:first", training, blobs), "me/soup", training, hub, blobs)
    card = hub.file("me/soup", "README.md").read_text()
    assert f"| base model | path:{base.name} |" in card
    assert "| trained from | path:adapter |" in card
    assert str(tmp_path) not in card


def test_resume_requires_the_same_adapter(adapter: Path, tmp_path: Path) -> None:
    settings = {**SMALL, **QUICK, "dataset": "chats", "model": f"path:{adapter}"}
    failing: Any = {**settings, "evaluation": {"max_tokens": 2, "at_least": 1.0}}
    kitchen = local(tmp_path / "runs")
    with pytest.raises(Exception, match="exact match"):
        cook(kitchen, SlBasic(**failing), "first")
    weights = adapter / "adapter_model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ResumeError, match="'first' began with weights"):
        cook(kitchen, SlBasic(**failing), "first")
    weights.write_bytes(data)
    edit_config(adapter, lora_alpha=24)
    with pytest.raises(ResumeError, match="'first' began with lora = 'rank 4, alpha 12"):
        cook(kitchen, SlBasic(**failing), "first")


@pytest.mark.parametrize("merged", [False, True])
def test_the_fake_continues_from_its_exports(merged: bool, tmp_path: Path) -> None:
    training = FakeTraining(FakeBlobs())
    kitchen = Kitchen(training, FakeDatasets(DATA), None, FakeBlobs())
    settings: Any = {**SMALL, **QUICK, "dataset": "chats", "model": "tiny", "learning_rate": 0.5}
    final = kitchen.cook(SlBasic(**settings), name="first")[FinalWeights]
    training.export(final, tmp_path / "exported", merged=merged)
    name = f"path:{tmp_path / 'exported'}"
    session, _, facts = OpenSession(name, Lora(4)).run(training)
    tokens = np.arange(30, 60)
    expected = training.sampler(final).logprobs(tokens).result()[1:]
    initial = session.snapshot().result().logprobs(tokens).result()[1:]
    np.testing.assert_allclose(initial, expected, atol=1e-12)
    assert facts["model.sha256"] == training.sha256(name)
    assert np.abs(expected - training.sampler("tiny").logprobs(tokens).result()[1:]).max() > 1e-3
    session.save_weights("later").result()


@pytest.mark.parametrize("kind", ["weights", "configuration"])
def test_damaged_exports_of_the_fake_are_refused(kind: str, tmp_path: Path) -> None:
    training = FakeTraining(FakeBlobs())
    with_step = training.open("tiny", Lora(4))
    training.export(with_step.save_weights("w").result(), tmp_path / "out")
    file = {"weights": "adapter_model.safetensors", "configuration": "adapter_config.json"}[kind]
    (tmp_path / "out" / file).write_bytes(b"{")
    for use in (training.sha256, training.sampler, lambda name: training.open(name, Lora(4))):
        with pytest.raises(BackendError, match=file):
            use(f"path:{tmp_path / 'out'}")


def test_a_server_refuses_an_adapter_of_this_machine(
    adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adapters.fake.hub import FakeHub
    from adapters.tinker.client import TinkerTraining

    monkeypatch.setenv("TINKER_API_KEY", "tml-key")
    training = TinkerTraining(FakeHub(MODELS), FakeBlobs(), base_url="http://127.0.0.1:9")
    ports = Kitchen(training, FakeDatasets(DATA), None, FakeBlobs()).ports()
    [problem] = verify(OpenSession(f"path:{adapter}", Lora(4)), ports)
    assert isinstance(problem, BackendError)
    assert "is a LoRA adapter on this machine, and a server cannot open it" in str(problem)
