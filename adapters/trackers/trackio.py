"""trackio: a tracker whose data are in a local SQLite file for each project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from adapters.trackers.names import cells, configuration, default_project
from kitchen.errors import BackendError
from kitchen.runs.tracker import Position, TrackedRun, Tracker

_LEVELS = {"completed": "info", "interrupted": "warn", "failed": "error"}
# names that trackio uses itself: the underscores in front are its own convention
_RESERVED = ("project", "run", "timestamp", "step", "time", "metrics")


class TrackioTracker(Tracker):
    """trackio, on this machine; `trackio show` opens the dashboard.

    Every row has an identifier made of the run and its number, which the database accepts once.
    """

    packages = ("trackio",)

    def __init__(self, *, project: str = "") -> None:
        """`project` defaults to the environment variable TRACKIO_PROJECT."""
        self._project = project
        self._run: TrackedRun
        self._configuration: dict[str, Any] = {}
        self._rows: list[tuple[Position, dict[str, Any]]] = []  # not stored yet
        self._last_step = 0

    def prepare(self, state: Mapping[str, Any]) -> None:
        self._project = state.get("project") or self._project or default_project("TRACKIO_PROJECT")
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import get_storage_mode

        if get_storage_mode() != "sqlite":
            raise BackendError(
                "trackio stores its data as JSON lines (TRACKIO_STORAGE_MODE, or a network drive), "
                "which is not supported: set TRACKIO_DIR to a folder on a local disk"
            )
        SQLiteStorage.validate_project_name(self._project)

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> None:
        self._run = run
        created = state.get("created") or datetime.now(UTC).isoformat()
        self._configuration = {**configuration(run), "_Created": created}

    def state(self) -> Mapping[str, Any]:
        return {"project": self._project, "created": self._configuration.get("_Created", "")}

    def metrics(self, at: Position, values: Mapping[str, float]) -> None:
        named = {f"__{key}" if key in _RESERVED else key: values[key] for key in values}
        self._rows.append((at, named))

    def table(
        self, at: Position, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        from trackio import Table

        table = Table(columns=list(columns), data=cells(rows))
        content = table._to_dict(self._project, self._run.name, at.step)
        self._rows.append((at, {title: content}))

    def flush(self) -> bool:
        self._store(self._rows)
        if self._rows:
            self._last_step = self._rows[-1][0].step
        self._rows = []
        return True

    def _store(self, rows: Sequence[tuple[Position, dict[str, Any]]]) -> None:
        """Store rows and the configuration, in one transaction."""
        from trackio.sqlite_storage import SQLiteStorage

        SQLiteStorage.bulk_log(
            self._project,
            self._run.name,
            [values for _, values in rows],
            steps=[at.step for at, _ in rows],
            log_ids=[f"{self._run.key}-{at.number}" for at, _ in rows],
            run_id=self._run.key,
            config=self._configuration,
        )

    def close(self, status: str) -> None:
        """Store the status as an alert: trackio has no status of runs."""
        from trackio.sqlite_storage import SQLiteStorage

        SQLiteStorage.bulk_alert(
            self._project,
            self._run.name,
            titles=[f"run {status}"],
            texts=[None],
            levels=[_LEVELS[status]],
            steps=[self._last_step],
            alert_ids=[f"{self._run.key}-{status}"],
            run_id=self._run.key,
        )
