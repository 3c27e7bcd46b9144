"""`kitchen schema` accepts the settings that the recipe accepts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, PositiveInt

from kitchen.cli.commands.schema import settings_schema
from kitchen.config.discovery import find_recipe, recipe_modules
from kitchen.errors import ConfigError
from kitchen.recipe import Recipe
from kitchen.stage import Stage
from kitchen.workflow import Step, sequence
from tests.support.commands import invoke, output

jsonschema = pytest.importorskip("jsonschema")


@dataclass(frozen=True)
class Oven:
    """An oven."""

    name: str  # the maker
    heat: Annotated[float, Field(gt=0, le=300)] = 180.0  # degrees Celsius


class Bake(Stage):
    """Bake it."""

    minutes: int = 40  # in the oven

    def run(self) -> None: ...


class Cake(Recipe):
    """A cake."""

    guests: PositiveInt  # people at the table
    oven: Oven = Oven("Aga", heat=200.0)
    bake: Bake = Bake()
    size: Literal["small", "large"] | None = None
    prices: Mapping[str, float] = field(default_factory=dict)  # by ingredient

    def workflow(self) -> Step:
        return sequence(self.bake)


def fits(value: Any, schema: Any) -> bool:
    """Return whether a value matches a schema, which must be valid itself."""
    jsonschema.Draft202012Validator.check_schema(schema)
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize("name", [module.name for module in recipe_modules()])
def test_a_recipe_fits_its_own_schema(name: str) -> None:
    cls = find_recipe(name)
    needed = {name: "any" for name, field in cls.model_fields.items() if field.is_required()}
    assert fits(cls(**needed).model_dump(mode="json"), settings_schema(cls))


@pytest.mark.parametrize(
    ("settings", "right"),
    [
        ({}, True),
        ({"learning_rate": 1e-4, "rendering": {"max_tokens": 256}}, True),
        ({"rendering.max_tokens": 256, "reading.columns.question": "prompt"}, True),
        ({"reading": {"columns": {"question": "prompt"}, "limit": None}}, True),
        ({"learning_rat": 1e-4}, False),
        ({"learning_rate": 0}, False),
        ({"learning_rate": "fast"}, False),
        ({"rendering": {"max_tokns": 256}}, False),
        ({"rendering": {"overlong": "ignore"}}, False),
        ({"rendering": 3}, False),
        ({"epochs": 1.5}, False),
        ({"batch_size": True}, False),
        ({"schedule": "square"}, False),
        ({"reading": {"held_out": 1}}, False),
        ({"lora_rank.x": 3}, False),
    ],
    ids=str,
)
def test_it_accepts_what_the_recipe_accepts(settings: dict[str, Any], right: bool) -> None:
    assert fits(settings, settings_schema(find_recipe("recipes.sl_basic"))) == right


def test_the_schema_has_comments_bounds_and_defaults() -> None:
    schema = settings_schema(Cake)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["description"] == "A cake."
    assert schema["required"] == ["guests"]
    assert schema["properties"]["guests"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "description": "people at the table",
    }
    assert schema["properties"]["oven"]["default"] == {"name": "Aga", "heat": 200.0}
    assert schema["$defs"]["Oven"]["properties"]["heat"] == {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 300,
        "default": 180.0,
        "description": "degrees Celsius",
    }
    assert schema["$defs"]["Bake"]["properties"] == {
        "minutes": {"type": "integer", "default": 40, "description": "in the oven"}
    }
    assert schema["properties"]["prices"]["default"] == {}


def test_part_of_a_nested_setting_is_enough() -> None:
    assert fits({"guests": 3, "oven": {"heat": 220}, "size": None}, settings_schema(Cake))
    assert not fits({"oven": {"heat": 220}}, settings_schema(Cake))


def test_a_setting_unknown_to_json_is_an_error() -> None:
    class Odd(Recipe):
        taste: Callable[[str], bool] = str.isupper

        def workflow(self) -> Step:
            return sequence(Bake())

    with pytest.raises(ConfigError, match=r"Odd .*Callable"):
        settings_schema(Odd)


@pytest.mark.usefixtures("here")
def test_the_command_prints_the_schema_only() -> None:
    printed = json.loads(invoke("schema", "recipes.sl_basic").stdout)
    assert printed == settings_schema(find_recipe("recipes.sl_basic"))
    assert "'recipes.sl_basic'" in output(2, "schema", "recipes.sl_basc")


def test_the_keys_of_run_files_are_in_the_schema() -> None:
    schema = settings_schema(find_recipe("recipes.sl_basic"))
    adapters = {"training": "fake"}
    settings = {"training": {"device": "cpu"}, "datasets.max_line_mb": 4}
    file = {"recipe": "recipes.sl_basic", "extends": "base.yaml", "adapters": adapters}
    assert fits({**file, "adapter_settings": settings, "adapters.hub": "local"}, schema)
    assert not fits({**file, "recipe": 3}, schema)
    assert not fits({**file, "adapters": {"trainer": "fake"}}, schema)
