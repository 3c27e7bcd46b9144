"""Packages of the GPU benchmarks: `python -m tests.bench.gpu.packages WHEELS`.

It prints the names of packages that are neither installed nor in the folder WHEELS, in less than a
second, and then ends with exit code 2.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIST = "tests/bench/gpu/wheels.txt"
TORCH = "torch"  # whoever has it has what it needs
UNUSED = {"scipy"}  # only statistics need it
ON_CUDA = ("bitsandbytes", "liger-kernel", "triton")
FASTER = ("pytest-xdist",)  # the tests also run without it


def _dependencies() -> Iterator[str]:
    """Yield the names in `dependencies` of pyproject.toml."""
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        name = re.split(r"[<>=]", line)[0].replace(".", "-")
        if name not in UNUSED:
            yield name


NEEDED = (TORCH, *_dependencies(), "gguf", "hypothesis", "peft", "pytest", "transformers", "trl")


def main(wheels: Path) -> int:
    """Return 0, or 2 if packages are missing."""
    sys.path[:0] = [str(path) for path in wheels.glob("*.whl")]
    dry = os.environ.get("KITCHEN_GPU_DRY") == "1"
    missing = missing_packages(NEEDED if dry else (*NEEDED, *ON_CUDA))
    if not missing:
        return 0
    print(
        f"{sys.executable} lacks {', '.join(missing)}: install them there, or put their wheels "
        f"into {wheels}. {LIST} lists the versions.",
        file=sys.stderr,
    )
    return 2


def missing_packages(names: Sequence[str]) -> list[str]:
    """Return those that are not installed, of some packages and all that these need."""
    if find_spec("packaging") is None:
        return ["packaging"]  # it reads what the others need
    return sorted(name for name in needed_packages(names) if not _is_installed(name))


def needed_packages(names: Sequence[str]) -> set[str]:
    """Return some packages and, by the metadata of the installed ones, all that these need."""
    found, due = set[str](), list(names)
    while due:
        name = due.pop()
        if name not in found:
            found.add(name)
            due += _requirements(name)
    return found


def _requirements(name: str) -> Iterator[str]:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    if name == TORCH or not _is_installed(name):
        return
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
