"""docs/commands.md says what the command line says."""

from tests.docs.command_reference import COMMAND, PAGE, reference


def test_the_command_reference_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), f"docs/commands.md is out of date; run `{COMMAND}`"
