"""Our recipes through SkyRL, a third-party server of the Tinker API.

python -m tests.acceptance.others [FOLDER] [--python PATH]

SkyRL 0.3.0 from PyPI runs in a virtual environment in build/skyrl, with JAX on the CPU, behind the
bridge of `training.server=skyrl`. With a folder of SkyRL's source, that version runs too, in
build/skyrl-source. Each recipe runs on the local engine too: both start from the same weights, so
the first losses must be equal. Later ones are not, as each backend initialises its LoRA weights
differently. Then weights are saved, loaded, sampled and exported, and compared with training.
Prints each row when it is known, and the table at the end; exits with 1 if a check failed. The logs
of the servers are build/skyrl/log and build/skyrl-source/log.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.others.checks import Result, compare, compare_weights
from tests.acceptance.others.skyrl import Version, check_interpreter, from_source, released, serving
from tests.acceptance.report import Report
from tests.support import letters
from tests.support.tiny_model import tiny_model

RECIPES = ("sl_basic", "rl", "distillation", "dpo")
COLUMNS = (
    "server",
    "check",
    "",
    "seconds",
    "steps",
    "first loss, local",
    "SkyRL",
    "last loss, local",
    "SkyRL",
    "sampling against training",
)


class ServerReport(Report):
    """A table of checks on several servers."""

    def __init__(self) -> None:
        super().__init__(*COLUMNS)
        self._last_row = time.perf_counter()

    def add_result(self, version: Version, result: Result) -> None:
        seconds, self._last_row = time.perf_counter() - self._last_row, time.perf_counter()
        row = (version.name, result.name, result.outcome, f"{seconds:.0f}", *result.figures)
        self.add(*row, works=result.works)

    @contextmanager
    def catching(self, version: Version, name: str) -> Iterator[None]:
        """Add a row for an exception, so that the other checks go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 continue with the other checks
            traceback.print_exc()
            outcome = f"FAILS: {type(error).__name__}: {error}"
            self.add_result(version, Result(name, False, outcome))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.others")
    parser.add_argument("folder", nargs="?", type=Path, help="SkyRL's source, to test that too")
    parser.add_argument(
        "--python",
        type=Path,
        default=sys.executable,
        help="of SkyRL's environment; 3.11.4 or later",
    )
    options = parser.parse_args()
    check_interpreter(options.python)
    versions = [released()] + ([from_source(options.folder)] if options.folder else [])
    os.environ["TINKER_API_KEY"] = "tml-any"  # SkyRL does not check it
    os.environ["TINKER_TELEMETRY"] = "0"  # the SDK would report that the server has ended
    report = ServerReport()
    with tempfile.TemporaryDirectory() as temporary, letters.registered():
        model = tiny_model(Path(temporary) / "tiny")
        for version in versions:
            folder = Path(temporary) / version.name
            folder.mkdir()
            with (
                report.catching(version, "start"),
                serving(version, options.python, folder, model) as url,
            ):
                report.add_result(version, Result("start", True, "works"))
                run_checks(report, version, model, url, folder)
    return report.finish(width=180)


def run_checks(report: ServerReport, version: Version, model: Path, url: str, folder: Path) -> None:
    """Run all checks of a server."""
    checks = {name: compare(name, model, url) for name in RECIPES}
    for name, results in {**checks, "weights": compare_weights(model, url, folder)}.items():
        with report.catching(version, name):
            for result in results:
                report.add_result(version, result)


if __name__ == "__main__":
    sys.exit(main())
