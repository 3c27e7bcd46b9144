"""`kitchen doctor`: what is installed and reachable here, and how to install the rest."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kitchen.backend.cache_folder import cache_folder
from kitchen.cli.commands.errors import all_reasons, reasons
from kitchen.cli.commands.json_output import print_json
from kitchen.cli.commands.system_info import HubProbe, ServerProbe, devices, disk, machine
from kitchen.cli.console import console, table
from kitchen.config.adapter_choice import DEFAULT_RUNS_FOLDER, AdapterChoice
from kitchen.config.adapters import DEFAULTS, PORTS, adapter_class, available, build
from kitchen.config.discovery import find_recipe
from kitchen.config.extras import DISTRIBUTION, Extra, extra_for, extras, required_packages
from kitchen.config.request import RunRequest, resolve_request
from kitchen.config.working_folder import add_cwd_to_path
from kitchen.errors import BackendError, KitchenError
from kitchen.types import Table

RECIPE = "recipes.sl_basic"  # the recipe that must work
SERVER_ADAPTER = "tinker"  # the training adapter whose server is asked
_PACKAGES = (
    DISTRIBUTION,
    "numpy",
    "torch",
    "transformers",
    "peft",
    "datasets",
    "huggingface_hub",
    "tinker",
)
_KEYS: Mapping[str, str] = {
    "HF_TOKEN": "gated models and data sets; publishing",
    "TINKER_API_KEY": "training at Tinker",
    "AWS_ACCESS_KEY_ID": "runs at s3://",
    "GOOGLE_APPLICATION_CREDENTIALS": "runs at gs://",
}


def doctor(
    adapters: AdapterChoice, *, json: bool, online: bool = False, servers: Sequence[str] = ()
) -> int:
    """Print the report; return 4 if something is missing that the default recipe needs.

    `servers` are addresses to ask instead of that in the environment. With `online`, a server is
    asked that the user did not name.
    """
    add_cwd_to_path()
    report = _report(adapters, online, servers)
    if json:
        print_json(report)
    else:
        _print_report(report)
    return int(report["exit_code"])


def _report(adapters: AdapterChoice, online: bool, servers: Sequence[str]) -> dict[str, Any]:
    hub = HubProbe()  # the requests are under way while the rest is collected
    asked = [ServerProbe(SERVER_ADAPTER, online, url) for url in servers or ("",)]
    torch_devices, torch_problems = _devices()
    model = _default_model()
    problems = [*torch_problems, *_missing(adapters)]
    if model["missing"]:
        problems.append(model["missing"])
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "machine": {**machine(), **torch_devices},
        "disk": {purpose: disk(folder) for purpose, folder in _folders(adapters).items()},
        "keys": {name: _key_status(name) for name in _KEYS},
        "hub": hub.answer(),
        "servers": [found for server in asked if (found := server.answer())],
        "model": model,
        "extras": [{**vars(extra), "adapters": _adapters_of(extra)} for extra in extras()],
        "recipe": RECIPE,
        "problems": list(dict.fromkeys(problems)),
        "exit_code": BackendError.exit_code if problems else 0,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> tuple[Mapping[str, Any], Sequence[str]]:
    """Return the devices that torch sees, and the problems with torch itself."""
    if find_spec("torch") is None:
        return {"devices": []}, ()
    try:
        return devices(), ()
    except BackendError as error:
        return {"devices": []}, reasons(error)


def _folders(adapters: AdapterChoice) -> Mapping[str, str]:
    """Return purpose to local folder."""
    folders = {
        "runs": adapters.runs or DEFAULT_RUNS_FOLDER,
        "converted models": str(cache_folder()),
        "Hugging Face": os.environ.get("HF_HUB_CACHE") or f"{_hf_home()}/hub",
    }
    return {purpose: folder for purpose, folder in folders.items() if "://" not in folder}


def _hf_home() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return os.environ.get("HF_HOME") or f"{cache}/huggingface"


def _key_status(name: str) -> str:
    if os.environ.get(name):
        return "set"
    token = Path(os.environ.get("HF_TOKEN_PATH") or f"{_hf_home()}/token").expanduser()
    if name == "HF_TOKEN" and token.is_file():
        return "saved by `hf auth login`"
    return "not set"


def _default_model() -> Mapping[str, str]:
    """Return the model of the default recipe, and why it is missing, if it is."""
    name = ""
    try:
        name = find_recipe(RECIPE).model_fields["model"].default
        build("hub", {}, {}).find(name)
    except KitchenError as error:
        return {"name": name, "missing": reasons(error)[0]}
    return {"name": name, "missing": ""}


def _adapters_of(extra: Extra) -> Sequence[str]:
    """Return the adapters whose packages the extra installs, such as "training peft"."""
    names = []
    for port in PORTS:
        for name, packages in _packages_of_adapters(port):
            if packages and set(packages) <= set(extra.packages):
                names.append(f"{port} {name}")
    return names


def _packages_of_adapters(port: str) -> Iterator[tuple[str, Sequence[str]]]:
    for name in sorted(available(port)):
        try:
            cls = adapter_class(port, name)
        except KitchenError:  # `kitchen list` shows the error
            continue
        yield name, (*required_packages(cls), *getattr(cls, "lazily", ()))


def _missing(adapters: AdapterChoice) -> Sequence[str]:
    """Return the reasons why the default recipe would not run."""
    try:
        resolved = resolve_request(RunRequest(RECIPE, (), (), adapters))
        missing = all_reasons(resolved.problems)
    except KitchenError as error:
        missing = list(reasons(error))
    default_adapter = adapter_class("training", DEFAULTS["training"])
    default_extra = extra_for(required_packages(default_adapter))
    for extra in extras():
        mentioned = any(extra.install_command in reason for reason in missing)
        if extra.name == default_extra and extra.missing and not mentioned:
            packages = ", ".join(extra.missing)
            missing.append(
                f"{extra.name} is incomplete, without {packages}: {extra.install_command}"
            )
    return missing


def _print_report(report: Mapping[str, Any]) -> None:
    out = console()
    for shown in _tables(report):
        out.print(table(shown))
        out.print()
    for extra in report["extras"]:
        if extra["missing"]:
            packages = ", ".join(extra["missing"])
            adapters = ", ".join(extra["adapters"]) or "no adapter yet"
            line = f"{extra['install_command']}  # would install {packages}, for {adapters}"
            out.print(line, soft_wrap=True)
    for reason in report["problems"]:
        out.print(f"missing for {RECIPE}: {reason}", style="red", soft_wrap=True)
    if not report["problems"]:
        out.print(f"nothing is missing for {RECIPE}", style="green")


def _tables(report: Mapping[str, Any]) -> Iterator[Table]:
    versions = [(name, value or "not installed") for name, value in report["versions"].items()]
    yield Table("Versions", ("package", "version"), tuple(versions))
    yield Table("Machine", ("property", "value"), tuple(_machine_rows(report)))
    keys = [(name, status, _KEYS[name]) for name, status in report["keys"].items()]
    yield Table("Keys", ("name", "status", "for"), tuple(keys))


def _machine_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in report["machine"].items():
        if name == "devices":
            yield name, ", ".join(value) or "unknown without torch"
        elif "memory" in name:
            yield name, _gigabytes(value)
        else:
            yield name, "not set" if value is None else str(value)
    for purpose, folder in report["disk"].items():
        yield f"disk for {purpose}", f"{_gigabytes(folder['free'])} free at {folder['where']}"
    hub = report["hub"]
    yield "hub", f"{hub['endpoint']} {hub['status']}"
    for server in report["servers"]:
        yield "Tinker server", f"{server['address']} {server['status']}"
    model = report["model"]
    yield "model", f"{model['name']} {'not installed' if model['missing'] else 'installed'}"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
