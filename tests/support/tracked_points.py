"""The points of a metric in the stores of trackers, read by the libraries of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adapters.trackers.tensorboard import stored_values
from adapters.trackers.wandb import offline_records, offline_rows

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


def stored_summary(tracker: str, folder: Path, run: str, key: str) -> tuple[str, str]:
    """Return the learning rate in the settings of a run in a tracker's store, and its status."""
    match tracker:
        case "trackio":
            from trackio.sqlite_storage import SQLiteStorage

            config = SQLiteStorage.get_run_config(folder.name, run) or {}
            [alert] = SQLiteStorage.get_alerts(folder.name, run)
            return str(config["learning_rate"]), alert["title"]
        case "wandb":
            records = list(offline_records(str(folder), key))
            [start] = [record.run for record in records if record.HasField("run")]
            [code] = [record.exit.exit_code for record in records if record.HasField("exit")]
            config = {item.key: item.value_json for item in start.config.update}
            return config["learning_rate"], str(code)
        case "tensorboard":
            return _tensorboard_summary(folder / "tb" / run)
        case _:
            stored = _mlflow_run(folder / "mlflow.db", key)
            return stored.data.params["learning_rate"], stored.info.status


def _tensorboard_summary(folder: Path) -> tuple[str, str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    settings, status = (
        events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in ("settings", "status")
    )
    [line] = [line for line in settings.split("\n") if "learning_rate" in line]
    return line.split(": ")[1].rstrip(","), status


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


def _mlflow_run(database: Path, key: str) -> Any:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    experiment: Any = client.get_experiment_by_name("soup")
    [run] = client.search_runs([experiment.experiment_id], f"tags.`kitchen.key` = '{key}'")
    return run


def _mlflow(database: Path, key: str, metric: str) -> list[Point]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    run = _mlflow_run(database, key)
    history = client.get_metric_history(run.info.run_id, metric)
    return [(point.step, point.value) for point in history]
