"""Makes docs/commands.md from the command line itself: `python tests/docs/command_reference.py`, or
`make docs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from kitchen import errors
from kitchen.cli import app

PAGE = Path(__file__).parents[2] / "docs/commands.md"
MAKE = "python tests/docs/command_reference.py"
_HEAD = """# Commands

Made from the code by `make docs`; the same text as `kitchen COMMAND --help`. How a setting is written:
[settings](settings.md). What a message means: [troubleshooting](troubleshooting.md).
"""
_EXITS = (
    errors.RunFailed,
    errors.ConfigError,
    errors.DataError,
    errors.BackendError,
    errors.QualityError,
    errors.Interrupted,
)


def reference() -> str:
    """The page."""
    command = typer.main.get_command(app)
    return "\n".join(
        [_HEAD, *_exits(), *_entries(command, typer.Context(command, info_name="kitchen"))]
    )


def _exits() -> Iterator[str]:
    yield "## Exit codes\n\n| code | means |\n| --- | --- |\n| 0 | Done. |"
    for kind in _EXITS:
        yield f"| {kind.exit_code} | {kind.__doc__} |"
    yield ""


def _entries(command: Any, context: typer.Context) -> Iterator[str]:
    """A command and those in it, the order of the code kept."""
    parameters = [each for each in command.get_params(context) if not each.hidden]
    arguments, options = (
        [each for each in parameters if each.param_type_name == kind]
        for kind in ("argument", "option")
    )
    within = ["COMMAND"] * hasattr(command, "commands")
    usage = [
        context.command_path,
        *(_named(each, context) for each in arguments),
        "[OPTIONS]",
        *within,
    ]
    yield f"## `{context.command_path}`\n\n{command.help or ''}".rstrip() + "\n"
    yield f"```text\n{' '.join(usage)}\n```\n"
    if shown := [each for each in [*arguments, *options] if "--help" not in each.opts]:
        yield (
            "\n".join(
                f"- `{_named(each, context)}`: {each.get_help_record(context)[1]}" for each in shown
            )
            + "\n"
        )
    for inner in getattr(command, "commands", {}).values():
        yield from _entries(inner, typer.Context(inner, info_name=inner.name, parent=context))


def _named(parameter: Any, context: typer.Context) -> str:
    name, _, number = str(parameter.get_help_record(context)[0]).partition(" <")
    return f"{name} N" if number and parameter.param_type_name == "option" else name


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
