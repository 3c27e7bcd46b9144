"""`kitchen doctor`: what is installed and reachable here, and what is missing, with the command
that mends it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kitchen.cli.commands.failure import as_json, reasons
from kitchen.cli.commands.surroundings import HubAsked, devices, disk, machine
from kitchen.cli.console import console, table
from kitchen.config.adapters import DEFAULTS, PORTS, adapter_class, available, build
from kitchen.config.discovery import add_cwd_to_path, find_recipe
from kitchen.config.extras import DISTRIBUTION, Extra, extra_for, extras, required_packages
from kitchen.config.request import DEFAULT_RUNS_FOLDER, AdapterChoice, RunRequest, resolve_request
from kitchen.errors import BackendError, KitchenError
from kitchen.types import Table

RECIPE = "recipes.sl_basic"  # the one that must work
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
    "HF_TOKEN": "gated models and data sets; to publish",
    "TINKER_API_KEY": "training at Tinker",
    "AWS_ACCESS_KEY_ID": "runs at s3://",
    "GOOGLE_APPLICATION_CREDENTIALS": "runs at gs://",
}


def doctor(adapter_choice: AdapterChoice, *, json: bool) -> int:
    """Returns 4 if something is missing that the default recipe needs."""
    add_cwd_to_path()
    hub = HubAsked()
    seen, broken = _devices()
    model = _model()
    problems = list(
        dict.fromkeys([*broken, *_missing(adapter_choice), *filter(None, [model["missing"]])])
    )
    found: dict[str, Any] = {
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "machine": {**machine(), **seen},
        "disk": {what: disk(where) for what, where in _folders(adapter_choice).items()},
        "keys": {name: _key(name) for name in _KEYS},
        "hub": hub.answer(),
        "model": model,
        "extras": [{**vars(each), "adapters": _served(each)} for each in extras()],
        "recipe": RECIPE,
        "problems": problems,
        "exit_code": BackendError.exit_code if problems else 0,
    }
    if json:
        print(as_json(found))
    else:
        _say(found)
    return int(found["exit_code"])


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _devices() -> tuple[Mapping[str, Any], Sequence[str]]:
    """What torch sees, and what is wrong with it."""
    if find_spec("torch") is None:
        return {"devices": []}, ()
    try:
        return devices(), ()
    except BackendError as error:
        return {"devices": []}, reasons(error)


def _folders(adapter_choice: AdapterChoice) -> Mapping[str, str]:
    found = {
        "runs": adapter_choice.runs or DEFAULT_RUNS_FOLDER,
        "converted models": os.environ.get("KITCHEN_CACHE") or "~/.cache/crucible-kitchen",
        "Hugging Face": os.environ.get("HF_HUB_CACHE") or f"{_hf_home()}/hub",
    }
    return {what: where for what, where in found.items() if "://" not in where}


def _hf_home() -> str:
    return (
        os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    )


def _key(name: str) -> str:
    if os.environ.get(name):
        return "set"
    token = Path(os.environ.get("HF_TOKEN_PATH") or f"{_hf_home()}/token").expanduser()
    return "kept by `hf auth login`" if name == "HF_TOKEN" and token.is_file() else "not set"


def _model() -> Mapping[str, str]:
    """The model of the default recipe, and why it cannot be had."""
    name = ""
    try:
        name = find_recipe(RECIPE).model_fields["model"].default
        build("hub", {}, {}).find(name)
    except KitchenError as error:
        return {"name": name, "missing": reasons(error)[0]}
    return {"name": name, "missing": ""}


def _served(extra: Extra) -> Sequence[str]:
    """The adapters that need it: "training peft"."""
    return [
        f"{port} {name}"
        for port in PORTS
        for name, wanted in _wanted(port)
        if wanted and set(wanted) <= set(extra.packages)
    ]


def _wanted(port: str) -> Iterator[tuple[str, Sequence[str]]]:
    for name in sorted(available(port)):
        try:
            cls = adapter_class(port, name)
        except KitchenError:  # `kitchen list` tells of it
            continue
        yield name, (*required_packages(cls), *getattr(cls, "lazily", ()))


def _missing(adapter_choice: AdapterChoice) -> Sequence[str]:
    """What stands in the way of the default recipe."""
    try:
        problems = [
            text
            for problem in resolve_request(RunRequest(RECIPE, (), None, adapter_choice)).problems
            for text in reasons(problem)
        ]
    except KitchenError as error:
        problems = list(reasons(error))
    local = extra_for(required_packages(adapter_class("training", DEFAULTS["training"])))
    return problems + [
        f"{each.name} is not whole, {', '.join(each.missing)} is missing: {each.install_command}"
        for each in extras()
        if each.name == local
        and each.missing
        and not any(each.install_command in text for text in problems)
    ]


def _say(found: Mapping[str, Any]) -> None:
    out = console()
    for shown in _tables(found):
        out.print(table(shown))
        out.print()
    for each in found["extras"]:
        if each["missing"]:
            brought = f"{', '.join(each['missing'])}, for {', '.join(each['adapters']) or 'no adapter yet'}"
            out.print(f"{each['mend']}  # would bring {brought}", soft_wrap=True)
    for text in found["problems"]:
        out.print(f"missing for {RECIPE}: {text}", style="red", soft_wrap=True)
    if not found["problems"]:
        out.print(f"nothing is missing for {RECIPE}", style="green")


def _tables(found: Mapping[str, Any]) -> Iterator[Table]:
    versions = {name: value or "not installed" for name, value in found["versions"].items()}
    yield Table("Versions", ("package", "version"), tuple(versions.items()))
    shown = {
        key: _bytes(value) if "memory" in key else value for key, value in found["machine"].items()
    }
    shown["devices"] = ", ".join(shown["devices"]) or "not known without torch"
    disks = {
        f"disk for {what}": f"{_bytes(one['free'])} free at {one['where']}"
        for what, one in found["disk"].items()
    }
    hub, model = found["hub"], found["model"]
    rest = {
        "hub": f"{hub['endpoint']} {hub['said']}",
        "model": f"{model['name']} {'not installed' if model['missing'] else 'installed'}",
    }
    yield Table(
        "Machine",
        ("what", "is"),
        tuple(
            (key, "not set" if value is None else str(value))
            for key, value in {**shown, **disks, **rest}.items()
        ),
    )
    yield Table(
        "Keys",
        ("name", "is", "for"),
        tuple((name, there, _KEYS[name]) for name, there in found["keys"].items()),
    )


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
