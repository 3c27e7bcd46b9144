"""Trackers of a run: parsed from `--observe`, found by name through entry points, and built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kitchen.config.adapters import adapter_settings
from kitchen.config.extras import check_tracker_installed
from kitchen.config.order import Order
from kitchen.errors import BackendError, ConfigError, did_you_mean

GROUP = "kitchen.observers"
OBSERVE = "observe"  # the key in a YAML file and the argument in Python
_FORM = "write it as NAME or NAME:key=value,key=value"

TrackerSettings = Mapping[str, Mapping[str, Any]]  # tracker -> its settings


def available_trackers() -> Mapping[str, EntryPoint]:
    """Return the trackers by name: the entry points of the group `kitchen.observers`."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def tracker_class(name: str) -> Any:
    """Return the class of a tracker.

    Raises ConfigError for an unknown name, BackendError for one that cannot be imported.
    """
    known = available_trackers()
    if name not in known:
        raise ConfigError(f"there is no tracker {name!r}; {did_you_mean(name, known)}")
    try:
        return known[name].load()
    except (ImportError, AttributeError) as error:
        raise BackendError(f"the tracker {name!r} cannot be imported: {error}") from error


def parse_observed(value: Any, place: str) -> dict[str, dict[str, Any]]:
    """Return trackers and their settings from texts: `NAME` or `NAME:key=value,key=value`.

    `value` is one text or a list of them; in place of a text, a mapping `{NAME: {key: value}}` is
    accepted. `place` begins the message of the ConfigError that anything else raises.
    """
    items = [value] if isinstance(value, str | Mapping) else value
    if not isinstance(items, list | tuple):
        raise ConfigError(f"{place}: {value!r} is not a list of trackers; {_FORM}")
    observed: dict[str, dict[str, Any]] = {}
    for item in items:
        for name, settings in _parse_item(item, place).items():
            if name in observed:
                raise ConfigError(f"{place}: the tracker {name!r} is named twice; name it once")
            observed[name] = settings
    return observed


def _parse_item(item: Any, place: str) -> dict[str, dict[str, Any]]:
    if isinstance(item, str):
        name, _, text = item.partition(":")
        return {name.strip(): _parse_settings(item, text, place)}
    if isinstance(item, Mapping) and all(isinstance(each, Mapping) for each in item.values()):
        return {str(name): dict(settings) for name, settings in item.items()}
    raise ConfigError(f"{place}: {item!r} is not a tracker; {_FORM}")


def _parse_settings(item: str, text: str, place: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{place} {item}: {part!r} is not a setting; {_FORM}")
        if key.strip() in settings:
            raise ConfigError(f"{place} {item}: {key.strip()!r} is set twice; set it once")
        settings[key.strip()] = value.strip()
    return settings


def check_trackers(observed: TrackerSettings) -> dict[str, dict[str, Any]]:
    """Return the settings of each tracker with their types; its packages must be installed.

    Raises ConfigError for unknown names and wrong values, BackendError for a missing package.
    """
    checked = {}
    for name, settings in observed.items():
        cls = tracker_class(name)
        check_tracker_installed(name, cls)
        known = adapter_settings(cls)
        checked[name] = {key: _checked(name, known, key, settings[key]) for key in settings}
    return checked


def _checked(tracker: str, known: Mapping[str, Any], key: str, value: Any) -> Any:
    if key not in known:
        near = did_you_mean(key, known)
        raise ConfigError(f"the tracker {tracker!r} has no setting {key!r}; {near}")
    if isinstance(value, str) and "@" in value.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            f"{tracker}:{key} contains a user name or password, and settings are recorded; leave "
            "it out of the URL, and set the environment variables that the tracker reads"
        )
    try:
        return TypeAdapter(known[key]).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{tracker}:{key}={value}: {error.errors()[0]['msg']}") from error


def build_trackers(observed: TrackerSettings) -> dict[str, Any]:
    """Build the trackers; raises what `check_trackers` raises."""
    checked = check_trackers(observed)
    return {name: tracker_class(name)(**settings) for name, settings in checked.items()}


def merged_trackers(*chosen: TrackerSettings) -> dict[str, dict[str, Any]]:
    """Return the trackers of several places; a later one replaces an earlier one of its name."""
    merged: dict[str, dict[str, Any]] = {}
    for trackers in chosen:
        merged |= {name: dict(settings) for name, settings in trackers.items()}
    return merged


def with_trackers(order: Order, observe: Any, place: str) -> Order:
    """Return the order of a recorded run with further trackers, from texts as after `--observe`.

    Raises ConfigError for a tracker that the run has already, with other settings: it continues
    there. Also raises what `check_trackers` raises.
    """
    further = check_trackers(parse_observed(observe, place))
    for name, settings in further.items():
        if order.observers.get(name, settings) != settings:
            raise ConfigError(
                f"{place}: the tracker {name!r} of this run has other settings, "
                f"{dict(order.observers[name])}; leave it out, and the run continues there"
            )
    observers = merged_trackers(order.observers, further)
    check_trackers(observers)
    return replace(order, observers=observers)


def parse_arguments(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the trackers of `--observe` options."""
    return parse_observed(list(texts), "--observe")
