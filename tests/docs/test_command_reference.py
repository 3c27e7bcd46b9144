"""docs/commands.md says what the command line says."""

from tests.docs.command_reference import MAKE, PAGE, reference


def test_the_page_is_as_it_would_be_made() -> None:
    assert PAGE.read_text() == reference(), (
        f"docs/commands.md is out of date; make it anew with `{MAKE}`"
    )
