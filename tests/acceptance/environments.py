"""Virtual environments for packages that must be isolated from ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"
TORCH = "torch==2.13.0"  # installed first, as looser requirements would install the CUDA build


def environment(
    name: str,
    pins: str,
    install_packages: Callable[[Path], None],
    interpreter: Path = Path(sys.executable),
) -> Path:
    """Create build/NAME/venv unless it exists with these pins; return its Python."""
    folder, ready = BUILD / name / "venv", BUILD / name / "ready"
    python = folder / "bin/python"
    made_of = f"{pins}, {run(interpreter, '--version').strip()}"
    if not ready.exists() or ready.read_text() != made_of:
        run(interpreter, "-m", "venv", "--clear", str(folder))
        install(python, TORCH)
        install_packages(python)
        ready.write_text(made_of)
    return python


def install(python: Path, *requirements: str) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)


def run(python: Path, *arguments: str) -> str:
    completed = subprocess.run(
        [str(python), *arguments], check=True, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )
    return completed.stdout


def requirements_of(
    python: Path, package: str, extras: Sequence[str], excluded: Sequence[str] = ()
) -> list[str]:
    """Return the requirements of an installed package with these extras."""
    listing = run(
        python,
        "-c",
        f"from importlib.metadata import requires; print('\\n'.join(requires({package!r})))",
    )
    lines = [line for line in listing.splitlines() if not line.startswith(tuple(excluded))]
    requirements = []
    for line in lines:
        requirement, _, marker = line.partition(";")
        if not marker or any(f"'{extra}'" in marker.replace('"', "'") for extra in extras):
            requirements.append(requirement.strip())
    return requirements
