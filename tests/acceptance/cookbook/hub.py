"""A hub on loopback with the tokenizer and data sets that the cookbook's recipes download."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.hub_server import HubServer

# the cookbook has renderers for these names
STUDENT, TEACHER = "Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-8B"
TOKENIZER = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
PACKAGED = Path(__file__).parents[3] / "adapters/local"
TEXT_ROWS = 400


def add_repositories(hub: HubServer, model: Path) -> None:
    """Add the tokenizer under both model names, and our data in the format of each data set."""
    files = {name: (model / name).read_bytes() for name in TOKENIZER if (model / name).exists()}
    for name in (STUDENT, TEACHER):
        hub.repository(name, files)
    lines, sums = _rows("ingredients/train.jsonl"), _rows("arithmetic/train.jsonl")
    chats = [{"messages": row["messages"]} for row in lines]
    _data(hub, "HuggingFaceH4/no_robots", train=chats[:600], test=chats[600:640])
    _data(hub, "allenai/tulu-3-sft-mixture", train=chats[:600])
    _data(hub, "Anthropic/hh-rlhf", train=_pairs(lines[:400]), test=_pairs(lines[400:440]))
    prompts = [
        {"question": row["prompt"].split("?")[0] + "?", "answer": f"#### {row['completion']}"}
        for row in sums
        if row["completion"] == "3"
    ]  # rl_loop's prompt has an example with the answer 3
    _data(hub, "openai/gsm8k", "main", train=prompts * 8, test=prompts)
    texts = [
        {"text": " ".join(row["messages"][1]["content"] for row in lines[start : start + 40])}
        for start in range(TEXT_ROWS)
    ]
    _data(hub, "Salesforce/wikitext", "wikitext-103-raw-v1", train=texts)


def _rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PACKAGED / path).read_text().splitlines()]


def _pairs(rows: list[dict[str, Any]]) -> Iterable[Mapping[str, str]]:
    """Pair each right answer with the answer to another question."""
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        question = f"\n\nHuman: {row['messages'][1]['content']}\n\nAssistant: "
        yield {
            "chosen": question + row["messages"][2]["content"],
            "rejected": question + other["messages"][2]["content"],
        }


def _data(
    hub: HubServer, name: str, configuration: str = "default", **splits: Iterable[Mapping[str, Any]]
) -> None:
    files = {
        f"{split}.jsonl": "".join(json.dumps(row) + "\n" for row in rows)
        for split, rows in splits.items()
    }
    listed = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in splits)
    card = f"---\nconfigs:\n- config_name: {configuration}\n  data_files:\n{listed}---\n"
    hub.repository(name, {"README.md": card, **files}, kind="dataset")
