"""The adapters: found by name through entry points, built with their settings, given each other."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from kitchen.engine.observers import Observer
from kitchen.engine.plan import Plan, check
from kitchen.engine.runner import run
from kitchen.engine.scope import Context
from kitchen.errors import BackendError, ConfigError, did_you_mean
from kitchen.ports import (
    BlobStore,
    CheckpointStore,
    DatasetStore,
    HubClient,
    ModelCatalog,
    TrainingClient,
)
from kitchen.ports.training import training_ports
from kitchen.recipe import Recipe

PORTS: Mapping[str, Any] = {
    "training": TrainingClient,
    "datasets": DatasetStore,
    "hub": HubClient,
    "blobs": BlobStore,
}
# every type under which the adapter of a port is offered to stages
PORT_TYPES: Mapping[str, tuple[Any, ...]] = {
    **{port: (kind,) for port, kind in PORTS.items()},
    "training": (TrainingClient, ModelCatalog, CheckpointStore),
}
DEFAULTS: Mapping[str, str] = {
    "training": "peft",
    "datasets": "local",
    "hub": "hf",
    "blobs": "local",
}


def available(port: str) -> Mapping[str, EntryPoint]:
    """The adapters of a port by name; an adapter of one's own is an entry point of the group
    `kitchen.PORT`.
    """
    places = [os.path.abspath(place) for place in sys.path]
    changed = tuple(
        (place, os.stat(place).st_mtime_ns) for place in places if os.path.exists(place)
    )
    return _installed(changed)[port]


@lru_cache(maxsize=1)
def _installed(changed: tuple[tuple[str, int], ...]) -> Mapping[str, Mapping[str, EntryPoint]]:
    """By port; read once, and again when a folder on the path has changed, as to install a package
    changes one.
    """
    found = entry_points()
    return {
        port: {entry.name: entry for entry in found.select(group=f"kitchen.{port}")}
        for port in PORTS
    }


def adapter_class(port: str, name: str) -> Any:
    """The class behind a name, or behind `module:Class` for one of your own that is not installed.

    Raises ConfigError for an unknown one, BackendError for one that cannot be imported.
    """
    found = available(port)
    if ":" in name:
        found = {name: EntryPoint(name, name, f"kitchen.{port}")}
    if name not in found:
        raise ConfigError(f"there is no {port} adapter {name!r}; {did_you_mean(name, found)}")
    try:
        return found[name].load()
    except AttributeError as error:
        raise ConfigError(f"there is no {port} adapter {name!r}: {error}") from error
    except ImportError as error:
        raise BackendError(
            f"the {port} adapter {name!r} cannot be imported: {error}; "
            "`kitchen list` shows what each adapter needs"
        ) from error


def adapter_settings(cls: Any) -> Mapping[str, Any]:
    """The settings of an adapter: constructor parameters that are not ports, name to type."""
    hints = _hints(cls)
    parameters = list(inspect.signature(cls).parameters)
    return {name: hints.get(name, Any) for name in parameters if _port_of(hints.get(name)) is None}


def required_ports(cls: Any) -> Mapping[str, str]:
    """The ports that an adapter is given by its constructor: parameter to port."""
    return {
        name: port
        for name, hint in _hints(cls).items()
        if name != "return" and (port := _port_of(hint))
    }


@cache
def _hints(cls: Any) -> Mapping[str, Any]:
    """Types by parameter of the constructor."""
    return get_type_hints(cls.__init__) if "__init__" in vars(cls) else {}


def build(port: str, names: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]) -> Any:
    """One adapter, and those that it asks for."""
    return _Builder({**DEFAULTS, **names}, settings).build(port)


def _port_of(hint: Any) -> str | None:
    """The port that a parameter asks for: `BlobStore` or `BlobStore | None`."""
    wanted = {hint, *getattr(hint, "__args__", ())}
    return next((port for port, kinds in PORT_TYPES.items() if wanted & set(kinds)), None)


@dataclass(frozen=True)
class Kitchen:
    """The adapters that a recipe is cooked with, one per port."""

    training: TrainingClient | None = None
    datasets: DatasetStore | None = None
    hub: HubClient | None = None
    blobs: BlobStore | None = None

    @classmethod
    def named(
        cls,
        names: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        objects: Mapping[str, Any] | None = None,
    ) -> Kitchen:
        """Adapters by name (`{"training": "fake"}`), the rest as `DEFAULTS`; settings by port;
        `objects` are built.
        """
        for port in [*(names or {}), *(settings or {})]:
            if port not in PORTS:
                raise ConfigError(f"there is no port {port!r}; {did_you_mean(port, PORTS)}")
        return _Builder(
            {**DEFAULTS, **(names or {})}, settings or {}, dict(objects or {})
        ).kitchen()

    def ports(self) -> Mapping[Any, Any]:
        """Return the adapters by port type; training adapters under each type they implement."""
        adapters = {kind: getattr(self, port) for port, kind in PORTS.items()}
        if self.training is not None:
            adapters |= training_ports(self.training)
        return {kind: adapter for kind, adapter in adapters.items() if adapter is not None}

    def check(self, recipe: Recipe) -> Plan:
        """What the recipe will do with these adapters, and what is wrong with it; nothing runs."""
        from kitchen.types import RunId

        return check(recipe.workflow(), {**self.ports(), RunId: RunId("check")}, recipe.outputs)

    def cook(self, recipe: Recipe, *observers: Observer, name: str = "") -> Context:
        """Cook it, or go on with the run of this name where it stopped."""
        return run(
            recipe.workflow(),
            self.ports(),
            observers,
            name=name or recipe.title(),
            outputs=recipe.outputs,
            title=recipe.title(),
        )


@dataclass
class _Builder:
    """Builds each adapter once; ports are injected by constructor annotation."""

    names: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Any]]
    built: dict[str, Any] = field(default_factory=dict)

    def kitchen(self) -> Kitchen:
        return Kitchen(**{port: self.build(port) for port in PORTS})

    def build(self, port: str) -> Any:
        if port not in self.built:
            cls = adapter_class(port, self.names[port])
            given = {
                name: self._beside(port, cls) if other == port else self.build(other)
                for name, other in required_ports(cls).items()
            }
            self.built[port] = self._made(
                port, cls, {**given, **self._settings(port, adapter_settings(cls))}
            )
        return self.built[port]

    def _made(self, port: str, cls: Any, given: Mapping[str, Any]) -> Any:
        try:
            return cls(**given)
        except TypeError as error:
            if ":" not in self.names[port]:
                raise
            raise ConfigError(
                f"{self.names[port]} cannot be built by name: {error}; give what it misses as "
                "--set "
                f"{port}.NAME=VALUE, or in Python the object itself"
            ) from error

    def _beside(self, port: str, cls: Any) -> Any:
        """What an adapter that asks for its own port is put over: the one that its attribute `over`
        names.
        """
        if not isinstance(under := getattr(cls, "over", None), str) or under == self.names[port]:
            raise ConfigError(
                f"the {port} adapter {self.names[port]!r} asks for a {port} adapter to be put "
                "over, and "
                'must name another one: over = "local"'
            )
        return _Builder({**self.names, port: under}, {}, dict(self.built)).build(port)

    def _settings(self, port: str, known: Mapping[str, Any]) -> Mapping[str, Any]:
        values = {}
        for name, value in self.settings.get(port, {}).items():
            if name not in known:
                raise ConfigError(
                    f"the {port} adapter {self.names[port]!r} has no setting {name!r}; "
                    f"{did_you_mean(name, known)}"
                )
            try:
                values[name] = TypeAdapter(known[name]).validate_python(value)
            except ValidationError as error:
                raise ConfigError(f"{port}.{name}={value}: {error.errors()[0]['msg']}") from error
        return values
