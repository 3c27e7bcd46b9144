"""Optional dependencies: the extra that installs an adapter's packages, found without imports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from kitchen.errors import BackendError

DISTRIBUTION = "crucible-kitchen"
_DEVELOPMENT_EXTRAS = ("dev", "bench", "docs")
# where they differ from the distribution's
_IMPORT_NAMES = {
    "mlflow_skinny": "mlflow",
    "opentelemetry_exporter_otlp_proto_http": "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry_sdk": "opentelemetry.sdk",
}
_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*(?:;.*\bextra\s*==\s*['\"]([\w-]+)['\"])?")


@dataclass(frozen=True)
class Extra:
    """One extra of the distribution, as in `pip install 'crucible-kitchen[NAME]'`."""

    name: str  # "crucible-kitchen[local]"
    packages: tuple[str, ...]
    missing: tuple[str, ...]  # packages of it that are not installed here
    install_command: str  # with pip


def required_packages(adapter: Any) -> Sequence[str]:
    """Return the packages that an adapter class lists in `packages`: imports beyond the core."""
    return tuple(getattr(adapter, "packages", ()))


def check_installed(port: str, name: str, adapter: Any) -> None:
    """Raise BackendError, with the pip command, if a package of the adapter is missing."""
    missing, requirement = missing_packages(adapter)
    if missing:
        raise BackendError(
            f"the {port} adapter {name!r} needs {missing}, not installed here: "
            f"pip install {_quoted(requirement)}"
        )


def check_tracker_installed(name: str, tracker: Any) -> None:
    """Raise BackendError, with the pip command, if a package of the tracker is missing."""
    missing, requirement = missing_packages(tracker)
    if missing:
        raise BackendError(
            f"the tracker {name!r} needs {missing}, not installed here: "
            f"pip install {_quoted(requirement)}"
        )


def missing_packages(adapter: Any) -> tuple[str, str]:
    """Return the packages that an adapter lacks, and what pip has to install for them."""
    packages = required_packages(adapter)
    missing = list(filter(_is_missing, packages))
    return ", ".join(missing), extra_for(packages) or " ".join(missing)


def extras() -> Sequence[Extra]:
    """Return every extra, except those that only development needs."""
    result = []
    for extra, packages in _packages_by_extra().items():
        name = f"{DISTRIBUTION}[{extra}]"
        missing = tuple(sorted(filter(_is_missing, packages)))
        command = f"pip install {_quoted(name)}"
        result.append(Extra(name, tuple(sorted(packages)), missing, command))
    return result


def _is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:  # of the package around it
        return True


def extra_for(packages: Sequence[str]) -> str:
    """Return the extra that installs all of these packages, `crucible-kitchen[local]`, or ""."""
    for extra, provided in _packages_by_extra().items():
        if packages and set(packages) <= provided:
            return f"{DISTRIBUTION}[{extra}]"
    return ""


def install_command_for(package: str) -> str:
    """Return the pip command of the extra that installs a package or module, or ""."""
    names = list(accumulate(package.split("."), "{}.{}".format))  # its packages, outermost first
    extra = next(filter(None, (extra_for([name]) for name in names)), "")
    return f"pip install {_quoted(extra)}" if extra else ""


def _packages_by_extra() -> Mapping[str, set[str]]:
    """Return the packages of each extra by import name.

    Import names are derived from distribution names, which agree for most packages.
    """
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return {}
    packages: dict[str, set[str]] = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None or not match[2] or match[2] in _DEVELOPMENT_EXTRAS:
            continue
        package = match[1].replace("-", "_").lower()
        packages.setdefault(match[2], set()).add(_IMPORT_NAMES.get(package, package))
    return packages


def _quoted(requirement: str) -> str:
    return f"'{requirement}'" if "[" in requirement else requirement
