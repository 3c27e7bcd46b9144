"""The points of a metric in the stores of trackers, read by the libraries of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adapters.trackers.tensorboard import stored_values
from adapters.trackers.wandb import offline_rows

Point = tuple[int, float]  # step and value


def tracker_settings(folder: Path) -> dict[str, dict[str, Any]]:
    """Return settings with which each tracker stores everything below a folder.

    trackio looks for its folder, TRACKIO_DIR, once in a process: its project is a new one instead.
    """
    return {
        "trackio": {"project": folder.name},
        "wandb": {"project": "soup", "mode": "offline", "dir": str(folder)},
        "tensorboard": {"logdir": str(folder / "tb")},
        "mlflow": {"experiment": "soup", "uri": f"sqlite:///{folder}/mlflow.db"},
    }


def stored_points(tracker: str, folder: Path, run: str, key: str, metric: str) -> list[Point]:
    """Return the points of a run in a tracker's store below a folder, in order."""
    match tracker:
        case "trackio":
            return _trackio(folder.name, run, metric)
        case "wandb":
            rows = offline_rows(str(folder), key)
            return [(row["step"], row[metric]) for row in rows if metric in row]
        case "tensorboard":
            return _tensorboard(folder / "tb" / run, metric)
        case _:
            return _mlflow(folder / "mlflow.db", key, metric)


def _trackio(project: str, run: str, metric: str) -> list[Point]:
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs(project, run)
    return [(row["step"], row[metric]) for row in rows if metric in row]


def _tensorboard(folder: Path, metric: str) -> list[Point]:
    points = []
    for event in stored_values(str(folder)):
        points += [
            (event.step, value.simple_value) for value in event.summary.value if value.tag == metric
        ]
    return points


def _mlflow(database: Path, key: str, metric: str) -> list[Point]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    experiment: Any = client.get_experiment_by_name("soup")
    found = client.search_runs([experiment.experiment_id], f"tags.`kitchen.key` = '{key}'")
    [run] = found
    history = client.get_metric_history(run.info.run_id, metric)
    return [(point.step, point.value) for point in history]
