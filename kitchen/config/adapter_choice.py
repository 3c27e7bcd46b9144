"""The adapters that a command was given, and the blob store of its runs.

`kitchen runs` needs nothing else, and starts quickly because this module imports no recipes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kitchen.config.adapters import DEFAULTS, adapter_class, adapter_settings, build
from kitchen.config.extras import check_installed
from kitchen.config.working_folder import add_cwd_to_path
from kitchen.errors import ConfigError
from kitchen.ports import BlobStore, blob_name

if TYPE_CHECKING:
    from kitchen.config.sources import Setting, SettingSource

DEFAULT_RUNS_FOLDER = "runs"  # where runs are stored by default


@dataclass(frozen=True)
class AdapterChoice:
    """The adapters of a request: names, settings, and where runs are stored."""

    names: Mapping[str, str | None]  # port to name; None: the default
    settings: Sequence[str] = ()  # "training.device=cpu"
    runs: str | None = None  # folder or URL
    trust: bool = False  # whether the record of a run may name adapters that are not installed
    # port to file and line, where the name comes from a YAML file
    name_sources: Mapping[str, SettingSource] = field(default_factory=dict)
    # settings in YAML files, with keys such as ("training", "device"); `settings` override them
    file_settings: Sequence[Setting] = ()

    def chosen(self) -> dict[str, str]:
        """Return the name of the adapter of every port."""
        names = {port: name for port, name in self.names.items() if name is not None}
        if self.runs and "://" in self.runs:
            return {**DEFAULTS, "blobs": "fsspec", **names}
        return {**DEFAULTS, **names}

    def store_options(self) -> str:
        """Return the command-line options that find the store of runs again, or "".

        `--set blobs.root=DIR` overrides `--runs`, as it does for the run itself.
        """
        from kitchen.config.sources import from_arguments

        settings = [*self.file_settings, *from_arguments(self.settings)]
        roots = [setting.value for setting in settings if ".".join(setting.keys) == "blobs.root"]
        options = {
            "--runs": str(roots[-1]) if roots else self.runs,
            "--blobs": self.names.get("blobs"),
        }
        return "".join(
            f" {option} {shlex.quote(value)}"
            for option, value in options.items()
            if value is not None
        )


def check_run_name(text: str) -> str:
    """Return the name of a run as typed; raises ConfigError if no run can have it."""
    try:
        name = blob_name(text)
    except ValueError:
        name = ""
    if not name or "/" in name:
        raise ConfigError(
            f"{text!r} cannot be the name of a run, which is the name of a folder, without '/'; "
            "`kitchen runs` lists the names"
        )
    return name


def open_blobs(adapter_choice: AdapterChoice) -> BlobStore:
    """Build the blob store of the runs and no other adapter; raises ConfigError or BackendError."""
    add_cwd_to_path()
    name = adapter_choice.chosen()["blobs"]
    cls = adapter_class("blobs", name)
    check_installed("blobs", name, cls)
    settings = {"blobs": store_settings(cls, adapter_choice.runs)}
    store: BlobStore = build("blobs", {"blobs": name}, settings)
    return store


def store_settings(cls: Any, runs: str | None) -> dict[str, Any]:
    """Return the folder of runs as a setting, if the store takes one or the user gave one."""
    if runs is None and "root" not in adapter_settings(cls):
        return {}
    return {"root": runs or DEFAULT_RUNS_FOLDER}
