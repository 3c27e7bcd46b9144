"""`kitchen schema`: the settings of a recipe as a JSON schema, for editors of YAML files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from kitchen.cli.commands.json_output import print_json
from kitchen.config.adapters import PORTS
from kitchen.config.describe import describe_settings
from kitchen.config.discovery import import_path
from kitchen.config.pipeline import find_pipeline
from kitchen.config.request import recipe_of
from kitchen.config.run_files import ADAPTER_SETTINGS, ADAPTERS, EXTENDS, RECIPE
from kitchen.config.settings import nested_settings
from kitchen.config.trackers import OBSERVE
from kitchen.errors import ConfigError
from kitchen.recipe import Recipe

PIPELINE = "thinker"
_FILE_KEYS: Mapping[str, Any] = {
    RECIPE: {"type": "string", "description": "module of the recipe, such as recipes.sl_basic"},
    EXTENDS: {"type": "string", "description": "another file, whose settings this one overrides"},
    ADAPTERS: {
        "type": "object",
        "description": "adapters by port",
        "properties": {port: {"type": "string"} for port in PORTS},
        "additionalProperties": False,
    },
    ADAPTER_SETTINGS: {
        "type": "object",
        "description": "settings of adapters by port",
        "properties": {port: {"type": "object"} for port in PORTS},
        "patternProperties": {rf"^({'|'.join(PORTS)})\.": {}},
        "additionalProperties": False,
    },
    OBSERVE: {
        "type": ["string", "array", "object"],
        "description": "trackers: NAME or NAME:key=value, or settings by tracker",
    },
}


def print_schema(name: str) -> int:
    """Print the schema; raises ConfigError for a setting that JSON schema cannot describe.

    The name "thinker" stands for the files of a pipeline.
    """
    if name == PIPELINE:
        dialect = {"$schema": GenerateJsonSchema.schema_dialect}
        print_json({**dialect, **find_pipeline().schema()})
        return 0
    cls = recipe_of(name)
    print_json(settings_schema(cls))
    return 0


def settings_schema(cls: type[Recipe]) -> dict[str, Any]:
    """Return a schema of draft 2020-12; dotted keys such as rendering.max_tokens pass unchecked."""
    try:
        schema = cls.model_json_schema(schema_generator=_SchemaGenerator)
    except PydanticInvalidForJsonSchema as error:
        raise ConfigError(
            f"{import_path(cls)} has a setting that JSON schema cannot describe: {error.message}; "
            "give it a built-in type of Python"
        ) from error
    nested = [
        key
        for key, kind in nested_settings(cls).items()
        if nested_settings(kind) or schema["properties"][key].get("type") == "object"
    ]
    names = "|".join([*nested, ADAPTERS, ADAPTER_SETTINGS])
    schema["patternProperties"] = {rf"^({names})\.": {}}
    schema["properties"] = {**_FILE_KEYS, **schema["properties"]}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


class _SchemaGenerator(GenerateJsonSchema):
    """Pydantic's generator, with the comments of fields, and without unknown settings."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return _with_descriptions(schema["cls"], super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        generated = _with_descriptions(schema["cls"], super().dataclass_schema(schema))
        # a missing field is filled in from the default of the setting that holds the dataclass
        generated.pop("required", None)
        return generated

    def get_default_value(self, schema: Any) -> Any:
        if "default_factory" in schema:
            return schema["default_factory"]()
        return super().get_default_value(schema)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _with_descriptions(cls: Any, schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema["properties"]
    for setting in describe_settings(cls):
        if setting.about and setting.name in properties:
            properties[setting.name]["description"] = setting.about
    return {**schema, "additionalProperties": False}
