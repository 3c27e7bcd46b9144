"""Code, tests, scaffold templates and help use plain English, and test names stay short."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator

from tests.support.pages import ROOT

WORDS = [
    "larder",
    "wish",
    "manner",
    "veiled",
    "straying",
    "clan",
    "kin",
    "slopes",
    "begun",
    "said",
    "told",
]
PHRASES = ("gone on with", "one's own")
# An underscore ends a word, so that names of variables and functions are read word by word.
UNCLEAR = re.compile(
    rf"(?<![a-z])(?:{'|'.join(WORDS)})(?![a-z])|{'|'.join(PHRASES)}", re.IGNORECASE
)
OPENING = re.compile(r'^\s*r?"""(?:What|Of|That|Who|Whether|Those|How|Where)\b')
LONGEST_TEST_NAME = 59

# (file, text of the line) -> why the word stays: recipe lines, chats that a model trains on,
# templates of third parties.
ALLOWED: dict[tuple[str, str], str] = {}


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def lines() -> Iterator[tuple[str, int, str]]:
    """Yield the file, number and text of every line of code and templates but this file's."""
    for name in tracked("*.py", "*.txt"):
        if name == "tests/test_language.py":
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            yield name, number, line.strip()


def test_code_uses_plain_words() -> None:
    unclear = [
        f"{name}:{number}: {line}"
        for name, number, line in lines()
        if UNCLEAR.search(line) and (name, line) not in ALLOWED
    ]
    assert not unclear, "\n".join(unclear)


def test_docstrings_name_their_concept() -> None:
    openings = [
        f"{name}:{number}: {line}"
        for name, number, line in lines()
        if OPENING.match(line) and (name, line) not in ALLOWED
    ]
    assert not openings, "\n".join(openings)


def test_allowed_lines_exist() -> None:
    existing = {(name, line) for name, _, line in lines()}
    assert ALLOWED.keys() <= existing


def test_names_of_tests_are_short() -> None:
    long = []
    for name in tracked("tests/*.py", "kitchen/testing/*.py"):
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("test") and len(node.name) > LONGEST_TEST_NAME:
                long.append(f"{name}:{node.lineno}: {node.name}")
    assert not long, "\n".join(long)
