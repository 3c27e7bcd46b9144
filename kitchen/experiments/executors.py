"""Executors of the points of a sweep: processes here, a command of the user's, or a plug-in."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import ClassVar, Protocol

from kitchen.config.machine import available_cores
from kitchen.errors import ConfigError, did_you_mean

GROUP = "kitchen.executors"  # of entry points, each a class whose argument is the text after NAME:
COMMAND = "command:"
PLACEHOLDER = "{command}"
_EXECUTORS = ("local", COMMAND)


class Job(Protocol):
    """The process of a point, wherever it runs."""

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        ...

    def stop(self) -> None:
        """Ask the process to save its progress and end."""
        ...


class Executor(Protocol):
    """Starts the processes of points."""

    # whether it gives each point its GPUs, so that a sweep must not name any
    assigns_devices: ClassVar[bool]
    # whether no process of a point is left anywhere once its job has an exit code
    confirms_death: ClassVar[bool]

    def prepare(self) -> None:
        """Connect to the machines of the points; raises ConfigError or BackendError."""
        ...

    def threads(self, jobs: int) -> int:
        """Return the threads of each of several points that run at the same time."""
        ...

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Job:
        """Start a command with variables added to the environment; raises OSError."""
        ...


def find_executor(text: str) -> Executor:
    """Return the executor that `--executor` names; raises ConfigError."""
    if text == "local":
        return LocalProcesses()
    if text.startswith(COMMAND):
        return CommandTemplate(text.removeprefix(COMMAND).strip())
    name, _, options = text.partition(":")
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in installed:
        executor: Executor = installed[name].load()(options.strip())
        return executor
    near = did_you_mean(name, [*_EXECUTORS, *installed])
    raise ConfigError(
        f"--executor {text}: there is no such executor; {near} A command "
        f"has the form '{COMMAND} srun {PLACEHOLDER}'"
    )


class _OnThisMachine:
    """Properties of executors that start a process on this machine."""

    assigns_devices: ClassVar[bool] = False
    confirms_death: ClassVar[bool] = False  # a command may only have lost its connection

    def prepare(self) -> None:
        """Do nothing, for there is no machine to connect to."""

    def threads(self, jobs: int) -> int:
        """Return each point's share of the cores of this machine."""
        return max(1, available_cores() // jobs)


@dataclass(frozen=True)
class LocalProcesses(_OnThisMachine):
    """Executor that starts each point as a separate process on this machine."""

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Job:
        return _start(list(command), environment)


@dataclass(frozen=True)
class CommandTemplate(_OnThisMachine):
    """Executor that runs a command of the user's, such as `srun {command}`, and waits for it.

    The command is split like one in a shell, but no shell reads it. `{command}` stands for the
    command of the point: as separate words where it is a word, and quoted inside of other words.
    """

    template: str

    def __post_init__(self) -> None:
        if PLACEHOLDER not in self.template:
            raise ConfigError(
                f"--executor '{COMMAND} {self.template}' has no {PLACEHOLDER}, which stands for "
                f"the command of a point; write it as '{COMMAND} srun {PLACEHOLDER}'"
            )
        try:
            program = shlex.split(self.template)[0]
        except ValueError as error:
            raise ConfigError(f"--executor '{COMMAND} {self.template}': {error}") from error
        if PLACEHOLDER not in program and shutil.which(program) is None:
            raise ConfigError(
                f"--executor '{COMMAND} {self.template}': there is no program {program} on this "
                "machine"
            )

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Job:
        words: list[str] = []
        for word in shlex.split(self.template):
            if word == PLACEHOLDER:
                words += command
            else:
                words.append(word.replace(PLACEHOLDER, shlex.join(command)))
        return _start(words, environment)


def _start(command: Sequence[str], environment: Mapping[str, str]) -> Job:
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches the driver alone, which stops its points
    )
    return _Process(process)


@dataclass(frozen=True)
class _Process:
    """A process of this machine, in a separate session."""

    process: subprocess.Popen[bytes]

    def exit_code(self) -> int | None:
        return self.process.poll()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
