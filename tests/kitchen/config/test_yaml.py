"""YAML from users, records and cards: aliases, nesting, and values as they would be typed."""

from __future__ import annotations

import json

import pytest
from ruamel.yaml import YAML

from kitchen.config.yaml import read_yaml, yaml_value
from kitchen.errors import ConfigError

BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
)
MAPS = "\n".join(
    ["a0: &a0 {k: 1, l: 2}"] + [f"a{n}: &a{n} {{k: *a{n - 1}, l: *a{n - 1}}}" for n in range(1, 40)]
)
MERGES = "\n".join(
    ["a0: &a0 {k: 1}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40)]
)


TEXTS = f"a: &a {'x' * 1_000_000}\nb: [{', '.join(['*a'] * 500)}]"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", [BOMB, MAPS, MERGES, TEXTS])
def test_aliases_of_aliases_are_not_followed(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"f\.yaml.*\(\*name\) stand for more than 100,000 values"
    ):
        read_yaml(text, "f.yaml")
    assert yaml_value(text) == json.dumps(text), "a text is quoted, not loaded"


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: {c: *a}}"])
def test_an_alias_of_itself_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="stand for more than"):
        read_yaml(text, "f.yaml")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["[" * 50_000, "{a: " * 50_000, "- " * 5000 + "x", "[] {[" * 999])
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_yaml(text, "f.yaml")
    assert yaml_value(text) == json.dumps(text)


@pytest.mark.parametrize("value", ["!!omap [a: 1]", "!!set {a}", "!!binary aGk=", "!!pairs [a: 1]"])
def test_types_of_yaml_1_1_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"f\.yaml:1: not YAML: .*tag"):
        read_yaml(f"reading: {value}", "f.yaml")


def test_ordinary_aliases_are_followed() -> None:
    text = "base: &base {rank: 8, alpha: 16}\none: *base\ntwo:\n  <<: *base\n  rank: 4\n"
    values = {value.keys: value.value for value in read_yaml(text, "f.yaml")}
    assert values["one", "alpha"] == values["two", "alpha"] == 16
    assert values["two", "rank"] == 4


@pytest.mark.parametrize(
    "value",
    ["a, b", ["a, b", "c: d", "]", "{", "#"], {"a: b": "c, d"}, "\u202etxt", ["\x9b", "\x7f\n"]],
)
def test_typed_values_are_read_as_themselves(value: object) -> None:
    typed = yaml_value(value)
    assert typed.isprintable()
    assert YAML(typ="safe", pure=True).load(typed) == value
