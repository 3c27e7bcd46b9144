"""What must be installed for an adapter, found without importing any of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from typing import Any

from kitchen.errors import BackendError

DISTRIBUTION = "crucible-kitchen"
_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*(?:;.*\bextra\s*==\s*['\"]([\w-]+)['\"])?")


@dataclass(frozen=True)
class Extra:
    """What `pip install 'crucible-kitchen[NAME]'` brings."""

    name: str  # "crucible-kitchen[local]"
    packages: tuple[str, ...]
    missing: tuple[str, ...]  # those of them that are not installed here
    install_command: str  # the pip command


def required_packages(adapter: Any) -> Sequence[str]:
    """What an adapter class says, in its attribute `packages`, that it imports beyond the core."""
    return tuple(getattr(adapter, "packages", ()))


def check_installed(port: str, name: str, adapter: Any) -> None:
    """Raise BackendError, with the command that mends it, if a package of the adapter is missing."""
    missing = [package for package in required_packages(adapter) if find_spec(package) is None]
    if missing:
        mend = extra_for(required_packages(adapter)) or " ".join(missing)
        raise BackendError(
            f"the {port} adapter {name!r} needs {', '.join(missing)}, not installed here: "
            f"pip install {_quoted(mend)}"
        )


def extras() -> Sequence[Extra]:
    """All that there are, but for those that only the kitchen's own development needs."""
    found = []
    for extra, brought in _extras().items():
        name = f"{DISTRIBUTION}[{extra}]"
        missing = tuple(sorted(package for package in brought if find_spec(package) is None))
        found.append(Extra(name, tuple(sorted(brought)), missing, f"pip install {_quoted(name)}"))
    return found


def extra_for(wanted: Sequence[str]) -> str:
    """`crucible-kitchen[local]`: the extra that brings all of these; empty if none does."""
    for extra, brought in _extras().items():
        if wanted and set(wanted) <= brought:
            return f"{DISTRIBUTION}[{extra}]"
    return ""


def install_command_for(package: str) -> str:
    """The pip command that brings a package, if one of our extras does."""
    top = package.split(".")[0]
    return f"pip install {_quoted(found)}" if (found := extra_for([top])) else ""


def _extras() -> Mapping[str, set[str]]:
    """Extra to the packages in it; import names, for of ours they are those of the distributions."""
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return {}
    found: dict[str, set[str]] = {}
    for line in lines:
        if (
            (match := _REQUIREMENT.match(line))
            and match[2]
            and match[2] not in ("dev", "bench", "docs")
        ):
            found.setdefault(match[2], set()).add(match[1].replace("-", "_").lower())
    return found


def _quoted(requirement: str) -> str:
    return f"'{requirement}'" if "[" in requirement else requirement
