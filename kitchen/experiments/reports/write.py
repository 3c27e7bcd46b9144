"""Writing a report into a folder, in formats that entry points name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from kitchen.backend.atomic_folder import write_atomically
from kitchen.errors import ConfigError, did_you_mean
from kitchen.runs.reports.content import Report

GROUP = "kitchen.report_formats"
_MOST_NAMES = 3  # in the name of a file
_LONGEST = 150  # characters of the names in it
# returns the files of a report by name, from the report and the stem of their names
Renderer = Callable[[Report, str], Sequence[tuple[str, bytes]]]


def find_renderers(formats: Sequence[str]) -> Sequence[Renderer]:
    """Return the renderers of these formats; raises ConfigError for an unknown one."""
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    renderers: list[Renderer] = []
    for name in dict.fromkeys(formats):
        if name not in known:
            raise ConfigError(
                f"--format {name}: there is no such format; {did_you_mean(name, known)}"
            )
        renderers.append(known[name].load())
    return renderers


def stem_of(names: Sequence[str]) -> str:
    """Return the stem of the files of a report on these runs and sweeps."""
    return "-".join(names[:_MOST_NAMES])[:_LONGEST] + "-report"


def write_report(
    report: Report, renderers: Sequence[Renderer], folder: Path, stem: str
) -> Sequence[Path]:
    """Write all files of a report, and return those that a reader opens; raises ConfigError.

    Everything is rendered before anything is written. Files of an earlier report are replaced.
    """
    rendered = [renderer(report, stem) for renderer in renderers]
    paths = []
    try:
        for files in rendered:
            for name, data in files:
                write_atomically(folder / name, data)
            paths.append(folder / files[0][0])
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder}: {error.strerror}; choose another folder with --out"
        ) from error
    return paths
