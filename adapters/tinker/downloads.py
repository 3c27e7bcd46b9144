"""Weights of a server as a folder of PEFT's."""

from __future__ import annotations

import contextlib
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from adapters.tinker.service import Service
from adapters.tinker.tickets import explained
from kitchen.backend.atomic_folder import appearing
from kitchen.errors import BackendError

# seconds that the server keeps what it made for the download, should this end before it is deleted
SHORT = 3600
PATIENCE = 60.0  # seconds without a byte


def download(service: Service, path: str, folder: Path, *, merged: bool) -> None:
    """The folder appears whole or not at all; raises BackendError where the server makes none."""
    if merged:
        raise BackendError(
            "a server of the Tinker API merges nothing into the base model: export without "
            "--merged, "
            "and then path:FOLDER with it, where the base model is"
        )
    try:
        with _external(service, path) as (rest, made), appearing(folder) as place:
            for name, url in rest.get_external_weights_urls(made).result().urls.items():
                _fetch(url, place, name)
    except Exception as error:
        raise explained(error) from error


@contextlib.contextmanager
def _external(service: Service, path: str) -> Iterator[tuple[Any, str]]:
    """The path of the same weights in a format for other programs, for as long as the block lasts."""
    rest = service.rest()
    if "/external_weights/" in path:
        yield rest, path
        return
    with service.used() as client:
        training = client.create_training_client_from_state(path).result()
        made = training.save_weights_external("download", ttl_seconds=SHORT).result().path
        try:
            yield rest, made
        finally:
            rest.delete_checkpoint_from_tinker_path(made).result()


def _fetch(url: str, place: Path, name: str) -> None:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise BackendError(f"the server names a file {name!r}, which would lie outside the folder")
    if not url.startswith(("https://", "http://")):
        raise BackendError(
            f"the server says that the file {name!r} is somewhere else than behind http or https"
        )
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer, (place / name).open("wb") as file:
        shutil.copyfileobj(answer, file)
