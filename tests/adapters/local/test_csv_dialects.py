"""CSV files as spreadsheets, pandas and databases write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.local.datasets import LocalDatasets
from kitchen.errors import DataError

ROWS = [
    {"prompt": "Is basil a herb?", "completion": "Yes, chef."},
    {"prompt": "Is salt?", "completion": "No"},
]


def read(root: Path, text: str) -> list[dict[str, object]]:
    (root / "d.csv").write_text(text, newline="")
    store = LocalDatasets(str(root))
    data = store.load("d.csv")
    rows = [dict(data[at]) for at in range(len(data))]
    assert [dict(entry.row) for entry in store.stream("d.csv")] == rows
    return rows


@pytest.mark.parametrize(
    "text",
    [
        'prompt,completion\nIs basil a herb?,"Yes, chef."\nIs salt?,No\n',
        "prompt;completion\nIs basil a herb?;Yes, chef.\nIs salt?;No\n",
        "prompt\tcompletion\r\nIs basil a herb?\tYes, chef.\r\nIs salt?\tNo\r\n",
        "prompt|completion\nIs basil a herb?|Yes, chef.\nIs salt?|No\n",
        'prompt completion\n"Is basil a herb?" "Yes, chef."\n"Is salt?" No\n',
        'sep=,\nprompt,completion\nIs basil a herb?,"Yes, chef."\nIs salt?,No\n',
        "\ufeffsep=;\r\nprompt;completion\r\nIs basil a herb?;Yes, chef.\r\nIs salt?;No\r\n",
        '"sep=|"\nprompt|completion\nIs basil a herb?|Yes, chef.\nIs salt?|No\n',
        'prompt, completion\nIs basil a herb?, "Yes, chef."\nIs salt?, No\n',
        '"prompt"; "completion"\n"Is basil a herb?"; "Yes, chef."\n"Is salt?"; "No"\n',
        ',prompt,completion\n0,Is basil a herb?,"Yes, chef."\n1,Is salt?,No\n',
        ";prompt;completion\n0;Is basil a herb?;Yes, chef.\n1;Is salt?;No\n",
        '"","prompt","completion"\n"a","Is basil a herb?","Yes, chef."\n"b","Is salt?","No"\n',
        'prompt,completion,\nIs basil a herb?,"Yes, chef.",\nIs salt?,No,\n',
        'prompt,completion\nIs basil a herb?,"Yes, chef."\n,\nIs salt?,No\n,\n',
    ],
)
def test_dialects_are_read_alike(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == ROWS


@pytest.mark.parametrize("cell", ["", '""', "  ", "NaN", "nan", "<NA>", "#N/A", "\\N"])
def test_an_empty_cell_is_a_missing_value(tmp_path: Path, cell: str) -> None:
    assert read(tmp_path, f"prompt,completion\na,{cell}\nb,c\n") == [
        {"prompt": "a", "completion": None},
        {"prompt": "b", "completion": "c"},
    ]


@pytest.mark.parametrize("cell", ["None", "null", "NA", "n/a", "0", "-", "No"])
def test_words_are_no_missing_values(tmp_path: Path, cell: str) -> None:
    assert read(tmp_path, f"prompt,completion\na,{cell}\n")[0]["completion"] == cell


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (",,\n1,2,3\n", "d.csv:1"),
        ("sep=;\n", "d.csv"),
        ("prompt,completion,\na,b,c\n", "d.csv:2"),
        ("prompt;completion\na;b;c\n", "d.csv:2"),
        ("prompt,completion\ra,b\rc,d\r", "d.csv:1: has carriage returns"),  # of old Macs
        ("prompt\ra\rb\r", "d.csv:1: has carriage returns"),
        ("prompt,completion\na\rb,c\n", "d.csv:2: has carriage returns"),
        (f"{'p' * 200_000},completion\na,b\n", "d.csv:1: is not CSV"),
    ],
)
def test_what_stays_unreadable_is_an_error(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(DataError, match=place):
        read(tmp_path, text)


def test_rows_far_into_a_file_keep_the_dialect(tmp_path: Path) -> None:
    lines = "".join(f"{number};question {number}; no, {number}\n" for number in range(50))
    rows = read(tmp_path, f"sep=;\n;prompt; completion\n{lines}")
    assert rows[49] == {"prompt": "question 49", "completion": "no, 49"}
