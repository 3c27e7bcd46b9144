"""Everything that is needed to run a recipe again: its name, settings and adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Order:
    """Everything that is needed to cook a recipe, or to go on with a run."""

    recipe: str  # "recipes.sl_basic:SlBasic"
    settings: Mapping[str, Any]  # every field, as JSON
    # field -> "default", "command line", "config.yaml:3"
    sources: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)  # port -> name
    # port -> settings
    adapter_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # ports whose adapter was an object made with who knows what, so not to be built again
    objects: Sequence[str] = ()

    def lost(self, given: Iterable[str]) -> Mapping[str, str]:
        """Why an adapter cannot be built again, by port: of those that are not given anew."""
        return {
            port: f"the {port} adapter was an object of {self.adapters[port]}, and what it was made with is not "
            "recorded"
            for port in self.objects
            if port not in given
        }


def order_json(order: Order) -> dict[str, Any]:
    return asdict(order)
