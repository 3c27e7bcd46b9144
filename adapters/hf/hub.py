"""Models of the Hugging Face Hub, fetched and published."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from adapters.hf.cache import read_note, write
from adapters.hf.model_repos import ModelName, ModelRepos, needed_files
from kitchen.backend.atomic_folder import sha256_of_files
from kitchen.backend.edited_files import is_protected, warn_of_kept, was_edited
from kitchen.backend.folder_files import files_inside
from kitchen.errors import BackendError
from kitchen.ports import HubClient, ModelInfo

_REPOSITORY = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)\w[\w./+-]*", re.ASCII)
_WEIGHTS = re.compile(r"[^/]+\.safetensors(\.index\.json)?")
_CONFIGS = ("config.json", "adapter_config.json")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
_OFFLINE_HINT = "without a network, packaged:NAME, path:DIR and cached models work"


class HfHub:
    """Models of the Hugging Face Hub as `NAME[@REVISION]`.

    Names with a kind (packaged:, path:) go to the `wrapped` hub. Models are stored
    in the cache of `huggingface_hub`, which other programs share. The token is that of HF_TOKEN, or
    of `hf auth login`. Raises BackendError for an unknown model or an unreachable hub, ApiError for
    a request that the hub rejects.
    """

    over = "local"
    packages: tuple[str, ...] = ()
    lazily = ("huggingface_hub",)

    def __init__(
        self,
        wrapped: HubClient,
        *,
        endpoint: str = "",  # of the hub; else HF_ENDPOINT, else https://huggingface.co
        cache: str = "",  # folder; else HF_HUB_CACHE, else HF_HOME/hub
        # seconds without an answer, and seconds of answers that the hub is busy or broken
        timeout: float = 10.0,
        private: bool = True,  # visibility of repositories that publishing creates
    ) -> None:
        self._wrapped = wrapped
        self._private = private
        self._repos = ModelRepos(endpoint.rstrip("/"), cache, timeout, _OFFLINE_HINT)

    def find(self, model: str) -> None:
        if ":" in model:
            self._wrapped.find(model)
        else:
            self._readable_name(model)

    def online(self, model: str) -> str:
        """Ask the hub for a model that it has, and return what it reports.

        Raises BackendError for an unknown model, one that cannot be opened, or an unreachable hub.
        """
        name = self._readable_name(model)
        tree = self._repos.tree(name)
        _check_weights(name, tree)
        info = self.info(model)
        megabytes = sum(tree[path] for path in needed_files(tree)) / 1e6
        license_ = f", licence {info.license}" if info.license else ""
        return (
            f"{self._repos.shown_host} has {model}: commit {self._repos.commit(name)[:12]}, "
            f"{megabytes:,.0f} MB{license_}"
        )

    def fetch(self, model: str) -> Path:
        if ":" in model:
            return self._wrapped.fetch(model)
        name = self._readable_name(model)
        _check_weights(name, self._repos.tree(name))
        return self._repos.fetch(name)

    def file(self, model: str, path: str) -> Path:
        if ":" in model:
            return self._wrapped.file(model, path)
        return self._repos.file(self._readable_name(model), path)

    def files(self, model: str) -> Sequence[str]:
        if ":" in model:
            return self._wrapped.files(model)
        return needed_files(self._repos.tree(self._readable_name(model)))

    def info(self, model: str) -> ModelInfo:
        if ":" in model:
            return self._wrapped.info(model)
        name = self._readable_name(model)
        tree = self._repos.tree(name)
        card = ""
        if "README.md" in tree:
            card = self._repos.file(name, "README.md").read_text("utf-8", "replace")
        size = sum(tree[path] for path in needed_files(tree))
        return ModelInfo(model, self._repos.commit(name), size, _license(card))

    def sha256(self, model: str) -> str:
        if ":" in model:
            return self._wrapped.sha256(model)
        folder = self.fetch(model)
        weights = [folder / path for path in self.files(model) if path.endswith(".safetensors")]
        stats = {path.name: path.stat() for path in weights}
        stamps = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
        # the note is deleted from the cache with the model
        note = folder.parents[1] / "kitchen" / f"{folder.name}.json"
        known = read_note(note)
        if known is None or known["files"] != stamps:
            known = {"sha256": sha256_of_files(weights), "files": stamps}
            write(note, json.dumps(known))
        return str(known["sha256"])

    def publish(self, model: str, folder: Path, *, message: str, replace_card: bool = False) -> str:
        """Publish a folder in one commit, or without a commit if nothing changes.

        If the folder has weights, then weights, config.json and adapter_config.json that the
        repository has at its root but the folder lacks are deleted, so that two models are not
        mixed. Files in subfolders of the repository are never deleted, and a card or licence that
        somebody edited there is kept, unless `replace_card` is set.
        """
        if ":" in model:
            return self._wrapped.publish(model, folder, message=message, replace_card=replace_card)
        name = self._name(model)
        if name.revision or "/" not in name.repo:
            raise BackendError(f"cannot publish as {model!r}; give OWNER/NAME")
        paths = {path.relative_to(folder).as_posix(): path for path in files_inside(folder)}
        if not paths:
            raise BackendError(
                f"{folder} contains no files, so there is nothing to publish as {model!r}"
            )
        upload = partial(self._upload, name.repo, paths, message, replace_card)
        self._repos.call(name, upload, publishes=True)
        self._repos.forget(name.repo)
        return f"{self._repos.shown_host}/{name.repo}"

    def _upload(
        self, repo: str, paths: Mapping[str, Path], message: str, replace_card: bool
    ) -> None:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        api = self._repos.api
        api.create_repo(repo, private=self._private, exist_ok=True)
        current = api.model_info(repo)
        published = [file.rfilename for file in current.siblings or ()]
        stale = []
        if any(map(_WEIGHTS.fullmatch, paths)):
            stale = [
                path
                for path in published
                if (_WEIGHTS.fullmatch(path) or path in _CONFIGS) and path not in paths
            ]
        kept: list[str] = []
        if not replace_card:
            at = ModelName(repo, str(current.sha))
            shared = (path for path in published if path in paths)
            kept = [path for path in shared if self._is_edited(at, path, paths[path])]
        api.create_commit(
            repo,
            [
                *(
                    CommitOperationAdd(path, str(file))
                    for path, file in paths.items()
                    if path not in kept
                ),
                *(CommitOperationDelete(path) for path in stale),
            ],
            commit_message=message,
            parent_commit=current.sha,
        )
        warn_of_kept(repo, kept)

    def _is_edited(self, name: ModelName, path: str, new: Path) -> bool:
        if not is_protected(path):
            return False
        return was_edited(path, self._repos.file(name, path).read_bytes(), new.read_bytes())

    def _readable_name(self, model: str) -> ModelName:
        """Parse the name of a model to read; raises BackendError for a folder without `path:`."""
        name = self._name(model)
        if not name.revision and any(os.path.isfile(f"{name.repo}/{file}") for file in _CONFIGS):
            raise BackendError(
                f"{model!r} is a folder on this disk, and may also be a model of the Hugging Face "
                f"Hub; did you mean 'path:{model}'? For the model of the hub, give '{model}@main'"
            )
        return name

    def _name(self, model: str) -> ModelName:
        repo, at, revision = model.partition("@")
        if not _REPOSITORY.fullmatch(repo) or (at and not _REVISION.fullmatch(revision)):
            raise _bad_name(model)
        if "/" not in repo and self._is_packaged(repo):
            raise BackendError(f"{model!r}: did you mean 'packaged:{repo}'?")
        if importlib.util.find_spec("huggingface_hub") is None:
            raise BackendError(
                f"model {model!r} is at the Hugging Face Hub, which needs huggingface_hub: "
                f"pip install 'crucible-kitchen[hf]'; {_OFFLINE_HINT}"
            )
        return ModelName(repo, revision)

    def _is_packaged(self, name: str) -> bool:
        try:
            self._wrapped.find(f"packaged:{name}")
        except BackendError:
            return False
        return True


def _bad_name(model: str) -> BackendError:
    is_folder = model and os.path.isdir(os.path.expanduser(model))
    if is_folder:
        return BackendError(f"{model!r} is not the name of a model; did you mean 'path:{model}'?")
    return BackendError(
        f"{model!r} is not the name of a model; give NAME[@REVISION] for one of the Hugging Face "
        "Hub, packaged:NAME, path:DIR or run:ID"
    )


def _check_weights(name: ModelName, tree: Mapping[str, int]) -> None:
    """Raise BackendError unless the model can be opened, before anything of it is fetched."""
    files = needed_files(tree)
    if not any(path.endswith(".safetensors") for path in files):
        pickled = [path for path in tree if path.endswith(_PICKLED)]
        reason = ""
        if pickled:
            reason = (
                f", only {pickled[0]}, and pickled weights are not opened, because they can run "
                "arbitrary code"
            )
        raise BackendError(
            f"model {str(name)!r} has no *.safetensors{reason}; many models have them at "
            f"'{name.repo}@refs/pr/N', or convert it where you trust it and give path:DIR"
        )
    if not set(_CONFIGS) & set(files):
        raise BackendError(
            f"model {str(name)!r} has neither config.json (a model) nor adapter_config.json (a "
            "LoRA adapter); it is meant for other programs"
        )


def _license(card: str) -> str:
    """Return the licence in the front matter of a model card."""
    head = card.split("---", 2)[1] if card.startswith("---") else ""
    match = re.search(r"^license:\s*(?:- *)?(\S+)", head, re.MULTILINE)
    return match[1].strip("'\"") if match else ""
