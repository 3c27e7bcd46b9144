"""One row in a separate process: `python -m tests.bench.gpu.row NAME FOLDER OUT`.

The name `models-8b-1b` writes the models of these sizes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.bench.__main__ import QUIET
from tests.bench.gpu.rows import ROWS
from tests.bench.gpu.workspace import NotMeasured, Workspace

MODELS = "models"


def main(name: str, folder: str, out: str) -> None:
    """Write the row's record to FOLDER/NAME.json; a failure is recorded as its error."""
    os.environ.update(QUIET)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    workspace = Workspace(Path(folder), Path(out), os.environ.get("KITCHEN_GPU_DRY") == "1")
    if name.startswith(MODELS):
        for size in name.split("-")[1:]:
            workspace.setup(size)
        return
    try:
        record: dict[str, Any] = dict(ROWS[name].run(workspace))
    except NotMeasured as reason:
        record = {"not_measured": str(reason)}
    except Exception:  # noqa: BLE001 the next row goes on
        record = {"error": traceback.format_exc()[-4000:]}
    Path(folder, f"{name}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
