"""The Tinker service, or another server of its API, as a training client.

The SDK is imported on first use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from adapters.folders import hidden_size, is_adapter
from adapters.tinker.checkpoint_index import CheckpointIndex
from adapters.tinker.http_client import check_health, models
from adapters.tinker.probe_store import store_report, stored_report
from adapters.tinker.replicas import Copy, Replica, ReplicatedSampler
from adapters.tinker.server_status import server_status
from adapters.tinker.service import Service
from adapters.tinker.skyrl.gateway import SkyRLGateway
from kitchen.backend.hedging.hedged import HedgeCounts, Hedging
from kitchen.backend.losses import LOSSES
from kitchen.backend.needs import needed_capabilities
from kitchen.backend.probe_report import Finding, ProbeReport
from kitchen.backend.trainable import require_plain_lora
from kitchen.errors import BackendError, ConfigError, check_name, did_you_mean
from kitchen.ports.blobs import BlobStore
from kitchen.ports.hub import HubClient
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.ports.training import TrainingSession
from kitchen.types import Checkpoint, Lora, Trainable

log = structlog.get_logger("kitchen.tinker")

NAMED_LOSSES = frozenset(f"loss {name}" for name in LOSSES)
ALL_CAPABILITIES = NAMED_LOSSES | {
    "custom loss",
    "export",
    "grad_clip_norm",
    "lora_targets",
    "policy_lag",
    "prompt_logprobs",
    "top_logprobs",
    "topk_targets",
}
_NOT_IN_THE_API = frozenset({"full_weights", "rslora", "dora"})  # no request could ask for them
LOSS = "loss "  # prefix of the capabilities that are losses
FROZEN_BASE = "frozen base model"  # without it, log-probabilities of reference models are wrong
UNLISTED_LOSSES = f"{LOSS}?"  # the server may have more losses than are listed
# capabilities by kind of server
SERVER_CAPABILITIES: Mapping[str, frozenset[str]] = {
    "tinker": ALL_CAPABILITIES | {"loss stable_reinforce", UNLISTED_LOSSES},
    "kitchen": ALL_CAPABILITIES,
    "skyrl": NAMED_LOSSES - {"loss dro", "loss gspo"}
    | {"custom loss", "prompt_logprobs", "export"},
}
MIN_EXPIRY = 3600  # seconds; servers accept no shorter time to live
REPLICA_AWAY = 20.0  # seconds without a healthy answer until a replica's requests go elsewhere
ONLINE_TIMEOUT = 3.0  # seconds that a server has to list its models


class TinkerTraining:
    """Trains and samples on a server; checkpoints stay there, and the blob store indexes them.

    The key comes from the environment variable that `key` names. Several clients may be in use at
    once, each with a different server. Raises BackendError for a key that is missing or a server
    that does not answer.
    """

    packages = ("tinker", "jinja2", "transformers")
    server_status = staticmethod(server_status)  # for `kitchen doctor`

    def __init__(
        self,
        hub: HubClient,
        blobs: BlobStore,
        *,
        # of the server; else TINKER_BASE_URL, else the hosted service; of several, the first trains
        base_url: str | list[str] = "",
        key: str = "TINKER_API_KEY",  # environment variable that holds the API key
        server: str = "tinker",  # kind of server, which decides its capabilities
        project: str = "",  # project to which the server assigns the sessions
        metadata: Mapping[str, str] | None = None,  # stored by the server with each session
        tokenizer: str = "",  # model whose tokenizer is used; else that of the trained model
        expire_after: int = 0,  # seconds that the server keeps checkpoints; 0: no expiry
        patience: float = 10.0,  # timeout of a health check, in seconds
        away: float = 300.0,  # seconds without a healthy answer until a session is lost
        # when a late request is sent again: percentile:0.95, fixed:2.0, adaptive; null for never
        hedge: str | None = None,
        hedge_extra: float | None = None,  # largest share of such extra requests; null for 0.05
    ) -> None:
        _check_settings(server, expire_after, patience, away)
        self._hedging = Hedging.from_settings("training.hedge", hedge, hedge_extra)
        self._hub = hub
        self._server_kind = server
        self._tokenizer_model = tokenizer
        self._expire_after = expire_after
        self._checkpoints = CheckpointIndex(blobs)
        first, *others = _server_urls(base_url, server)
        gateway = SkyRLGateway() if server == "skyrl" else None

        def new_service(url: str, max_outage: float) -> Service:
            return Service(url, key, project, metadata or {}, patience, max_outage, gateway)

        self._new_service = partial(new_service, first, away)
        self._service = self._new_service()
        replicas = [Replica(new_service(url, min(away, REPLICA_AWAY))) for url in others]
        self._replicas = [Replica(self._service), *replicas] if others else []
        self._lock = threading.Lock()
        self._tokenizers = dict[str, Tokenizer]()

    @property
    def capabilities(self) -> frozenset[str]:
        """The features that a probe found, or those of servers of this kind without one."""
        assumed = SERVER_CAPABILITIES[self._server_kind]
        if (report := self._report()) is not None:
            absent = {finding.feature for finding in report.lacking}
            if FROZEN_BASE in absent:
                absent.add("prompt_logprobs")
            assumed = assumed.union(report.present) - absent - {UNLISTED_LOSSES}
        return assumed

    @property
    def hedge_counts(self) -> HedgeCounts | None:
        """The requests for samples so far, and the extra ones; None without the setting `hedge`."""
        return None if self._hedging is None else self._hedging.counts

    def capabilities_source(self) -> str:
        """Return how the capabilities are known, for people."""
        address = self._service.name
        if (report := self._report()) is not None:
            return f"features of {address}: as probed on {report.when}, with {report.model}"
        return (
            f"features of {address}: those of servers of the kind {self._server_kind!r} are "
            "assumed; --online tries them"
        )

    def why_lacking(self, capability: str) -> str:
        """Return the end of a sentence on a capability that is absent: which server lacks it."""
        if capability in _NOT_IN_THE_API:
            return "no server of Tinker's API trains"
        losses = ", ".join(sorted(_losses(self.capabilities)))
        alternatives = f"; it has {losses}" if capability.startswith(LOSS) else ""
        address = self._service.name
        if (report := self._report()) is None:
            return (
                f"servers of the kind {self._server_kind!r}, such as {address}, are assumed to "
                f"lack{alternatives} (`kitchen check --online` tries the features of the server)"
            )
        tried = capability in {finding.feature for finding in report.findings}
        lacks = "lacks" if tried else "was not tried for"
        if capability == "prompt_logprobs" and capability in report.present:
            lacks += " for a reference, as training changes the samples of its base model"
        return (
            f"{address} {lacks}{alternatives} (probed on {report.when}; `kitchen check --online` "
            "probes it again)"
        )

    def _report(self) -> ProbeReport | None:
        return stored_report(self._service.address, self._server_kind)

    def find(self, model: str) -> None:
        """Check that there is a key and a tokenizer; `online` asks the server for the model."""
        self._service.read_key()
        if model.startswith("path:"):
            _check_not_an_adapter(model)
        self._hub.find(self._tokenizer_model or model)

    def online(self, model: str) -> str:
        """Ask each server for a model, and return what they report.

        Raises BackendError if one does not serve the model, is not healthy or does not answer.
        """
        services = [replica.service for replica in self._replicas] or [self._service]
        return "\n".join(_ask_for(model, service) for service in services)

    def probe(
        self,
        model: str,
        lora: Lora,
        needs: Sequence[str],
        on_finding: Callable[[Finding], None] = lambda finding: None,
    ) -> ProbeReport:
        """Try the features of the server, in a session that ends with the probe; store the report.

        Losses among `needs`, which are capabilities, are tried as well. Raises BackendError if the
        server is away, rejects the key or cannot train the model.
        """
        from adapters.tinker.probe import Probe

        earlier = self._report()
        features = [finding.feature for finding in earlier.findings] if earlier else []
        losses = _losses([*SERVER_CAPABILITIES[self._server_kind], *features, *needs])
        probe = Probe(
            self._new_service(), model, lora.rank, list(dict.fromkeys((*LOSSES, *sorted(losses))))
        )
        report = probe.run(on_finding)
        try:
            store_report(report, self._service.address, self._server_kind)
        except OSError as error:
            log.warning("the report is not stored, so other commands ignore it", why=str(error))
        return report

    def tokenizer(self, model: str) -> Tokenizer:
        """Return the tokenizer, fetched from the hub; raises BackendError."""
        from adapters.tokenizer import fetch_tokenizer

        name = self._tokenizer_model or model
        with self._lock:
            if name not in self._tokenizers:
                self._tokenizers[name] = fetch_tokenizer(self._hub, name)
            return self._tokenizers[name]

    def hidden_size(self, model: str) -> int | None:
        """Return the hidden size in the model's configuration on the hub; None if unknown."""
        self.find(model)
        return None if self._tokenizer_model else hidden_size(self._hub, model)

    def lora(self, model: str) -> None:
        """Return None: a server opens no adapter of this machine."""
        self.find(model)

    def notes(self, model: str, trainable: Trainable) -> Sequence[tuple[str, str]]:
        """Return nothing: a server does not report which layers it trains."""
        self.find(model)
        return ()

    def sha256(self, model: str) -> None:
        """Return None: a server reports no digest, and a tinker:// path never changes."""
        self.find(model)

    def open(self, model: str, trainable: Trainable) -> TrainingSession:
        """Open a session without waiting; errors surface on its futures.

        Raises ConfigError for weights other than plain LoRA, which servers do not train.
        """
        from adapters.tinker.needed_features import NeededFeatures
        from adapters.tinker.session import TinkerSession

        lora = require_plain_lora(trainable, "a Tinker server")
        needed = NeededFeatures(self._service, needed_capabilities(), _losses(self.capabilities))
        return TinkerSession(
            self._service,
            self._checkpoints,
            model,
            lora,
            lambda: self.tokenizer(model),
            self._expire_after,
            needed.check,
            self._replicas,
            self._hedging,
            discards_gradients=self._server_kind == "kitchen",
        )

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        """Open a sampler of a base model, a checkpoint, or weights by their tinker:// path."""
        from adapters.tinker.opening import open_replica, open_sampler
        from adapters.tinker.sampler import TinkerSampler, hedged

        def open_on(service: Service, client: Any) -> Any:
            if service is self._service:
                return open_sampler(service, client, self._path(weights))
            return open_replica(service, client, self._path(weights), self._service)

        def sampler_on(service: Service) -> TinkerSampler:
            return TinkerSampler(service, partial(open_on, service))

        # checkpoints count as one model, as their base model is not known here
        model = weights if isinstance(weights, str) and not _is_path(weights) else ""
        if not self._replicas:
            return hedged(sampler_on(self._service), self._hedging, model)
        copies = [Copy(replica, partial(sampler_on, replica.service)) for replica in self._replicas]
        return ReplicatedSampler(copies, self._hedging, model)

    def export(self, weights: str | Checkpoint, folder: Path, *, merged: bool = False) -> None:
        """Download weights as a PEFT folder that the server writes; it cannot merge them."""
        from adapters.tinker.downloads import download

        path = self._path(weights)
        if not _is_path(path):
            raise BackendError(f"{path!r} is a base model, so there is nothing to export")
        download(self._service, path, folder, merged=merged)

    def checkpoints(self, prefix: str = "") -> Sequence[Checkpoint]:
        return self._checkpoints.all(prefix)

    def delete(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint here and on the server."""
        from adapters.tinker.session import delete_checkpoint

        delete_checkpoint(self._service, self._checkpoints, checkpoint)

    def _path(self, weights: str | Checkpoint) -> str:
        if isinstance(weights, Checkpoint):
            return self._checkpoints.path(weights)
        return weights


def _check_settings(server: str, expire_after: int, patience: float, away: float) -> None:
    """Raise ConfigError for a value that cannot be used."""
    check_name("server", server, SERVER_CAPABILITIES)
    if 0 != expire_after < MIN_EXPIRY:
        raise ConfigError(f"expire_after is {expire_after}, and must be 0 or at least {MIN_EXPIRY}")
    if patience <= 0 or away <= 0:
        raise ConfigError(f"patience is {patience} and away is {away}; both must be above 0")


def _is_path(weights: str) -> bool:
    return weights.startswith("tinker://")


def _ask_for(model: str, service: Service) -> str:
    key = service.read_key()
    check_health(service.address, key, timeout=ONLINE_TIMEOUT)
    served = models(service.address, key, timeout=ONLINE_TIMEOUT)
    if model not in served:
        raise BackendError(
            f"{service.name} does not serve {model!r}; {did_you_mean(model, served)}"
        )
    limit = f", up to {served[model]} tokens" if served[model] else ""
    return f"{service.name} serves {model}{limit}"


def _server_urls(base_url: str | list[str], server: str) -> Sequence[str]:
    """Return the URLs of the servers; raises ConfigError if they cannot share their weights."""
    urls = [base_url] if isinstance(base_url, str) else base_url
    if not urls or len(set(urls)) < len(urls) or (len(urls) > 1 and not all(urls)):
        raise ConfigError(
            f"base_url={urls}: give one URL, or several different ones, of which the first trains"
        )
    if len(urls) > 1 and server != "kitchen":
        raise ConfigError(
            f"base_url has {len(urls)} URLs, but only `kitchen serve` has replicas: set "
            "training.server=kitchen, or give one URL"
        )
    return urls


def _losses(capabilities: Iterable[str]) -> set[str]:
    """Return the names of the losses among capabilities."""
    listed = {name for name in capabilities if name.startswith(LOSS) and name != UNLISTED_LOSSES}
    return {name.removeprefix(LOSS) for name in listed}


def _check_not_an_adapter(model: str) -> None:
    """Raise BackendError for the folder of an adapter, which is on this machine only."""
    if is_adapter(Path(model.removeprefix("path:")).expanduser()):
        raise BackendError(
            f"{model} is a LoRA adapter on this machine, and a server cannot open it; use "
            "--training peft, or name weights that the server has (tinker://..., or run:ID)"
        )
