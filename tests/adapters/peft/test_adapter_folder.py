"""Folders of peft adapters compute what peft computes, or are refused by field and value."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen.errors import BackendError
from kitchen.types import Array, Lora
from tests.support.peft_adapters import QV, edit_config, save_adapter
from tests.support.tiny_gpt2 import tiny_gpt2
from tests.support.tiny_model import tiny_model

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

TOKENS = np.random.default_rng(7).integers(3, 250, 40)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def plain(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain LoRA adapter, to be copied."""
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=QV, task_type="CAUSAL_LM")
    return save_adapter(base, tmp_path_factory.mktemp("plain"), config)


@pytest.fixture
def adapter(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "adapter"))


@pytest.fixture
def training(tmp_path: Path) -> PeftTraining:
    hub = LocalHub(cache=str(tmp_path / "cache"))
    return PeftTraining(hub, FakeBlobs(), device="cpu", dtype="float64", threads=1)


def logprobs(training: PeftTraining, weights: str) -> Array:
    """(T - 1,) nats."""
    sampler = training.sampler(weights)
    try:
        return sampler.logprobs(TOKENS).result()[1:]
    finally:
        sampler.close()


def peft_logprobs(folder: Path) -> Array:
    """(T - 1,) nats, of the model as peft opens it."""
    opened = peft.AutoPeftModelForCausalLM.from_pretrained(str(folder), dtype=torch.float64)
    ids = torch.from_numpy(TOKENS)[None]
    with torch.inference_mode():
        scores = torch.log_softmax(opened.double()(input_ids=ids).logits[0, :-1], -1)
    picked: Array = scores.gather(1, ids[0, 1:, None])[:, 0].numpy()
    return picked


def uses(training: PeftTraining, tmp_path: Path) -> dict[str, Callable[[str], object]]:
    """Everything that opens an adapter by name."""
    return {
        "find": training.find,
        "lora": training.lora,
        "sample": lambda name: logprobs(training, name),
        "export": lambda name: training.export(name, tmp_path / "exported"),
        "merge": lambda name: training.export(name, tmp_path / "merged", merged=True),
        "train": lambda name: training.open(name, Lora(rank=4, alpha=12.0)).facts(),
    }


SUPPORTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "another alpha": {"lora_alpha": 5},
    "rslora": {"use_rslora": True},
    "rslora of rank 1": {"use_rslora": True, "r": 1},
    "rslora of rank 7": {"use_rslora": True, "r": 7, "lora_alpha": 3},
    "dora": {"use_dora": True},
    "dora and rslora": {"use_dora": True, "use_rslora": True},
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "eva": {"init_lora_weights": "eva"},
    "without initialisation": {"init_lora_weights": False},
    "one layer": {"layers_to_transform": [1]},
    "regular expression": {"target_modules": r".*\.1\..*(up|down)_proj"},
    "all but some": {"target_modules": [*QV, "o_proj"], "exclude_modules": ["v_proj"]},
    "no task": {"task_type": None},
    "dropout": {"lora_dropout": 0.3},
}


@pytest.mark.parametrize("kind", SUPPORTED)
def test_supported_adapters_equal_peft(
    kind: str, base: Path, training: PeftTraining, tmp_path: Path
) -> None:
    settings = {"r": 8, "lora_alpha": 12, "target_modules": QV, "task_type": "CAUSAL_LM"}
    config = peft.LoraConfig(**settings | SUPPORTED[kind])
    name = f"path:{save_adapter(base, tmp_path / 'adapter', config)}"
    expected = peft_logprobs(tmp_path / "adapter")
    assert np.abs(expected - logprobs(training, f"path:{base}")).max() > 0.01
    np.testing.assert_allclose(logprobs(training, name), expected, atol=2e-6)
    training.export(name, tmp_path / "merged", merged=True)
    np.testing.assert_allclose(
        logprobs(training, f"path:{tmp_path / 'merged'}"), expected, atol=2e-5
    )


@pytest.mark.parametrize("transposed", [True, False])
def test_fan_in_fan_out_follows_the_layers(
    transposed: bool, training: PeftTraining, tmp_path: Path
) -> None:
    base = tiny_gpt2(tmp_path / "base")
    config = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    folder = save_adapter(base, tmp_path / "adapter", config)
    edit_config(folder, fan_in_fan_out=transposed)
    np.testing.assert_allclose(
        logprobs(training, f"path:{folder}"), peft_logprobs(folder), atol=2e-6
    )


REFUSED: dict[str, Callable[[], Any]] = {
    'init_lora_weights is "pissa"': lambda: peft.LoraConfig(init_lora_weights="pissa"),
    'init_lora_weights is "pissa_niter_4"': lambda: peft.LoraConfig(
        init_lora_weights="pissa_niter_4"
    ),
    'init_lora_weights is "olora"': lambda: peft.LoraConfig(init_lora_weights="olora"),
    'init_lora_weights is "corda"': lambda: peft.LoraConfig(init_lora_weights="corda"),
    'init_lora_weights is "lora_ga"': lambda: peft.LoraConfig(init_lora_weights="lora_ga"),
    "alora_invocation_tokens is [5, 6]": lambda: peft.LoraConfig(
        alora_invocation_tokens=[5, 6], task_type="CAUSAL_LM"
    ),
    'target_parameters is ["mlp.experts.down_proj"]': lambda: peft.LoraConfig(
        target_parameters=["mlp.experts.down_proj"]
    ),
    "layer_replication is [[0, 2], [1, 2]]": lambda: peft.LoraConfig(
        layer_replication=[[0, 2], [1, 2]]
    ),
    'rank_pattern is {"q_proj": 2}': lambda: peft.LoraConfig(rank_pattern={"q_proj": 2}),
    'alpha_pattern is {"q_proj": 2}': lambda: peft.LoraConfig(alpha_pattern={"q_proj": 2}),
    'modules_to_save is ["lm_head"]': lambda: peft.LoraConfig(modules_to_save=["lm_head"]),
    "trainable_token_indices is [3, 4]": lambda: peft.LoraConfig(trainable_token_indices=[3, 4]),
    'trainable_token_indices is {"embed_tokens": [0]}': lambda: peft.LoraConfig(
        trainable_token_indices={"embed_tokens": [0]}
    ),
    'bias is "all"': lambda: peft.LoraConfig(bias="all"),
    'bias is "lora_only"': lambda: peft.LoraConfig(bias="lora_only"),
    "lora_bias is true": lambda: peft.LoraConfig(lora_bias=True),
    "megatron_config is {": lambda: peft.LoraConfig(megatron_config={"num_layers": 2}),
    'task_type is "SEQ_CLS"': lambda: peft.LoraConfig(task_type="SEQ_CLS"),
    'peft_type is "IA3"': lambda: peft.IA3Config(),
    'peft_type is "LOHA"': lambda: peft.LoHaConfig(),
    'peft_type is "PROMPT_TUNING"': lambda: peft.PromptTuningConfig(num_virtual_tokens=4),
}


@pytest.mark.parametrize("text", REFUSED)
def test_configurations_of_peft_are_refused_by_value(
    text: str, adapter: Path, training: PeftTraining, tmp_path: Path
) -> None:
    before = json.loads((adapter / "adapter_config.json").read_text())
    REFUSED[text]().save_pretrained(adapter)
    written = json.loads((adapter / "adapter_config.json").read_text())
    rank = {"r": 4, "lora_alpha": 12} if "r" in written else {}
    edit_config(adapter, base_model_name_or_path=before["base_model_name_or_path"], **rank)
    (adapter / "adapter_model.safetensors").write_bytes(b"must not be opened")
    for use in uses(training, tmp_path).values():
        with pytest.raises(BackendError) as caught:
            use(f"path:{adapter}")
        assert f"path:{adapter}: adapter_config.json: " in str(caught.value)
        assert text in str(caught.value)
        assert "merge_and_unload" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"brand_new": 3}, "brand_new is 3 (its effect is not known)"),
        ({"brand_new": {"depth": 1}}, 'brand_new is {"depth": 1}'),
        ({"use_qalora": True}, "use_qalora is true"),
        ({"kasa_config": {"beta": 0.1}}, "kasa_config is {"),
        ({"velora_config": {"scale": 1.0}}, "velora_config is {"),
        ({"init_lora_weights": "a_new_one"}, 'init_lora_weights is "a_new_one"'),
        ({"peft_type": ...}, "peft_type is null (the adapter is not LoRA)"),
        ({"peft_type": ["LORA"]}, 'peft_type is ["LORA"]'),
        ({"use_dora": True, "bias": "all"}, 'bias is "all" (the adapter has trained biases)'),
        ({"r": ...}, "r is null, but must be"),
        ({"r": 4.0}, "r is 4.0, but must be"),
        ({"r": True}, "r is true, but must be"),
        ({"r": 0}, "r is 0, but must be"),
        ({"lora_alpha": "12"}, 'lora_alpha is "12", but must be a number'),
        ({"lora_alpha": float("nan")}, "lora_alpha is NaN, but must be a number"),
        ({"lora_alpha": 0}, "lora_alpha is 0, so the adapter has no effect"),
        ({"lora_alpha": 0.0, "use_rslora": True}, "lora_alpha is 0, so the adapter has no effect"),
    ],
)
def test_unknown_fields_and_bad_values_are_refused(
    fields: dict[str, Any], text: str, adapter: Path, training: PeftTraining, tmp_path: Path
) -> None:
    edit_config(adapter, **fields)
    for use in uses(training, tmp_path).values():
        with pytest.raises(BackendError) as caught:
            use(f"path:{adapter}")
        assert text in str(caught.value)


def test_fields_of_no_effect_are_accepted(adapter: Path, training: PeftTraining) -> None:
    expected = logprobs(training, f"path:{adapter}")
    edit_config(
        adapter,
        merge_weights=False,  # of old versions of peft
        enable_lora=None,
        a_new_one={},
        qalora_group_size=32,
        megatron_core="mine",
        peft_version=...,
    )
    np.testing.assert_array_equal(logprobs(training, f"path:{adapter}"), expected)


def _tensors(folder: Path, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "adapter_model.safetensors"
    save_file(edit(load_file(path)), path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("matrix", ["A", "B"])
def test_weights_that_are_not_finite_are_refused(
    value: float, matrix: str, adapter: Path, training: PeftTraining, tmp_path: Path
) -> None:
    def spoil(tensors: dict[str, Any]) -> dict[str, Any]:
        tensors[f"{Q}{matrix}.weight"][-1, -1] = value
        return tensors

    _tensors(adapter, spoil)
    for name, use in uses(training, tmp_path).items():
        if name in ("find", "lora"):  # read no numbers
            continue
        with pytest.raises(BackendError) as caught:
            use(f"path:{adapter}")
        expected = f"adapter_model.safetensors: {Q}{matrix}.weight has values that are not finite"
        assert expected in str(caught.value)


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (
        lambda folder: (folder / "adapter_model.safetensors").rename(folder / "a.safetensors"),
        "has no adapter_model.safetensors",
    ),
    "truncated": (
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(
            (folder / "adapter_model.safetensors").read_bytes()[:-8]
        ),
        "adapter_model.safetensors is damaged",
    ),
    "no tensors": (
        lambda folder: _tensors(folder, lambda _: {}),
        "adapter_model.safetensors has no weights",
    ),
    "empty tensors": (
        lambda folder: _tensors(folder, lambda all: {name: all[name][:0, :0] for name in all}),
        "has shape (0, 0), but r=4 in adapter_config.json needs",
    ),
    "half a pair": (
        lambda folder: _tensors(
            folder, lambda all: {name: all[name] for name in all if name != f"{Q}B.weight"}
        ),
        f"has {Q}A.weight but not {Q}B.weight",
    ),
    "another rank": (
        lambda folder: edit_config(folder, r=8),
        "but r=8 in adapter_config.json needs",
    ),
    "a stray tensor": (
        lambda folder: _tensors(
            folder, lambda all: {**all, f"{Q}magnitude_vector": torch.ones(64)}
        ),
        f"has the tensor {Q}magnitude_vector, which is not a LoRA weight",
    ),
    "dora without magnitudes": (
        lambda folder: edit_config(folder, use_dora=True),
        f"{Q}magnitude_vector has shape None, but use_dora in adapter_config.json needs a number",
    ),
    "dora with magnitudes of another layer": (
        lambda folder: _tensors(
            edit_config(folder, use_dora=True),
            lambda all: {
                **all,
                **{name.replace("B.weight", "magnitude_vector"): torch.ones(3) for name in all},
            },
        ),
        "magnitude_vector has shape (3,), but use_dora",
    ),
    "no base model": (
        lambda folder: edit_config(folder, base_model_name_or_path=None),
        "does not name its base model",
    ),
    "a base model that is gone": (
        lambda folder: edit_config(folder, base_model_name_or_path="/nowhere/at/all"),
        "/nowhere/at/all",
    ),
    "an adapter as its base": (
        lambda folder: edit_config(folder, base_model_name_or_path=str(folder)),
        "an adapter",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_folders_are_refused(
    kind: str, adapter: Path, training: PeftTraining, tmp_path: Path
) -> None:
    damage, text = DAMAGED[kind]
    damage(adapter)
    for use in uses(training, tmp_path).values():
        with pytest.raises(BackendError) as caught:
            use(f"path:{adapter}")
        assert str(adapter) in str(caught.value)
        assert text in str(caught.value)


def test_a_folder_without_a_configuration_is_refused(adapter: Path, training: PeftTraining) -> None:
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(BackendError, match=r"neither config\.json .* nor adapter_config"):
        training.find(f"path:{adapter}")


def _missing_layer(folder: Path, base: Path) -> None:
    def rename(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name.replace("layers.1", "layers.9"): tensors[name] for name in tensors}

    _tensors(folder, rename)


def _missing_module(folder: Path, base: Path) -> None:
    def rename(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name.replace("v_proj", "experts.0.v_proj"): tensors[name] for name in tensors}

    _tensors(folder, rename)


def _other_base(folder: Path, base: Path) -> None:
    other = folder.parent / "other"
    config = transformers.AutoConfig.from_pretrained(base)
    config.hidden_size, config.head_dim = 32, 8
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(other)
    for path in base.glob("*token*"):
        shutil.copy(path, other)
    edit_config(folder, base_model_name_or_path=str(other))


MISFITS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "missing layer": (_missing_layer, "but the base model has only 2 layers"),
    "missing module": (_missing_module, "has no such linear layer"),
    "smaller base": (_other_base, "are for a layer of 64 inputs and"),
    "weights of no target": (
        lambda folder, _: edit_config(folder, target_modules=["q_proj"]),
        "v_proj is among the weights of the adapter but not among its targets",
    ),
    "target without weights": (
        lambda folder, _: edit_config(folder, target_modules=[*QV, "k_proj"]),
        "k_proj is among the targets of the adapter but not among its weights",
    ),
    "bad pattern": (
        lambda folder, _: edit_config(folder, target_modules="(q_proj"),
        "adapter_config.json: ",
    ),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_weights_that_do_not_fit_the_base_are_refused(
    kind: str, adapter: Path, base: Path, training: PeftTraining, tmp_path: Path
) -> None:
    damage, text = MISFITS[kind]
    damage(adapter, base)
    verbs = ("sample", "merge", "train")
    if kind in ("missing layer", "smaller base"):  # seen in the files, before a run
        verbs += ("find", "lora", "export")
    for verb in verbs:
        with pytest.raises(BackendError) as caught:
            uses(training, tmp_path)[verb](f"path:{adapter}")
        assert str(adapter) in str(caught.value)
        assert text in str(caught.value)
