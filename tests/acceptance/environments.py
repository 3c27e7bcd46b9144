"""Virtual environments for what must not be mixed with ours."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"
TORCH = "torch==2.13.0"  # installed first: a looser request would bring CUDA along


def environment(name: str, pins: str, fill: Callable[[Path], None]) -> Path:
    """build/NAME/venv, made once for these pins, for it takes minutes; returns its python."""
    python, ready = BUILD / name / "venv/bin/python", BUILD / name / "ready"
    if not ready.exists() or ready.read_text() != pins:
        venv.create(BUILD / name / "venv", clear=True, with_pip=True)
        install(python, TORCH)
        fill(python)
        ready.write_text(pins)
    return python


def install(python: Path, *what: str) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def run(python: Path, *words: str) -> str:
    done = subprocess.run(
        [str(python), *words], check=True, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )
    return done.stdout


def needed(
    python: Path, package: str, extras: Sequence[str], left_out: Sequence[str] = ()
) -> list[str]:
    """Return the requirements of an installed package with these extras."""
    listing = run(
        python,
        "-c",
        f"from importlib.metadata import requires; print('\\n'.join(requires({package!r})))",
    )
    wanted = [
        line.split(";") for line in listing.splitlines() if not line.startswith(tuple(left_out))
    ]
    return [
        what.strip()
        for what, *when in wanted
        if not when or any(f"'{extra}'" in when[0].replace('"', "'") for extra in extras)
    ]
