"""`kitchen report`: runs and sweeps as a document to send."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kitchen.cli.commands.json_output import print_files
from kitchen.config.adapter_choice import AdapterChoice, check_run_name, open_blobs
from kitchen.experiments.reports.build import build_report
from kitchen.experiments.reports.write import find_renderers, stem_of, write_report


def report(
    names: Sequence[str], formats: Sequence[str], out: Path, adapters: AdapterChoice, *, json: bool
) -> int:
    """Write the report of these runs and sweeps, and print where it is."""
    renderers = find_renderers(formats)
    checked = list(map(check_run_name, names))
    content = build_report(open_blobs(adapters), checked)
    paths = write_report(content, renderers, out, stem_of(checked))
    print_files(paths, json=json)
    return 0
