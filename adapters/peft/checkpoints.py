"""Checkpoints in a blob store: LoRA weights or a whole model, and a manifest written last.

The manifest has the digest of each file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from tempfile import gettempdir
from types import MappingProxyType
from typing import Any, Literal

import torch

from adapters.folders import CONFIG, is_tokenizer_file, tokenizer_files
from adapters.peft.adapter_folder import WEIGHTS
from adapters.peft.model.base_model import BaseModel
from adapters.peft.model.full_weights import FullModel
from adapters.peft.model.lora import LoraAdapter, lora_alpha
from adapters.progress_bars import progress_bars_disabled
from adapters.tokenizer import FolderTokenizer, load_tokenizer
from kitchen.backend.folder_files import check_inside
from kitchen.backend.temporary import MARKER, temporary_folder
from kitchen.errors import BackendError, ConfigError, CorruptCheckpoint, RunFailed
from kitchen.ports.blobs import BlobStore, blob_name
from kitchen.safe_text import read_json
from kitchen.types import Checkpoint, Lora, Trainable

MANIFEST = "checkpoint.json"
OPTIMISER = "optimizer.safetensors"
MASTERS = "masters.safetensors"  # float32 copies of weights that the model has in bfloat16
MANIFEST_TYPES: Mapping[str, Any] = MappingProxyType(
    {
        "files": dict,
        "lora": dict | None,  # null if all weights of the model were trained
        "calls": int,
        "model": str,
        "model_sha256": str,
    }
)
MAX_FILE = 5_000_000_000  # bytes; larger sets of tensors are saved as several files
# errors of a folder that is full, or cannot be written to
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_FILE = re.compile(
    r"(adapter_)?(config|generation_config|checkpoint|model\.safetensors\.index)\.json"
    r"|(adapter_model|model|masters|optimizer)(-\d+-of-\d+)?\.safetensors"
)

Kind = Literal["training", "weights"]


@dataclass(frozen=True)
class SavedCheckpoint:
    """The contents of a checkpoint; the digest of each file here has been checked."""

    checkpoint: Checkpoint
    model: str
    model_sha256: str
    lora: Lora | None  # None if all weights of the model were trained
    calls: int  # of forward_backward before it was saved
    files: Mapping[str, bytes]

    def tensors(self, file: str) -> dict[str, torch.Tensor]:
        """Return the tensors of a safetensors file, which may have been saved as several."""
        from safetensors.torch import load

        tensors = dict[str, torch.Tensor]()
        for name in self.files:
            if _whole_name(name) == file:
                tensors |= load(self.files[name])
        return tensors

    def has(self, file: str) -> bool:
        """Return whether there is such a file, whole or in parts."""
        return file in map(_whole_name, self.files)

    @contextmanager
    def model_folder(self) -> Iterator[Path]:
        """A temporary folder with the model, as transformers opens it."""
        with _temporary_folder(self.write_model) as folder:
            yield folder

    def tokenizer(self, folder: Path) -> FolderTokenizer:
        """Open the tokenizer of a whole model in the folder of `model_folder`."""
        path, reason = self.checkpoint.path, ""
        try:
            if tokenizer_files(folder):
                return load_tokenizer(folder).named(path)
        except BackendError as error:
            first_line = str(error).partition("\n")[0].rstrip(".: ")
            reason = " (" + first_line.replace(str(folder), path) + ")"
        raise BackendError(
            f"checkpoint {path!r} has no complete tokenizer{reason}. The folder of {self.model!r} "
            "had none when the checkpoint was saved, or an older version saved only some of its "
            "files. To repair it, export the checkpoint, copy the tokenizer's files into the "
            "exported folder, and use that folder (path:FOLDER)"
        )

    def write_model(self, folder: Path) -> None:
        """Write the files of the model and its tokenizer into a folder."""
        for name in self.files:
            if _whole_name(name) not in (MASTERS, OPTIMISER):
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(self.files[name])


def write_checkpoint(
    blobs: BlobStore,
    name: str,
    files: Iterable[tuple[str, bytes]],
    metadata: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> Checkpoint:
    """Write a checkpoint; an unfinished one under its name is overwritten.

    A finished one that is to be overwritten stays until the first file is ready to be written.
    Raises ConfigError for an invalid name, and for one in use unless `overwrite` is set.
    """
    try:
        blob_name(name)
    except ValueError as error:
        raise ConfigError(f"checkpoint name: {error}") from error
    exists = blobs.read(f"{name}/{MANIFEST}") is not None
    if exists and not overwrite:
        raise ConfigError(
            f"checkpoint {name!r} exists already; choose another name, or delete it first"
        )
    digests, rest = {}, iter(files)
    first = list(islice(rest, 1))  # the whole model is in a temporary folder by then
    if exists:
        _delete(blobs, name)
    for file, data in chain(first, rest):
        blobs.write(f"{name}/{file}", data)
        digests[file] = hashlib.sha256(data).hexdigest()
    contents = {"format": 1, **metadata, "files": digests}
    manifest = json.dumps(contents, indent=2, sort_keys=True).encode()
    blobs.write(f"{name}/{MANIFEST}", manifest)
    sha256 = hashlib.sha256(manifest).hexdigest()
    return Checkpoint(name, metadata["step"], metadata["kind"], sha256)


def read_checkpoint(
    blobs: BlobStore, checkpoint: Checkpoint, *, weights_only: bool = False
) -> SavedCheckpoint:
    """Read a checkpoint and check every digest; `weights_only` leaves out the optimiser's files.

    Raises CorruptCheckpoint, which names the blob.
    """
    without = (MASTERS, OPTIMISER) if weights_only else ()
    return _read(blobs, checkpoint, lambda file: _whole_name(file) not in without)


def read_tokenizer(blobs: BlobStore, checkpoint: Checkpoint) -> FolderTokenizer | None:
    """Open the tokenizer of a checkpoint without reading its weights; None if it has LoRA weights.

    Raises CorruptCheckpoint, and BackendError if a whole model has no tokenizer.
    """
    saved = _read(blobs, checkpoint, lambda file: is_tokenizer_file(file) or file == "config.json")
    if saved.lora is not None:
        return None
    with saved.model_folder() as folder:
        return saved.tokenizer(folder)


def _read(
    blobs: BlobStore, checkpoint: Checkpoint, is_read: Callable[[str], bool]
) -> SavedCheckpoint:
    """Read those files of a checkpoint whose names `is_read` selects."""
    handle, manifest = _read_manifest(blobs, checkpoint.path)
    if checkpoint.sha256 not in ("", handle.sha256):
        raise CorruptCheckpoint(
            f"{checkpoint.path}/{MANIFEST} is not the one that was saved: its SHA-256 is "
            f"{handle.sha256[:16]}…, not {checkpoint.sha256[:16]}…; use an earlier checkpoint"
        )
    lora = manifest["lora"]
    read = _read_all if lora else _CheckedFiles
    digests = {file: digest for file, digest in manifest["files"].items() if is_read(file)}
    files = read(blobs, checkpoint.path, digests)
    return SavedCheckpoint(
        handle,
        manifest["model"],
        manifest["model_sha256"],
        Lora(**lora) if lora else None,
        manifest["calls"],
        files,
    )


def list_checkpoints(blobs: BlobStore, prefix: str) -> Sequence[Checkpoint]:
    """Return the finished checkpoints whose names begin with a prefix."""
    end = f"/{MANIFEST}"
    names = [name.removesuffix(end) for name in blobs.list(prefix) if name.endswith(end)]
    return [_read_manifest(blobs, name)[0] for name in names]


def delete_checkpoint(blobs: BlobStore, checkpoint: Checkpoint) -> None:
    """Delete a checkpoint, finished or not."""
    _delete(blobs, checkpoint.path)


def weight_files(
    weights: LoraAdapter | FullModel, base: BaseModel, max_file: int = MAX_FILE
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of LoRA weights as PEFT writes them, or of a model as transformers does.

    A model comes with the tokenizer of its base, so that the base is not needed any more.
    """
    from safetensors.torch import save

    if isinstance(weights, LoraAdapter):
        yield WEIGHTS, save(weights.tensors(), {"format": "pt"})
        yield CONFIG, _peft_config(weights, base.name)
        return

    def write(folder: Path) -> None:
        with progress_bars_disabled():
            base.model.save_pretrained(folder, max_shard_size=max_file)

    with _temporary_folder(write) as folder:
        copied = tokenizer_files(base.folder)
        check_inside(base.folder, copied.values())
        # the base's generation_config.json replaces the one that transformers wrote
        paths = {path.name: path for path in folder.iterdir()} | copied
        for name in sorted(paths.keys() - {MARKER}):
            yield name, paths[name].read_bytes()


@contextmanager
def _temporary_folder(write: Callable[[Path], object]) -> Iterator[Path]:
    """A temporary folder into which `write` wrote a model; raises RunFailed if it has no space.

    It deletes the folders that killed processes left, each of which is as large as a model.
    """
    from safetensors import SafetensorError

    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_folder("model"))
            write(folder)
        except (OSError, SafetensorError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_SPACE:
                raise  # of the blob store, which is read as well
            raise RunFailed(
                f"{gettempdir()}: a whole model cannot be written to the folder for temporary "
                f"files ({error}); free space for the model there, or name a folder on a larger "
                "disk in the environment variable TMPDIR"
            ) from error
        yield folder


def training_files(
    weights: LoraAdapter | FullModel,
    optimiser: Mapping[str, torch.Tensor],
    max_file: int = MAX_FILE,
) -> Iterator[tuple[str, bytes]]:
    """Yield the files that only a training session needs: master copies and optimiser state."""
    if isinstance(weights, FullModel) and weights.rounded:
        yield from _tensor_files(MASTERS, weights.rounded, max_file)
    yield from _tensor_files(OPTIMISER, optimiser, max_file)


def checkpoint_metadata(
    kind: Kind, step: int, calls: int, model: str, model_sha256: str, trainable: Trainable
) -> dict[str, Any]:
    """Return the entries of a manifest besides its files."""
    return {
        "kind": kind,
        "step": step,
        "calls": calls,
        "model": model,
        "model_sha256": model_sha256,
        "lora": asdict(trainable) if isinstance(trainable, Lora) else None,
    }


def _peft_config(adapter: LoraAdapter, model: str) -> bytes:
    from peft import LoraConfig, TaskType

    build: Any = LoraConfig  # its type hints demand an integer alpha, but PEFT accepts any number
    config = build(
        r=adapter.lora.rank,
        lora_alpha=lora_alpha(adapter.lora),
        use_rslora=adapter.lora.kind == "rslora",
        use_dora=adapter.lora.kind == "dora",
        lora_dropout=adapter.lora.dropout,
        target_modules=adapter.targets,
        base_model_name_or_path=model,
        task_type=TaskType.CAUSAL_LM,
        inference_mode=True,
        fan_in_fan_out=adapter.transposed,
    ).to_dict()
    plain = {
        key: sorted(value) if isinstance(value, set) else value for key, value in config.items()
    }
    return json.dumps(plain, indent=2, sort_keys=True).encode()


def _read_manifest(blobs: BlobStore, path: str) -> tuple[Checkpoint, Mapping[str, Any]]:
    data = blobs.read(f"{path}/{MANIFEST}")
    if data is None:
        raise CorruptCheckpoint(
            f"{path}/{MANIFEST} is missing: the checkpoint was deleted or never finished; "
            "use an earlier one"
        )
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        manifest: Mapping[str, Any] = read_json(data)
        handle = Checkpoint(path, manifest["step"], manifest["kind"], sha256)
        for key, expected in MANIFEST_TYPES.items():
            if not isinstance(manifest[key], expected):
                raise TypeError(f"{key} is {manifest[key]!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpoint(
            f"{path}/{MANIFEST} is truncated or overwritten ({error}); use an earlier one"
        ) from error
    return handle, manifest


def _read_checked(blobs: BlobStore, name: str, digest: str) -> bytes:
    data = blobs.read(name)
    if data is None:
        raise CorruptCheckpoint(f"{name} is missing; use an earlier checkpoint")
    actual = hashlib.sha256(data).hexdigest()
    if actual != digest:
        raise CorruptCheckpoint(
            f"{name} is not what was saved: {len(data):,} bytes with SHA-256 {actual[:16]}…, not "
            f"{digest[:16]}…; use an earlier checkpoint"
        )
    return data


def _delete(blobs: BlobStore, path: str) -> None:
    """Delete the manifest first, so that a half-deleted checkpoint counts as none."""
    blobs.delete(f"{path}/{MANIFEST}")
    for name in blobs.list(f"{path}/"):
        if _is_written_here(name.removeprefix(f"{path}/")):
            blobs.delete(name)


def _is_written_here(file: str) -> bool:
    return is_tokenizer_file(file) or _FILE.fullmatch(file) is not None


def _read_all(blobs: BlobStore, path: str, digests: Mapping[str, str]) -> Mapping[str, bytes]:
    return {
        file: _read_checked(blobs, f"{path}/{file}", digest) for file, digest in digests.items()
    }


class _CheckedFiles(Mapping[str, bytes]):
    """Files that are read one at a time, because all of them may not fit in memory.

    Every digest is checked at first, and again when a file is read.
    """

    def __init__(self, blobs: BlobStore, path: str, digests: Mapping[str, str]) -> None:
        self._blobs, self._path, self._digests = blobs, path, digests
        for file in self:
            self[file]

    def __getitem__(self, file: str) -> bytes:
        return _read_checked(self._blobs, f"{self._path}/{file}", self._digests[file])

    def __iter__(self) -> Iterator[str]:
        return iter(self._digests)

    def __len__(self) -> int:
        return len(self._digests)


def _tensor_files(
    file: str, tensors: Mapping[str, torch.Tensor], max_file: int
) -> Iterator[tuple[str, bytes]]:
    """Yield tensors as one safetensors file, or as several named NAME-00001-of-00003."""
    from safetensors.torch import save

    parts, size = list[dict[str, torch.Tensor]]([{}]), 0
    for name, tensor in tensors.items():
        size += tensor.nbytes
        if size > max_file and parts[-1]:
            parts.append({})
            size = tensor.nbytes
        parts[-1][name] = tensor
    stem, _, suffix = file.rpartition(".")
    for number, part in enumerate(parts, 1):
        name = file if len(parts) == 1 else f"{stem}-{number:05}-of-{len(parts):05}.{suffix}"
        yield name, save({key: value.detach().cpu().contiguous() for key, value in part.items()})


def _whole_name(file: str) -> str:
    """Return the name of the file that this one is, or is a part of."""
    return re.sub(r"-\d+-of-\d+(?=\.)", "", file)
