"""Error reports for people: where it failed, why, and how to resume; tracebacks with --debug."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Sequence
from itertools import chain

from rich.console import Console
from rich.text import Text

from kitchen.cli.console import console, print_wrapped, wrapped
from kitchen.errors import KitchenError, describe_error
from kitchen.secrets import printable

INTERRUPTED = 130  # 128 + SIGINT


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that failed with this error."""
    if isinstance(error, KitchenError):
        return error.exit_code
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def reasons(error: BaseException) -> Sequence[str]:
    """Return the reasons of an error, one text per problem, with secrets masked."""
    if isinstance(error, KeyboardInterrupt):
        return ["stopped at once"]
    problems = getattr(error, "problems", (error,))
    return [printable(describe_error(problem)) for problem in problems]


def all_reasons(errors: Iterable[BaseException]) -> list[str]:
    """Return the reasons of several errors in their order."""
    return list(chain.from_iterable(map(reasons, errors)))


def failed_stage(error: BaseException) -> str:
    """Return the path to the failed stage, as the runner notes it: recipe > loop step > stage."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("in ")]
    return printable(notes[0].removeprefix("in ").split("(")[0]) if notes else ""


def report_error(error: BaseException, *, debug: bool, hints: Sequence[str] = ()) -> None:
    """Print an error to standard error, with hints on what to do next."""
    out = console(to_stderr=True)
    if debug:
        sys.stderr.write(printable("".join(traceback.format_exception(error))))
    why = reasons(error)
    where = failed_stage(error)
    _print_headline(out, error, where, why)
    for number, reason in enumerate(why if where or len(why) > 1 else (), 1):
        lead = f"  {number}. " if len(why) > 1 else "  why: "
        print_wrapped(out, lead + reason.replace("\n", "\n" + " " * len(lead)))
    notes = getattr(error, "__notes__", ())
    unrecorded = [printable(note) for note in notes if note.startswith("not recorded: ")]
    for hint in (*unrecorded, *hints):
        out.print(f"  {hint}", soft_wrap=True)
    expected = isinstance(error, (KitchenError, OSError, KeyboardInterrupt))
    if not expected and not debug:
        out.print("  to see the traceback, run the command again with --debug", soft_wrap=True)


def _print_headline(out: Console, error: BaseException, where: str, why: Sequence[str]) -> None:
    interrupted = exit_code(error) == INTERRUPTED
    style = "bold yellow" if interrupted else "bold red"
    headline = "failed" if where else "error"
    if interrupted:
        headline = "interrupted"
    if where:
        out.print(Text.assemble((headline, style), f" in {where}"), soft_wrap=True)
        return
    summary = f"{len(why)} problems" if len(why) > 1 else why[0]
    text = wrapped(out, f"{headline}: {summary}").removeprefix(headline)
    out.print(Text.assemble((headline, style), text), soft_wrap=True)
