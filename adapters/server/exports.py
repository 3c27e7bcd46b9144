"""Files of exported weights, encrypted or not, as clients download them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters.folders import CONFIG
from adapters.server.records import ROOT, CheckpointRecord, Records
from kitchen.backend.temporary import temporary_folder
from kitchen.errors import BackendError, ConfigError
from kitchen.ports.training import CheckpointStore
from kitchen.types import Checkpoint

ENCRYPTED = f"{ROOT}/encrypted/"  # prefix of the names of encrypted files
SUFFIX = ".age"
Files = Mapping[str, bytes]  # by their path in the folder


class Exports:
    """Exports weights for other programs; those of encrypted exports are stored as files."""

    def __init__(self, training: CheckpointStore, records: Records) -> None:
        self._training = training
        self._blobs = records.blobs

    def files(self, record: CheckpointRecord, base: str) -> Files:
        """Return the files to download, by their path; `base` is the public name of the model."""
        if not record.is_encrypted:
            return self._export(record.weights, base)
        prefix = f"{record.weights.path}/"
        names = self._blobs.list(prefix)
        return {name.removeprefix(prefix): self._blobs.read(name) or b"" for name in names}

    def names(self, record: CheckpointRecord, base: str) -> Sequence[str]:
        """Return the paths of the files to download."""
        if not record.is_encrypted:
            return list(self.files(record, base))
        prefix = f"{record.weights.path}/"
        return [name.removeprefix(prefix) for name in self._blobs.list(prefix)]

    def encrypt(
        self, weights: Checkpoint, base: str, record_id: str, recipients: Sequence[Any]
    ) -> Checkpoint:
        """Store the exported files, each encrypted to all recipients; return their handle."""
        import pyrage

        stored = f"{ENCRYPTED}{record_id.replace(':', '~')}/{secrets.token_hex(4)}"
        for path, data in self._export(weights, base).items():
            encrypted: bytes = pyrage.encrypt(data, list(recipients))
            self._blobs.write(f"{stored}/{path}{SUFFIX}", encrypted)
        return Checkpoint(stored, weights.step, "weights")

    def stored(self) -> Sequence[Checkpoint]:
        """Return the handles of all encrypted exports, finished or not."""
        paths = {_folder_of(name) for name in self._blobs.list(ENCRYPTED)}
        return [Checkpoint(path, 0, "weights") for path in sorted(paths)]

    def delete(self, weights: Checkpoint) -> None:
        """Delete the files of an encrypted export."""
        for name in self._blobs.list(f"{weights.path}/"):
            self._blobs.delete(name)

    def _export(self, weights: Checkpoint, base: str) -> Files:
        with temporary_folder("server") as temporary:
            folder = temporary / "weights"
            self._training.export(weights, folder)
            _name_base(folder / CONFIG, base)
            return {
                path.relative_to(folder).as_posix(): path.read_bytes()
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }


def parse_recipients(texts: Sequence[str] | None) -> Sequence[Any]:
    """Return recipients of age encryption, which are public keys of age or SSH.

    Raises ConfigError for one that is neither, and for an empty list; BackendError without pyrage.
    """
    if texts is None:
        return ()
    if not texts:
        raise ConfigError(
            "age_encryption_recipients is empty: name a recipient, or leave it out for files that "
            "are not encrypted"
        )
    try:
        import pyrage
    except ImportError as error:
        raise BackendError(
            "age_encryption_recipients: the server lacks the package pyrage, which encrypts files: "
            "pip install 'crucible-kitchen[serve]' where it runs"
        ) from error
    kinds = (pyrage.ssh.Recipient, pyrage.x25519.Recipient)
    return [_parse_recipient(text, kinds[text.startswith("age1")], pyrage) for text in texts]


def _parse_recipient(text: str, kind: Any, pyrage: Any) -> Any:
    try:
        return kind.from_str(text.strip())
    except pyrage.RecipientError as error:
        raise ConfigError(
            f"age_encryption_recipients: {text!r} is not a recipient ({error}); give a public key "
            "of age, which begins with age1, or of SSH (ssh-ed25519 or ssh-rsa)"
        ) from error


def is_encrypted_export(weights: Checkpoint) -> bool:
    """Return whether a handle is that of files stored here."""
    return weights.path.startswith(ENCRYPTED)


def public_base_name(name: str, model: str) -> str:
    """Return the name of a base model for files that leave this machine.

    It is the client's name for it, or the name under which it is served where that is the folder of
    its tokenizer. A name `path:FOLDER` stays whole, since weights are opened by it again.
    """
    return model if Path(name).is_absolute() else name


def _folder_of(name: str) -> str:
    """Return the folder of an encrypted export: ENCRYPTED/RUN/KIND/NAME/RANDOM."""
    return "/".join(name.split("/")[: ENCRYPTED.count("/") + 4])


def _name_base(config: Path, base: str) -> None:
    """Name the base model publicly in PEFT's configuration, instead of a folder here."""
    if not config.is_file():
        return
    name, _, revision = (base, "", "") if ":" in base else base.partition("@")
    fields = {**json.loads(config.read_text()), "base_model_name_or_path": name}
    fields["revision"] = revision or None
    config.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
