"""Downloads of a server's weights as PEFT adapter folders."""

from __future__ import annotations

import contextlib
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from adapters.tinker.errors import translate_error
from adapters.tinker.service import Service
from kitchen.backend.atomic_folder import atomic_folder
from kitchen.errors import BackendError

# seconds that the server keeps the exported files, if this process dies before it deletes them
EXPORT_TTL = 3600
DOWNLOAD_TIMEOUT = 60.0  # seconds without a byte


def download(service: Service, path: str, folder: Path, *, merged: bool) -> None:
    """Write the folder whole or not at all; raises BackendError if the server exports nothing."""
    if merged:
        raise BackendError(
            "a server of the Tinker API cannot merge weights into the base model: export without "
            "--merged, and then export path:FOLDER with --merged where the base model is"
        )
    try:
        with _exported(service, path) as (rest, exported), atomic_folder(folder) as part:
            for name, url in rest.get_external_weights_urls(exported).result().urls.items():
                _fetch(url, part, name)
    except Exception as error:
        raise translate_error(error) from error


@contextlib.contextmanager
def _exported(service: Service, path: str) -> Iterator[tuple[Any, str]]:
    """Yield a REST client and the path of the same weights in the format for other programs.

    Weights that were exported for this are deleted when the block ends.
    """
    rest = service.rest()
    if "/external_weights/" in path:
        yield rest, path
        return
    with service.used() as client:
        training = client.create_training_client_from_state(path).result()
        saved = training.save_weights_external("download", ttl_seconds=EXPORT_TTL).result()
        try:
            yield rest, saved.path
        finally:
            rest.delete_checkpoint_from_tinker_path(saved.path).result()


def _fetch(url: str, folder: Path, name: str) -> None:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise BackendError(f"the server names a file {name!r}, which would lie outside the folder")
    if not url.startswith(("https://", "http://")):
        raise BackendError(f"the URL that the server gives for the file {name!r} is not http(s)")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with (
        urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as response,
        (folder / name).open("wb") as file,
    ):
        shutil.copyfileobj(response, file)
