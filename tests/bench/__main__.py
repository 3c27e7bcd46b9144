"""Benchmarks: `python -m tests.bench [BENCHMARK...] [--pairs N] [--json PATH]`.

Prints one table per benchmark and writes JSON lines. Benchmarks are skipped if the file already has
their results for the same commit, versions, machine and options.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.bench import machine
from tests.bench.catalogue import BENCHMARKS, DEFAULT_BENCHMARKS
from tests.bench.ceilings import MIN_GFLOPS, Gauge
from tests.bench.core import CORE
from tests.bench.interleave import interleave
from tests.bench.kitchen_side import StartWeights
from tests.bench.random_model import SIZES, RandomModel
from tests.bench.results import Options, Result
from tests.bench.turns import MODEL, Side
from tests.bench.worker import Worker

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}  # no network during a measurement


def main() -> int:
    """Return 0, or 1 if two sides computed different values or a benchmark failed."""
    arguments = _parse_arguments()
    os.environ.update(QUIET)
    console = Console(width=150)
    facts = {
        **machine.facts(arguments.device),
        "model": arguments.model,
        "tokenizer": arguments.tokenizer,
        "seed": str(arguments.seed),
        "pairs": str(arguments.pairs or ""),
    }
    recorded = _load_results(arguments.json, facts)
    console.print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kitchen-bench-")))
        lines = stack.enter_context(arguments.json.open("a")) if arguments.json else None
        _write(lines, {"run": facts})
        options = _prepare(folder, arguments)
        names = arguments.benchmarks or default_benchmarks(options, console)
        results, failed = _measure(names, options, recorded, console, lines)
        _print(console, targets_table(results))
    if failed:
        console.print(f"failed: {', '.join(failed)}", style="bold red")
    return 0 if all(result.sound for result in results) and not failed else 1


def _load_results(path: Path | None, facts: Mapping[str, str]) -> dict[str, Result]:
    """Create the folder of the result file; return the results in it that have these facts."""
    if path is None:
        return {}
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        return {}
    drop_partial_line(path)
    return load_finished(path, facts)


def _prepare(folder: Path, arguments: argparse.Namespace) -> Options:
    """Create the model and the start weights that all benchmarks share."""
    (folder / "trl").mkdir()
    model = arguments.model
    if arguments.random is not None:
        model, size = f"path:{folder / 'model'}", SIZES[arguments.random]
        helper = RandomModel(size, folder / "model", arguments.tokenizer, arguments.device)
        run_helper(helper, folder)
    options = Options(folder, arguments.seed, arguments.pairs, model, arguments.device)
    dtype = "float32" if options.device == "cpu" else "bfloat16"
    run_helper(StartWeights(options.setup(0, dtype)), folder)
    return options


def _measure(
    names: Sequence[str],
    options: Options,
    recorded: Mapping[str, Result],
    console: Console,
    lines: IO[str] | None,
) -> tuple[list[Result], list[str]]:
    """Run benchmarks, print and write their results; return results and names of failed ones."""
    results, failed = list[Result](), list[str]()
    for name in names:
        try:
            result = recorded.get(name) or BENCHMARKS[name](options)
        # a side or a run failed; continue with the other benchmarks
        except (RuntimeError, AssertionError) as error:
            console.print(f"{name} FAILED: {error}", style="bold red", markup=False)
            failed.append(name)
            continue
        _print(console, result)
        if name not in recorded:
            for record in (*result.records, {"finished": name, **to_record(result)}):
                _write(lines, record)
        results.append(result)
    return results, failed


def run_helper(side: Side, folder: Path) -> None:
    """Run a process that writes files which benchmarks need."""
    with Worker(side, folder) as worker:
        worker.ready()


def default_benchmarks(
    options: Options, console: Console, min_gflops: float = MIN_GFLOPS
) -> list[str]:
    """Return the default benchmarks, without bfloat16 ones below `min_gflops` GFLOP/s.

    On such a machine, a step would take half an hour.
    """
    gauge = Gauge("bfloat16", options.device)
    [step] = interleave([gauge], options.folder, 1).steps[gauge.name]
    rate = step.values["gemm_gflops"]
    names = DEFAULT_BENCHMARKS[options.device]
    skipped = [name for name in names if name.endswith("bfloat16") and rate < min_gflops]
    if skipped:
        console.print(
            f"skipped, because this machine multiplies bfloat16 at {rate:.1f} GFLOP/s: "
            f"{', '.join(skipped)}"
        )
    return [name for name in names if name not in skipped]


def targets_table(results: Sequence[Result]) -> Result:
    """Return a table of all targets and whether they were reached."""
    rows = tuple((result.title, *figure) for result in results for figure in result.figures)
    return Result("figures", "Targets", ("benchmark", "metric", "result", "target"), rows)


def to_record(result: Result) -> dict[str, Any]:
    """Return the record of a result, from which it can be printed again."""
    return {
        field.name: getattr(result, field.name)
        for field in fields(result)
        if field.name != "records"
    }


def load_finished(path: Path, facts: Mapping[str, str]) -> dict[str, Result]:
    """Load the finished benchmarks by name, if all facts except the date are the same.

    Results of uncommitted code are not loaded.
    """
    results: dict[str, Result] = {}
    same_facts = False
    if facts["commit"] == "none" or facts["commit"].endswith("+"):
        return results
    for record in map(json.loads, path.read_text().splitlines()):
        if "run" in record:
            same_facts = {**record["run"], "date": facts["date"]} == facts
        elif same_facts and (name := record.pop("finished", "")):
            rows, figures = (tuple(map(tuple, record.pop(key))) for key in ("rows", "figures"))
            results[name] = Result(
                **{**record, "columns": tuple(record["columns"]), "notes": tuple(record["notes"])},
                rows=rows,
                figures=figures,
            )
    return results


def drop_partial_line(path: Path) -> None:
    """Drop the last line of a file if it is incomplete because its writer was killed."""
    text = path.read_text()
    if not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Compare the local engine with TRL."
    )
    parser.add_argument(
        "benchmarks",
        nargs="*",
        metavar="BENCHMARK",
        help=f"default: all of {', '.join(BENCHMARKS)}",
    )
    parser.add_argument("--pairs", type=int, help="measured steps of each side, at least 1")
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="append JSON lines; /dev/stdout prints them"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=DEFAULT_BENCHMARKS)
    parser.add_argument(
        "--model",
        default=MODEL,
        help="a Llama: packaged:NAME, path:DIR or random:SIZE, where SIZE is "
        + " or ".join(SIZES)
        + f"; {', '.join(CORE)} use models of their own",
    )
    parser.add_argument(
        "--tokenizer", default=MODEL, help="tokenizer of a random model: packaged:NAME or path:DIR"
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.benchmarks if name not in BENCHMARKS]:
        parser.error(f"unknown benchmark {unknown[0]!r}; choose from {', '.join(BENCHMARKS)}")
    kind, _, size = arguments.model.partition(":")
    arguments.random = size if kind == "random" else None
    if arguments.random is not None and size not in SIZES:
        parser.error(f"unknown size {size!r} of a random model; choose from {', '.join(SIZES)}")
    if arguments.pairs is not None and arguments.pairs < 1:
        parser.error("--pairs must be at least 1")
    return arguments


def _print(console: Console, result: Result) -> None:
    table = Table(title=result.title, title_justify="left", title_style="bold")
    for number, column in enumerate(result.columns):
        table.add_column(escape(column), justify="right" if number else "left")
    for row in result.rows:
        table.add_row(*map(escape, row))
    console.print()
    console.print(table)
    for note in result.notes:
        console.print(f"  {note}", markup=False)
    if not result.sound:
        console.print("  THE SIDES COMPUTED DIFFERENT VALUES", style="bold red")


def _write(lines: Any, record: Mapping[str, Any]) -> None:
    if lines:
        print(json.dumps(record), file=lines, flush=True)


if __name__ == "__main__":
    sys.exit(main())
