"""Models of the Hugging Face Hub: the real client against a hub on loopback, and faults."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from adapters import hf
from adapters.fake.hub import FakeHub
from adapters.hf.hub import HfHub
from adapters.local.hub import LocalHub
from kitchen.backend.work import Work, listening_to_work
from kitchen.cli import app
from kitchen.errors import ApiError, BackendError
from kitchen.ports import ModelInfo
from tests.support.hub_server import HubServer, Repository
from tests.support.imports import HEAVY, imported_by

# the client asks for 10 MiB at a time, and resumes after whole pieces
BIG = random.Random(0).randbytes(12_000_000)
SMALL: Mapping[str, bytes | str] = {
    "config.json": '{"model_type": "llama"}',
    "model.safetensors": b"weights",
}


def hub(timeout: float = 2.0) -> HfHub:
    """Return a hub as in a new process, which knows only what is cached."""
    return HfHub(FakeHub(), timeout=timeout)


@pytest.fixture
def model(hub_server: HubServer) -> Repository:
    return hub_server.repository("owner/tiny", SMALL)


def cached(home: Path) -> list[Path]:
    """Return the files that could be mistaken for content."""
    return [
        path
        for path in home.rglob("*")
        if path.is_file() and {"blobs", "snapshots"} & set(path.parts)
    ]


# --- what is fetched


def test_only_needed_files_are_fetched(hub_server: HubServer, tmp_path: Path) -> None:
    wanted = {
        "config.json": "{}",
        "model-1.safetensors": b"a",
        "model-2.safetensors": b"b",
        "merges.txt": "",
        "tokenizer.model": b"t",
        "chat_template.jinja": "x",
        "README.md": "---\nlicense: mit\n---\n",
    }
    hub_server.repository(
        "owner/all",
        {
            **wanted,
            "pytorch_model.bin": b"pickled",
            "onnx/model.onnx": b"o",
            "original/model.safetensors": b"c",
            "consolidated.safetensors": b"d",
            "optimizer.pt": b"pickled",
            ".gitattributes": "",
        },
    )
    folder = hub().fetch("owner/all")
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*")} == set(wanted)
    assert folder.is_relative_to(
        tmp_path / "huggingface" / "hub" / "models--owner--all" / "snapshots"
    )
    assert hub().files("owner/all") == sorted(wanted)
    assert hub().sha256("owner/all") == hashlib.sha256(b"ab").hexdigest()
    commit = hub_server.repositories["model", "owner/all"].commits[-1].sha
    size = sum(map(len, wanted.values()))
    assert hub().info("owner/all") == ModelInfo("owner/all", commit, size, "mit")
    assert not hub_server.matching(r"pytorch_model|onnx/|optimizer\.pt|consolidated")


def test_single_file_is_fetched_alone(hub_server: HubServer, model: Repository) -> None:
    assert hub().file("owner/tiny", "config.json").read_text() == SMALL["config.json"]
    assert not hub_server.matching(r"model\.safetensors")
    # the part is not taken for the whole
    assert hub().fetch("owner/tiny").joinpath("model.safetensors").is_file()


def test_settings_choose_endpoint_and_cache(
    hub_server: HubServer, model: Repository, tmp_path: Path, no_default_hub: None
) -> None:
    chosen = HfHub(FakeHub(), endpoint=hub_server.url + "/", cache=str(tmp_path / "mine"))
    assert chosen.fetch("owner/tiny").is_relative_to(tmp_path / "mine")


def test_legacy_name_without_an_owner(hub_server: HubServer) -> None:
    hub_server.repository("gpt2", SMALL)
    assert (hub().fetch("gpt2") / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize(
    "card, license",
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model", "apache-2.0"),
        ("---\nlicense:\n- mit\n---\n", "mit"),
        ("---\nlanguage: en\n---\nlicense: none of the head", ""),
        ("# A model\nlicense: mit", ""),
        ("---\n{: no YAML", ""),
    ],
)
def test_licence_comes_from_the_card(
    hub_server: HubServer, card: str | bytes, license: str
) -> None:
    hub_server.repository("owner/tiny", {**SMALL, "README.md": card})
    assert hub().info("owner/tiny").license == license


# --- revisions


def test_revision_reads_the_files_of_its_commit(hub_server: HubServer, model: Repository) -> None:
    first = model.commits[-1].sha
    model.refs["v1.0"] = first
    second = model.commit({"model.safetensors": b"better"})
    for name, content, commit in (
        ("owner/tiny", b"better", second),
        ("owner/tiny@main", b"better", second),
        ("owner/tiny@v1.0", b"weights", first),
        (f"owner/tiny@{first}", b"weights", first),
    ):
        assert (hub().fetch(name) / "model.safetensors").read_bytes() == content
        assert hub().info(name).revision == commit


def test_hub_resolves_a_name_to_one_commit(hub_server: HubServer, model: Repository) -> None:
    same_hub = hub()
    before = same_hub.fetch("owner/tiny")
    model.commit({"model.safetensors": b"better"})
    assert same_hub.fetch("owner/tiny") == before
    assert same_hub.sha256("owner/tiny") == hashlib.sha256(b"weights").hexdigest()
    assert hub().sha256("owner/tiny") == hashlib.sha256(b"better").hexdigest()


def test_cached_commit_needs_no_request(hub_server: HubServer, model: Repository) -> None:
    pinned = f"owner/tiny@{model.commits[-1].sha}"
    folder = hub().fetch(pinned)
    hub_server.requests.clear()
    new_hub = hub()
    assert (new_hub.fetch(pinned), new_hub.files(pinned), new_hub.file(pinned, "config.json")) == (
        folder,
        ["config.json", "model.safetensors"],
        folder / "config.json",
    )
    new_hub.sha256(pinned)
    new_hub.info(pinned)
    assert hub_server.requests == []


# --- no network


def test_without_a_network_the_newest_cached_commit_is_used(
    hub_server: HubServer, model: Repository, tmp_path: Path
) -> None:
    from huggingface_hub import hf_hub_download

    folder = hub().fetch("owner/tiny")
    ref = tmp_path / "huggingface" / "hub" / "models--owner--tiny" / "refs" / "main"
    newer = model.commit({"model.safetensors": b"better"})
    assert hub().info("owner/tiny").revision == newer
    assert ref.read_text() == folder.name, "other programs find what is there, too"
    hf_hub_download("owner/tiny", "config.json")
    assert ref.read_text() == newer
    hub_server.unplug()
    with capture_logs() as logs:
        offline = hub()
        assert (offline.fetch("owner/tiny"), offline.info("owner/tiny").revision) == (
            folder,
            folder.name,
        )
    assert [log["commit"] for log in logs] == [folder.name]
    hub_server.plug()
    assert hub().fetch("owner/tiny").name == ref.read_text() == newer


def test_without_a_network_only_branches_warn(hub_server: HubServer, model: Repository) -> None:
    folder, sha = hub().fetch("owner/tiny"), hub().sha256("owner/tiny")
    hub_server.unplug()
    with capture_logs() as logs:
        assert hub().fetch(f"owner/tiny@{model.commits[-1].sha}") == folder
    assert logs == []
    with capture_logs() as logs:
        offline = hub()
        assert (offline.fetch("owner/tiny"), offline.sha256("owner/tiny")) == (folder, sha)
    assert [(log["log_level"], log["model"]) for log in logs] == [("warning", "owner/tiny")]
    assert "cannot be reached" in logs[0]["why"]


def test_without_a_network_uncached_models_are_an_error(
    hub_server: HubServer, model: Repository
) -> None:
    hub().file("owner/tiny", "config.json")
    hub_server.unplug()
    for name in ("owner/other", "owner/tiny", f"owner/tiny@{'0' * 40}"):
        with pytest.raises(
            BackendError,
            match=rf"{hub_server.url} cannot be reached.*{name}.*packaged:NAME, path:DIR",
        ):
            hub().fetch(name)
    hub_server.plug()
    assert hub().fetch("owner/tiny")


def test_offline_mode_sends_no_request(
    hub_server: HubServer, model: Repository, go_offline: Callable[[], None]
) -> None:
    folder = hub().fetch("owner/tiny")
    hub_server.requests.clear()
    go_offline()
    assert hub().fetch("owner/tiny") == folder
    with pytest.raises(BackendError, match=r"owner/other.*HF_HUB_OFFLINE"):
        hub().fetch("owner/other")
    assert hub_server.requests == []


def test_silent_hub_is_given_up(hub_server: HubServer, model: Repository) -> None:
    hub_server.slow("GET /api/models", seconds=3)
    with pytest.raises(BackendError, match=r"cannot be reached.*timed out"):
        hub(timeout=0.3).fetch("owner/tiny")
    hub_server.slow("GET .*/tree/", seconds=3, times=1000)
    with pytest.raises(BackendError, match=r"cannot be reached.*no answer for 0\.3 s"):
        hub(timeout=0.3).fetch("owner/tiny")
    hub_server.faults.clear()
    assert hub().fetch("owner/tiny")


# --- what the hub refuses

STAGES = {
    "information": r"GET /api/models/owner/tiny(\?|$)",
    "listing": "GET /api/models/owner/tiny/tree",
    "head": "HEAD /owner/tiny/resolve/.*/model.safetensors",
    "content": "GET /storage",
}


@pytest.mark.parametrize(
    "stage",
    [
        "information",
        *(pytest.param(stage, marks=pytest.mark.slow) for stage in ("listing", "head", "content")),
    ],
)
def test_broken_hub_is_an_error_and_leaves_no_weights(
    hub_server: HubServer, model: Repository, tmp_path: Path, stage: str
) -> None:
    hub_server.fail(STAGES[stage], status=500, times=1000)
    message = rf"{hub_server.url} fails for model 'owner/tiny' \(500.*try again later"
    with pytest.raises(ApiError, match=message) as raised:
        hub(timeout=1).fetch("owner/tiny")
    assert (raised.value.status, raised.value.exit_code) == (500, 4)
    assert "a fault of this test" in raised.value.body or stage == "head"  # which has no body
    assert len(hub_server.matching(STAGES[stage])) > 1 or stage == "content"
    assert not [path for path in cached(tmp_path) if path.name == "model.safetensors"]
    hub_server.faults.clear()
    assert (hub().fetch("owner/tiny") / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize(
    "stage, status",
    [
        ("information", 503),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("information", 429),
                ("listing", 429),
                ("head", 429),
                ("content", 429),
                ("content", 503),
            )
        ),
    ],
)
def test_briefly_busy_hub_is_retried(
    hub_server: HubServer, model: Repository, stage: str, status: int
) -> None:
    hub_server.fail(STAGES[stage], status=status, times=1)
    assert (hub(timeout=5).fetch("owner/tiny") / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize(
    "stage, headers, message",
    [
        *((stage, {"Retry-After": "3600"}, r"\(429\).*in 3600 s") for stage in STAGES),
        ("information", {"ratelimit": '"api";r=0;t=55'}, r"\(429\).*in 55 s"),
        ("listing", {"ratelimit": '"api";r=0;t=55'}, r"\(429\).*in 55 s"),
        ("information", {}, r"\(429\).*in some minutes"),
        pytest.param(
            "content",
            {"Retry-After": "Fri, 31 Dec 2027 23:59:59 GMT"},
            r"\(429\).*in some minutes",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_rate_limit_is_reported_without_waiting(
    hub_server: HubServer, model: Repository, stage: str, headers: Mapping[str, str], message: str
) -> None:
    hub_server.fail(STAGES[stage], status=429, times=1000, headers=headers)
    with pytest.raises(ApiError, match=rf"owner/tiny.*{message}.*HF_TOKEN") as error:
        hub(timeout=0.5).fetch("owner/tiny")
    assert error.value.status == 429


@pytest.mark.slow
def test_short_rate_limit_is_waited_for(hub_server: HubServer, model: Repository) -> None:
    hub_server.fail(STAGES["listing"], status=429, headers={"Retry-After": "1"})
    assert hub(timeout=5).fetch("owner/tiny").is_dir()
    assert len(hub_server.matching(STAGES["listing"])) == 2


def test_gated_model_needs_an_accepted_licence(
    hub_server: HubServer, model: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.gated = True
    licence = rf"accept its licence at {hub_server.url}/owner/tiny, and set HF_TOKEN"
    with pytest.raises(ApiError, match=licence) as raised:
        hub().fetch("owner/tiny")
    assert raised.value.status == 401
    monkeypatch.setenv("HF_TOKEN", "hf_loopback_read")
    with pytest.raises(ApiError, match=licence) as raised:
        hub().fetch("owner/tiny")
    assert raised.value.status == 403
    model.readers.add("guest")
    assert hub().fetch("owner/tiny")


def test_private_and_missing_models(
    hub_server: HubServer, model: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.private = True
    for name in ("owner/tiny", "owner/tinny"):
        with pytest.raises(ApiError, match=f"'{name}'.*misspelled, or private; set HF_TOKEN"):
            hub().fetch(name)
    monkeypatch.setenv("HF_TOKEN", "hf_loopback_read")
    assert hub().fetch("owner/tiny")
    with pytest.raises(BackendError, match=f"there is no model 'owner/tinny' at {hub_server.url}"):
        hub().fetch("owner/tinny")


def test_wrong_token_is_an_error(
    hub_server: HubServer, model: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_mistyped")
    with pytest.raises(
        ApiError, match=f"does not accept the token.*{hub_server.url}/settings/tokens.*HF_TOKEN"
    ):
        hub().fetch("owner/tiny")


def test_unknown_revision_is_an_error(hub_server: HubServer, model: Repository) -> None:
    model.refs["v1.0"] = model.commits[-1].sha
    with pytest.raises(
        BackendError, match=r"'owner/tiny' has no revision 'v1\.1'; did you mean 'v1\.0'"
    ):
        hub().fetch("owner/tiny@v1.1")
    with pytest.raises(BackendError, match=f"'owner/tiny@{'0' * 40}'.*no such revision"):
        hub().fetch(f"owner/tiny@{'0' * 40}")
    with pytest.raises(ApiError, match="'owner/other@v1' without a token"):
        hub().fetch("owner/other@v1")


def test_publishing_without_a_token_asks_for_one(hub_server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# soup")
    with pytest.raises(ApiError, match="publishes model 'me/soup' only with a token: set HF_TOKEN"):
        hub().publish("me/soup", tmp_path, message="soup")


# --- what breaks off


def test_broken_download_is_resumed(hub_server: HubServer) -> None:
    hub_server.repository("owner/big", {**SMALL, "model.safetensors": BIG})
    hub_server.cut("GET /storage", after=11_000_000)
    assert hub().sha256("owner/big") == hashlib.sha256(BIG).hexdigest()
    first, second = hub_server.matching("GET /storage")
    assert (first.headers["Range"], first.status) == (None, 200)
    assert (second.headers["Range"], second.status) == (f"bytes={10 * 1024 * 1024}-", 206)


@pytest.mark.slow
def test_reset_connection_is_retried(hub_server: HubServer, model: Repository) -> None:
    for stage in ("information", "listing", "content"):
        hub_server.cut(STAGES[stage], after=3, reset=True)
    assert (hub().fetch("owner/tiny") / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.slow
@pytest.mark.parametrize("reset", [True, False])
def test_repeatedly_broken_download_is_an_error(
    hub_server: HubServer, model: Repository, tmp_path: Path, reset: bool
) -> None:
    hub_server.cut("GET /storage", after=3, reset=reset, times=1000)
    with pytest.raises(BackendError, match=r"broke 3 times.*owner/tiny") as raised:
        hub(timeout=0.5).fetch("owner/tiny")
    assert raised.value.exit_code == 4
    assert not [
        path
        for path in cached(tmp_path)
        if path.name == "model.safetensors" or path.stat().st_size == 3
    ]
    assert not list(tmp_path.rglob("*.incomplete"))
    hub_server.faults.clear()
    assert hub().sha256("owner/tiny") == hashlib.sha256(b"weights").hexdigest()


def test_damaged_cache_is_repaired(hub_server: HubServer, model: Repository) -> None:
    pinned = f"owner/tiny@{model.commits[-1].sha}"
    folder = hub().fetch(pinned)
    os.truncate(folder / "model.safetensors", 3)
    (folder / "config.json").unlink()
    assert (hub().fetch(pinned) / "model.safetensors").read_bytes() == b"weights"
    assert (folder / "config.json").read_text() == SMALL["config.json"]


# --- digests


def test_digest_is_cached_until_files_change(hub_server: HubServer, model: Repository) -> None:
    folder = hub().fetch("owner/tiny")
    assert hub().sha256("owner/tiny") == hashlib.sha256(b"weights").hexdigest()
    (note,) = (folder.parents[1] / "kitchen").glob("*.json")
    note.write_text(json.dumps({**json.loads(note.read_text()), "sha256": "noted"}))
    assert hub().sha256("owner/tiny") == "noted"
    note.write_text("{")
    assert hub().sha256("owner/tiny") == hashlib.sha256(b"weights").hexdigest()
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert hub().sha256("owner/tiny") == hashlib.sha256(b"weights").hexdigest()


def test_digest_ignores_files_of_other_programs(hub_server: HubServer) -> None:
    from huggingface_hub import hf_hub_download

    hub_server.repository(
        "owner/two", {**SMALL, "consolidated.safetensors": b"once more", "b/model.safetensors": b""}
    )
    assert hub().sha256("owner/two") == hashlib.sha256(b"weights").hexdigest()
    for path in ("consolidated.safetensors", "b/model.safetensors"):
        hf_hub_download("owner/two", path)
    assert hub().sha256("owner/two") == hashlib.sha256(b"weights").hexdigest()


# --- names


@pytest.mark.parametrize(
    "files, message",
    [
        (
            {"config.json": "{}", "pytorch_model.bin": b"p"},
            r"only pytorch_model\.bin.*not opened.*refs/pr/N.*path:DIR",
        ),
        ({"config.json": "{}"}, r"has no \*\.safetensors;"),
        ({"model.safetensors": b"w"}, "neither config.json"),
    ],
)
def test_unusable_model_is_an_error(
    hub_server: HubServer, files: Mapping[str, bytes | str], message: str
) -> None:
    hub_server.repository("owner/odd", files)
    with pytest.raises(BackendError, match=f"'owner/odd'.*{message}"):
        hub().fetch("owner/odd")
    assert not hub_server.matching("resolve|storage")


@pytest.mark.parametrize(
    "model, message",
    [
        ("", "give NAME"),
        ("./model", "path:DIR"),
        ("a/b/c", "is not the name of a model"),
        ("owner/tiny@", "is not the name of a model"),
        ("owner/tiny@../../x", "is not the name of a model"),
        ("owner/..", "owner/"),
        ("smollm2-135m-instruct", "did you mean 'packaged:smollm2-135m-instruct'"),
        ("packaged:smollm2-135m", "did you mean 'smollm2-135m-instruct'"),
        ("run:abc@final", "the run's record"),
        ("tinker://run/weights", "Tinker"),
        ("path:/nowhere", "no folder"),
    ],
)
def test_bad_names_are_errors(
    hub_server: HubServer, tmp_path: Path, model: str, message: str
) -> None:
    hf_hub = HfHub(LocalHub(str(tmp_path)))
    with pytest.raises(BackendError, match=message):
        hf_hub.fetch(model)
    if model != "owner/..":
        with pytest.raises(BackendError, match=message):
            hf_hub.find(model)
    assert hub_server.requests == []


def test_folder_without_path_prefix_is_an_error(hub_server: HubServer, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=f"did you mean 'path:{tmp_path}'"):
        hub().find(str(tmp_path))


def test_folder_that_looks_like_a_name_is_an_error(
    hub_server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_server.repository("models/tiny", SMALL)
    hub().find("models/tiny")
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    hub().find("models/tiny")  # no model is in it
    (tmp_path / "models" / "tiny" / "adapter_config.json").touch()
    hf_hub = hub()
    for verb in (
        hf_hub.find,
        hf_hub.fetch,
        hf_hub.files,
        hf_hub.info,
        hf_hub.sha256,
        lambda name: hf_hub.file(name, "config.json"),
    ):
        with pytest.raises(
            BackendError, match=r"did you mean 'path:models/tiny'\?.*'models/tiny@main'"
        ):
            verb("models/tiny")
    assert hf_hub.fetch("models/tiny@main")


def test_find_needs_no_network(hub_server: HubServer) -> None:
    hub().find("owner/tiny@main")
    assert hub_server.requests == []


CORE = (
    "filelock",
    "platformdirs",
    "structlog",
    "numpy",
    "numpy.libs",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions.py",
    "typing_inspection",
)  # what an adapter imports of the kitchen, and what that imports


def test_without_the_package_other_hubs_work(tmp_path: Path) -> None:
    import structlog

    installed, source = Path(structlog.__file__).parents[1], Path(hf.__file__ or "").parents[2]
    for needed in CORE:
        (tmp_path / needed).symlink_to(installed / needed)
    (tmp_path / "model").mkdir()
    for file in ("config.json", "model.safetensors"):
        (tmp_path / "model" / file).touch()
    code = f"""
from adapters.hf.hub import HfHub
from adapters.local.hub import LocalHub
from kitchen.errors import BackendError
hub = HfHub(LocalHub())
print(hub.fetch("path:{tmp_path}/model"), hub.files("path:{tmp_path}/model"))
for verb in (hub.find, hub.fetch, hub.info):
    try:
        verb("owner/tiny")
    except BackendError as error:
        print(error)
"""
    message = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": f"{source}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    assert message[0] == f"{tmp_path}/model ['config.json', 'model.safetensors']"
    assert len(message) == 4
    assert all(
        "'owner/tiny'" in line and "pip install 'crucible-kitchen[hf]'" in line
        for line in message[1:]
    )


def test_package_is_imported_on_first_use() -> None:
    program = (
        "from adapters.hf.hub import HfHub\n"
        "from adapters.fake.hub import FakeHub\n"
        "HfHub(FakeHub()).find('fake/bigram')\n"
    )
    assert imported_by(program)[1].isdisjoint(HEAVY)


# --- publishing


@pytest.fixture
def result(tmp_path: Path) -> Path:
    folder = tmp_path / "result"
    (folder / "more").mkdir(parents=True)
    for path, content in {
        "README.md": b"---\nlicense: mit\n---\n",
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": BIG[:100_000],
        "more/notes.txt": b"n",
        "empty.txt": b"",
    }.items():
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def writer(hub_server: HubServer, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    monkeypatch.setenv("HF_TOKEN", "hf_loopback_write")
    return hub_server


def messages(server: HubServer, name: str = "cook/mine") -> list[str]:
    return [commit.message for commit in server.repositories["model", name].commits]


def test_result_is_published_in_one_commit(writer: HubServer, result: Path) -> None:
    assert hub().publish("cook/mine", result, message="a soup") == f"{writer.url}/cook/mine"
    assert messages(writer) == ["initial commit", "a soup"]
    assert writer.repositories["model", "cook/mine"].private
    files = writer.repositories["model", "cook/mine"].commits[-1].files
    assert {path: files[path] for path in files if path != ".gitattributes"} == {
        path.relative_to(result).as_posix(): path.read_bytes()
        for path in result.rglob("*")
        if path.is_file()
    }
    assert (hub().fetch("cook/mine") / "adapter_model.safetensors").read_bytes() == BIG[:100_000]
    assert hub().info("cook/mine").license == "mit"


def test_repositories_are_private_by_default(writer: HubServer, result: Path) -> None:
    HfHub(FakeHub(), private=False).publish("cook/mine", result, message="a soup")
    assert not writer.repositories["model", "cook/mine"].private


def test_unchanged_files_make_no_commit(writer: HubServer, result: Path) -> None:
    hf_hub = hub()
    hf_hub.publish("cook/mine", result, message="first")
    hf_hub.publish("cook/mine", result, message="again")
    assert messages(writer) == ["initial commit", "first"]
    before = hf_hub.sha256("cook/mine")
    (result / "adapter_model.safetensors").rename(result / "adapter_model-1.safetensors")
    (result / "adapter_model-1.safetensors").write_bytes(b"other")
    hf_hub.publish("cook/mine", result, message="sharded")
    assert messages(writer) == ["initial commit", "first", "sharded"]
    assert hf_hub.files("cook/mine") == [
        "README.md",
        "adapter_config.json",
        "adapter_model-1.safetensors",
        "empty.txt",
        "more/notes.txt",
    ]
    assert hf_hub.sha256("cook/mine") == hashlib.sha256(b"other").hexdigest() != before


def test_only_files_of_another_model_are_deleted(writer: HubServer, result: Path) -> None:
    repository = writer.repository(
        "cook/mine",
        {
            **SMALL,
            "model.safetensors.index.json": "{}",
            "tokenizer.json": "{}",
            "step-100/config.json": "{}",
            "step-100/model.safetensors": b"old",
        },
    )
    hub().publish("cook/mine", result, message="a soup")
    assert repository.commits[-1].files.keys() == {
        *(path.relative_to(result).as_posix() for path in result.rglob("*") if path.is_file()),
        "tokenizer.json",
        "step-100/config.json",
        "step-100/model.safetensors",
    }
    (result / "adapter_model.safetensors").unlink()
    (result / "adapter_config.json").unlink()
    hub().publish("cook/mine", result, message="a card alone")
    assert {"adapter_model.safetensors", "adapter_config.json"} <= repository.commits[
        -1
    ].files.keys()


@pytest.mark.parametrize(
    "step",
    [
        "POST /api/repos/create",
        "POST .*/preupload/",
        "POST .*/objects/batch",
        "PUT /storage",
        "POST .*/commit/",
    ],
)
def test_failed_publication_changes_nothing(writer: HubServer, result: Path, step: str) -> None:
    writer.fail(step, status=500, times=1000, headers={"Retry-After": "60"})
    with pytest.raises(ApiError, match="fails for model 'cook/mine'") as raised:
        hub(timeout=0.5).publish("cook/mine", result, message="a soup")
    assert raised.value.status == 500
    assert ("model", "cook/mine") not in writer.repositories or messages(writer) == [
        "initial commit"
    ]
    writer.faults.clear()
    hub().publish("cook/mine", result, message="a soup")
    assert messages(writer) == ["initial commit", "a soup"]


def test_lost_answer_makes_no_second_commit(writer: HubServer, result: Path) -> None:
    writer.cut("POST .*/commit/", after=5, reset=True)
    hub().publish("cook/mine", result, message="a soup")
    assert messages(writer) == ["initial commit", "a soup"]
    assert len(writer.matching("POST .*/commit/")) == 1


def test_publishing_needs_a_write_token(
    hub_server: HubServer, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ApiError, match="set HF_TOKEN") as raised:
        hub().publish("cook/mine", result, message="a soup")
    assert raised.value.status == 401
    monkeypatch.setenv("HF_TOKEN", "hf_loopback_read")
    with pytest.raises(
        ApiError, match=r"token does not permit this for model 'cook/mine'.*can only read"
    ) as raised:
        hub().publish("cook/mine", result, message="a soup")
    assert raised.value.status == 403
    assert hub_server.repositories == {}


def test_publishing_without_a_network_is_an_error(writer: HubServer, result: Path) -> None:
    writer.unplug()
    with pytest.raises(BackendError, match="cannot be reached for model 'cook/mine'"):
        hub().publish("cook/mine", result, message="a soup")
    writer.plug()
    hub().publish("cook/mine", result, message="a soup")
    assert messages(writer) == ["initial commit", "a soup"]


@pytest.mark.parametrize("name", ["mine", "cook/mine@main"])
def test_bad_names_cannot_be_published(writer: HubServer, result: Path, name: str) -> None:
    with pytest.raises(BackendError, match="OWNER/NAME"):
        hub().publish(name, result, message="a soup")
    assert writer.requests == []


# --- from the command line


def run_with(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run sl_basic in a new process, with the default hub at HF_ENDPOINT."""
    return subprocess.run(
        [sys.executable, "-m", "kitchen.cli", "run", "recipes.sl_basic", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    "name, message",
    [
        ("owner/tinny", "shows no model 'owner/tinny' without a token"),
        ("owner/tiny", "fails for model 'owner/tiny' (500"),
        (
            "owner/busy",
            "too many requests, and rejects the one for model 'owner/busy' (429); "
            "try again in 3600 s",
        ),
    ],
)
def test_run_ends_with_exit_code_4_and_the_reason(
    hub_server: HubServer,
    model: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    message: str,
) -> None:
    hub_server.fail("GET /api/models/owner/tiny", status=500, times=1000)
    hub_server.fail(
        "GET /api/models/owner/busy", status=429, times=1000, headers={"Retry-After": "3600"}
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    done = CliRunner().invoke(
        app, ["run", "recipes.sl_basic", f"model={name}", "--hub", "hf", "--set", "hub.timeout=0.5"]
    )
    assert done.exit_code == 4, done.output
    assert message in " ".join(done.output.split())
    assert "Traceback" not in done.output


@pytest.mark.slow
def test_model_of_the_hub_is_trained(hub_server: HubServer, tmp_path: Path) -> None:
    from tests.support.tiny_model import tiny_model

    folder = tiny_model(tmp_path / "tiny")
    hub_server.repository("owner/tiny", {path.name: path.read_bytes() for path in folder.iterdir()})
    settings = (
        "model=owner/tiny",
        "max_steps=2",
        "rendering.overlong=drop",
        "rendering.max_tokens=200",
    )
    hub_server.unplug()
    done = run_with(tmp_path, *settings)
    assert done.returncode == 4
    assert f"{hub_server.url} cannot be reached" in " ".join((done.stdout + done.stderr).split())
    hub_server.plug()
    done = run_with(tmp_path, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    hub_server.unplug()
    done = run_with(tmp_path, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the cached files are used" in " ".join((done.stdout + done.stderr).split())


# --- secrets


@pytest.mark.parametrize(
    "user, name",
    [("cook:s3cret", "owner/tiny"), ("s3cret", "owner/tiny"), ("cook:s3cret", "owner/tiny@v1")],
)
def test_credentials_of_the_endpoint_are_never_shown(
    hub_server: HubServer, user: str, name: str
) -> None:
    secret = hub_server.url.replace("://", f"://{user}@")
    for _ in ("refused", "unreachable"):
        with pytest.raises(BackendError, match=hub_server.url) as raised:
            HfHub(FakeHub(), endpoint=secret, timeout=0.5).fetch(name)
        assert "s3cret" not in str(raised.value)
        hub_server.unplug()


def in_environment(token: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)


def stored(token: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(exist_ok=True)
    (home / "token").write_text(token)


@pytest.mark.parametrize("provide_token", [in_environment, stored])
def test_token_is_used_and_never_shown(
    hub_server: HubServer,
    model: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    provide_token: Callable[[str, Path, pytest.MonkeyPatch], None],
) -> None:
    token = "hf_VerySecretToken0123456789"
    hub_server.tokens[token] = "guest"
    provide_token(token, tmp_path / "huggingface", monkeypatch)
    hub().fetch("owner/tiny")
    assert {
        request.headers["Authorization"] for request in hub_server.matching("/api/|/resolve/")
    } == {f"Bearer {token}"}
    assert {request.headers["Authorization"] for request in hub_server.matching("/storage/")} == {
        None
    }
    model.commit({"model.safetensors": b"more"})
    echo = {"X-Error-Message": f"no, {token}", "Content-Type": "text/plain", "Retry-After": "60"}
    for status in (400, 403, 418, 500):
        hub_server.fail(
            "/tree/", status=status, times=1000, headers=echo, body=f"no, Bearer {token}"
        )
        with capture_logs() as logs, pytest.raises(ApiError) as raised:
            hub(timeout=0.1).fetch("owner/tiny")
        assert "no, " in raised.value.body
        for text in (str(raised.value), raised.value.body, repr(raised.value.args), str(logs)):
            assert token not in text
        hub_server.faults.clear()
    out, err = capfd.readouterr()
    assert token not in out + err


def test_check_asks_the_hub_for_a_model_only_online(model: Repository) -> None:
    def check(code: int, *options: str, name: str = "owner/tiny") -> str:
        hub_options = ("--training", "fake", "--hub", "hf")
        arguments = ["check", "recipes.sl_basic", f"model={name}", *hub_options, *options]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return " ".join(result.output.split())

    assert "no server was asked whether it has owner/tiny: --online asks" in check(0)
    commit = model.commits[-1].sha[:12]
    assert f"has owner/tiny: commit {commit}, 0 MB" in check(0, "--online")
    assert "owner/tinny" in check(4, "--online", name="owner/tinny")
    assert "there is no server to ask" in check(
        0, "--online", name="packaged:smollm2-135m-instruct"
    )


def test_a_download_is_reported_with_its_size(model: Repository) -> None:
    reports: list[Work] = []
    with listening_to_work(reports.append):
        hub().fetch("owner/tiny")
        hub().fetch("owner/tiny")  # cached
    activity = "Downloading owner/tiny (0 MB)"
    assert reports == [Work(activity=activity), Work(1, 1, activity=activity)]
