"""Adapters: found by name through entry points, validated, and built with their dependencies."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from kitchen.backend.logs import ensure_configured
from kitchen.backend.sampling_router import SamplingRouter
from kitchen.errors import BackendError, ConfigError, did_you_mean
from kitchen.ports import (
    BlobStore,
    CheckpointStore,
    DatasetStore,
    HubClient,
    ModelCatalog,
    SamplingClient,
    TrainingClient,
)
from kitchen.ports.training import training_ports
from kitchen.types import RunId

if TYPE_CHECKING:
    from kitchen.engine.observers import Observer
    from kitchen.engine.plan import Plan
    from kitchen.engine.scope import Scope
    from kitchen.recipe import Recipe

PORTS: Mapping[str, Any] = {
    "training": TrainingClient,
    "sampling": SamplingClient,
    "datasets": DatasetStore,
    "hub": HubClient,
    "blobs": BlobStore,
}
ENSEMBLES = "kitchen.weights"  # group of entry points: clients of weights made of other weights
# every type under which the adapter of a port is offered to stages
PORT_TYPES: Mapping[str, tuple[Any, ...]] = {
    **{port: (protocol,) for port, protocol in PORTS.items()},
    "training": (TrainingClient, ModelCatalog, CheckpointStore),
}
DEFAULTS: Mapping[str, str] = {
    "training": "peft",
    "sampling": "openai",
    "datasets": "local",
    "hub": "hf",
    "blobs": "local",
}


def available(port: str) -> Mapping[str, EntryPoint]:
    """Return the adapters of a port by name: the entry points of the group `kitchen.PORT`."""
    folders = [os.path.abspath(folder) for folder in sys.path]
    modified = tuple(
        (folder, os.stat(folder).st_mtime_ns) for folder in folders if os.path.exists(folder)
    )
    return _installed(modified)[port]


@lru_cache(maxsize=1)
def _installed(modified: tuple[tuple[str, int], ...]) -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return the installed adapters by port and name.

    `modified` is the cache key, (folder, mtime in ns) of every folder on `sys.path`: to install a
    package changes one of them, so the entry points are read again.
    """
    installed = entry_points()
    by_port: dict[str, Mapping[str, EntryPoint]] = {}
    for port in PORTS:
        entries = installed.select(group=f"kitchen.{port}")
        by_port[port] = {entry.name: entry for entry in entries}
    return by_port


def adapter_class(port: str, name: str) -> Any:
    """Return the class of an adapter, by its name or, if it is not installed, by `module:Class`.

    Raises ConfigError for an unknown name and for a class that does not implement the port,
    BackendError for one that cannot be imported.
    """
    candidates = available(port)
    if ":" in name:
        candidates = {name: EntryPoint(name, name, f"kitchen.{port}")}
    if name not in candidates:
        raise ConfigError(f"there is no {port} adapter {name!r}; {did_you_mean(name, candidates)}")
    try:
        cls = candidates[name].load()
    except AttributeError as error:
        raise ConfigError(f"there is no {port} adapter {name!r}: {error}") from error
    except ImportError as error:
        raise BackendError(
            f"the {port} adapter {name!r} cannot be imported: {error}; "
            "`kitchen list` shows what each adapter needs"
        ) from error
    if ":" in name and (missing := _missing_methods(cls, PORTS[port])):
        raise ConfigError(
            f"{name} is not a {port} adapter: it does not implement {PORTS[port].__name__} of "
            f"kitchen.ports, for it has no {', '.join(missing)}"
        )
    return cls


def _missing_methods(cls: Any, protocol: Any) -> list[str]:
    """Return the methods of a port that a class lacks."""
    methods = [name for name, _ in inspect.getmembers(protocol, inspect.isfunction)]
    return [name for name in methods if name[0] != "_" and not hasattr(cls, name)]


def adapter_settings(cls: Any) -> Mapping[str, Any]:
    """Return an adapter's settings, name to type: constructor parameters that are not ports."""
    types = _parameter_types(cls)
    parameters = inspect.signature(cls).parameters
    return {name: types.get(name, Any) for name in parameters if _port_of(types.get(name)) is None}


def validated_setting(
    port: str, adapter: str, known: Mapping[str, Any], name: str, value: Any
) -> Any:
    """Return the value of an adapter's setting as its type; raises ConfigError.

    `known` are the adapter's settings, name to type.
    """
    if name not in known:
        raise ConfigError(
            f"the {port} adapter {adapter!r} has no setting {name!r}; {did_you_mean(name, known)}"
        )
    try:
        return TypeAdapter(known[name]).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{port}.{name}{_type_error(error, value)}") from error


def _type_error(error: ValidationError, value: Any) -> str:
    """Return `=VALUE: message` for a value, or `[N]=VALUE: message` for one that it contains.

    The message names all members of a union.
    """
    details = error.errors(include_url=False)
    for detail in details:
        if place := _place(value, detail["loc"]):
            return f"{place}={detail['input']}: {detail['msg']}"
    if len(details) == 1:
        return f"={value}: {details[0]['msg']}"
    first, *others = [detail["msg"].partition(", unable to")[0] for detail in details]
    expected = [message.removeprefix("Input should be ") for message in others]
    return f"={value}: {' or '.join([first, *expected])}"


def _place(value: Any, location: Sequence[int | str]) -> str:
    """Return the place of an error within a value, as `[KEY][N]`; empty for the value itself.

    A location also has the members of unions, and "[key]" for a key of a mapping.
    """
    place = ""
    for part in location:
        is_index = isinstance(value, list | tuple) and isinstance(part, int)
        if is_index or (isinstance(value, Mapping) and part in value):
            place += f"[{part}]"
            value = value[part]
    return place


def required_ports(cls: Any) -> Mapping[str, str]:
    """Return the ports that an adapter's constructor takes, parameter name to port."""
    ports = {}
    for name, annotation in _parameter_types(cls).items():
        port = _port_of(annotation)
        if name != "return" and port:
            ports[name] = port
    return ports


@cache
def _parameter_types(cls: Any) -> Mapping[str, Any]:
    constructor = cls.__init__  # its own or an inherited one; object's is no function
    return get_type_hints(constructor) if inspect.isfunction(constructor) else {}


def build(port: str, names: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]) -> Any:
    """Build the adapter of one port, and the adapters that it depends on."""
    return _Builder({**DEFAULTS, **names}, settings).build(port)


def _port_of(annotation: Any) -> str | None:
    """Return the port that a parameter is annotated with: `BlobStore` or `BlobStore | None`."""
    types = {annotation, *getattr(annotation, "__args__", ())}
    return next((port for port, kinds in PORT_TYPES.items() if types & set(kinds)), None)


@dataclass(frozen=True)
class Kitchen:
    """The adapters that a recipe runs on, one per port."""

    training: TrainingClient | None = None
    datasets: DatasetStore | None = None
    hub: HubClient | None = None
    blobs: BlobStore | None = None
    sampling: SamplingClient | None = None  # of models of other services

    @classmethod
    def named(
        cls,
        names: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        objects: Mapping[str, Any] | None = None,
    ) -> Kitchen:
        """Build adapters by name, such as `{"training": "fake"}`; other ports get their default.

        `settings` are by port. `objects` are adapters that exist already, by port.
        """
        for port in [*(names or {}), *(settings or {})]:
            if port not in PORTS:
                raise ConfigError(f"there is no port {port!r}; {did_you_mean(port, PORTS)}")
        all_names = {**DEFAULTS, **(names or {})}
        return _Builder(all_names, settings or {}, dict(objects or {})).kitchen()

    def ports(self) -> Mapping[Any, Any]:
        """Return the adapters by port type; training adapters under each type they implement."""
        adapters = {protocol: getattr(self, port) for port, protocol in PORTS.items()}
        if self.training is not None:
            adapters |= training_ports(self.routed_training())
        return {protocol: adapter for protocol, adapter in adapters.items() if adapter is not None}

    def routed_training(self) -> TrainingClient:
        """Return the training adapter, which samples models of other services by `sampling`.

        Raises ConfigError if there is no training adapter.
        """
        if self.training is None:
            raise ConfigError("there is no training adapter")
        router = SamplingRouter(self.training, self.sampling, self._open_ensembles)
        return cast(TrainingClient, router)

    def _open_ensembles(self, client: TrainingClient) -> SamplingClient:
        """Return the client of ensembles, which finds members by this one."""
        installed = entry_points().select(group=ENSEMBLES, name="ensemble")
        opening = next(iter(installed), None)
        if opening is None:
            raise ConfigError(
                f"ensemble:FILE needs an entry point 'ensemble' of the group {ENSEMBLES}, and none "
                "is installed: install crucible-kitchen again"
            )
        return cast(SamplingClient, opening.load()(client, self.blobs))

    def check(self, recipe: Recipe) -> Plan:
        """Return the plan of a recipe on these adapters, with its problems; nothing runs."""
        from kitchen.engine.plan import check

        return check(recipe.workflow(), {**self.ports(), RunId: RunId("check")}, recipe.outputs)

    def cook(self, recipe: Recipe, *observers: Observer, name: str = "") -> Scope:
        """Run a recipe, or resume the run of this name from its last save point."""
        from kitchen.backend.observed_ports import ObservedPorts
        from kitchen.engine.runner import run

        return run(
            recipe.workflow(),
            self.ports(),
            observers,
            name=name or recipe.title(),
            outputs=recipe.outputs,
            title=recipe.title(),
            port_wrapper=ObservedPorts(),
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
            ensure_configured()  # adapters log
            cls = adapter_class(port, self.names[port])
            arguments = {
                parameter: self._wrapped(port, cls) if required == port else self.build(required)
                for parameter, required in required_ports(cls).items()
            }
            arguments |= self._settings(port, adapter_settings(cls))
            self.built[port] = self._construct(port, cls, arguments)
        return self.built[port]

    def _construct(self, port: str, cls: Any, arguments: Mapping[str, Any]) -> Any:
        try:
            return cls(**arguments)
        except TypeError as error:
            if ":" not in self.names[port]:
                raise
            raise ConfigError(
                f"{self.names[port]} cannot be built by name: {error}; give the missing argument "
                f"as --set {port}.NAME=VALUE, or pass an instance of it from Python"
            ) from error

    def _wrapped(self, port: str, cls: Any) -> Any:
        """Build the adapter of the same port that this one wraps: its class names it in `over`."""
        wrapped = getattr(cls, "over", None)
        if not isinstance(wrapped, str) or wrapped == self.names[port]:
            raise ConfigError(
                f"the {port} adapter {self.names[port]!r} wraps another {port} adapter: its class "
                'must name that one, as in over = "local"'
            )
        return _Builder({**self.names, port: wrapped}, {}, dict(self.built)).build(port)

    def _settings(self, port: str, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Validate the settings of a port against their types; raises ConfigError."""
        adapter = self.names[port]
        return {
            name: validated_setting(port, adapter, known, name, value)
            for name, value in self.settings.get(port, {}).items()
        }
