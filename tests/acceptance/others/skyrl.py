"""SkyRL as a separate process, in its own virtual environment."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.acceptance.environments import BUILD, TORCH, environment, install, run

RELEASE = "0.3.0"
START_TIMEOUT = 300  # seconds
UV = """#!/bin/sh
# SkyRL is started by `uv run ... -m MODULE`, and starts its engine in the same way:
# this runs them with the Python of this environment
while [ "$1" != "-m" ]; do shift; done
"$(dirname "$0")/python" "$@"
"""
PRINT_SITE_PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"
# SkyRL uses typing.TypedDict, but before Python 3.12 pydantic requires this one. Python runs the
# line when it starts; it would not run a second sitecustomize.py beside the one of Debian.
PTH = "import typing, typing_extensions; typing.TypedDict = typing_extensions.TypedDict\n"


@dataclass(frozen=True)
class Version:
    """A version of SkyRL: its name, what pip installs, and the text that identifies it."""

    name: str
    requirement: Sequence[str]
    pins: str

    @property
    def log(self) -> Path:
        return BUILD / self.name / "log"


def check_interpreter(interpreter: Path) -> None:
    """Raise SystemExit for a Python in which SkyRL cannot unpack its checkpoints."""
    program = "import sys, tarfile; print(sys.version.split()[0], 'data_filter' in vars(tarfile))"
    advice = "name a Python of 3.11.4 or later with --python PATH (make proof SKYRL_PYTHON=PATH)"
    try:
        version, can_unpack = run(interpreter, "-c", program).split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{interpreter} is not a Python: {error}; {advice}") from error
    if can_unpack != "True":
        raise SystemExit(f"SkyRL does not work with Python {version} ({interpreter}): {advice}")


def released() -> Version:
    """Return the version on PyPI."""
    requirement = f"skyrl[tinker,jax]=={RELEASE}"
    return Version("skyrl", [requirement], requirement)


def from_source(folder: Path) -> Version:
    """Return the version in a folder; its environment is renewed with its pyproject.toml."""
    project = folder / "pyproject.toml"
    if not project.exists():
        raise SystemExit(f"{folder} is not a folder of SkyRL's source: it has no pyproject.toml")
    digest = hashlib.sha256(project.read_bytes()).hexdigest()
    requirement = ["-e", f"{folder.resolve()}[tinker,jax]"]
    return Version("skyrl-source", requirement, f"{requirement[1]} {digest}")


@contextmanager
def serving(version: Version, interpreter: Path, folder: Path, model: Path) -> Iterator[str]:
    """Start a server with its checkpoints in a folder; yield its URL."""
    python = environment(
        version.name, version.pins, lambda python: _install(python, version), interpreter
    )
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with version.log.open("w") as log:
        server = subprocess.Popen(
            _command(python, model, folder, port),
            cwd=folder,
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "PATH": f"{python.parent}:{os.environ['PATH']}",
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            _wait_for(url, server, version.log)
            yield url
        finally:
            if server.poll() is None:
                os.killpg(server.pid, 15)
                server.wait(60)


def _command(python: Path, model: Path, folder: Path, port: int) -> Sequence[str]:
    return (
        str(python.parent / "uv"),
        "run",
        "-m",
        "skyrl.tinker.api",
        f"--base-model={model}",
        "--backend=jax",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--checkpoints-base={folder / 'checkpoints'}",
        f"--database-url=sqlite:///{folder}/db",
    )


def _install(python: Path, version: Version) -> None:
    install(python, TORCH, *version.requirement)
    (python.parent / "uv").write_text(UV)
    (python.parent / "uv").chmod(0o755)
    packages = Path(run(python, "-c", PRINT_SITE_PACKAGES).strip())
    (packages / "typed_dict.pth").write_text(PTH)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.time() + START_TIMEOUT
    while server.poll() is None and time.time() < deadline:
        try:
            httpx.get(f"{url}/api/v1/healthz")
            return
        except httpx.TransportError:
            time.sleep(1)
    raise RuntimeError(f"SkyRL did not start: see {log}")
