"""What went wrong, for people: where, why and how to go on; frames only where they were asked for."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from kitchen.cli.console import console, printable
from kitchen.errors import KitchenError
from kitchen.secrets import mask


def exit_code(error: BaseException) -> int:
    return (
        error.exit_code
        if isinstance(error, KitchenError)
        else 130
        if isinstance(error, KeyboardInterrupt)
        else 1
    )


def reasons(error: BaseException) -> Sequence[str]:
    """Why, masked: one text per problem."""
    if isinstance(error, KeyboardInterrupt):
        return ["stopped at once"]
    return [
        printable(str(each) if isinstance(each, KitchenError) else f"{type(each).__name__}: {each}")
        for each in getattr(error, "problems", (error,))
    ]


def place(error: BaseException) -> str:
    """The way to the stage that failed, from the note that the runner left: recipe > loop and step
    > stage.
    """
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("in ")]
    return printable(notes[0].removeprefix("in ").split("(")[0]) if notes else ""


def tell(error: BaseException, *, debug: bool, hints: Sequence[str] = ()) -> None:
    """Print it to standard error."""
    out, why = console(to_stderr=True), reasons(error)
    if debug:
        sys.stderr.write(mask("".join(traceback.format_exception(error))))
    where = place(error)
    head = "interrupted" if exit_code(error) == 130 else "failed" if where else "error"
    style = "bold yellow" if head == "interrupted" else "bold red"
    if where:
        out.print(Text.assemble((head, style), f" in {where}"), soft_wrap=True)
    else:
        rest = f"{len(why)} problems" if len(why) > 1 else why[0]
        out.print(Text.assemble((f"{head}: ", style), rest), soft_wrap=True)
    for number, text in enumerate(why if where or len(why) > 1 else (), 1):
        lead = f"  {number}. " if len(why) > 1 else "  why: "
        out.print(lead + text.replace("\n", "\n" + " " * len(lead)), soft_wrap=True)
    unexpected = not debug and not isinstance(error, (KitchenError, OSError, KeyboardInterrupt))
    for hint in [*hints, *["for the frames, say it again with --debug"] * unexpected]:
        out.print(f"  {hint}", soft_wrap=True)


def as_json(value: Any) -> str:
    """One object; numbers that are not finite, which JSON does not have, are null."""
    return json.dumps(_finite(value), indent=2, default=str, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
