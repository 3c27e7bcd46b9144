"""An order: the recipe, settings and adapters of a run, all that is needed to run it again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Order:
    """Everything that is needed to start a run or to resume it; recorded in its run.json."""

    recipe: str  # "recipes.sl_basic:SlBasic"
    settings: Mapping[str, Any]  # every field, as JSON
    # setting -> its source: "default", "command line", "config.yaml:3"
    sources: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)  # port -> name
    # port -> settings
    adapter_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # ports whose adapter was an object built with unrecorded arguments: cannot be rebuilt
    objects: Sequence[str] = ()
    # "training" or "training.device" -> its source, for adapters and settings that were given
    adapter_sources: Mapping[str, str] = field(default_factory=dict)
    observers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # tracker -> settings

    def recorded_adapters(self, replaced: Collection[str] = ()) -> dict[str, str]:
        """Return the names of the adapters to rebuild, by port; the blob store holds the record."""
        return {
            port: name
            for port, name in self.adapters.items()
            if port != "blobs" and port not in replaced
        }

    def recorded_settings(self, replaced: Collection[str] = ()) -> dict[str, dict[str, Any]]:
        """Return the settings of the adapters to rebuild, by port."""
        return {
            port: dict(values)
            for port, values in self.adapter_settings.items()
            if port != "blobs" and port not in replaced
        }

    def missing_objects(self, replaced: Iterable[str]) -> Mapping[str, str]:
        """Return why an adapter cannot be rebuilt, by port, except for the ports in `replaced`."""
        return {
            port: f"the {port} adapter was an object of {self.adapters[port]}, and the arguments "
            "that it was built with are not recorded"
            for port in self.objects
            if port not in replaced
        }


def order_json(order: Order) -> dict[str, Any]:
    """Return an order as it is recorded in run.json."""
    return asdict(order)


def adapter_rows(order: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return a row of port, adapter and settings for each adapter of a recorded order.

    The place in a YAML file, if it comes from one, follows in brackets.
    """
    # they take long to import, and a list of runs needs neither
    from kitchen.config.sources import COMMAND_LINE
    from kitchen.config.yaml import yaml_value

    places = {
        key: f" ({source})"
        for key, source in order.get("adapter_sources", {}).items()
        if source != COMMAND_LINE
    }
    rows = []
    for port, name in order["adapters"].items():
        settings = order["adapter_settings"].get(port, {}).items()
        typed = [
            f"{key}={yaml_value(value)}{places.get(f'{port}.{key}', '')}" for key, value in settings
        ]
        rows.append((port, name + places.get(port, ""), ", ".join(typed)))
    return rows


def nested_value(values: Any, key: str) -> Any:
    """Return the value at a dotted key such as "rendering.max_tokens"."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else values
    return values
