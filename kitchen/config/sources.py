"""Settings from the command line, YAML and Python, each with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitchen.config.yaml import YamlValue, read_yaml, yaml_value
from kitchen.errors import ConfigError

# ("rendering", "max_tokens"), or ("rendering.max_tokens",) as it was typed
Keys = tuple[str, ...]
SettingSource = str  # "command line", "config.yaml:3", "settings", "default"
COMMAND_LINE: SettingSource = "command line"


@dataclass(frozen=True)
class Setting:
    """One value of a setting, and the source that it comes from."""

    keys: Keys
    value: Any
    source: SettingSource
    # keys other than settings that its source may contain, for a did-you-mean
    other_keys: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.source}: {'.'.join(self.keys)}={yaml_value(self.value)}"


def from_arguments(texts: Sequence[str]) -> Sequence[Setting]:
    """Parse command-line arguments `key=value`, where the value is YAML or plain text.

    Raises ConfigError for an argument of another form.
    """
    settings = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip().partition(".")[0]:
            raise ConfigError(f"{COMMAND_LINE}: {text!r} is not a setting; write it as key=value")
        parsed = _parse_argument(key.strip(), value, text)
        settings += [Setting(entry.keys, entry.value, COMMAND_LINE) for entry in parsed]
    return settings


def _parse_argument(key: str, value: str, text: str) -> Sequence[YamlValue]:
    """Read a value as YAML if it is a number, boolean or null, or starts with a quote or bracket.

    Every other value is plain text, so that it may contain colons, number signs and line breaks,
    which YAML would interpret.
    """
    place = f"{COMMAND_LINE}: {text}"
    plain_text = (YamlValue((key,), value, 1),)
    if value.lstrip()[:1] in tuple("\"'[{"):
        return read_yaml(value, place, (key,))
    try:
        [parsed] = read_yaml(value, place, (key,))
    except (ConfigError, ValueError):
        return plain_text
    is_scalar = isinstance(parsed.value, bool | int | float | None) and parsed.keys == (key,)
    has_yaml_syntax = bool(set(value) & set("#&\n"))
    return (parsed,) if is_scalar and not has_yaml_syntax else plain_text


def from_file(path: Path) -> Sequence[Setting]:
    """Read a YAML file of settings, nested or dotted; raises ConfigError with file and line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; a YAML file of settings is expected here"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from error
    settings = []
    for entry in read_yaml(text, str(path)):
        source = f"{path}:{entry.line}"
        if entry.keys:
            settings.append(Setting(entry.keys, entry.value, source))
        elif entry.value not in (None, {}):
            raise ConfigError(
                f"{source}: settings are lines such as 'learning_rate: 1e-4'; this is "
                f"{entry.value!r}"
            )
    return settings


def from_mapping(
    settings: Mapping[str, Any], source: SettingSource, parents: Keys = ()
) -> Iterator[Setting]:
    """Yield the settings of a Python mapping, nested or dotted."""
    for key, value in settings.items():
        keys = (*parents, str(key))
        if isinstance(value, Mapping) and value:
            yield from from_mapping(value, source, keys)
        else:
            yield Setting(keys, value, source)
