"""Secrets are masked in output and in records, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen
from kitchen.config.order import Order
from kitchen.runs.execute import execute
from kitchen.runs.store import read_run
from kitchen.secrets import mask, masked
from recipes.sl_basic import SlBasic

SECRET = 'hunter2-"geheim"\\é'


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "TINKER_API_KEY", "AWS_SECRET_ACCESS_KEY", "db_password", "APIKEY"),
        *("PGPASSWORD", "OPENAI_API_KEY_2", "GITHUB_PAT"),
    ],
)
def test_values_of_secret_variables_are_masked(name: str) -> None:
    assert mask(f"cannot log in with {SECRET}", {name: SECRET}) == "cannot log in with ***"


@pytest.mark.parametrize(
    "name", ["MAX_TOKENS", "KEYBOARD", "TOKENIZERS_PARALLELISM", "HOME", "PWD", "OLDPWD"]
)
def test_values_of_other_variables_are_not_masked(name: str) -> None:
    assert mask("seed 123456", {name: "123456"}) == "seed 123456"


@pytest.mark.parametrize("form", [repr, json.dumps, quote, str.strip])
def test_a_secret_is_masked_in_every_form(form: Callable[[str], str]) -> None:
    environment = {"SHORT_KEY": "hunter2", "HF_TOKEN": f"{SECRET}\n"}
    text = mask(f"no such file: {form(SECRET)}", environment)
    assert text.replace('"', "").replace("'", "") == "no such file: ***"


def test_credentials_in_urls_are_masked() -> None:
    assert mask("s3://me:s3cret@host/bucket", {}) == "s3://***@host/bucket"


def test_texts_inside_a_json_value_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "123456")
    assert masked({"seed": 123456, "a": ["x123456", {"b": "123456"}]}) == {
        "seed": 123456,
        "a": ["x***", {"b": "***"}],
    }


def test_secrets_reach_no_file_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    rows = [{"prompt": "?", "completion": "{}"}] * 4
    blobs = FakeBlobs()
    recipe = SlBasic(model="any", dataset="rows", batch_size=2, max_steps=2, seed=123456)
    order = Order(
        "recipes.sl_basic:SlBasic",
        {"model": f"path:{SECRET}"},
        adapters={"blobs": "fake"},
        adapter_settings={"blobs": {"root": SECRET}},
    )
    data = FakeDatasets({"rows": {"train": rows, "held": rows}})
    execute(order, recipe, Kitchen(FakeTraining(blobs), data, None, blobs), "r")
    texts = [(blobs.read(name) or b"").decode(errors="ignore") for name in blobs.list()]
    assert not any("hunter2" in text for text in texts)
    assert read_run(blobs, "r")["order"]["settings"] == {"model": "path:***"}
    assert all(json.loads(line) for line in (blobs.read("r/metrics.jsonl") or b"").splitlines())
