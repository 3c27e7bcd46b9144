"""Models of the Hugging Face Hub, fetched and published."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from adapters.hf.cache import noted, write
from adapters.hf.snapshots import Name, Snapshots, wanted
from kitchen.backend.atomic_folder import sha256_of_files
from kitchen.errors import BackendError
from kitchen.ports import HubClient, ModelInfo

_REPOSITORY = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)\w[\w./+-]*", re.ASCII)
_WEIGHTS = re.compile(r"[^/]+\.safetensors(\.index\.json)?")
_CONFIGS = ("config.json", "adapter_config.json")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
_OFFLINE = "without a network there are packaged:NAME, path:DIR and what was fetched before"


class HfHub:
    """Models of the Hugging Face Hub as `NAME[@REVISION]`; names with a kind (packaged:, path:) are
    those of `beside`.

    They lie in the cache of `huggingface_hub`, where other programs find them too. The token is
    that of HF_TOKEN, or of `hf auth login`. Raises BackendError for what is unknown or unreachable,
    ApiError for what is refused.
    """

    over = "local"
    packages: tuple[str, ...] = ()
    lazily = ("huggingface_hub",)

    def __init__(
        self,
        beside: HubClient,
        *,
        endpoint: str = "",  # of the hub; else HF_ENDPOINT, else https://huggingface.co
        cache: str = "",  # folder; else HF_HUB_CACHE, else HF_HOME/hub
        # seconds without an answer, and seconds of answers that the hub is busy or broken
        timeout: float = 10.0,
        private: bool = True,  # of repositories that are made to publish in
    ) -> None:
        self._beside, self._private = beside, private
        self._snapshots = Snapshots(endpoint.rstrip("/"), cache, timeout, _OFFLINE)

    def find(self, model: str) -> None:
        if ":" in model:
            self._beside.find(model)
        else:
            self._read(model)

    def fetch(self, model: str) -> Path:
        if ":" in model:
            return self._beside.fetch(model)
        name = self._read(model)
        _check_weights(name, self._snapshots.tree(name))
        return self._snapshots.fetch(name)

    def file(self, model: str, path: str) -> Path:
        if ":" in model:
            return self._beside.file(model, path)
        return self._snapshots.file(self._read(model), path)

    def files(self, model: str) -> Sequence[str]:
        if ":" in model:
            return self._beside.files(model)
        return wanted(self._snapshots.tree(self._read(model)))

    def info(self, model: str) -> ModelInfo:
        if ":" in model:
            return self._beside.info(model)
        name = self._read(model)
        tree = self._snapshots.tree(name)
        card = (
            self._snapshots.file(name, "README.md").read_text("utf-8", "replace")
            if "README.md" in tree
            else ""
        )
        size = sum(tree[path] for path in wanted(tree))
        return ModelInfo(model, self._snapshots.commit(name), size, _license(card))

    def sha256(self, model: str) -> str:
        if ":" in model:
            return self._beside.sha256(model)
        folder = self.fetch(model)
        weights = [folder / path for path in self.files(model) if path.endswith(".safetensors")]
        stats = {path.name: path.stat() for path in weights}
        stamps = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
        # it goes when the model is deleted from the cache
        note = folder.parents[1] / "kitchen" / f"{folder.name}.json"
        known = noted(note)
        if known is None or known["files"] != stamps:
            known = {"sha256": sha256_of_files(weights), "files": stamps}
            write(note, json.dumps(known))
        return str(known["sha256"])

    def publish(self, model: str, folder: Path, *, message: str) -> str:
        """In one commit, and none where nothing changes.

        Where the folder has weights, those at the root of the repository go which it lacks, and so
        do config.json and adapter_config.json, lest two models be mixed. Nothing in a folder of the
        repository is taken away.
        """
        if ":" in model:
            return self._beside.publish(model, folder, message=message)
        name = self._name(model)
        if name.revision or "/" not in name.repo:
            raise BackendError(f"{model!r} is no place to publish at; give OWNER/NAME")
        paths = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        if not paths:
            raise BackendError(
                f"{folder} holds no files, so there is nothing to publish as {model!r}"
            )
        self._snapshots.ask(name, lambda: self._upload(name.repo, paths, message))
        self._snapshots.forget(name.repo)
        return f"{self._snapshots.shown}/{name.repo}"

    def _upload(self, repo: str, paths: Mapping[str, Path], message: str) -> None:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        api = self._snapshots.api
        api.create_repo(repo, private=self._private, exist_ok=True)
        now = api.model_info(repo)
        there = (
            [each.rfilename for each in now.siblings or ()]
            if any(map(_WEIGHTS.fullmatch, paths))
            else []
        )
        stale = [
            path
            for path in there
            if (_WEIGHTS.fullmatch(path) or path in _CONFIGS) and path not in paths
        ]
        api.create_commit(
            repo,
            [
                *(CommitOperationAdd(path, str(file)) for path, file in paths.items()),
                *(CommitOperationDelete(path) for path in stale),
            ],
            commit_message=message,
            parent_commit=now.sha,
        )

    def _read(self, model: str) -> Name:
        name = self._name(model)
        if not name.revision and any((Path(name.repo) / file).is_file() for file in _CONFIGS):
            raise BackendError(
                f"{model!r} is a folder here, and may be a model of the Hugging Face Hub; did you "
                "mean "
                f"'path:{model}'? (else '{model}@main')"
            )
        return name

    def _name(self, model: str) -> Name:
        repo, at, revision = model.partition("@")
        if not _REPOSITORY.fullmatch(repo) or (at and not _REVISION.fullmatch(revision)):
            folder = model and Path(model).expanduser().is_dir()
            raise BackendError(
                f"{model!r} is no name of a model; "
                + (
                    f"did you mean 'path:{model}'?"
                    if folder
                    else "give NAME[@REVISION] for one of the Hugging Face Hub, packaged:NAME, path:DIR or run:ID"
                )
            )
        if "/" not in repo and self._is_packaged(repo):
            raise BackendError(f"{model!r}: did you mean 'packaged:{repo}'?")
        if importlib.util.find_spec("huggingface_hub") is None:
            raise BackendError(
                f"model {model!r} is at the Hugging Face Hub, which needs huggingface_hub: "
                f"pip install 'crucible-kitchen[hf]'; {_OFFLINE}"
            )
        return Name(repo, revision)

    def _is_packaged(self, name: str) -> bool:
        try:
            self._beside.find(f"packaged:{name}")
        except BackendError:
            return False
        return True


def _check_weights(name: Name, tree: Mapping[str, int]) -> None:
    """Raise unless there is what can be opened, before anything of it is fetched."""
    files = wanted(tree)
    if not any(path.endswith(".safetensors") for path in files):
        pickled = [path for path in tree if path.endswith(_PICKLED)]
        why = (
            f"only {pickled[0]}, and pickled weights are not opened: they can run any program"
            if pickled
            else "none"
        )
        raise BackendError(
            f"model {str(name)!r} has no weights as *.safetensors but {why}; many have them at "
            f"'{name.repo}@refs/pr/N', or convert it where you trust it and give path:DIR"
        )
    if not set(_CONFIGS) & set(files):
        raise BackendError(
            f"model {str(name)!r} has neither config.json (a model) nor adapter_config.json (a "
            "LoRA "
            "adapter); it is of another kind of program"
        )


def _license(card: str) -> str:
    head = card.split("---", 2)[1] if card.startswith("---") else ""
    found = re.search(r"^license:\s*(?:- *)?(\S+)", head, re.MULTILINE)
    return found[1].strip("'\"") if found else ""
