"""MLflow: runs on a tracking server, or in a local SQLite file."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters.trackers.names import cells, configuration, default_project, flattened
from kitchen.backend.temporary import held
from kitchen.errors import BackendError
from kitchen.runs.tracker import Position, TrackedRun, Tracker

_KEY_TAG = "kitchen.key"
_LOCAL = "sqlite:///"
_MAX_METRICS = 1000  # of MLflow's batches
_MAX_PARAMETERS = 100
_MAX_NAME = 200  # characters: MLflow takes 250, and a few are added
_MAX_TITLE = 100  # of a table, whose file name it becomes
_MAX_TEXT = 6000  # characters of a parameter
_NOT_IN_NAMES = re.compile(r"[^\w./ :-]")
_STATUS = {"completed": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MlflowTracker(Tracker):
    """MLflow, on a tracking server or in a local SQLite file; `mlflow ui` opens it.

    If a metric is sent twice, MLflow stores it twice. Each row of metrics therefore gets a distinct
    timestamp, in milliseconds: the number of timestamps after the last confirmed one is the number
    of rows that MLflow has received since.
    """

    packages = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, *, experiment: str = "", uri: str = "") -> None:
        """Both are by default those of MLFLOW_EXPERIMENT_NAME and MLFLOW_TRACKING_URI.

        Without any, the experiment is "crucible-kitchen", in the file mlflow.db.
        """
        self._experiment = experiment
        self._uri = uri
        self._client: Any = None
        self._run = ""  # MLflow's identifier
        self._rows: list[tuple[Position, Mapping[str, float]]] = []  # not stored yet
        self._timestamp = 0  # ms; of the last row that was received and is stored
        self._stored: deque[int] = deque()  # timestamps of rows to come that MLflow has already

    def prepare(self, state: Mapping[str, Any]) -> None:
        self._experiment = state.get("experiment") or self._experiment
        self._experiment = self._experiment or default_project("MLFLOW_EXPERIMENT_NAME")
        self._uri = state.get("uri") or self._uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        self._uri = self._uri or f"{_LOCAL}mlflow.db"
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic"):  # they report the tables that they create
            logging.getLogger(name).setLevel(logging.WARNING)
        if self._uri.startswith(_LOCAL):
            self._prepare_file(state)
        self._client = MlflowClient(tracking_uri=self._uri)

    def _prepare_file(self, state: Mapping[str, Any]) -> None:
        file = Path(self._uri.removeprefix(_LOCAL)).absolute()
        self._uri = f"{_LOCAL}{file}"
        if state.get("timestamp") and not file.exists():  # MLflow would create an empty one
            raise _gone(str(file))
        file.parent.mkdir(parents=True, exist_ok=True)
        with held(file.parent):  # processes that create the same tables at once would fail
            if not file.exists():
                _create(file)

    def state(self) -> Mapping[str, Any]:
        has_password = "@" in self._uri.partition("://")[2].partition("/")[0]
        uri = "" if has_password else self._uri  # of the environment then
        return {"uri": uri, "experiment": self._experiment, "timestamp": self._timestamp}

    def _experiment_id(self) -> str:
        """Return the experiment's identifier; it is created if there is none of its name."""
        from mlflow import MlflowException

        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            try:
                return str(self._client.create_experiment(self._experiment))
            except MlflowException:  # another process has just created it
                found = self._client.get_experiment_by_name(self._experiment)
                if found is None:
                    raise
        return str(found.experiment_id)

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> None:
        experiment = self._experiment_id()
        found = self._client.search_runs([experiment], f"tags.`{_KEY_TAG}` = '{run.key}'")
        if found:
            self._continue(found[0].info.run_id, state)
        elif state.get("timestamp"):
            raise _gone(f"the run with the tag {_KEY_TAG}={run.key}")
        else:
            tags = {_KEY_TAG: run.key, "kitchen.run": run.name}
            created = self._client.create_run(experiment, run_name=run.name, tags=tags)
            self._run = created.info.run_id
            self._send_parameters(run)

    def _continue(self, run: str, state: Mapping[str, Any]) -> None:
        """Continue a run that an earlier attempt started, and count what it stored since."""
        self._run = run
        self._client.update_run(run, status="RUNNING")
        self._timestamp = state.get("timestamp", 0)
        later = {time for time in self._timestamps() if time > self._timestamp}
        self._stored.extend(sorted(later))

    def _timestamps(self) -> Iterator[int]:
        """Yield the timestamp of every stored metric."""
        for name in self._client.get_run(self._run).data.metrics:
            for metric in self._client.get_metric_history(self._run, name):
                yield metric.timestamp

    def _send_parameters(self, run: TrackedRun) -> None:
        from mlflow.entities import Param

        parameters = [
            Param(_name(key), str(value)[:_MAX_TEXT])
            for key, value in flattened(configuration(run))
        ]
        for start in range(0, len(parameters), _MAX_PARAMETERS):
            batch = parameters[start : start + _MAX_PARAMETERS]
            self._client.log_batch(self._run, params=batch)

    def metrics(self, at: Position, values: Mapping[str, float]) -> None:
        if self._stored:
            self._timestamp = self._stored.popleft()
        else:
            self._rows.append((at, values))

    def table(
        self, at: Position, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        """Store an artifact, whose name has the number of the table: sent twice, it is the same."""
        content = {"columns": list(columns), "data": cells(rows)}
        name = _name(title[:_MAX_TITLE]).replace("/", " ").replace(":", " ")
        self._client.log_text(
            self._run, json.dumps(content, ensure_ascii=False), f"tables/{at.number} {name}.json"
        )

    def flush(self) -> bool:
        from mlflow.entities import Metric

        batch: list[Any] = []
        for at, values in self._rows:
            if batch and len(batch) + len(values) > _MAX_METRICS:
                self._client.log_batch(self._run, metrics=batch)
                batch = []
            self._timestamp = max(self._timestamp + 1, int(time.time() * 1000))
            batch += [
                Metric(_name(key), value, self._timestamp, at.step) for key, value in values.items()
            ]
        if batch:
            self._client.log_batch(self._run, metrics=batch)
        self._rows = []
        return True

    def close(self, status: str) -> None:
        self._client.set_terminated(self._run, _STATUS[status])


def _create(file: Path) -> None:
    """Create a file with MLflow's tables, which takes seconds; if killed meanwhile, there is none.

    MLflow can neither use nor complete a file with some of its tables.
    """
    from mlflow.store.tracking import sqlalchemy_store

    create: Any = sqlalchemy_store.SqlAlchemyStore
    part = file.with_name(f".{file.name}.part")
    for left in (part, part.with_name(f"{part.name}-journal")):
        left.unlink(missing_ok=True)
    create(f"{_LOCAL}{part}", "./mlruns").engine.dispose()  # closes the file
    part.rename(file)


def _gone(missing: str) -> BackendError:
    return BackendError(
        f"{missing} is gone, to which MLflow tracked earlier values: restore it, or delete "
        "trackers/mlflow.json in the folder of the run, and all values are sent to a new one"
    )


def _name(text: str) -> str:
    """Return a name that MLflow allows: it must not be another one if it is read as a path."""
    parts = _NOT_IN_NAMES.sub("_", text[:_MAX_NAME]).split("/")
    return "/".join(f"_{part.lstrip('.')}" if _is_path(part) else part for part in parts)


def _is_path(part: str) -> bool:
    return part in ("", ".") or part.startswith("..")
