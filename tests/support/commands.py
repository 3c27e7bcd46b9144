"""Commands as a user types them: in this process, and in a shell."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner, Result

from kitchen.cli import app


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Make a folder the current one; commands put it on `sys.path`, which is restored."""
    path = sys.path[:]
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        sys.path[:] = path


def invoke(*arguments: str, typed: str = "", traceback: bool = False, **environment: str) -> Result:
    """Run a `kitchen` command in this process, with `typed` as its standard input.

    It shows no traceback, unless one is expected.
    """
    runner = CliRunner(env=environment)
    result = runner.invoke(app, arguments, input=typed, prog_name="kitchen")
    assert ("Traceback" in result.output) == traceback, result.output
    return result


def output(code: int, *arguments: str, typed: str = "", **environment: str) -> str:
    """Return both streams of a `kitchen` command, which must end with this exit code."""
    result = invoke(*arguments, typed=typed, traceback=False, **environment)
    assert result.exit_code == code, result.output
    return result.output


def kitchen(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a `kitchen` command as a process in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "kitchen.cli", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@contextmanager
def python_process(
    folder: Path, *arguments: str, stderr: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Start Python in a folder, with its output in pipes; kill it at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-u", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def shell(
    folder: Path, line: str, *, timeout: float = 120.0, without: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in a folder, with the programs of this environment on the path.

    `without` lists the prefixes of environment variables that the command must not see.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(without)
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def shell_output(folder: Path, line: str, *, timeout: float = 120.0) -> str:
    """Return the standard output of a line of bash, which must succeed."""
    done = shell(folder, line, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
