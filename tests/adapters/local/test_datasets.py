"""Files as data sets: what is read, and what each bad input is message."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from adapters.local.datasets import LocalDatasets
from kitchen.errors import ConfigError, DataError
from tests.support.imports import HEAVY, imported_by

ROWS = [{"prompt": "2+2", "completion": "4"}, {"prompt": 'né\n"e"', "completion": ""}]
CSV_ROWS = [ROWS[0], {**ROWS[1], "completion": None}]  # an empty cell is a missing value
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
CSV = 'prompt,completion\n2+2,4\n"né\n""e""",\n'


def put(folder: Path, name: str, content: str | bytes) -> LocalDatasets:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return LocalDatasets(str(folder), max_line_mb=1)


@pytest.mark.parametrize(
    "name, content, places",
    [
        ("d.jsonl", JSONL, ("d.jsonl:1", "d.jsonl:2")),
        (
            "blank.jsonl",
            "\n \n" + JSONL.replace("\n", "\n\n\r\n", 1) + "\n\n",
            ("blank.jsonl:3", "blank.jsonl:6"),
        ),
        ("bom.jsonl", b"\xef\xbb\xbf" + JSONL.encode(), ("bom.jsonl:1", "bom.jsonl:2")),
        ("no_end.JSONL", JSONL.strip(), ("no_end.JSONL:1", "no_end.JSONL:2")),
        ("d.json", json.dumps(ROWS), ("d.json:1", "d.json:1")),
        (
            "lines.json",
            " [\n" + JSONL.strip().replace("\n", "\n,\n") + "\n]\n",
            ("lines.json:2", "lines.json:4"),
        ),
        ("bom.json", b"\xef\xbb\xbf" + json.dumps(ROWS).encode(), ("bom.json:1", "bom.json:1")),
        (
            "data.json",
            json.dumps({"n": [1], "data": ROWS, "x": {}}, indent=1),
            ("data.json:6", "data.json:10"),
        ),
        ("d.csv", CSV, ("d.csv:2", "d.csv:3")),
        ("crlf.csv", CSV.replace("4\n", "4\r\n\r\n"), ("crlf.csv:2", "crlf.csv:4")),
        ("bom.csv", b"\xef\xbb\xbf" + CSV.encode(), ("bom.csv:2", "bom.csv:3")),
    ],
)
def test_rows_places_and_fingerprint(
    tmp_path: Path, name: str, content: str | bytes, places: tuple[str, ...]
) -> None:
    data = put(tmp_path, name, content).load(name)
    assert len(data) == 2
    rows = CSV_ROWS if name.endswith(".csv") else ROWS
    assert [data[1], data[0]] == rows[::-1]
    assert tuple(data.where(index) for index in range(2)) == places
    assert data.fingerprint == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    with pytest.raises(IndexError):
        data[2]


def test_text_is_a_row_per_line_or_per_file(tmp_path: Path) -> None:
    text = "\ufeffBasil.\r\n\n  Salt and\nthyme."
    lines = put(tmp_path, "notes.txt", text).load("notes.txt")
    assert [lines[at] for at in range(3)] == [
        {"text": "Basil."},
        {"text": "  Salt and"},
        {"text": "thyme."},
    ]
    assert lines.where(2) == "notes.txt:4"
    store = LocalDatasets(str(tmp_path), text_rows="file")
    [row] = store.stream("notes.txt")
    assert store.load("notes.txt")[0] == row.row == {"text": text[1:]}
    with pytest.raises(ConfigError, match="text_rows"):
        LocalDatasets(text_rows="paragraph")  # type: ignore[arg-type]
    put(tmp_path, "blank.txt", "\n \n")
    with pytest.raises(DataError, match=r"blank\.txt: has no rows"):
        store.load("blank.txt")


def test_bad_lines_of_text_are_left_out(tmp_path: Path) -> None:
    errors: list[DataError] = []
    store = put(tmp_path, "notes.txt", b"Basil.\n\xff\nSalt.\n")
    data = store.load("notes.txt", on_bad_row=errors.append)
    assert [data[0], data[1]] == [{"text": "Basil."}, {"text": "Salt."}]
    assert [str(error).partition(": ")[0] for error in errors] == ["notes.txt:2"]


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        arrow.Table.from_pylist(ROWS), tmp_path / "d.parquet", row_group_size=1
    )
    store = LocalDatasets(str(tmp_path))
    data = store.load("d.parquet")
    assert [dict(data[index]) for index in range(len(data))] == ROWS
    assert data.where(1) == "d.parquet row 2"
    assert data.fingerprint == hashlib.sha256((tmp_path / "d.parquet").read_bytes()).hexdigest()
    pyarrow.parquet.write_table(arrow.table({"a": []}), tmp_path / "none.parquet")
    with pytest.raises(DataError, match=r"none\.parquet: has no rows"):
        store.load("none.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"bad\.parquet: cannot be read as Parquet"):
        store.load("bad.parquet")
    for name, message in {
        "none.parquet": "has no rows",
        "bad.parquet": "cannot be read as Parquet",
    }.items():
        with pytest.raises(DataError, match=f"{name}: {message}"):
            next(store.stream(name))


def test_parquet_rows_are_read_one_by_one(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "d.parquet"
    table = arrow.table(
        {"n": list(range(50_000)), "text": [f"{row:0200d}" for row in range(50_000)]}
    )
    pyarrow.parquet.write_table(table, path)  # one row group
    data = LocalDatasets(str(tmp_path)).load("d.parquet")
    before = arrow.total_allocated_bytes()
    assert [data[index]["n"] for index in (49_999, 0, 10_000, 9_999, 49_000)] == [
        49_999,
        0,
        10_000,
        9_999,
        49_000,
    ]
    assert arrow.total_allocated_bytes() - before < table.nbytes / 100
    path.unlink()
    assert data[333]["text"].endswith("333")


@pytest.mark.parametrize(
    "name, content",
    [
        ("d.jsonl", JSONL + "{broken\n"),
        ("d.csv", CSV + "one cell\n"),
        ("d.json", json.dumps(ROWS)[:-1] + ", {broken]"),
        ("u.jsonl", JSONL.encode() + b'{"a": "\xff"}\n'),
    ],
)
def test_stream_checks_nothing_ahead(tmp_path: Path, name: str, content: str | bytes) -> None:
    store = put(tmp_path, name, content)
    with pytest.raises(DataError):
        store.load(name)
    stream = store.stream(name)
    rows = CSV_ROWS if name.endswith(".csv") else ROWS
    assert [next(stream).row, next(stream).row] == rows
    with pytest.raises(DataError, match=rf"{name}:\d"):
        next(stream)


def test_stream_opens_its_file_on_first_read(tmp_path: Path) -> None:
    stream = put(tmp_path, "d.jsonl", "not yet").stream("d.jsonl")
    put(tmp_path, "d.jsonl", JSONL)
    assert next(stream).row == ROWS[0]
    put(tmp_path, "none.jsonl", "\n").load("d.jsonl")
    with pytest.raises(DataError, match=r"none\.jsonl: has no rows"):
        next(LocalDatasets(str(tmp_path)).stream("none.jsonl"))
    gone = LocalDatasets(str(tmp_path)).stream("d.jsonl")
    (tmp_path / "d.jsonl").unlink()
    with pytest.raises(DataError, match=r"d\.jsonl: No such file"):
        next(gone)


def test_info_does_not_read_the_rows(tmp_path: Path) -> None:
    store = put(tmp_path, "set/train.jsonl", "not read")
    put(tmp_path, "set/test.csv", "nor this")
    info = store.info("set")
    assert (dict(info.splits), info.size, info.revision) == (
        {"train": None, "test": None},
        16,
        None,
    )
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(arrow.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    assert store.info("d.parquet").splits == {"train": 2}
    packaged = store.info("ingredients")
    assert packaged.license == "Apache-2.0"
    assert "recipe" in packaged.about
    assert (packaged.size or 0) > 100_000


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("e.jsonl", "", r"e\.jsonl: has no rows"),
        ("e.jsonl", "\n\n", r"e\.jsonl: has no rows"),
        ("m.jsonl", '{"a": 1}\n\n{"a": }\n', r"m\.jsonl:3:7: is not JSON"),
        ("m.jsonl", '{"a": 1}{"a": 2}\n', r"m\.jsonl:1:9: is not JSON: Extra data"),
        ("m.jsonl", '{\n"a": 1}\n', r"m\.jsonl:1:\d: is not JSON.*each line"),
        ("o.jsonl", '{"a": 1}\n["a"]\n', r"o\.jsonl:2: an array where a row must be an object"),
        ("o.jsonl", "null\n", r"o\.jsonl:1: null where"),
        (
            "u.jsonl",
            b'{"a": 1}\n{"a": "\xff"}\n',
            r"u\.jsonl:2: byte 8 of the line \(0xff, byte 17 of the file\)",
        ),
        (
            "u.jsonl",
            b'\xef\xbb\xbf{"a": "\xff"}',
            r"u\.jsonl:1: byte 11 of the line \(0xff, byte 11 of the file\)",
        ),
        ("u.jsonl", '{"a": 1}'.encode("utf-16"), r"u\.jsonl:1: byte 1 .*save the file as UTF-8"),
        ("s.jsonl", '{"a": 1, "b": ["\\ud800"]}', r"s\.jsonl:1: field 'b' has half of a surrogate"),
        (
            "l.jsonl",
            '{"a": 1}\n{"a": "' + "x" * 1_000_000 + '"}',
            r"l\.jsonl:2: .*more than 1 MB.*max_line_mb",
        ),
        ("deep.jsonl", "[" * 200_000, r"deep\.jsonl:1: "),
        ("e.json", " \n", r"e\.json: has no rows"),
        ("e.json", "[]", r"e\.json: has no rows"),
        ("m.json", '[{"a": 1},\n {"a": 1]', r"m\.json:2:9: "),
        ("m.json", '[{"a": 1}\n {"a": 1}]', r"m\.json:2:2: a comma"),
        ("m.json", '[{"a": 1},]', r"m\.json:1:10: a comma before"),
        ("m.json", '[{"a": 1}] 7', r"m\.json:1:12: more follows"),
        ("m.json", '[{"a": 1}', r"m\.json:1:10: a comma or ']'"),
        ("o.json", '[{"a": 1},\n7]', r"o\.json:2: a number where"),
        ("o.json", '{"a": 1}', r"o\.json:1:1: an object without the field \"data\""),
        ("o.json", '{"data": 1}', r"o\.json:1:10: an array of objects"),
        ("o.json", '{"data": [{}], "b"}', r"o\.json:1:19: "),
        ("u.json", b'[\n"\xff"]', r"u\.json:2: byte 2 of the line \(0xff, byte 4 of the file\)"),
        ("s.json", '[{"a": "\\udfff"}]', r"s\.json:1: field 'a' has half"),
        ("e.csv", "", r"e\.csv: is empty"),
        ("e.csv", "a,b\n", r"e\.csv: has no rows"),
        ("h.csv", "1,2\n3,4\n", r"h\.csv:1: has no header: column 1 is called '1'"),
        ("h.csv", ",\n3,4\n", r"h\.csv:1: has no header: column 1"),
        ("h.csv", "a,\n3,4\n", r"h\.csv:2: has a value in column 2, which has no name"),
        ("h.csv", "a,b,a\n1,2,3\n", r"h\.csv:1: two columns are called 'a'"),
        (
            "w.csv",
            'a,b\n1,2\n"x\ny",2,3\n',
            r"w\.csv:3: has 3 columns where the header names 2 \(a, b\)",
        ),
        ("w.csv", "a,b\n1,2\n\n1\n", r"w\.csv:4: has 1 columns"),
        ("q.csv", 'a,b\n1,2\n"x,2\n3,4\n', r"q\.csv:3: is not CSV: unexpected end of data"),
        ("q.csv", 'a,b\n"x"y,2\n', r"q\.csv:2: is not CSV"),
        ("q.csv", "a,b\n1," + "x" * 200_000 + "\n", r"q\.csv:2: .*131,072 characters needs JSONL"),
        ("u.csv", b"a,b\n1,\xff\n", r"u\.csv:2: byte 3 of the line"),
        (
            "t.md",
            "hello",
            r"t\.md: files that end with '\.md'.*\.csv, \.json, \.jsonl, \.parquet, \.txt",
        ),
        ("t.jsonl.gz", "", r"'\.gz'"),
    ],
)
def test_bad_input_error_names_place_and_problem(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    store = put(tmp_path, name, content)
    with pytest.raises(DataError, match=message):
        store.load(name)


def test_unknown_names_are_errors(tmp_path: Path) -> None:
    store = put(tmp_path, "chats.jsonl", JSONL)
    put(tmp_path, "deep/pairs.csv", CSV)
    put(tmp_path, "notes/readme.md", "")
    for name, message in {
        "ingredient": "did you mean 'ingredients'",
        "zebra": r"called 'zebra'; there are: arithmetic, chats\.jsonl, claims, deep, ingredients",
        "": "no data set is called ''",
        "chat.jsonl": r"no such file or folder; did you mean 'chats\.jsonl'",
        "deep/pair.csv": r"did you mean 'deep/pairs\.csv'",
        "./dep": r"did you mean '\./deep'",
        "nope/pair.csv": "nor the folder",
        "notes": r"notes: the folder has no splits \(not read as data: readme\.md\); "
        r".*train\.jsonl",
    }.items():
        with pytest.raises(DataError, match=message):
            store.splits(name)
        with pytest.raises(DataError, match=message):
            store.load(name)


def test_folder_has_a_split_per_file(tmp_path: Path) -> None:
    for name in ("set/test.jsonl", "set/train.csv", "set/dev.json"):
        store = put(
            tmp_path,
            name,
            {"jsonl": JSONL, "csv": CSV, "json": json.dumps(ROWS)}[name.rpartition(".")[2]],
        )
    assert list(store.splits("set")) == ["train", "dev", "test"]
    data = store.load("set/", split="test")
    assert (data[0], data.where(1)) == (ROWS[0], "set/test.jsonl:2")
    with pytest.raises(DataError, match="no split 'tests'; did you mean 'test'"):
        store.load("set", split="tests")
    with pytest.raises(DataError, match=r"set/dev\.json is one file"):
        store.load("set/dev.json", split="test")
    with pytest.raises(DataError, match=r"'set' has no revision 'main'.*leave revision out"):
        store.load("set", revision="main")
    put(tmp_path, "set/test.csv", CSV)
    with pytest.raises(DataError, match=r"test\.csv and test\.jsonl are both the split 'test'"):
        store.splits("set")


def test_packaged_data_sets(tmp_path: Path) -> None:
    store = LocalDatasets(str(tmp_path))
    (tmp_path / "ingredients").mkdir()  # the packaged name wins, wherever one stands
    assert list(store.splits("ingredients")) == ["train", "new_names", "new_grammars", "hand_typed"]
    lengths = []
    for split in store.splits("ingredients"):
        data = store.load("ingredients", split=split)
        lengths.append(len(data))
        assert data.where(2) == f"ingredients/{split}.jsonl:3"
    assert lengths[0] >= 1500
    assert lengths[1:] == [200, 200, 60]
    with pytest.raises(DataError, match="did you mean 'hand_typed'"):
        store.load("ingredients", split="hand-typed")
    with pytest.raises(DataError, match="no splits"):
        store.splits("./ingredients")
    assert store.info("arithmetic").splits.keys() == {"train", "held_out"}
    assert store.load("arithmetic")[0].keys() == {"prompt", "completion"}


def test_file_changed_while_in_use_is_an_error(tmp_path: Path) -> None:
    data = put(tmp_path, "d.jsonl", JSONL).load("d.jsonl")
    put(tmp_path, "d.jsonl", "{}\n" + JSONL)
    with pytest.raises(DataError, match=r"d\.jsonl:2: the file changed"):
        data[1]
    (tmp_path / "d.jsonl").unlink()
    with pytest.raises(DataError, match=r"d\.jsonl:2: No such file"):
        data[1]


def test_absolute_and_home_paths(tmp_path: Path) -> None:
    put(tmp_path, "d.jsonl", JSONL)
    assert LocalDatasets("/nowhere").load(str(tmp_path / "d.jsonl"))[0] == ROWS[0]


def test_rows_are_new_objects_each_time(tmp_path: Path) -> None:
    for name, content in {"d.jsonl": JSONL, "d.json": json.dumps(ROWS)}.items():
        data = put(tmp_path, name, content).load(name)
        first = data[0]
        assert isinstance(first, dict)
        first["prompt"] = "spoilt"
        assert data[0] == ROWS[0]


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """50,000 rows of 1 kB take less memory than as dicts (50 MB), and no heavy imports."""
    with (tmp_path / "d.jsonl").open("w") as file:
        file.writelines(f'{{"prompt": "{number:1000d}"}}\n' for number in range(50_000))
    program = f"""
import tracemalloc
from adapters.local.datasets import LocalDatasets
tracemalloc.start()
data = LocalDatasets().load({str(tmp_path / "d.jsonl")!r})
assert data[49_999]["prompt"].strip() == "49999"
print(len(data), tracemalloc.get_traced_memory()[1])
"""
    output, modules = imported_by(program)
    rows, peak = map(int, output.split())
    assert rows == 50_000
    assert peak < 5_000_000
    assert modules.isdisjoint(HEAVY)
