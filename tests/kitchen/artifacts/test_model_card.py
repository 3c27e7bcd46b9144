"""Model cards: what they describe, and the secrets and folders that they must not contain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from kitchen.artifacts.model_card import Base, Evaluation, Form, model_card
from kitchen.artifacts.public_texts import public_name
from kitchen.artifacts.weights import Weights
from kitchen.runs.reports.records import RunRecord
from kitchen.types import Checkpoint, Table

SHA = "ab" * 32
SCORES = {
    "title": "Held-out evaluation, 95 % intervals",
    "columns": ["held-out set", "n", "measure", "after"],
    "rows": [["test", "200", "exact match", "0.500 [0.431, 0.569]"]],
}
ANSWERS = {
    "title": "The same problems",
    "columns": ["asked", "after"],
    "rows": [["my secret row", "yes"]],
}


def record(**settings: Any) -> dict[str, Any]:
    return {
        "recipe": "recipes.sl_basic:SlBasic",
        "order": {
            "settings": {"model": "owner/base", "rendering": {"chat": None}, **settings},
            "adapters": {"datasets": "hf", "hub": "hf"},
        },
        "facts": {
            "model": "owner/base",
            "model.sha256": SHA,
            "lora": "rank 16, alpha 32, layers attn mlp",
            "data.train.sha256": "cd" * 32,
            **({"data.train.dataset": settings["dataset"]} if "dataset" in settings else {}),
            "machine.device": "cpu",
        },
    }


def card(
    base: Base | None = None, tables: tuple[Any, ...] = (SCORES, ANSWERS), **settings: Any
) -> str:
    weights = Weights(
        "run:dish@final",
        Checkpoint("dish/weights/final", 75, "weights", "ef" * 32),
        "owner/base",
        "dish",
        record(**settings),
    )
    base = base or Base("owner/base@v1", SHA, "apache-2.0")
    return model_card("me/soup", base, weights, evaluated(weights.record or {}, *tables))


def evaluated(
    record: Mapping[str, Any], *tables: Mapping[str, Any], of_other_step: int | None = None
) -> Evaluation:
    """Return the evaluation of a run that published these tables, and two steps of training."""
    metrics = [{"step": step, "loss": loss} for step, loss in ((0, 0.5), (1, 0.25), (2, 0.375))]
    recorded = [
        Table(row["title"], tuple(row["columns"]), tuple(map(tuple, row["rows"]))) for row in tables
    ]
    run = RunRecord("dish", "completed", 1.0, record, metrics, recorded, [], [])
    return Evaluation(run, of_other_step)


def front(text: str) -> Any:
    return YAML(typ="safe").load(text.split("---\n")[1])


def test_front_matter_describes_the_weights_to_a_hub() -> None:
    assert front(card(tables=(), dataset="owner/data:main@v2")) == {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "base_model": "owner/base",
        "base_model_relation": "adapter",
        "license": "apache-2.0",
        "datasets": ["owner/data"],
        "tags": ["lora", "crucible-kitchen"],
    }


@pytest.mark.parametrize(
    ("form", "library", "relation", "shown"),
    [
        ("merged", "transformers", "finetune", 'AutoModelForCausalLM.from_pretrained("soup")'),
        ("gguf", "gguf", "quantized", "ollama create NAME -f Modelfile"),
    ],
)
def test_whole_models_have_a_card_of_their_own(
    form: Form, library: str, relation: str, shown: str
) -> None:
    text = model_card("path:soup", Base("owner/base"), Weights("a", "a", "a"), Evaluation(), form)
    assert front(text)["library_name"] == library
    assert front(text)["base_model_relation"] == relation
    assert "\n# soup\n" in text
    assert shown in text


def test_front_matter_omits_what_is_not_on_a_hub() -> None:
    metadata = front(card(Base("packaged:tiny", SHA)))
    assert not {"base_model", "license", "datasets"} & metadata.keys()


def test_card_describes_base_training_data_and_scores() -> None:
    text = card(dataset="owner/data")
    for row in (
        "| base model | owner/base@v1 |",
        f"| its SHA-256 | {SHA} |",
        "| optimiser steps | 75 |",
        "| LoRA | rank 16, alpha 32, layers attn mlp |",
        "| its licence | apache-2.0 |",
        f"| train | owner/data | {'cd' * 32} |",
        "| loss | 0.5 | 0.375 | 0.25 | 2 | 0.5 | 1 |",
        "| machine.device | cpu |",
        "| test | 200 | exact match | 0.500 [0.431, 0.569] |",
        "| rendering.chat | null |",
        "| dataset | owner/data |",
    ):
        assert row in text
    assert 'AutoPeftModelForCausalLM.from_pretrained("me/soup")' in text
    assert "kitchen chat me/soup" in text


def test_card_says_that_weights_were_quantised() -> None:
    facts = {"model.weights": "Q4_1 weights of Tiny, dequantised"}
    weights = Weights("a", "a", "a", "dish", record() | {"facts": facts})
    text = model_card("me/soup", Base("packaged:tiny"), weights, Evaluation())
    assert "| its weights | Q4_1 weights of Tiny, dequantised |" in text


def test_card_quotes_no_rows_of_the_data() -> None:
    assert "my secret row" not in card()


@pytest.mark.parametrize(
    "value",
    [
        "/home/ada/data/chats.jsonl",
        "~/data/chats.jsonl",
        "../ada/chats.jsonl",
        "path:/home/ada/chats.jsonl",
        "file:///home/ada/chats.jsonl",
        "/home/ada/my data/chats.jsonl",
        "C:\\ada\\chats.jsonl",
        "C:/ada/chats.jsonl",
        "\\\\ada\\chats.jsonl",
    ],
)
def test_card_names_no_local_folders(value: str) -> None:
    text = card(dataset=value)
    assert "ada" not in text.replace("adapter", "")
    assert "| dataset | chats.jsonl |" in text


def test_card_names_no_folders_inside_other_values() -> None:
    table = {
        **SCORES,
        "title": "Scores of /home/ada/q.jsonl",
        "rows": [
            ["see /home/ada/out/log.txt", "1", "exact match", "1/2"],
            ["at C:\\ada\\log.txt", "1", "exact match", "1/3"],
        ],
    }
    text = card(
        tables=(table,),
        splits=["/home/ada/one.jsonl", "two"],
        pages={"/home/ada/p": {"/home/ada/r": "s"}},
        twice=["C:\\ada\\a.jsonl", ["/home/ada/b.jsonl"]],
    )
    assert "ada" not in text.replace("adapter", "")
    assert "see log.txt" in text
    assert "**Scores of q.jsonl**" in text
    assert "| [one.jsonl, two] |" in text
    assert "| pages.p.r | s |" in text
    assert "| [a.jsonl, [b.jsonl]] |" in text
    assert "| 1/2 |" in text


def test_cards_name_neither_folders_of_files_nor_servers() -> None:
    edited = record()
    edited["facts"]["data./home/ada/one.jsonl.sha256"] = SHA
    edited["facts"]["machine.teacher.server"] = "http://gpu-box.local:8000/v1"
    weights = Weights(
        "run:dish@final", Checkpoint("p", 1, "weights", "e"), "owner/base", "dish", edited
    )
    text = model_card("me/soup", Base("owner/base"), weights, Evaluation())
    assert f"| one.jsonl |  | {SHA} |" in text
    assert "gpu-box" not in text


def test_base_model_in_a_folder_is_named_by_that_folder(tmp_path: Path) -> None:
    text = card(Base(f"path:{tmp_path}/tiny", SHA))
    assert "| base model | path:tiny |" in text
    assert str(tmp_path) not in text
    assert "PeftModel.from_pretrained(base," in text
    assert public_name("owner/base@v1") == "owner/base@v1"


def test_secret_in_a_setting_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUP_API_KEY", "s3cr3t-s3cr3t")
    assert "s3cr3t" not in card(note="s3cr3t-s3cr3t", dataset="https://me:pass@host/x.jsonl")
    assert "pass@" not in card(dataset="https://me:pass@host/x.jsonl")


def test_name_of_a_measure_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUP_API_KEY", "s3cr3t-s3cr3t")
    measure = "match of s3cr3t-s3cr3t in /home/ada/x.json"
    table = {**SCORES, "rows": [["test", "200", measure, "0.5 [0.4, 0.6]"]]}
    text = card(tables=(table,))
    [metric] = front(text)["model-index"][0]["results"][0]["metrics"]
    assert (metric["name"], metric["type"]) == ("match of *** in x.json", "match_of_in_x_json")


def test_folder_with_a_space_is_quoted_in_commands() -> None:
    text = model_card("path:my soup", Base("owner/base"), Weights("a", "a", "a"), Evaluation())
    assert 'from_pretrained("my soup")' in text
    assert "kitchen chat 'path:my soup'" in text


def test_bars_and_line_breaks_do_not_break_a_table() -> None:
    table = {**SCORES, "rows": [["a|b", "1\n2", "exact match", "1"]]}
    assert "| a\\|b | 1 2 | exact match | 1 |" in card(tables=(table,))


HOSTILE = [
    "`</code><script>alert(1)</script>`",
    "a\n\n# Owned\n\n![x](https://evil.example/x.png)",
    "| a | b |\n| --- | --- |\n<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1)) **bold** _it_ ~~no~~ $$x$$",
    "---\nlicense: evil\n---\n",
    "a\\|b `c",
    "\u202etxt.exe\x9b31m",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_breaks_out_of_the_card(text: str) -> None:
    table = {"title": text, "columns": [text, "measure"], "rows": [[text, text]]}
    edited = record(**{text: text, "note": [text], "dataset": text})
    facts = {**edited["facts"], "lora": text, f"data.{text}.sha256": text}
    edited |= {"recipe": text, "facts": facts}
    weights = Weights("run:dish@final", Checkpoint("p", 1, "weights", "e"), "m", "dish", edited)
    base = Base(text.replace(":", ""), text, text)
    lines = model_card("me/soup", base, weights, evaluated(edited, table)).splitlines()
    titles = ["# soup", "## Evaluation", "## Training", "## Data", "## Settings", "## Provenance"]
    titles.append("## How to load it")
    assert [line for line in lines if line.startswith("#")] == titles
    assert lines.count("---") == 2
    bars = 3
    for line in lines[lines.index("# soup") :]:
        bars = {"## Training": 8, "## Data": 4, "## Settings": 3}.get(line, bars)
        assert re.search(r"(?<!\\)\](?=[(\[:])|<(?!/?code>|!-- written by)", line) is None, line
        assert not set(line) & set("\u202e\x9b")
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == bars, line
    front_matter = front("\n".join(lines))
    assert front_matter["license"] == text
    assert front_matter["base_model"] == text.replace(":", "").strip().partition("@")[0]


@pytest.mark.parametrize(
    "title",
    [
        "Mean reward, greedily, 95 % intervals",
        "Held-out pairs, 95 % intervals",
        "KL, 95 % interval",
    ],
)
def test_evaluations_of_every_recipe_are_shown(title: str) -> None:
    table = {"title": title, "columns": ["held-out set", "accuracy"], "rows": [["test", "0.5"]]}
    assert f"## Evaluation\n\n**{title}**\n\n| held-out set |" in card(tables=(table,))


def test_results_of_other_weights_are_not_shown() -> None:
    weights = Weights("run:dish@50", Checkpoint("a", 50, "weights", "ef" * 32), "a", "dish")
    text = model_card("me/soup", Base("a"), weights, evaluated(record(), SCORES, of_other_step=75))
    assert "The run evaluated its final weights, those of step 75, and not these." in text
    assert "exact match" not in text


def test_untrained_weights_are_called_that() -> None:
    checkpoint = Checkpoint("dish/weights/final", 0, "weights", "ef" * 32)
    weights = Weights("run:dish@final", checkpoint, "owner/base", "dish", record())
    text = model_card("me/soup", Base("owner/base"), weights, Evaluation())
    assert "| optimiser steps | 0: the weights are the initial ones |" in text


def test_generated_problems_are_named() -> None:
    edited = record(dataset="game:calculator")
    del edited["facts"]["data.train.dataset"]
    weights = Weights(
        "run:dish@final", Checkpoint("p", 1, "weights", "e"), "owner/base", "dish", edited
    )
    text = model_card("me/soup", Base("owner/base"), weights, Evaluation())
    assert f"| train | game:calculator | {'cd' * 32} |" in text


def test_weights_without_a_run_have_a_card() -> None:
    text = model_card(
        "me/soup", Base("owner/base"), Weights("path:out", "path:out", "path:out"), Evaluation()
    )
    assert "| base model | owner/base |" in text
    assert "Settings" not in text
    assert "Evaluation" not in text


def test_hub_reads_the_evaluation_with_intervals() -> None:
    hub = pytest.importorskip("huggingface_hub")
    table = {
        **SCORES,
        "columns": ["held-out set", "n", "measure", "before", "after", "difference"],
        "rows": [
            ["test", "200", "exact match", "0.100 [0.05, 0.15]", "0.500 [0.431, 0.569]", "+0.4"],
            ["test", "200", "field F1", "0.2 [0.1, 0.3]", "0.6 [0.5, 0.7]", "+0.4 [0.3, 0.5]"],
            ["/home/ada/rest", "9", "truncated", "3", "1", ""],
        ],
    }
    reward = {
        "title": "Mean reward, greedily, 95 % intervals",
        "columns": ["held-out set", "n", "before", "after", "difference"],
        "rows": [["rest", "9", "-2.0 [-3.0, -1.0]", "-0.5 [-1.0, 0.0]", "+1.5 [1.0, 2.0]"]],
    }
    text = card(tables=(table, reward, ANSWERS), dataset="owner/data")
    data = hub.ModelCard(text).data
    assert data.model_name == "soup"
    assert [
        (result.dataset_name, result.dataset_split, result.metric_name, result.metric_value)
        for result in data.eval_results
    ] == [
        ("owner/data test", "test", "exact match", 0.5),
        ("owner/data test", "test", "field F1", 0.6),
        ("owner/data rest", "rest", "Mean reward", -0.5),
    ]
    first = data.eval_results[0]
    assert (first.task_type, first.dataset_type, first.metric_type) == (
        "text-generation",
        "owner/data",
        "exact_match",
    )
    assert first.metric_args == {"confidence": 0.95, "interval": [0.431, 0.569], "n": 200}
    assert hub.ModelCard(str(hub.ModelCard(text))).data.to_dict() == data.to_dict()


def test_other_weights_have_no_model_index() -> None:
    weights = Weights("run:dish@50", Checkpoint("a", 50, "weights", "ef" * 32), "a", "dish")
    found = evaluated(record(), SCORES, of_other_step=75)
    assert "model-index" not in front(model_card("me/soup", Base("a"), weights, found))
    assert "model-index" in front(card())
