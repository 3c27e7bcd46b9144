"""Executor that runs the points of a sweep on a Ray cluster, one actor for each."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import NonNegativeFloat, PositiveInt, TypeAdapter, ValidationError

from kitchen.config.extras import check_installed
from kitchen.config.machine import available_cores
from kitchen.errors import BackendError, ConfigError, did_you_mean
from kitchen.experiments.executors import Job

_OBJECT_STORE = 100_000_000  # bytes, of a cluster on this machine; points put nothing into it
_PATIENCE = 10.0  # seconds to connect
_OPTIONS: Mapping[str, Any] = {"cpus": PositiveInt, "gpus": NonNegativeFloat}
# Starts a command that the kernel kills if its parent, the worker of Ray, dies. Ray's workers may
# block signals, and a new process inherits that.
_START = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
os.execvp(sys.argv[2], sys.argv[2:])
"""


class RayExecutor:
    """Starts each point as a process of a Ray cluster: `--executor ray` or `'ray: gpus=1'`.

    The environment variable RAY_ADDRESS names the cluster. Without it, a new one is started on this
    machine, and ends with this process. All machines of a cluster must see the folder of the sweep,
    its runs, and this Python at the same paths. `cpus` and `gpus` are the resources of each point.
    """

    packages = ("ray",)
    assigns_devices = True
    confirms_death = True

    def __init__(self, options: str = "") -> None:
        self._text = f"ray: {options}" if options else "ray"
        self._options = self._parsed(options)

    def prepare(self) -> None:
        """Connect to the cluster or start one; raises ConfigError or BackendError."""
        check_installed("executor", "ray", type(self))
        import ray

        if not ray.is_initialized():
            with _signal_handlers_kept():
                _connect()
        cluster: Any = ray
        resources = cluster.cluster_resources()
        if "gpus" not in self._options and resources.get("GPU"):
            raise ConfigError(
                f"--executor '{self._text}': this Ray cluster has {resources['GPU']:g} GPUs; say "
                "how many of them a point gets, as in 'ray: gpus=1', or 'ray: gpus=0'"
            )
        for name, resource in (("cpus", "CPU"), ("gpus", "GPU")):
            wanted, existing = self._options.get(name, 0), resources.get(resource, 0)
            if wanted > existing and not os.environ.get("RAY_ADDRESS"):  # others may grow
                raise ConfigError(
                    f"--executor '{self._text}': a point with {name}={wanted:g} never starts, for "
                    f"this machine has {existing:g}"
                )

    def threads(self, jobs: int) -> int:
        """Return the threads of a point: one for each of its cpus."""
        return int(self._options.get("cpus", 1))

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Job:
        """Queue a command on the cluster; it starts when a machine has room for it."""
        self.prepare()
        import ray

        actor: Any = ray.remote(_PointProcess)
        process = actor.options(
            max_concurrency=3,  # of its methods
            max_restarts=0,  # the driver of the sweep restarts points
            num_cpus=self._options.get("cpus", 1),
            num_gpus=self._options.get("gpus", 0),
        ).remote()
        result = process.run.remote(list(command), dict(environment), os.getcwd())
        return _RayJob(process, process.ready.remote(), result, command[0])

    def _parsed(self, text: str) -> Mapping[str, Any]:
        """Return the options `cpus=N gpus=N`; raises ConfigError."""
        options: dict[str, Any] = {}
        for word in text.split():
            name, _, value = word.partition("=")
            if name not in _OPTIONS:
                raise ConfigError(
                    f"--executor '{self._text}': there is no option {name!r}; "
                    f"{did_you_mean(name, _OPTIONS)}"
                )
            try:
                options[name] = TypeAdapter(_OPTIONS[name]).validate_python(value)
            except ValidationError as error:
                problem = error.errors()[0]["msg"].lower()
                raise ConfigError(f"--executor '{self._text}': {word}: {problem}") from error
        return options


@dataclass
class _RayJob:
    """A point on the cluster, which waits for a machine first."""

    actor: Any
    ready: Any  # reference that is ready when the actor has a machine
    result: Any  # reference to the exit code
    program: str
    _code: int | None = None

    def exit_code(self) -> int | None:
        """Return the exit code, that of a kill if the worker of Ray died; None while it runs.

        Raises ConfigError if a machine cannot start the command.
        """
        import ray
        from ray.exceptions import RayActorError, RayError

        if self._code is None and ray.wait([self.result], timeout=0)[0]:
            try:
                self._code = ray.get(self.result)
            except RayActorError as error:
                if error.actor_init_failed:
                    raise ConfigError(f"Ray cannot start {self.program}: {error}") from error
                self._code = -signal.SIGKILL
            except RayError as error:
                reason = getattr(error, "cause", None) or error
                raise ConfigError(f"Ray cannot start {self.program}: {reason}") from error
            ray.kill(self.actor)
        return self._code

    def stop(self) -> None:
        """Ask the process to save its progress and end; one that waits for a machine is removed."""
        import ray

        if ray.wait([self.ready], timeout=0)[0]:
            self.actor.stop.remote()
        else:
            ray.kill(self.actor)


@dataclass
class _PointProcess:
    """Actor of Ray that holds the process of a point. Its methods run in threads."""

    _process: subprocess.Popen[bytes] | None = None
    _started: threading.Event = field(default_factory=threading.Event)

    def run(self, command: Sequence[str], environment: Mapping[str, str], folder: str) -> int:
        """Run a command in a folder, and return its exit code, negative for a signal."""
        host = os.uname().nodename
        if sys.platform != "linux":
            raise OSError(f"{host} does not run Linux, where alone a point ends with its worker")
        if not os.path.isdir(folder):
            raise OSError(
                f"{host} has no folder {folder}, and all machines of the cluster need the folder "
                "of the sweep at the same path"
            )
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(os.getpid()), *command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started.set()
        return self._process.wait()

    def ready(self) -> bool:
        """Return whether the actor has a machine."""
        return True

    def stop(self) -> None:
        """Send SIGTERM to the process."""
        self._started.wait()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


def _connect() -> None:
    """Connect to the cluster of RAY_ADDRESS, or start one here; raises BackendError."""
    import ray

    address = os.environ.get("RAY_ADDRESS")
    if address:
        _check_listens(address)
    here: Mapping[str, Any] = {
        "num_cpus": available_cores(),
        "object_store_memory": _OBJECT_STORE,
        "include_dashboard": False,
    }
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else here),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"RAY_ADDRESS={address}" if address else "this machine"
        raise BackendError(
            f"no Ray cluster on {where}: {error}; if the cluster requires a token, set "
            "RAY_AUTH_MODE=token, and the token as Ray's documentation says"
        ) from error


def _check_listens(address: str) -> None:
    """Raise BackendError if nothing listens at an address HOST:PORT, which Ray waits for long."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # such as "auto"
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise BackendError(f"no Ray cluster on RAY_ADDRESS={address}: {error}") from error


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Restore the handlers of signals after the block, in which Ray installs its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)
