"""`kitchen schema`: the settings of a recipe as JSON schema, for editors that check and complete a
--config file.
"""

from __future__ import annotations

from typing import Any

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from kitchen.cli.commands.failure import as_json
from kitchen.config.describe import describe_settings
from kitchen.config.discovery import find_recipe, import_path
from kitchen.config.settings import nested_settings
from kitchen.errors import ConfigError
from kitchen.recipe import Recipe


def schema(name: str) -> int:
    """Print it; raises ConfigError for a recipe with a setting that JSON cannot describe."""
    print(as_json(settings_schema(find_recipe(name))))
    return 0


def settings_schema(cls: type[Recipe]) -> dict[str, Any]:
    """Of draft 2020-12; what is written with dots, as rendering.max_tokens, is let through unread."""
    try:
        made = cls.model_json_schema(schema_generator=_Generator)
    except PydanticInvalidForJsonSchema as error:
        why = f"{import_path(cls)} has a setting that JSON schema cannot describe: {error.message}"
        raise ConfigError(f"{why}; give it a type of Python's own") from error
    dotted = [
        key
        for key, kind in nested_settings(cls).items()
        if nested_settings(kind) or made["properties"][key].get("type") == "object"
    ]
    if dotted:
        made["patternProperties"] = {rf"^({'|'.join(dotted)})\.": {}}
    return {"$schema": GenerateJsonSchema.schema_dialect, **made}


class _Generator(GenerateJsonSchema):
    """Pydantic's, which knows neither the comments beside fields nor that unknown settings are
    refused.
    """

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return _told(schema["cls"], super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        made = _told(schema["cls"], super().dataclass_schema(schema))
        # what is not given comes from the default of the setting around it
        made.pop("required", None)
        return made

    def get_default_value(self, schema: Any) -> Any:
        return (
            schema["default_factory"]()
            if "default_factory" in schema
            else super().get_default_value(schema)
        )

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _told(cls: Any, made: dict[str, Any]) -> dict[str, Any]:
    for one in describe_settings(cls):
        if one.about and one.name in made["properties"]:
            made["properties"][one.name]["description"] = one.about
    return {**made, "additionalProperties": False}
