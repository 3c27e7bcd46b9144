"""The Tinker service, or another server of its API, as a training client; the SDK is imported once
it is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adapters.folders import model_size
from adapters.tinker.online import models
from adapters.tinker.pointers import Pointers
from adapters.tinker.service import Service
from kitchen.backend.losses import LOSSES
from kitchen.errors import BackendError, ConfigError, check_name, did_you_mean
from kitchen.ports.blobs import BlobStore
from kitchen.ports.hub import HubClient
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.ports.training import TrainingSession
from kitchen.types import Checkpoint, Lora

OURS = frozenset(f"loss {name}" for name in LOSSES)
WHOLE = OURS | {"custom loss", "top_logprobs", "export"}
# kind of server to what it has; "loss ?": it may have more than is listed
SERVERS: Mapping[str, frozenset[str]] = {
    "tinker": WHOLE | {"loss gspo", "loss stable_reinforce", "loss ?"},
    "kitchen": WHOLE,
    # its cross-entropy cannot carry the slopes of a custom loss
    "skyrl": OURS - {"loss dro"} | {"loss dppo"},
}
HOUR = 3600  # seconds, the shortest that servers keep a checkpoint that expires
REACH = 3.0  # seconds that a server has to say what it offers


class TinkerTraining:
    """Trains and samples on a server; checkpoints stay there, and the blob store keeps where.

    The key comes from the environment variable that `key` names. Several of these may work at once,
    each on a server of its own. Raises BackendError for a key that is missing or a server that does
    not answer.
    """

    packages = ("tinker", "jinja2", "transformers")

    def __init__(
        self,
        hub: HubClient,
        blobs: BlobStore,
        *,
        base_url: str = "",  # of the server; else TINKER_BASE_URL, else the hosted service
        key: str = "TINKER_API_KEY",
        server: str = "tinker",  # its kind, which says what it has
        project: str = "",
        metadata: Mapping[str, str] | None = None,  # that the server keeps with each session
        tokenizer: str = "",  # the model whose tokenizer is used; else that which is trained
        expire_after: int = 0,  # seconds that the server keeps checkpoints; 0 is for ever
        patience: float = 10.0,  # seconds that the server has to answer at all
        away: float = 300.0,  # seconds that it may be away before the session counts as lost
    ) -> None:
        check_name("server", server, SERVERS)
        if 0 != expire_after < HOUR or patience <= 0 or away <= 0:
            raise ConfigError(
                f"expire_after is {expire_after}, and must be 0 or at least {HOUR}; patience is "
                f"{patience} and away is {away}, and must be above 0"
            )
        self._hub, self._kind, self._tokenizer, self._expire_after = (
            hub,
            server,
            tokenizer,
            expire_after,
        )
        self._pointers = Pointers(blobs)
        self._service = Service(base_url, key, project, metadata or {}, patience, away)
        self._lock, self._tokenizers = threading.Lock(), dict[str, Tokenizer]()

    @property
    def capabilities(self) -> frozenset[str]:
        # the SDK differentiates it with torch
        without_torch = set() if find_spec("torch") else {"custom loss"}
        return SERVERS[self._kind] - without_torch

    def find(self, model: str) -> None:
        """That there is a key, and a tokenizer; whether the server has the model, `online` asks."""
        self._service.check()
        self._hub.find(self._tokenizer or model)

    def online(self, model: str) -> str:
        """What the server says of a model; raises BackendError where it does not have it, or does
        not answer.
        """
        key = self._service.check()
        found = models(self._service.address, key, patience=REACH)
        if model not in found:
            raise BackendError(
                f"{self._service.address} does not serve {model!r}; {did_you_mean(model, found)}"
            )
        length = found[model]
        return f"{self._service.address} serves {model}" + (
            f", up to {length} tokens" if length else ""
        )

    def tokenizer(self, model: str) -> Tokenizer:
        """Of a folder of the hub; raises BackendError."""
        from adapters.tokenizer import fetched_tokenizer

        name = self._tokenizer or model
        with self._lock:
            if name not in self._tokenizers:
                self._tokenizers[name] = fetched_tokenizer(self._hub, name)
            return self._tokenizers[name]

    def hidden_size(self, model: str) -> int | None:
        """As a folder of the hub says, if it is there."""
        self.find(model)
        return None if self._tokenizer else model_size(self._hub, model)

    def sha256(self, model: str) -> None:
        """A server does not say; what a tinker:// path names never changes."""
        self.find(model)

    def open(self, model: str, lora: Lora) -> TrainingSession:
        """Comes back at once; what is wrong surfaces on the session's futures."""
        from adapters.tinker.session import TinkerSession

        return TinkerSession(
            self._service,
            self._pointers,
            model,
            lora,
            lambda: self.tokenizer(model),
            self._expire_after,
        )

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        """Of a base model of the server, of a checkpoint, or of weights by their tinker:// path."""
        from adapters.tinker.sampler import TinkerSampler

        def opening(client: Any) -> Any:
            path = self._pointers.path(weights) if isinstance(weights, Checkpoint) else weights
            kind = "model_path" if path.startswith("tinker://") else "base_model"
            return client.create_sampling_client(**{kind: path}).result()

        return TinkerSampler(self._service, opening)

    def export(self, weights: str | Checkpoint, folder: Path, *, merged: bool = False) -> None:
        """As a folder of PEFT's that the server makes; it merges nothing."""
        from adapters.tinker.downloads import download

        path = self._pointers.path(weights) if isinstance(weights, Checkpoint) else weights
        if not path.startswith("tinker://"):
            raise BackendError(f"{path!r} is a model as it came, so there is nothing to export")
        download(self._service, path, folder, merged=merged)

    def checkpoints(self, prefix: str = "") -> Sequence[Checkpoint]:
        return self._pointers.all(prefix)

    def delete(self, checkpoint: Checkpoint) -> None:
        """Here and on the server."""
        from adapters.tinker.session import forget

        forget(self._service, self._pointers, checkpoint)
