"""Weights & Biases: runs on its server, or offline in files for `wandb sync`."""

from __future__ import annotations

import atexit
import json
import os
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from adapters.trackers.names import cells, configuration, default_project
from kitchen.errors import BackendError
from kitchen.runs.tracker import Position, TrackedRun, Tracker

_FINISH_SECONDS = 30.0  # that the end of the process waits for the upload; the rest stays on disk
_HUNG_SECONDS = 0.1  # the same where W&B has not even started the run
_MAX_TITLE = 64  # characters of a table's title, which is part of a name of up to 128
_EXIT_CODES = {"completed": 0, "failed": 1, "interrupted": 130}
# the files are LevelDB logs: blocks of records with a header of CRC, length and kind
_BLOCK = 32 * 1024
_FILE_HEADER = 7
_HEADER = struct.Struct("<IHB")
_FULL, _LAST = 1, 4


class WandbTracker(Tracker):
    """Weights & Biases, online or offline.

    W&B drops a row whose step is lower than the previous step. The step that W&B sees is therefore
    the number of the value, which only grows, and charts use the step of the run as their x axis.
    W&B buffers rows, so no row counts as stored before the end: a resumed run sends missing rows.
    """

    packages = ("wandb",)
    hands_over = True  # to the process wandb-core, which the end of this process waits for

    def __init__(
        self,
        *,
        project: str = "",
        entity: str = "",
        group: str = "",
        mode: Literal["online", "offline"] | None = None,
        dir: str = "",
    ) -> None:
        """All but `group` are by default those of the environment: WANDB_PROJECT and so on."""
        self._project = project
        self._entity = entity
        self._group = group
        self._mode: Any = mode
        self._dir = dir
        self._run: Any = None
        self._exit: _ExitLimit
        self._held: set[int] = set()  # steps of rows in offline files of earlier attempts

    def prepare(self, state: Mapping[str, Any]) -> None:
        import wandb

        settings = wandb.setup(wandb.Settings(silent=True)).settings
        self._exit = _ExitLimit()
        self._project = state.get("project") or self._project
        self._project = self._project or settings.project or default_project("WANDB_PROJECT")
        self._entity = state.get("entity") or self._entity or settings.entity or ""
        folder = state.get("dir") or self._dir or os.environ.get("WANDB_DIR") or "."
        self._dir = str(Path(folder).absolute())
        # W&B reads the environment once in a process
        self._mode = self._mode or os.environ.get("WANDB_MODE") or settings.mode
        if self._mode not in ("online", "offline"):
            raise BackendError(
                f"W&B would store nothing, because its mode is {self._mode!r}: set WANDB_MODE to "
                "online or offline, or leave out --observe wandb"
            )
        if self._mode == "online" and not wandb.api.api_key:
            raise BackendError(
                "W&B has no API key: run `wandb login`, set WANDB_API_KEY, or choose "
                "--observe wandb:mode=offline"
            )

    def state(self) -> Mapping[str, Any]:
        return {"project": self._project, "entity": self._entity, "dir": self._dir}

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> None:
        import wandb

        self._held = set(offline_steps(self._dir, run.key))
        self._exit.start(_HUNG_SECONDS)
        self._run = wandb.init(
            project=self._project,
            entity=self._entity or None,
            group=self._group or None,
            id=run.key,
            name=run.name,
            config=configuration(run),
            dir=self._dir,
            mode=self._mode,
            resume="allow",
            reinit="create_new",  # other runs of this process go on
            settings=wandb.Settings(**_settings()),
        )
        self._exit.seconds = _FINISH_SECONDS
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def metrics(self, at: Position, values: Mapping[str, float]) -> None:
        self._log(at, values)

    def table(
        self, at: Position, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        import wandb

        table = wandb.Table(columns=list(columns), data=cells(rows), allow_mixed_types=True)
        self._log(at, {title[:_MAX_TITLE]: table})

    def _log(self, at: Position, values: Mapping[str, Any]) -> None:
        # the server's last row, and those in files
        if at.number >= self._run.starting_step and at.number not in self._held:
            self._run.log({**values, "step": at.step}, step=at.number)

    def flush(self) -> bool:
        return False

    def close(self, status: str) -> None:
        self._run.finish(exit_code=_EXIT_CODES[status])
        if self._mode == "offline":
            _wait_until_written(Path(self._run.settings.sync_file))
        self._exit.cancel()


class _ExitLimit:
    """Limits how long the end of the process waits for W&B.

    W&B's own hook waits without a limit, for example for a server that does not answer. Its files
    stay on the disk for `wandb sync`.
    """

    def __init__(self) -> None:
        self.seconds = _FINISH_SECONDS
        self._exiting = threading.Event()
        self._cancelled = False
        self._closed = threading.Event()

    def start(self, seconds: float) -> None:
        """Set the limit from now on; a thread cannot be started at the exit itself."""
        self.seconds = seconds
        threading.Thread(target=self._close, name="W&B exit", daemon=True).start()
        atexit.register(self._wait)  # later than W&B's hook, so that it is called before it

    def cancel(self) -> None:
        """Leave the exit to W&B, which has nothing left to do."""
        self._cancelled = True
        atexit.unregister(self._wait)
        self._exiting.set()

    def _wait(self) -> None:
        self._exiting.set()
        self._closed.wait(self.seconds)

    def _close(self) -> None:
        import wandb

        self._exiting.wait()
        if not self._cancelled:
            wandb.teardown()
        self._closed.set()


def _settings() -> dict[str, Any]:
    import wandb

    settings = {"console": "off", "silent": True, "finish_timeout": _FINISH_SECONDS}
    # how often it writes its file, in seconds; older versions wait for 32 KiB
    interval = "x_transaction_log_flush_interval"
    return settings | ({interval: 1.0} if interval in wandb.Settings.model_fields else {})


def _wait_until_written(path: Path) -> None:
    """Wait until W&B's own process has written the last record of a file; raises BackendError."""
    deadline = time.monotonic() + _FINISH_SECONDS
    while not any(record.HasField("exit") for record in _file_records(path)):
        if time.monotonic() > deadline:
            raise BackendError(f"W&B has not completed {path} within {_FINISH_SECONDS:g} s")
        time.sleep(0.02)


def offline_steps(folder: str, key: str) -> Iterator[int]:
    """Yield W&B's own step of each row in the offline files of a run."""
    for row in offline_rows(folder, key):
        yield int(row["_step"])


def offline_rows(folder: str, key: str) -> Iterator[dict[str, Any]]:
    """Yield the rows in the offline files of a run, in order."""
    for record in offline_records(folder, key):
        if record.HasField("history"):
            items = record.history.item
            yield {_key(item): json.loads(item.value_json) for item in items}


def offline_records(folder: str, key: str) -> Iterator[Any]:
    """Yield W&B's records in the offline files of a run, in order."""
    for path in sorted(Path(folder).glob(f"wandb/offline-run-*-{key}*/run-{key}.wandb")):
        yield from _file_records(path)


def _key(item: Any) -> str:
    return ".".join(item.nested_key) or str(item.key)


def _file_records(path: Path) -> Iterator[Any]:
    """Yield the records of an offline file, up to one that is not complete."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    yield from map(messages.Record.FromString, _records(path.read_bytes()))


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a LevelDB log, up to one that is not complete."""
    at = _FILE_HEADER
    record = b""
    while True:
        left = _BLOCK - at % _BLOCK
        if left < _HEADER.size:  # padding at the end of a block
            at += left
        if at + _HEADER.size > len(data):
            return
        _, length, kind = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if kind == 0 or at + length > len(data):
            return
        record += data[at : at + length]
        at += length
        if kind in (_FULL, _LAST):
            yield record
            record = b""
