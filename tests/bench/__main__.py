"""Benchmarks: `python -m tests.bench [WORK...] [--pairs N] [--json PATH]`.

Prints one table per benchmark and writes JSON lines. Benchmarks that the file already holds for the
same commit, versions, machine and options are not measured again.
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
from tests.bench.catalogue import MEASURED, WORKS
from tests.bench.ceilings import SLOW, Gauge
from tests.bench.core import CORE
from tests.bench.interleave import interleave
from tests.bench.kitchen_side import StartWeights
from tests.bench.random_model import SIZES, RandomModel
from tests.bench.results import Order, Result
from tests.bench.turns import MODEL, Side
from tests.bench.worker import Worker

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}  # no network while the clock runs


def main() -> int:
    """Return 0, or 1 where two sides computed different results or one of them failed."""
    options = _options()
    os.environ.update(QUIET)
    console = Console(width=150)
    facts = {
        **machine.facts(options.device),
        "model": options.model,
        "tokenizer": options.tokenizer,
        "seed": str(options.seed),
        "pairs": str(options.pairs or ""),
    }
    before = _results_before(options.json, facts)
    console.print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kitchen-bench-")))
        lines = stack.enter_context(options.json.open("a")) if options.json else None
        _write(lines, {"run": facts})
        order = _prepare(folder, options)
        names = options.works or default_works(order, console)
        results, failed = _measure(names, order, before, console, lines)
        _print(console, to_be_reached(results))
    if failed:
        console.print(f"failed: {', '.join(failed)}", style="bold red")
    return 0 if all(result.sound for result in results) and not failed else 1


def _results_before(path: Path | None, facts: Mapping[str, str]) -> dict[str, Result]:
    """Create the folder of the file of results; return the results it holds with these facts."""
    if path is None:
        return {}
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        return {}
    drop_unfinished(path)
    return finished(path, facts)


def _prepare(folder: Path, options: argparse.Namespace) -> Order:
    """Write the model and the start weights that all benchmarks share."""
    (folder / "trl").mkdir()
    model = options.model
    if options.random is not None:
        model, size = f"path:{folder / 'model'}", SIZES[options.random]
        make(RandomModel(size, folder / "model", options.tokenizer, options.device), folder)
    order = Order(folder, options.seed, options.pairs, model, options.device)
    dtype = "float32" if options.device == "cpu" else "bfloat16"
    make(StartWeights(order.setup(0, dtype)), folder)
    return order


def _measure(
    names: Sequence[str],
    order: Order,
    before: Mapping[str, Result],
    console: Console,
    lines: IO[str] | None,
) -> tuple[list[Result], list[str]]:
    """Run benchmarks, print and write their results; return these, and the names that failed."""
    results, failed = list[Result](), list[str]()
    for name in names:
        try:
            result = before.get(name) or WORKS[name](order)
        # a side or a run failed; the other benchmarks are still worth measuring
        except (RuntimeError, AssertionError) as error:
            console.print(f"{name} FAILED: {error}", style="bold red", markup=False)
            failed.append(name)
            continue
        _print(console, result)
        if name not in before:
            for record in (*result.records, {"finished": name, **kept(result)}):
                _write(lines, record)
        results.append(result)
    return results, failed


def make(side: Side, folder: Path) -> None:
    """Write a file that a benchmark in its own process leaves behind."""
    with Worker(side, folder) as worker:
        worker.ready()


def default_works(order: Order, console: Console, slow: float = SLOW) -> list[str]:
    """Return the default benchmarks, without bfloat16 if it is slower than `slow` GFLOP/s.

    A step would take half an hour on such a machine.
    """
    gauge = Gauge("bfloat16", order.device)
    rate = interleave([gauge], order.folder, 1).taken[gauge.name][0].values["gemm_gflops"]
    usual = MEASURED[order.device]
    skipped = [name for name in usual if name.endswith("bfloat16") and rate < slow]
    if skipped:
        console.print(
            f"skipped, because this machine multiplies bfloat16 at {rate:.1f} GFLOP/s: "
            f"{', '.join(skipped)}"
        )
    return [name for name in usual if name not in skipped]


def to_be_reached(found: Sequence[Result]) -> Result:
    """Summarise all targets, and whether they were reached, in one table."""
    rows = tuple((result.title, *figure) for result in found for figure in result.figures)
    return Result("figures", "Figures to reach", ("work", "what", "found", "verdict"), rows)


def kept(result: Result) -> dict[str, Any]:
    """Return the recorded result, to print it again."""
    return {
        field.name: getattr(result, field.name)
        for field in fields(result)
        if field.name != "records"
    }


def finished(path: Path, facts: Mapping[str, str]) -> dict[str, Result]:
    """Read the finished benchmarks with the same facts, dates aside, by name.

    Results of uncommitted code are left out.
    """
    found: dict[str, Result] = {}
    same = False
    if facts["commit"] == "none" or facts["commit"].endswith("+"):
        return found
    for record in map(json.loads, path.read_text().splitlines()):
        if "run" in record:
            same = {**record["run"], "date": facts["date"]} == facts
        elif same and (name := record.pop("finished", "")):
            rows, figures = (tuple(map(tuple, record.pop(key))) for key in ("rows", "figures"))
            found[name] = Result(
                **{**record, "columns": tuple(record["columns"]), "notes": tuple(record["notes"])},
                rows=rows,
                figures=figures,
            )
    return found


def drop_unfinished(path: Path) -> None:
    """Drop the last line of a file if its writer was killed in the middle of it."""
    text = path.read_text()
    if not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="The local engine against TRL."
    )
    parser.add_argument(
        "works", nargs="*", metavar="WORK", help=f"all by default: {', '.join(WORKS)}"
    )
    parser.add_argument("--pairs", type=int, help="measured steps of each side, at least 1")
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="append JSON lines; /dev/stdout prints them"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=MEASURED)
    parser.add_argument(
        "--model",
        default=MODEL,
        help="a Llama: packaged:NAME, path:DIR or random:SIZE, of the sizes "
        + " and ".join(SIZES)
        + f"; {', '.join(CORE)} have models of their own",
    )
    parser.add_argument(
        "--tokenizer", default=MODEL, help="of a random model: packaged:NAME or path:DIR"
    )
    options = parser.parse_args()
    if unknown := [name for name in options.works if name not in WORKS]:
        parser.error(f"no work is called {unknown[0]!r}; there are {', '.join(WORKS)}")
    kind, _, size = options.model.partition(":")
    options.random = size if kind == "random" else None
    if options.random is not None and size not in SIZES:
        parser.error(f"no random model has the size {size!r}; there are {', '.join(SIZES)}")
    if options.pairs is not None and options.pairs < 1:
        parser.error("--pairs must be at least 1")
    return options


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
        console.print("  THE SIDES DID NOT COMPUTE THE SAME", style="bold red")


def _write(lines: Any, record: Mapping[str, Any]) -> None:
    if lines:
        print(json.dumps(record), file=lines, flush=True)


if __name__ == "__main__":
    sys.exit(main())
