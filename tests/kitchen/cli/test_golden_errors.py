"""The wording of error messages, all in golden_errors.txt; other tests assert what they name.

To accept new wordings, or to fill in those of commands that were added to the file:
`KITCHEN_UPDATE_GOLDEN=1 python -m pytest tests/kitchen/cli/test_golden_errors.py`
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.support.commands import invoke
from tests.support.soup import SECRET

REPOSITORY = Path(__file__).parents[3]
GOLDEN = Path(__file__).with_name("golden_errors.txt")
ROW = '{"prompt": "a", "completion": "b"}\n'
FILES = {
    "four.jsonl": ROW * 4,
    "one.jsonl": ROW,
    "question.jsonl": "".join(f'{{"question": "a{number}"}}\n' for number in range(20)),
    "number.jsonl": ROW * 6 + '{"prompt": "a", "completion": 3}\n' + ROW * 13,
    "a_file": "",
    "shadowed/recipes/__init__.py": "",
    "tests/test_stew.py": "",
    "runs/odd/run.json": "{}",
}


@pytest.mark.usefixtures("soup")
def test_error_messages_are_worded_as_in_the_golden_file(here: Path) -> None:
    for name, text in FILES.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    head, *blocks = GOLDEN.read_text(encoding="utf-8").split("\n$ ")
    for at, block in enumerate(blocks):
        line = block.split("\n")[0]
        blocks[at] = f"{line}\n{errors(line, here)}"
    current = "\n$ ".join([head, *blocks])
    if os.environ.get("KITCHEN_UPDATE_GOLDEN"):
        GOLDEN.write_text(current, encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8") == current


def errors(line: str, folder: Path) -> str:
    """Return what a command prints to standard error, and its exit code."""
    result = invoke(*shlex.split(line)[1:], SOUP_API_KEY=SECRET)
    assert result.exit_code != 0, line
    text = result.stderr.replace(str(folder), "FOLDER").replace(str(REPOSITORY), "REPOSITORY")
    text = re.sub(r"\b[0-9a-f]{16}\b", "RANDOM", text)
    return f"{text.rstrip()}\nexit code {result.exit_code}\n"
