"""Cards and licences at a hub that somebody wrote or edited there."""

from __future__ import annotations

import pytest

from kitchen.backend.edited_files import is_protected, sign_card, was_edited

CARD = sign_card("---\ntags: [a]\n---\n\n# Soup\n\nWords, naïve ones.\n")


def test_a_generated_card_is_not_an_edited_one() -> None:
    assert not was_edited("README.md", CARD.encode(), b"new")
    assert not was_edited("README.md", CARD.rstrip().encode(), b"new"), "an editor trims the end"


@pytest.mark.parametrize(
    "edited",
    [
        "# My own words",
        CARD.replace("Words", "My words"),
        CARD + "\nAnd more.\n",
        CARD.replace("tags: [a]", "license: mit"),
        CARD.replace("SHA-256", "SHA-1"),
        "---\nlicense: mit\n---\n",
    ],
)
def test_an_edited_card_is_recognised(edited: str) -> None:
    assert was_edited("README.md", edited.encode(), b"new")
    assert not was_edited("README.md", edited.encode(), edited.encode()), "nothing would change"


def test_a_card_that_is_not_text_is_an_edited_one() -> None:
    assert was_edited("README.md", b"\xff\xfe# Soup", b"new")
    assert not was_edited("README.md", b" \n", b"new"), "an empty file has no words to lose"


@pytest.mark.parametrize("path", ["LICENSE", "LICENCE.md", "license.txt", "COPYING", "NOTICE"])
def test_licences_are_never_ours(path: str) -> None:
    assert is_protected(path)
    assert was_edited(path, CARD.encode(), b"new")


@pytest.mark.parametrize("path", ["config.json", "notes/README.md", "licenses.json"])
def test_other_files_are_not_protected(path: str) -> None:
    assert not is_protected(path)
