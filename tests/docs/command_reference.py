"""Writes docs/commands.md from the command line: `python tests/docs/command_reference.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from kitchen import errors
from kitchen.cli import app, thinker_commands
from kitchen.cli.streams import READER_GONE

PAGE = Path(__file__).parents[2] / "docs/commands.md"
COMMAND = "python tests/docs/command_reference.py"
_HEAD = """# Commands

`make docs` writes this page from the code; it is the text of `kitchen COMMAND --help`. See
[settings](settings.md) for how settings are written, and [troubleshooting](troubleshooting.md) for
error messages.
"""
_FAILURES = (
    errors.RunFailed,
    errors.ConfigError,
    errors.DataError,
    errors.BackendError,
    errors.QualityError,
    errors.SuiteFailed,
    errors.Interrupted,
)


def reference() -> str:
    """Return the text of the page."""
    sections = [_HEAD, *_exit_codes()]
    for name, commands in (("kitchen", app), ("thinker", thinker_commands.app)):
        command = typer.main.get_command(commands)
        sections += _sections(command, typer.Context(command, info_name=name))
    return "\n".join(sections)


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n\n| code | meaning |\n| --- | --- |\n| 0 | Success. |"
    for kind in _FAILURES:
        yield f"| {kind.exit_code} | {' '.join((kind.__doc__ or '').split())} |"
    yield (
        f"| {READER_GONE} | Standard output was closed before a listing ended, as by `head`. A run "
        "goes on without it. |\n"
    )


def _sections(command: Any, context: typer.Context) -> Iterator[str]:
    """Yield the section of a command, then those of its subcommands in the order of the code."""
    yield f"## `{context.command_path}`\n\n{command.help or ''}".rstrip() + "\n"
    yield f"```text\n{_usage(command, context)}\n```\n"
    if rows := [*_parameter_rows(command, context)]:
        yield "\n".join(rows) + "\n"
    if examples := _examples(command):
        yield f"Examples:\n\n```text\n{examples}\n```\n"
    for inner in getattr(command, "commands", {}).values():
        yield from _sections(inner, typer.Context(inner, info_name=inner.name, parent=context))


def _parameters(command: Any, context: typer.Context, kind: str) -> list[Any]:
    parameters = [each for each in command.get_params(context) if each.param_type_name == kind]
    return [each for each in parameters if not each.hidden and "--help" not in each.opts]


def _usage(command: Any, context: typer.Context) -> str:
    arguments = [_name(argument, context) for argument in _parameters(command, context, "argument")]
    subcommand = ["COMMAND"] if hasattr(command, "commands") else []
    return " ".join([context.command_path, *arguments, "[OPTIONS]", *subcommand])


def _parameter_rows(command: Any, context: typer.Context) -> Iterator[str]:
    for kind in ("argument", "option"):
        for parameter in _parameters(command, context, kind):
            text = parameter.get_help_record(context)[1]
            yield f"- `{_name(parameter, context)}`: {text}"


def _name(parameter: Any, context: typer.Context) -> str:
    name, _, number = str(parameter.get_help_record(context)[0]).partition(" <")
    return f"{name} N" if number and parameter.param_type_name == "option" else name


def _examples(command: Any) -> str:
    lines = (command.epilog or "").splitlines()
    return "\n".join(line.strip() for line in lines if line.startswith("  "))


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
