"""Data sets of the Hugging Face Hub: the real libraries against a hub on loopback, and faults."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.hf.datasets import HfDatasets
from kitchen.errors import ApiError, BackendError, DataError, KitchenError
from kitchen.ports.datasets import Dataset
from tests.support.hub_server import HubServer, Repository

PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ROWS = [{"prompt": f"{row} cups", "completion": f"Number {row}."} for row in range(5)]


def jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def card(text: str, prose: str = "") -> str:
    return f"---\n{text}\n---\n{prose}\n"


def configured(**files: Mapping[str, str]) -> str:
    """A card of configurations, each with a file per split."""
    return card(
        json.dumps(
            {
                "configs": [
                    {
                        "config_name": name,
                        "data_files": [
                            {"split": split, "path": path} for split, path in splits.items()
                        ],
                    }
                    for name, splits in files.items()
                ]
            }
        )
    )


def store(timeout: float = 2.0) -> HfDatasets:
    """Return a store as in a new process, which knows only what is cached."""
    return HfDatasets(timeout=timeout)


def rows(data: Dataset) -> list[dict[str, Any]]:
    return [dict(data[index]) for index in range(len(data))]


def streamed(name: str, **options: Any) -> list[dict[str, Any]]:
    return [dict(streamed_row.row) for streamed_row in store().stream(name, **options)]


@pytest.fixture
def data(hub_server: HubServer) -> Repository:
    return hub_server.repository(
        "owner/cups", {"train.jsonl": jsonl(ROWS), "test.jsonl": jsonl(ROWS[:2])}, kind="dataset"
    )


# --- what is read


def as_parquet(records: Sequence[Mapping[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(list(records)), file := BytesIO(), row_group_size=2
    )
    return file.getvalue()


def as_csv(records: Sequence[Mapping[str, Any]], comma: str = ",") -> bytes:
    return "".join(
        f"{comma.join(cells)}\n" for cells in [records[0], *(record.values() for record in records)]
    ).encode()


FORMATS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], bytes]] = {
    "train.jsonl": lambda records: jsonl(records).encode(),
    "train.json": lambda records: json.dumps(records, indent=1).encode(),
    "train.jsonl.gz": lambda records: gzip.compress(jsonl(records).encode()),
    "train.csv": as_csv,
    "train.tsv": lambda records: as_csv(records, "\t"),
    "train.parquet": as_parquet,
    "data/train-00000-of-00001.parquet": as_parquet,
}


@pytest.mark.parametrize(
    "path",
    [
        "train.jsonl",
        "train.csv",
        "train.parquet",
        *(
            pytest.param(path, marks=pytest.mark.slow)
            for path in (
                "train.json",
                "train.jsonl.gz",
                "train.tsv",
                "data/train-00000-of-00001.parquet",
            )
        ),
    ],
)
def test_each_format_is_read(hub_server: HubServer, path: str) -> None:
    hub_server.repository(
        "owner/any", {path: FORMATS[path](ROWS), "LICENSE": "MIT"}, kind="dataset"
    )
    data = store().load("owner/any")
    assert rows(data) == streamed("owner/any") == ROWS
    assert data.where(3) == "owner/any train row 4"


CSV = "id,answer\n007,NA\n1.50,None\n2020-01-01,null\ntrue,\n"


def test_csv_values_are_text_or_null(hub_server: HubServer) -> None:
    more = "id,answer\n8,nan\n"
    hub_server.repository("owner/csv", {"train-0.csv": CSV, "train-1.csv": more}, kind="dataset")
    message = [
        {"id": cell, "answer": other}
        for cell, other in (
            ("007", "NA"),
            ("1.50", "None"),
            ("2020-01-01", "null"),
            ("true", None),
            ("8", None),
        )
    ]
    assert rows(store().load("owner/csv")) == streamed("owner/csv") == message


def test_csv_files_of_a_split_need_the_same_columns(hub_server: HubServer) -> None:
    hub_server.repository(
        "owner/csv", {"train-0.csv": CSV, "train-1.csv": "id,answer,more\n8,b,c\n"}, kind="dataset"
    )
    with pytest.raises(
        DataError,
        match=r"owner/csv train \(train-0.csv, train-1.csv\): cannot be read: Couldn't cast",
    ):
        store().load("owner/csv")


def test_csv_has_the_types_of_its_card(hub_server: HubServer) -> None:
    types = [{"name": "id", "dtype": "int64"}, {"name": "answer", "dtype": "string"}]
    hub_server.repository(
        "owner/csv",
        {
            "README.md": card(json.dumps({"dataset_info": {"features": types}})),
            "train.csv": "id,answer\n007,b\n",
        },
        kind="dataset",
    )
    assert rows(store().load("owner/csv")) == streamed("owner/csv") == [{"id": 7, "answer": "b"}]


def test_text_files_have_a_row_per_line(hub_server: HubServer) -> None:
    hub_server.repository("owner/text", {"train.txt": "one\ntwo\n"}, kind="dataset")
    assert (
        rows(store().load("owner/text"))
        == streamed("owner/text")
        == [{"text": "one"}, {"text": "two"}]
    )


def test_files_of_a_split_are_read_in_order(hub_server: HubServer) -> None:
    files = {
        f"data/train-0000{number}-of-00003.jsonl": jsonl([ROWS[number]]) for number in range(3)
    }
    hub_server.repository(
        "owner/many", {**files, "data/odd-00000-of-00001.jsonl": jsonl(ROWS[4:])}, kind="dataset"
    )
    assert list(store().splits("owner/many")) == ["train", "odd"]
    assert rows(store().load("owner/many")) == streamed("owner/many") == ROWS[:3]
    assert rows(store().load("owner/many", split="odd")) == ROWS[4:]


def test_legacy_name_without_an_owner(hub_server: HubServer) -> None:
    hub_server.repository("cups", {"train.jsonl": jsonl(ROWS)}, kind="dataset")
    assert rows(store().load("cups")) == ROWS


def test_only_files_of_the_split_are_fetched(hub_server: HubServer, data: Repository) -> None:
    assert list(store().splits("owner/cups")) == ["train", "test"]
    assert not hub_server.matching("jsonl")
    store().load("owner/cups", split="test")
    assert not hub_server.matching(r"train\.jsonl")
    hub_server.requests.clear()
    store().load("owner/cups", split="test")
    assert not hub_server.matching("jsonl")


def test_types_come_from_the_card(hub_server: HubServer) -> None:
    moods = {"class_label": {"names": {"0": "sad", "1": "glad"}}}
    types = {"text": "string", "mood": moods, "n": "float64"}
    message = card(
        json.dumps(
            {
                "dataset_info": {
                    "features": [{"name": name, "dtype": kind} for name, kind in types.items()],
                    "splits": [{"name": "train", "num_examples": 2, "num_bytes": 40}],
                }
            }
        )
    )
    given = [{"text": "a", "mood": 1, "n": 2}, {"text": "b", "mood": 0, "n": 0.5}]
    hub_server.repository(
        "owner/moods", {"README.md": message, "train.jsonl": jsonl(given)}, kind="dataset"
    )
    assert rows(store().load("owner/moods")) == given
    assert isinstance(store().load("owner/moods")[0]["n"], float)
    assert store().info("owner/moods").splits == {"train": 2}


def test_field_may_be_null_in_the_first_chunk(hub_server: HubServer) -> None:
    records = [{"a": "x" * 100, "b": None}] * 20_000 + [{"a": "x", "b": "at last"}]
    hub_server.repository("owner/late", {"train.jsonl": jsonl(records)}, kind="dataset")
    assert store().load("owner/late")[20_000]["b"] == "at last"


def test_images_are_decoded_as_by_datasets(hub_server: HubServer) -> None:
    from datasets import Dataset as ArrowDataset
    from datasets import Image

    images = ArrowDataset.from_dict(
        {"text": ["a"], "image": [{"bytes": PNG, "path": None}]}
    ).cast_column("image", Image())
    images.to_parquet(file := BytesIO())
    hub_server.repository("owner/images", {"train.parquet": file.getvalue()}, kind="dataset")
    data = store().load("owner/images")
    if find_spec("PIL") is None:
        for ask in (lambda: data[0], lambda: next(store().stream("owner/images"))):
            with pytest.raises(BackendError, match=r"owner/images train .*row 1.*Pillow"):
                ask()
    else:
        assert (data[0]["text"], data[0]["image"].size) == ("a", (1, 1))


def test_info_needs_no_download(hub_server: HubServer) -> None:
    repository = hub_server.repository(
        "owner/message",
        {
            "README.md": card("license: [mit, apache-2.0]"),
            "train.jsonl": jsonl(ROWS),
            "x.bin": b"not counted",
        },
        kind="dataset",
    )
    info = store().info("owner/message")
    assert (info.name, dict(info.splits), info.revision) == (
        "owner/message",
        {"train": None},
        repository.commits[-1].sha,
    )
    assert (info.size, info.license) == (len(jsonl(ROWS)), "mit, apache-2.0")
    assert not hub_server.matching("train.jsonl")


# --- configurations


@pytest.fixture
def several(hub_server: HubServer) -> Repository:
    return hub_server.repository(
        "owner/several",
        {
            "README.md": configured(
                easy={"train": "easy.jsonl"}, hard={"train": "hard.jsonl", "dev": "dev.jsonl"}
            ),
            "easy.jsonl": jsonl(ROWS[:1]),
            "hard.jsonl": jsonl(ROWS[1:2]),
            "dev.jsonl": jsonl(ROWS[2:3]),
        },
        kind="dataset",
    )


def test_configuration_is_chosen_by_name(several: Repository) -> None:
    assert rows(store().load("owner/several:easy")) == streamed("owner/several:easy") == ROWS[:1]
    assert rows(store().load("owner/several:hard")) == ROWS[1:2]
    assert list(store().splits(f"owner/several:hard@{several.commits[-1].sha}")) == ["train", "dev"]
    assert (
        store().load("owner/several:hard", split="dev").where(0) == "owner/several:hard dev row 1"
    )


def test_one_of_several_configurations_must_be_named(several: Repository) -> None:
    for ask in (store().splits, store().info, store().load, store().stream):
        with pytest.raises(
            DataError,
            match=r"several configurations \(easy, hard\); choose one: 'owner/several:easy'",
        ):
            ask("owner/several")
        with pytest.raises(DataError, match=r"no configuration 'haard'; did you mean 'hard'"):
            ask("owner/several:haard")


def test_single_configuration_is_called_default(data: Repository) -> None:
    assert rows(store().load("owner/cups:default")) == ROWS
    with pytest.raises(DataError, match=r"no configuration 'easy'; there are: default"):
        store().load("owner/cups:easy")


def test_default_configuration_need_not_be_named(hub_server: HubServer) -> None:
    hub_server.repository(
        "owner/two",
        {
            "README.md": configured(other={"train": "other.jsonl"}, default={"train": "own.jsonl"}),
            "own.jsonl": jsonl(ROWS[:1]),
            "other.jsonl": jsonl(ROWS[1:]),
        },
        kind="dataset",
    )
    assert rows(store().load("owner/two")) == ROWS[:1]


# --- names and revisions


@pytest.mark.parametrize(
    "name", ["./rows", "/rows", "a/b/c", "rows.jsonl", "data/train.csv", "", "a b", "~/x", "a@"]
)
def test_bad_names_refer_to_the_local_data_sets(hub_server: HubServer, name: str) -> None:
    with pytest.raises(DataError, match=r"is not a name at the Hugging Face Hub.*--datasets local"):
        store().load(name)
    assert hub_server.requests == []


def test_folder_on_disk_refers_to_the_local_data_sets(
    hub_server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "chats").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=r"no data set 'data/chats'.*on this disk is read by.*--datasets local"
    ):
        store().load("data/chats")


def test_revision_reads_the_rows_of_its_commit(data: Repository) -> None:
    first = data.commits[-1].sha
    data.refs["v1/old"] = first
    second = data.commit({"train.jsonl": jsonl(ROWS[:3])})
    for name, revision, count, commit in [
        ("owner/cups", None, 3, second),
        ("owner/cups@main", None, 3, second),
        ("owner/cups", first, 5, first),
        (f"owner/cups@{first}", None, 5, first),
        ("owner/cups@v1/old", "v1/old", 5, first),
    ]:
        assert store().info(name, revision=revision).revision == commit
        assert (
            rows(store().load(name, revision=revision))
            == streamed(name, revision=revision)
            == ROWS[:count]
        )


def test_unknown_revision_is_an_error(data: Repository) -> None:
    data.refs["v1.0"] = data.commits[0].sha
    with pytest.raises(
        DataError, match=r"'owner/cups' has no revision 'v1.1'; did you mean 'v1.0'"
    ):
        store().load("owner/cups@v1.1")
    with pytest.raises(
        DataError, match=r"'owner/cups@main' names one revision, and revision='v1.0'"
    ):
        store().load("owner/cups@main", revision="v1.0")


def test_store_resolves_a_name_to_one_commit(data: Repository) -> None:
    same_store = store()
    assert len(same_store.load("owner/cups")) == 5
    data.commit({"train.jsonl": jsonl(ROWS[:1])})
    assert len(same_store.load("owner/cups")) == len(list(same_store.stream("owner/cups"))) == 5
    assert len(store().load("owner/cups")) == 1


def test_fingerprint_covers_content_and_options(hub_server: HubServer) -> None:
    def print_of(files: Mapping[str, str | bytes], name: str = "owner/a") -> str:
        hub_server.repository(name, files, kind="dataset")
        return store().load(name).fingerprint

    content: Mapping[str, str | bytes] = {"train.csv": as_csv(ROWS)}
    known = print_of(content)
    assert print_of({**content, "README.md": card("license: mit", "More to read.")}) == known
    assert print_of({**content, "test.csv": "a\n1\n"}, "owner/b") == known
    assert print_of({"train.csv": as_csv(ROWS[:4])}) != known
    semicolons = configured(default={"train": "train.csv"}).replace(
        '"config_name"', '"sep": ";", "config_name"'
    )
    assert print_of({**content, "README.md": semicolons}) != known


def test_card_need_not_be_utf_8(hub_server: HubServer) -> None:
    readme = card("license: mit", "café").encode("latin-1")
    hub_server.repository(
        "owner/old", {"README.md": readme, "train.jsonl": jsonl(ROWS)}, kind="dataset"
    )
    assert rows(store().load("owner/old")) == streamed("owner/old") == ROWS


def test_settings_choose_endpoint_and_cache(
    hub_server: HubServer, data: Repository, tmp_path: Path, no_default_hub: None
) -> None:
    configured = HfDatasets(endpoint=f"{hub_server.url}/", cache=str(tmp_path / "mine"))
    assert (
        rows(configured.load("owner/cups"))
        == [dict(streamed_row.row) for streamed_row in configured.stream("owner/cups")]
        == ROWS
    )
    assert list((tmp_path / "mine" / "datasets--owner--cups").rglob("*.arrow"))
    assert not list((tmp_path / "huggingface").rglob("*.arrow"))


# --- what cannot be read

ALIASES = "a0: &a0 [x, x]\n" + "".join(
    f"a{number}: &a{number} [*a{number - 1}, *a{number - 1}]\n" for number in range(1, 40)
)
UNREADABLE: Mapping[str, tuple[Mapping[str, str | bytes], str]] = {
    "an archive": (
        {"data.zip": b"PK"},
        r"no files in a supported format.*but data\.zip; archives are not unpacked",
    ),
    "a named archive": (
        {"README.md": configured(default={"train": "a.zip"}), "a.zip": b"PK"},
        r"a\.zip; archives are",
    ),
    "nothing": ({"README.md": "hello"}, r"no files in a supported format.*but README\.md"),
    "a program": (
        {"bad.py": "boom"},
        r"no files.*but bad\.py; loading scripts are not run.*owner/bad@refs/convert/parquet",
    ),
    "images": (
        {"a.png": b"x"},
        r"no files in a supported format \(json, csv, parquet, arrow, text\) but a\.png",
    ),
    "pickles": ({"train.pkl": b"x"}, r"no files in a supported format.*but train\.pkl"),
    "an empty file": ({"train.jsonl": ""}, "owner/bad train: has no rows"),
    "an empty list": ({"train.json": "[]"}, "owner/bad train: has no rows"),
    "a header alone": ({"train.csv": "a,b\n"}, "owner/bad train: has no rows"),
    "a broken line": (
        {"train.jsonl": jsonl(ROWS) + "{oops\n"},
        r"owner/bad train: train\.jsonl:6: is not JSON",
    ),
    "not UTF-8": ({"train.csv": b"a,b\n\xff,1\n"}, r"owner/bad train.*train\.csv.*utf-8"),
    "a row too wide": (
        {"train.csv": "a,b\n1,2\n1,2,3\n"},
        r"owner/bad train.*Expected 2 fields in line 3",
    ),
    "no Parquet": ({"train.parquet": b"PAR1"}, r"owner/bad train.*train\.parquet.*cannot be read"),
    "a card of aliases": (
        {"README.md": card(ALIASES), "train.jsonl": jsonl(ROWS)},
        r"card of owner/bad cannot be read: its aliases \(\*name\) stand for more than",
    ),
    "more aliases": (
        {".huggingface.yaml": ALIASES, "train.jsonl": jsonl(ROWS)},
        r"card of owner/bad cannot be read: its aliases \(\*name\) stand for more than",
    ),
    "a deep card": (
        {"README.md": card("a: " + "[" * 30_000), "train.jsonl": jsonl(ROWS)},
        "card of owner/bad cannot be read: its values are nested too deeply",
    ),
    "deep facts": (
        {"dataset_infos.json": "[" * 3000 + "]" * 3000, "train.jsonl": jsonl(ROWS)},
        "card of owner/bad cannot be read: nested more than",
    ),
    "a card out of hand": (
        {"README.md": card("configs: 7"), "train.jsonl": jsonl(ROWS)},
        "owner/bad",
    ),
    "a file of this disk": (
        {"README.md": configured(default={"train": "/etc/passwd"})},
        r"outside its repository \(/etc/",
    ),
    "a file above": (
        {"README.md": configured(default={"train": "../../x.jsonl"})},
        r"outside its repository \(\.\./\.\./x",
    ),
    "a file elsewhere": (
        {"README.md": configured(default={"train": "https://example.org/x.jsonl"})},
        "outside its repository",
    ),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_unreadable_data_is_an_error(hub_server: HubServer, tmp_path: Path, what: str) -> None:
    files, message = UNREADABLE[what]
    repository = hub_server.repository("owner/bad", files, kind="dataset")
    with pytest.raises(DataError, match=message) as raised:
        store().load("owner/bad")
    assert str(tmp_path) not in str(raised.value)
    with pytest.raises(DataError, match=r"owner/bad|outside its repository"):
        streamed("owner/bad")
    repository.commit({**dict.fromkeys(files), "train.jsonl": jsonl(ROWS)})
    assert rows(store().load("owner/bad")) == ROWS


def test_text_must_be_utf_8(hub_server: HubServer) -> None:
    hub_server.repository(
        "owner/bytes", {"train.jsonl": b'{"a": "b"}\n{"a": "\xff"}\n'}, kind="dataset"
    )
    data = store().load("owner/bytes")
    assert data[0] == {"a": "b"}
    with pytest.raises(DataError, match=r"owner/bytes train row 2: cannot be read: 'utf-8'"):
        data[1]


# --- streams


def test_stream_downloads_only_what_is_read(hub_server: HubServer) -> None:
    content = jsonl({"a": "x" * 10_000} for _ in range(2500))
    hub_server.repository("owner/long", {"train.jsonl": content}, kind="dataset")
    stream = store().stream("owner/long")
    assert not hub_server.matching(r"train\.jsonl")
    assert next(stream).row == {"a": "x" * 10_000}
    [*_, (first, last)] = [
        request.headers["Range"].removeprefix("bytes=").split("-")
        for request in hub_server.matching(r"GET .*train\.jsonl")
    ]
    assert (first, int(last) < 20_000_000) == ("0", True)


def test_stream_error_names_the_row(hub_server: HubServer) -> None:
    content = jsonl({"a": "x" * 10_000} for _ in range(600))
    hub_server.repository("owner/late", {"train.jsonl": content + '{"a": \n'}, kind="dataset")
    read: list[str] = []
    with pytest.raises(DataError) as raised:
        read.extend(row.where for row in store().stream("owner/late"))
    assert 0 < len(read) < 600
    assert read[-1] == f"owner/late train row {len(read)}"
    assert str(raised.value).startswith(
        f"owner/late train from row {len(read) + 1} on: cannot be read: "
    )


def test_late_columns_are_equal_streamed_and_loaded(hub_server: HubServer) -> None:
    records = [{"prompt": "x" * 200, "completion": "y"}] * 8000 + [
        {"prompt": "a", "completion": "b", "extra": 1}
    ]
    hub_server.repository("owner/late", {"train.jsonl": jsonl(records)}, kind="dataset")
    data, streamed_rows = store().load("owner/late"), streamed("owner/late")
    assert (
        (data[8000], len(data))
        == (streamed_rows[8000], len(streamed_rows))
        == (records[8000], 8001)
    )


@pytest.mark.slow
def test_stream_continues_after_a_reset(hub_server: HubServer, data: Repository) -> None:
    hub_server.cut(r"GET .*train\.jsonl", after=50, times=1, reset=True)
    assert streamed("owner/cups") == ROWS


@pytest.mark.parametrize("status", [401, 429, 500])
def test_stream_broken_by_the_hub_is_an_error(
    hub_server: HubServer, data: Repository, status: int
) -> None:
    hub_server.fail(r"GET .*train\.jsonl", status=status, times=1000, headers={"Retry-After": "60"})
    with pytest.raises(ApiError, match="owner/cups") as raised:
        list(store(timeout=0.5).stream("owner/cups"))
    assert (raised.value.status, raised.value.exit_code) == (status, 4)
    hub_server.faults.clear()
    assert streamed("owner/cups") == ROWS


# --- what the hub refuses

PARTS = {
    "information": r"GET /api/datasets/owner/cups(\?|$)",
    "content": r"(HEAD|GET) .*resolve/.*train\.jsonl",
}


def prepared(home: Path) -> list[str]:
    return [
        path.name
        for path in home.rglob("*")
        if path.suffix == ".arrow" or path.name.endswith(".incomplete")
    ]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "status, headers",
    [
        (429, {"Retry-After": "60"}),
        (500, {"Retry-After": "60"}),
        pytest.param(503, {}, marks=pytest.mark.slow),
    ],
)
def test_busy_or_broken_hub_is_retried_then_an_error(
    hub_server: HubServer,
    data: Repository,
    tmp_path: Path,
    part: str,
    status: int,
    headers: Mapping[str, str],
) -> None:
    hub_server.fail(PARTS[part], status=status, times=1000, headers=headers)
    with pytest.raises(ApiError, match=rf"{hub_server.url}.*'owner/cups'.*try again") as raised:
        store(timeout=0.5).load("owner/cups")
    assert (raised.value.status, raised.value.exit_code) == (status, 4)
    assert prepared(tmp_path) == []
    hub_server.faults.clear()
    assert rows(store().load("owner/cups")) == ROWS


@pytest.mark.slow
def test_long_waits_are_reported_instead(hub_server: HubServer, data: Repository) -> None:
    # to which the client adds a second
    hub_server.fail(PARTS["content"], status=429, headers={"Retry-After": "0"})
    assert rows(store(timeout=5).load("owner/cups")) == ROWS
    hub_server.fail(PARTS["information"], status=429, headers={"Retry-After": "3600"})
    with pytest.raises(ApiError, match="in 3600 s"):
        store().load("owner/cups")


def test_missing_and_private_data_sets(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_server.repository(
        "owner/secret", {"train.jsonl": jsonl(ROWS)}, kind="dataset", private=True
    )
    for token in (None, "hf_loopback_read"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(
            DataError, match=r"there is no data set 'owner/none' at http.*HF_TOKEN"
        ) as raised:
            store().splits("owner/none")
        assert raised.value.exit_code == 3
    assert rows(store().load("owner/secret")) == streamed("owner/secret") == ROWS
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(DataError, match=r"'owner/secret' at http.*or it is private"):
        store().splits("owner/secret")


def test_gated_data_set_needs_an_accepted_licence(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_server.repository(
        "owner/gated", {"train.jsonl": jsonl(ROWS)}, kind="dataset", gated=True, readers={"cook"}
    )
    for token, status in ((None, 401), ("hf_loopback_read", 403)):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        for ask in (store().load, lambda name: next(store().stream(name))):
            with pytest.raises(
                ApiError, match=r"gated: accept its licence at http.*/datasets/owner/gated"
            ) as raised:
                ask("owner/gated")
            assert raised.value.status == status
    monkeypatch.setenv("HF_TOKEN", "hf_loopback_write")
    assert rows(store().load("owner/gated")) == streamed("owner/gated") == ROWS


def test_token_is_never_shown(
    hub_server: HubServer, data: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_notatokenofanyone")
    for ask in (store().load, store().info):
        with pytest.raises(ApiError, match="does not accept the token") as raised:
            ask("owner/cups")
        assert "notatoken" not in str(raised.value) + raised.value.body
    assert hub_server.requests[-1].headers["Authorization"] == "Bearer hf_notatokenofanyone"


# --- connections that break


@pytest.mark.slow
def test_broken_download_is_resumed(hub_server: HubServer) -> None:
    content = jsonl({"n": row, "pad": "x" * 1000} for row in range(5_000))
    hub_server.repository("owner/big", {"train.jsonl": content}, kind="dataset")
    hub_server.cut(r"GET .*train\.jsonl", after=3_000_000)
    assert store().load("owner/big")[4_999]["n"] == 4_999
    [_, again] = hub_server.matching(r"GET .*train\.jsonl")
    assert again.headers["Range"].startswith("bytes=2")


@pytest.mark.slow
def test_repeatedly_broken_download_is_an_error(
    hub_server: HubServer, data: Repository, tmp_path: Path
) -> None:
    hub_server.cut(r"GET .*train\.jsonl", after=50, times=1000, reset=True)
    with pytest.raises(BackendError, match=r"broke 3 times.*'owner/cups'") as raised:
        store().load("owner/cups")
    assert raised.value.exit_code == 4
    assert prepared(tmp_path) == []
    hub_server.faults.clear()
    assert rows(store().load("owner/cups")) == ROWS


@pytest.mark.slow
@pytest.mark.parametrize(
    "event, suffix",
    [("open", ".arrow"), ("os.rename", "train.incomplete")],
    ids=["at the first row", "after the last row"],
)
def test_killed_preparation_is_repeated(
    hub_server: HubServer, tmp_path: Path, event: str, suffix: str
) -> None:
    hub_server.repository("owner/big", {"train.jsonl": jsonl(ROWS * 1000)}, kind="dataset")
    code = f"""
import os, signal, sys
from adapters.hf.datasets import HfDatasets

def kill_before(event, arguments):
    if event == {event!r} and str(arguments[0]).endswith({suffix!r}):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill_before)
HfDatasets().load("owner/big")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-9, "", "")
    assert any(name.endswith(".incomplete") for name in prepared(tmp_path))
    data = store().load("owner/big")
    assert (len(data), data[4_999]) == (5_000, ROWS[4])
    assert len(prepared(tmp_path)) == 1


# --- a damaged cache


def test_truncated_file_is_fetched_again(
    hub_server: HubServer, data: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import hf_hub_download

    fetched = Path(hf_hub_download("owner/cups", "train.jsonl", repo_type="dataset"))
    os.truncate(fetched, len(jsonl(ROWS[:3])))
    assert rows(store().load("owner/cups")) == ROWS
    assert fetched.read_text() == jsonl(ROWS)


def cut(arrow: Path) -> None:
    os.truncate(arrow, arrow.stat().st_size // 2)


def cut_between_batches(arrow: Path) -> None:
    import pyarrow

    content = arrow.read_bytes()
    table = pyarrow.ipc.open_stream(content).read_all()
    with pyarrow.ipc.new_stream(arrow, table.schema) as writer:
        writer.write_table(table.slice(0, 2))


def empty(arrow: Path) -> None:
    os.truncate(arrow, 0)


def scribble(arrow: Path) -> None:
    arrow.write_bytes(b"no Arrow" * 100)


def lose_what_is_known(arrow: Path) -> None:
    (arrow.parent / "dataset_info.json").unlink()


def scribble_over_what_is_known(arrow: Path) -> None:
    (arrow.parent / "dataset_info.json").write_text("{")


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        cut_between_batches,
        empty,
        scribble,
        Path.unlink,
        lose_what_is_known,
        scribble_over_what_is_known,
    ],
)
def test_damaged_arrow_is_prepared_again(
    hub_server: HubServer, data: Repository, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    known = store().load("owner/cups").fingerprint
    [arrow] = (tmp_path / "huggingface").rglob("*.arrow")
    damage(arrow)
    data_again = store().load("owner/cups")
    assert (rows(data_again), data_again.fingerprint) == (ROWS, known)
    assert len(prepared(tmp_path)) == 1


def test_damaged_note_is_written_again(
    hub_server: HubServer, data: Repository, tmp_path: Path
) -> None:
    pinned = f"owner/cups@{data.commits[-1].sha}"
    store().load(pinned)
    [note] = tmp_path.rglob("kitchen/*.json")
    note.write_text("{")
    assert rows(store().load(pinned)) == ROWS
    assert json.loads(note.read_text())["name"] == "owner/cups"


# --- no network


def test_without_a_network_the_newest_cached_commit_is_used(
    hub_server: HubServer, data: Repository
) -> None:
    first = data.commits[-1].sha
    store().load("owner/cups")
    data.commit({"README.md": card("license: mit"), "more.jsonl": jsonl(ROWS)})
    assert store().info("owner/cups").revision != first
    hub_server.unplug()
    with capture_logs() as logs:
        assert rows(store().load("owner/cups")) == ROWS
    assert [log["commit"] for log in logs] == [first]
    hub_server.plug()
    assert store().info("owner/cups").revision != first


def test_without_a_network_only_branches_warn(hub_server: HubServer, data: Repository) -> None:
    known = store().load("owner/cups").fingerprint
    hub_server.unplug()
    with capture_logs() as logs:
        pinned = store().load(f"owner/cups@{data.commits[-1].sha}")
        assert (rows(pinned), pinned.fingerprint) == (ROWS, known)
    assert logs == []
    with capture_logs() as logs:
        branch = store()
        assert list(branch.splits("owner/cups")) == ["train", "test"]
        assert branch.load("owner/cups").fingerprint == known
    assert [(log["log_level"], log["dataset"], log["commit"]) for log in logs] == [
        ("warning", "owner/cups", data.commits[-1].sha)
    ]


def test_without_a_network_uncached_data_is_an_error(
    hub_server: HubServer, data: Repository
) -> None:
    store().load("owner/cups")
    hub_server.unplug()
    calls: Sequence[Callable[[], object]] = (
        lambda: store().splits("owner/none"),
        lambda: store().load(f"owner/cups@{'0' * 40}"),
        lambda: next(store().stream("owner/cups")),
    )
    for call in calls:
        with (
            capture_logs(),
            pytest.raises(BackendError, match=rf"{hub_server.url} cannot be reached") as raised,
        ):
            call()
        assert raised.value.exit_code == 4
    hub_server.plug()
    assert rows(store().load("owner/cups", split="test")) == ROWS[:2]


@pytest.mark.slow
def test_network_that_fails_midway(hub_server: HubServer, data: Repository) -> None:
    """The client itself tries again for half a minute; that is the slow part."""
    store().load("owner/cups")
    stream = store().stream("owner/cups", split="test")
    data.commit({"train.jsonl": jsonl(ROWS) * 200_000})
    going = store().stream("owner/cups")
    next(going)
    hub_server.unplug()
    for call in (
        lambda: store().load("owner/cups", split="test"),
        lambda: next(stream),
        lambda: list(going),
    ):
        with (
            capture_logs(),
            pytest.raises(BackendError, match=rf"{hub_server.url} cannot be reached"),
        ):
            call()
    hub_server.plug()
    assert rows(store().load("owner/cups", split="test")) == ROWS[:2]


def test_offline_mode_sends_no_request(
    hub_server: HubServer, data: Repository, go_offline: Callable[[], None]
) -> None:
    store().load("owner/cups")
    hub_server.requests.clear()
    go_offline()
    with capture_logs():
        assert rows(store().load("owner/cups")) == ROWS
        with pytest.raises(KitchenError, match=r"HF_HUB_OFFLINE"):
            store().load("owner/cups", split="test")
    assert hub_server.requests == []


@pytest.mark.slow
def test_libraries_print_nothing(hub_server: HubServer, data: Repository) -> None:
    hub_server.fail(PARTS["content"], status=503)
    hub_server.fail(PARTS["content"], status=429, headers={"Retry-After": "0"})
    hub_server.cut(r"GET .*train\.jsonl", after=50)
    code = """
from adapters.hf.datasets import HfDatasets
store = HfDatasets()
assert len(store.load("owner/cups")) == len(list(store.stream("owner/cups"))) == 5
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
