"""Downloads of a server's weights as PEFT adapter folders."""

from __future__ import annotations

import contextlib
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import structlog
import tinker

from adapters.tinker.answers import tinker_path
from adapters.tinker.errors import request_error, translate_error
from adapters.tinker.opening import open_from_state
from adapters.tinker.service import Service
from kitchen.backend.atomic_folder import atomic_folder
from kitchen.errors import BackendError

log = structlog.get_logger("kitchen.tinker")
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
            urls = rest.get_external_weights_urls(exported).result().urls
            if not urls:
                raise BackendError(f"{service.name} lists no files of the exported weights")
            for name, url in urls.items():
                _fetch(url, part, name, service.name)
    except Exception as error:
        raise translate_error(error, service.name) from error


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
        saved = _save_external(service, client, path)
        try:
            yield rest, saved
        finally:
            _try_delete(service, rest, saved)


def _save_external(service: Service, client: Any, path: str) -> str:
    """Return the path of exported weights, which expire if the server lets weights expire."""
    training = open_from_state(service, client, path, with_optimizer=False)
    try:
        saved = training.save_weights_external("download", ttl_seconds=EXPORT_TTL).result()
    except tinker.APIStatusError as error:
        if "ttl_seconds" not in request_error(error):
            raise
        # the refused request left a gap in the numbers of this client's requests
        training = open_from_state(service, client, path, with_optimizer=False)
        saved = training.save_weights_external("download").result()
    return tinker_path(saved.path, service.name)


def _try_delete(service: Service, rest: Any, path: str) -> None:
    """Delete exported weights; if that fails, they are left to expire, with a warning."""
    try:
        rest.delete_checkpoint_from_tinker_path(path).result()
    except Exception as error:  # noqa: BLE001 the download is whole, and must not be lost
        log.warning(
            "exported weights could not be deleted from the server",
            path=path,
            why=str(translate_error(error, service.name)),
        )


def _fetch(url: str, folder: Path, name: str, server: str) -> None:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise BackendError(f"{server} names a file {name!r}, which would lie outside the folder")
    if not url.startswith(("https://", "http://")):
        raise BackendError(f"the URL that {server} gives for the file {name!r} is not http(s)")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with (
        urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as response,
        (folder / name).open("wb") as file,
    ):
        shutil.copyfileobj(response, file)
