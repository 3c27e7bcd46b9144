"""Models under training on a server, opened from a checkpoint."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import structlog
import tinker

from adapters.tinker.errors import is_missing_endpoint, is_not_found, request_error
from adapters.tinker.service import Service
from kitchen.errors import BackendError
from kitchen.types import Lora

log = structlog.get_logger("kitchen.tinker")
_ABSENT = re.compile(r"\b(there are no|no such|not found|does not exist)\b", re.IGNORECASE)
UNPROCESSABLE = 422  # status of a request that fails the server's validation
BAD_REQUEST = 400


def open_from_state(
    service: Service,
    client: Any,
    path: str,
    *,
    with_optimizer: bool,
    model: str = "",
    lora: Lora | None = None,
) -> Any:
    """Return the SDK's TrainingClient of a new model with the weights at a tinker:// path.

    Some servers cannot create a model from a checkpoint in one request. For them a model is
    created, and its first request loads the checkpoint. Base model and rank are those that the
    server reports for the checkpoint, else `model` and that of `lora`.
    """
    create = client.create_training_client_from_state
    if with_optimizer:
        create = client.create_training_client_from_state_with_optimizer
    try:
        return create(path).result()
    except Exception as error:
        if not _lacks_creation_from_state(error):
            raise
    log.debug("the server creates no model from a checkpoint; loading it as the first request")
    info = _weights_info(service, path)
    if info is None and not model:
        raise BackendError(
            f"{service.name} neither creates a model from a checkpoint nor reports the base model "
            f"of {path}, so it cannot be opened"
        )
    lora = lora or Lora()
    if info is not None:
        model, lora = info.base_model, replace(lora, rank=info.lora_rank or lora.rank)
    created = create_model(client, model, lora).result()
    # load_state() does the same, and prints that it is deprecated
    created._load_state_impl(path, optimizer=with_optimizer, weights_access_token=None).result()
    return created


def open_sampler(service: Service, client: Any, weights: str) -> Any:
    """Return the SDK's SamplingClient of a base model, or of weights at a tinker:// path.

    The SDK asks the server for the base model of a path. If the server does not keep samplers, it
    is the one that the server reports for the weights.
    """
    if not weights.startswith("tinker://"):
        return client.create_sampling_client(base_model=weights).result()
    try:
        return client.create_sampling_client(model_path=weights).result()
    except Exception as error:
        info = _weights_info(service, weights) if _lacks_samplers(error) else None
        if info is None:
            raise
    return client.create_sampling_client(model_path=weights, base_model=info.base_model).result()


def open_replica(service: Service, client: Any, weights: str, first: Service) -> Any:
    """Return the SDK's SamplingClient of weights that the server `first` has stored."""
    try:
        return open_sampler(service, client, weights)
    except Exception as error:
        if is_not_found(error) or _says_absent(error, weights):
            raise BackendError(
                f"{service.name} has no weights at {weights}: it does not share --runs with "
                f"{first.name}, or the path is wrong; start it with `kitchen serve --replica`, and "
                f"the --runs of {first.name}"
            ) from error
        raise


def create_model(client: Any, model: str, lora: Lora) -> Any:
    """Return a future of the SDK's TrainingClient of a new model."""
    return client.create_lora_training_client(
        model,
        rank=lora.rank,
        seed=lora.seed,
        train_attn=lora.train_attn,
        train_mlp=lora.train_mlp,
        train_unembed=lora.train_unembed,
    )


def is_gone(service: Service, path: str) -> bool:
    """Return whether the server reports that it has no such weights."""
    try:
        service.rest().get_weights_info_by_tinker_path(path).result()
    except Exception as error:  # noqa: BLE001 any other error says nothing about the weights
        return is_not_found(error) or _says_absent(error, path)
    return False


def _says_absent(error: BaseException, path: str) -> bool:
    """Return whether a server that answers with status 400 says that there are no such weights."""
    if getattr(error, "status_code", 0) != BAD_REQUEST:
        return False
    message = request_error(error)
    return path in message and _ABSENT.search(message) is not None


def _weights_info(service: Service, path: str) -> Any:
    """Return the server's record of weights; None if it keeps none."""
    try:
        return service.rest().get_weights_info_by_tinker_path(path).result()
    except tinker.APIStatusError as error:
        if is_missing_endpoint(error):
            return None
        raise


def _lacks_samplers(error: Any) -> bool:
    return is_missing_endpoint(error) and "/samplers/" in error.response.request.url.path


def _lacks_creation_from_state(error: BaseException) -> bool:
    """Return whether an answer means that a load needs the id of a model that exists."""
    if is_missing_endpoint(error):
        return True
    status = getattr(error, "status_code", 0)
    if status == UNPROCESSABLE:
        return True
    is_request_error = status == BAD_REQUEST or isinstance(error, tinker.RequestFailedError)
    return is_request_error and "model_id" in request_error(error)
