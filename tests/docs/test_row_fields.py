"""docs/reference/data-formats.md lists the fields that the reader knows."""

import re

from stages.chat.row_fields import FIELDS
from tests.docs.row_fields import COMMAND, PAGE, with_tables


def test_the_tables_of_fields_are_up_to_date() -> None:
    text = PAGE.read_text()
    assert text == with_tables(text), f"docs/reference/data-formats.md: run `{COMMAND}`"
    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert listed == [field.name for field in FIELDS]
