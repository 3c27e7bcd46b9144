"""YAML files of a run: the recipe, its settings, adapters, and the file that they extend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.adapters import DEFAULTS, PORTS
from kitchen.config.sources import Keys, Setting, SettingSource, from_file
from kitchen.config.trackers import OBSERVE, merged_trackers, parse_observed
from kitchen.errors import ConfigError, did_you_mean

SUFFIXES = (".yaml", ".yml")
RECIPE, EXTENDS, ADAPTERS, ADAPTER_SETTINGS = "recipe", "extends", "adapters", "adapter_settings"
# all others are settings of the recipe
FILE_KEYS = (RECIPE, EXTENDS, ADAPTERS, ADAPTER_SETTINGS, OBSERVE)


@dataclass
class RunFiles:
    """The contents of YAML files, of which later ones override earlier ones."""

    settings: list[Setting] = field(default_factory=list)
    recipe: Setting | None = None
    adapters: dict[str, Setting] = field(default_factory=dict)  # by port
    # by port, then by name
    adapter_settings: dict[str, dict[str, Setting]] = field(default_factory=dict)
    observers: dict[str, dict[str, Any]] = field(default_factory=dict)  # tracker -> settings
    keys: dict[str, SettingSource] = field(default_factory=dict)  # keys of FILE_KEYS, with places
    problems: list[ConfigError] = field(default_factory=list)

    def add(self, path: Path, extending: Sequence[Path] = ()) -> None:
        """Read a file over those read before, after the file that it extends.

        `extending` are the files that led to this one. Problems are collected.
        """
        try:
            entries = from_file(path)
        except ConfigError as error:
            self.problems.append(error)
            return
        # the file that it extends comes first, and adapters before their settings
        order = (EXTENDS, RECIPE, ADAPTERS, ADAPTER_SETTINGS, OBSERVE, "")
        for entry in sorted(entries, key=lambda entry: order.index(_file_key(entry))):
            try:
                self._add_entry(path, entry, extending)
            except ConfigError as error:
                self.problems.append(error)

    def _add_entry(self, path: Path, entry: Setting, extending: Sequence[Path]) -> None:
        key = _file_key(entry)
        if not key:
            self.settings.append(replace(entry, other_keys=_other_keys(entry)))
            return
        self.keys.setdefault(key, entry.source)
        match key:
            case "extends":
                self._extend(path, entry, extending)
            case "recipe":
                _check_text(entry, "a module such as recipes.sl_basic")
                self.recipe = entry
            case "adapters":
                self._choose_adapter(entry)
            case "observe":
                self._observe(entry)
            case _:
                self._add_adapter_setting(entry)

    def _extend(self, path: Path, entry: Setting, extending: Sequence[Path]) -> None:
        _check_text(entry, "a file, relative to this one")
        base = path.parent / entry.value
        chain = [*extending, path]
        resolved = [file.resolve() for file in chain]
        if base.resolve() in resolved:
            circle = [*chain[resolved.index(base.resolve()) :], base]
            raise ConfigError(
                f"{entry.source}: files extend each other in a circle: "
                f"{' -> '.join(map(str, circle))}; remove 'extends' from one of them"
            )
        if not base.is_file():
            raise ConfigError(f"{entry.source}: extends: there is no file {base}")
        self.add(base, chain)

    def _choose_adapter(self, entry: Setting) -> None:
        (_, *ports), rest = _first_keys(entry.keys, 2)
        if not ports and entry.value in (None, {}):
            return
        example = "write it as 'adapters: {training: fake}'"
        if not ports or rest or not isinstance(entry.value, str):
            raise ConfigError(f"{entry}: an adapter is chosen by its name; {example}")
        _check_port(entry, ports[0])
        if entry.value != self.adapter(ports[0]):
            # they are settings of another adapter
            self.adapter_settings.pop(ports[0], None)
        self.adapters[ports[0]] = entry

    def _add_adapter_setting(self, entry: Setting) -> None:
        (_, *names), rest = _first_keys(entry.keys, 3)
        if names:
            _check_port(entry, names[0])
        if len(names) < 2:
            if entry.value in (None, {}):
                return
            raise ConfigError(
                f"{entry}: write it as 'adapter_settings: {{training: {{NAME: ...}}}}'"
            )
        port, name = names
        value = entry.value
        for key in reversed(rest):
            value = {key: value}
        settings = self.adapter_settings.setdefault(port, {})
        old = settings[name].value if rest and name in settings else None
        settings[name] = Setting((port, name), _merged(old, value), entry.source)

    def _observe(self, entry: Setting) -> None:
        _, *names = ".".join(entry.keys).split(".")
        if not names:
            trackers = parse_observed(entry.value or [], f"{entry.source}: {OBSERVE}")
            self.observers = merged_trackers(self.observers, trackers)
            return
        settings = {names[1]: entry.value} if len(names) == 2 else entry.value or {}
        if len(names) > 2 or not isinstance(settings, Mapping):
            raise ConfigError(f"{entry}: write it as '{OBSERVE}: {{wandb: {{project: soup}}}}'")
        self.observers.setdefault(names[0], {}).update(settings)

    def adapter(self, port: str) -> str:
        """Return the name of the adapter that the files choose, or else the default."""
        return self.adapters[port].value if port in self.adapters else DEFAULTS[port]

    def without_recipe(self, path: str) -> Iterator[ConfigError]:
        """Yield the reasons why a file names no recipe; none if it could not be read at all."""
        typos = [
            setting
            for setting in self.settings
            if get_close_matches(setting.keys[0], [RECIPE], cutoff=0.75)
        ]
        for setting in typos:
            key = setting.keys[0]
            yield ConfigError(f"{setting.source}: {key!r} is unknown; did you mean {RECIPE!r}?")
        if not typos and (self.settings or self.keys or not self.problems):
            yield ConfigError(
                f"{path} names no recipe; add a line such as 'recipe: recipes.sl_basic'"
            )

    def choice(self, typed: AdapterChoice) -> AdapterChoice:
        """Return the adapters of the files, overridden by those of the command line.

        Settings in the files do not apply to another adapter that the command line chooses.
        """
        names = {port: name for port, name in typed.names.items() if name is not None}
        is_url = typed.runs is not None and "://" in typed.runs
        from_files = {
            port: setting
            for port, setting in self.adapters.items()
            if port not in names and not (port == "blobs" and is_url)
        }
        merged = replace(
            typed,
            names={**{port: setting.value for port, setting in from_files.items()}, **names},
            name_sources={port: setting.source for port, setting in from_files.items()},
        )
        kept: list[Setting] = []
        for port, settings in self.adapter_settings.items():
            if merged.chosen()[port] == self.adapter(port):
                kept += settings.values()
        if typed.runs is not None:
            kept = [setting for setting in kept if setting.keys != ("blobs", "root")]
        return replace(merged, file_settings=tuple(kept))


def read_run_files(paths: Sequence[Path]) -> RunFiles:
    """Read YAML files, the later ones over the earlier ones, and collect their problems."""
    files = RunFiles()
    for path in paths:
        files.add(path)
    return files


def _file_key(entry: Setting) -> str:
    """Return the key of FILE_KEYS that an entry is under; "" for a setting of the recipe."""
    key = entry.keys[0].partition(".")[0]
    return key if key in FILE_KEYS else ""


def _other_keys(entry: Setting) -> Sequence[str]:
    """Return the keys besides settings that may have been meant by an entry."""
    parent = ADAPTER_SETTINGS if "." in ".".join(entry.keys) else ADAPTERS
    return (*FILE_KEYS, *(f"{parent}.{port}" for port in PORTS))


def _first_keys(keys: Keys, count: int) -> tuple[Sequence[str], Keys]:
    """Return the first keys, split at dots, and the remaining ones as they are."""
    first: list[str] = []
    remaining = list(keys)
    while remaining and len(first) < count:
        head, dot, tail = remaining.pop(0).partition(".")
        first.append(head)
        if dot:
            remaining.insert(0, tail)
    return first, tuple(remaining)


def _check_text(entry: Setting, meaning: str) -> None:
    if len(entry.keys) > 1 or "." in entry.keys[0] or not isinstance(entry.value, str):
        raise ConfigError(f"{entry}: {_file_key(entry)} must be {meaning}")
    if not entry.value.strip() or "\0" in entry.value:
        raise ConfigError(f"{entry.source}: {_file_key(entry)} is empty, and must be {meaning}")


def _check_port(entry: Setting, port: str) -> None:
    if port not in PORTS:
        raise ConfigError(f"{entry.source}: there is no port {port!r}; {did_you_mean(port, PORTS)}")


def _merged(old: Any, new: Any) -> Any:
    """Return two values merged, as far as both are mappings."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
