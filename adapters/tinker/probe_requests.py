"""The requests of a probe, each of which tries one feature of a server."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import structlog
import tinker
from tinker import types

from adapters.tinker.answers import LOSS_SUM, prompt_logprobs, samples, top_logprobs
from adapters.tinker.datums import model_input, sdk_datum
from adapters.tinker.errors import says_unsupported
from adapters.tinker.http_client import models
from adapters.tinker.service import Service
from kitchen.backend.losses import LOSSES
from kitchen.errors import BackendError
from kitchen.types import Array, Datum

log = structlog.get_logger("kitchen.tinker")
LOSS = "loss "  # prefix of the capabilities that are losses
SERVER_FAULT = 500  # the first of the statuses that may be temporary
TOKENS = np.arange(1, 7)  # ids that every vocabulary has
TOP_K = 2
MAX_TOKENS = 2
LEARNING_RATE = 0.05  # of a step that changes log-probabilities visibly
CHANGE = 1e-3  # nats by which such a step changes them at least
EPS = 1e-8  # of Adam
TINY_NORM = 1e-12  # far below EPS, so that a step along a gradient of this norm changes nothing
HTTP_TIMEOUT = 10.0  # seconds, of a request that computes nothing
TTL = 3600  # seconds after which checkpoints expire that the probe could not delete


class NotTried(Exception):
    """A feature that cannot be tried, because of one that is missing."""


@dataclass(frozen=True)
class Check:
    """A request, or a few, that raise an error if a server lacks the feature."""

    feature: str
    needed_for: str
    run: Callable[[], None]
    inputs_known: bool = True  # False: a refusal may be about the inputs of the request


class ProbeRequests:
    """The SDK's clients of a probe, and the requests that it sends through them."""

    def __init__(
        self, service: Service, client: Any, model: str, rank: int, timeout: float | None
    ) -> None:
        self._service = service
        self._client = client  # the SDK's ServiceClient
        self._model = model
        self._rank = rank
        self._timeout = timeout
        self._training: Any = None  # the SDK's TrainingClient
        self._opened = False  # whether there was a TrainingClient
        self._sampling: Any = None  # the SDK's SamplingClient of the base model
        self._rows: list[int] = []  # numbers of values that the server returned for a prompt
        self._scores_prompts = False
        self._takes_snapshots = False
        self._saves: list[Any] = []  # futures of all checkpoints that were saved
        self._deleted = set[str]()
        self._expire = True  # whether the server takes a time to live
        self._plain: Any = None  # result of a pass with the cross-entropy, weights 1
        self._is_sum: bool | None = None  # whether losses are sums over tokens
        self._reopens = False  # whether weights can be created from a training state
        self._state = ""  # path of a saved training state
        self._weights = ""  # path of weights that were saved for sampling

    def checks(self, losses: Sequence[str]) -> Sequence[Check]:
        """Return the checks in the order in which they build on each other."""
        return [
            *(
                Check(
                    f"{LOSS}{loss}",
                    "training with this loss",
                    self._loss_check(loss),
                    inputs_known=loss in LOSSES,
                )
                for loss in losses
            ),
            *self._loss_checks(),
            *self._sampling_checks(),
            *self._checkpoint_checks(),
        ]

    def checks_of_needs(self, training: Any, needs: Collection[str]) -> Sequence[Check]:
        """Return the checks of capabilities that change nothing in an SDK's TrainingClient."""
        losses = [need.removeprefix(LOSS) for need in sorted(needs) if need.startswith(LOSS)]
        return [
            *(
                Check(
                    f"{LOSS}{loss}",
                    "",
                    partial(self._forward, training, loss),
                    inputs_known=loss in LOSSES,
                )
                for loss in losses
                if loss != "cross_entropy"  # every server has it
            ),
            *([self._topk_check(training)] if "topk_targets" in needs else []),
            *(check for check in self._sampling_checks() if check.feature in needs),
        ]

    def _topk_check(self, training: Any = None) -> Check:
        return Check(
            "topk_targets",
            "distillation with divergence=forward",
            partial(self._topk_targets, training),
        )

    def _forward(self, training: Any, loss: str) -> None:
        _check_loss_sum(loss, self._wait(training.forward([sdk_datum(_datum(loss))], loss)))

    def _loss_checks(self) -> Sequence[Check]:
        custom = "dpo, kto and other custom losses"
        return [
            Check("training logprobs", "all training", self._training_logprobs),
            self._topk_check(),
            Check("loss:sum", "the metric loss, which is otherwise computed here", self._loss_sum),
            Check("sums over tokens", "the learning rates of recipes; custom losses", self._sums),
            Check("custom loss", custom, self._custom_loss),
            Check("optim_step", "all training", self._optim_step),
            Check("grad_norm", "the metric grad_norm", self._grad_norm),
            Check("grad_clip_norm", "the setting grad_clip_norm", self._grad_clip_norm),
        ]

    def _sampling_checks(self) -> Sequence[Check]:
        likelihoods = "KL penalties, reference models, distillation, evaluation by likelihood"
        return [
            Check("list of models", "kitchen doctor, kitchen check --online", self._models),
            Check("sampling", "rollouts and evaluations", self._sample),
            Check("prompt_logprobs", likelihoods, self._prompt_logprobs),
            Check("top_logprobs", "distillation with divergence=forward", self._top_logprobs),
            Check("first row of prompts", "nothing, as the row is empty", self._first_row),
        ]

    def _checkpoint_checks(self) -> Sequence[Check]:
        weights = "model=run:ID, evaluation of saved weights"
        references = "KL penalties, reference models, teachers"
        return [
            Check("save training state", "save points and kitchen resume", self._save_state),
            Check("create from training state", "resuming in one request", self._reopen),
            Check("create from weights", "model=run:ID in one request", self._reopen_weights),
            Check("load training state", "kitchen resume", self._load_state),
            Check("save weights", weights, self._save_weights),
            Check("sample saved weights", weights, self._sample_weights),
            Check("snapshots", "rollouts of the weights under training", self._snapshot),
            Check("frozen base model", references, self._frozen_base),
            Check("policy_lag", "the setting policy_lag above 0", self._policy_lag),
            Check("export", "kitchen export and kitchen push", self._export),
            Check("expiry of checkpoints", "the setting training.expire_after", self._expiry),
            Check("delete checkpoints", "removal of old save points", self._delete),
        ]

    def forget_clients(self) -> None:
        """Open new clients for the next requests: the SDK's may accept none after an error."""
        self._training = None
        self._sampling = None

    def clean_up(self, seconds: float) -> None:
        """Delete all checkpoints that the probe saved, within some seconds."""
        deadline = time.monotonic() + seconds
        for save in self._saves:
            try:
                path = save.result(max(deadline - time.monotonic(), 0.1)).path
                if path not in self._deleted:
                    self._delete_path(path, max(deadline - time.monotonic(), 0.1))
            except Exception as error:  # noqa: BLE001 an error of the probe must not be hidden
                log.debug("a checkpoint of the probe was not deleted", why=str(error))

    def training(self) -> Any:
        """Return the SDK's TrainingClient, opened if there is none."""
        if self._training is None:
            try:
                created = self._client.create_lora_training_client(self._model, rank=self._rank)
                self._training = self._wait(created)
            except (tinker.APIStatusError, tinker.RequestFailedError) as error:
                if not self._opened or getattr(error, "status_code", 0) >= SERVER_FAULT:
                    raise
                raise NotTried("the server trains no second model beside the first one") from error
            self._opened = True
        return self._training

    def _wait(self, future: Any) -> Any:
        return future.result(self._timeout)

    # training

    def _loss_check(self, loss: str) -> Callable[[], None]:
        def check() -> None:
            result = self._pass(_datum(loss), loss)
            _check_loss_sum(loss, result)
            if loss == "cross_entropy":
                self._plain = result

        return check

    def _pass(self, datum: Datum, loss: str = "cross_entropy") -> Any:
        return self._wait(self.training().forward_backward([sdk_datum(datum)], loss))

    def _step(self, learning_rate: float, grad_clip_norm: float = 0.0) -> Mapping[str, float]:
        adam = types.AdamParams(learning_rate=learning_rate, eps=EPS, grad_clip_norm=grad_clip_norm)
        return dict(self._wait(self.training().optim_step(adam)).metrics or {})

    def _training_logprobs(self) -> None:
        _logprobs(self._cross_entropy())

    def _topk_targets(self, training: Any) -> None:
        """Send targets of shape (N, K), each with a weight."""
        targets = np.stack([TOKENS[1:], TOKENS[:-1]], axis=1)
        weights = np.full(targets.shape, 1 / TOP_K, np.float32)
        datum = Datum(TOKENS[:-1], {"target_tokens": targets, "weights": weights})
        passed = (training or self.training()).forward([sdk_datum(datum)], "cross_entropy")
        _logprobs(self._wait(passed), targets.size)

    def _loss_sum(self) -> None:
        if LOSS_SUM not in self._cross_entropy().metrics:
            raise BackendError("the results of training passes have no metric loss:sum")

    def _cross_entropy(self) -> Any:
        if self._plain is None:
            raise NotTried("the server lacks the loss cross_entropy")
        return self._plain

    def _sums(self) -> None:
        """Check that weights of 2 give twice the loss, or twice the gradient, of weights of 1."""
        plain = self._cross_entropy()
        double = self._pass(_datum("cross_entropy", weight=2.0))
        losses = [result.metrics.get("loss:sum") for result in (plain, double)]
        if None in losses:
            self._training = None  # the old one may have the gradient of earlier passes
            losses = [self._norm_of_pass(weight) for weight in (1.0, 2.0)]
        self._is_sum = math.isclose(losses[1], 2.0 * losses[0], rel_tol=0.1)
        if not self._is_sum:
            raise BackendError(
                "weights of 2 do not double the loss, so the server divides by their sum; learning "
                "rates mean something else there, and custom losses are wrong"
            )

    def _norm_of_pass(self, weight: float) -> float:
        """Return the norm of the gradient of one pass; raises NotTried if it is not reported."""
        self._pass(_datum("cross_entropy", weight=weight))
        norm = _grad_norm(self._step(0.0))
        if norm is None:
            raise NotTried("the server reports neither loss:sum nor the norm of the gradient")
        return norm

    def _custom_loss(self) -> None:
        if self._is_sum is False:
            raise BackendError("the gradients of a custom loss would be divided by their sum")
        # the gradients of a custom loss are sent as weights, which may be negative
        _logprobs(self._pass(_datum("cross_entropy", weight=-1.0)))
        if self._is_sum is None:
            raise NotTried("it is not known whether the server divides the gradients by their sum")

    def _optim_step(self) -> None:
        if not self._change_by_step(0.0) > CHANGE:
            raise BackendError("an optimiser step does not change the log-probabilities")

    def _grad_norm(self) -> None:
        self._pass(_datum("cross_entropy"))
        if _grad_norm(self._step(0.0)) is None:
            raise BackendError("the results of optimiser steps have no metric grad_norm")

    def _grad_clip_norm(self) -> None:
        if self._change_by_step(TINY_NORM) > CHANGE:
            raise BackendError("the server ignores grad_clip_norm: a step is as large without it")

    def _change_by_step(self, grad_clip_norm: float) -> float:
        """Return by how many nats the first step of new weights changes a log-probability."""
        self._training = None
        datum = _datum("cross_entropy")
        before = _logprobs(self._pass(datum))
        self._step(LEARNING_RATE, grad_clip_norm)
        after = _logprobs(self._wait(self.training().forward([sdk_datum(datum)], "cross_entropy")))
        return _largest_change(before, after)

    # sampling

    def _models(self) -> None:
        models(self._service.address, self._service.read_key(), timeout=HTTP_TIMEOUT)

    def _sampler(self) -> Any:
        if self._sampling is None:
            created = self._client.create_sampling_client(base_model=self._model)
            self._sampling = self._wait(created)
        return self._sampling

    def _sample_with(self, sampler: Any, **options: Any) -> Any:
        params = types.SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, seed=1)
        return self._wait(sampler.sample(model_input(TOKENS), 1, params, **options))

    def _sample(self) -> None:
        response = self._sample_with(self._sampler())
        samples(response.sequences, 1, MAX_TOKENS, self._service.name)

    def _prompt_logprobs(self) -> None:
        values = self._wait(self._sampler().compute_logprobs(model_input(TOKENS)))
        prompt_logprobs(values, len(TOKENS), self._service.name)
        self._rows.append(len(values))
        self._scores_prompts = True

    def _top_logprobs(self) -> None:
        response = self._sample_with(
            self._sampler(), include_prompt_logprobs=True, topk_prompt_logprobs=TOP_K
        )
        top_logprobs(response, len(TOKENS), TOP_K, self._service.name)
        self._rows.append(len(response.topk_prompt_logprobs_np.token_ids))

    def _first_row(self) -> None:
        if not self._rows:
            raise NotTried("the server returns no log-probabilities of prompts")
        if min(self._rows) < len(TOKENS):
            raise BackendError("the values of a prompt begin with its second token")

    # checkpoints

    def _saved(self, method: str) -> str:
        """Save with a time to live if the server takes it, and return the path."""
        options = {"ttl_seconds": TTL} if self._expire else {}
        try:
            return self._save(method, options)
        except Exception as error:
            if not options or not says_unsupported(error):
                raise
        self.forget_clients()
        path = self._save(method, {})
        self._expire = False
        return path

    def _save(self, method: str, options: Any) -> str:
        future = getattr(self.training(), method)(f"probe-{secrets.token_hex(4)}", **options)
        self._saves.append(future)
        return str(self._wait(future).path)

    def _save_state(self) -> None:
        self._state = self._saved("save_state")

    def _reopen(self) -> None:
        path = _path(self._state, "training state")
        self._wait(self._client.create_training_client_from_state_with_optimizer(path))
        self._reopens = True

    def _reopen_weights(self) -> None:
        path = _path(self._state, "training state")
        self._wait(self._client.create_training_client_from_state(path))

    def _load_state(self) -> None:
        """Load into new weights, as the adapter does if they cannot be created from a state."""
        path = _path(self._state, "training state")
        if not self._reopens:
            self._training = None
            # load_state() does the same, and prints that it is deprecated
            self._wait(
                self.training()._load_state_impl(path, optimizer=True, weights_access_token=None)
            )

    def _save_weights(self) -> None:
        self._weights = self._saved("save_weights_for_sampler")

    def _sample_weights(self) -> None:
        path = _path(self._weights, "weights")
        self._sample_with(self._wait(self._client.create_sampling_client(model_path=path)))

    def _snapshot(self) -> None:
        self._sample_with(self._new_snapshot())
        self._takes_snapshots = True

    def _new_snapshot(self) -> Any:
        return self._wait(self.training().save_weights_and_get_sampling_client())

    def _frozen_base(self) -> None:
        self._check_frozen(self._sampler, "the base model")

    def _policy_lag(self) -> None:
        self._check_frozen(self._new_snapshot, "an earlier snapshot")

    def _check_frozen(self, open_sampler: Callable[[], Any], weights: str) -> None:
        """Check that a step changes the weights under training, and not those of a sampler."""
        if not (self._scores_prompts and self._takes_snapshots):
            raise NotTried("the server lacks log-probabilities of prompts, or snapshots")
        sampler = open_sampler()
        frozen, trained = self._scores(sampler), self._scores(self._new_snapshot())
        self._pass(_datum("cross_entropy"))
        self._step(LEARNING_RATE)
        moved = _largest_change(trained, self._scores(self._new_snapshot()))
        if moved < CHANGE:
            raise NotTried("a snapshot after an optimiser step has the same log-probabilities")
        # equal requests may differ by rounding, so the two changes are compared
        if _largest_change(frozen, self._scores(sampler)) > moved / 2:
            raise BackendError(f"an optimiser step changes the log-probabilities of {weights}")

    def _scores(self, sampler: Any) -> Array:
        values = self._wait(sampler.compute_logprobs(model_input(TOKENS)))
        return prompt_logprobs(values, len(TOKENS), self._service.name)[1:]

    def _export(self) -> None:
        path = self._saved("save_weights_external")
        urls = self._wait(self._service.rest().get_external_weights_urls(path)).urls
        if not urls:
            raise BackendError("the server lists no files of exported weights")

    def _expiry(self) -> None:
        _path(self._state or self._weights, "training state, nor weights")
        if not self._expire:
            raise BackendError("the server refuses a time to live for a checkpoint")

    def _delete(self) -> None:
        path = self._state or self._weights
        self._delete_path(_path(path, "training state, nor weights"), self._timeout)
        if self._has(path):
            raise BackendError("the server reports a checkpoint as deleted, and still has it")

    def _delete_path(self, path: str, timeout: float | None) -> None:
        self._service.rest().delete_checkpoint_from_tinker_path(path).result(timeout)
        self._deleted.add(path)

    def _has(self, path: str) -> bool:
        try:
            self._wait(self._service.rest().get_weights_info_by_tinker_path(path))
        except Exception:  # noqa: BLE001 the server does not have it, or does not describe weights
            return False
        return True


def _datum(loss: str, weight: float = 1.0) -> Datum:
    """Return a datum with the inputs of a loss."""
    count = len(TOKENS) - 1
    inputs = LOSSES[loss].inputs if loss in LOSSES else ("logprobs", "advantages")
    values = {"weights": weight, "logprobs": -1.0, "advantages": 1.0, "sequence_ratio_mask": 1.0}
    arrays = {name: np.full(count, values[name], np.float32) for name in inputs}
    return Datum(TOKENS[:-1], {"target_tokens": TOKENS[1:], **arrays})


def _check_loss_sum(loss: str, result: Any) -> None:
    """Raise BackendError if the value of a loss is neither reported nor can be computed here."""
    if loss not in LOSSES and LOSS_SUM not in (result.metrics or {}):
        raise BackendError(
            f"the results have no metric {LOSS_SUM}, and this loss cannot be computed here"
        )


def _largest_change(before: Array, after: Array) -> float:
    return float(np.abs(after - before).max())


def _logprobs(result: Any, count: int = len(TOKENS) - 1) -> Array:
    [output] = result.loss_fn_outputs
    if (logprobs := output.get("logprobs")) is None:
        raise BackendError("the results of training passes have no log-probabilities")
    values = np.asarray(logprobs.to_numpy(), np.float64)
    if values.size != count:
        raise BackendError(
            f"the server returns {values.size} log-probabilities for {count} targets"
        )
    return values


def _grad_norm(metrics: Mapping[str, float]) -> float | None:
    """Return the norm of the gradient, under whatever name the server reports it."""
    return next((value for name, value in metrics.items() if name.endswith("grad_norm")), None)


def _path(path: str, what: str) -> str:
    """Return the path of a checkpoint; raises NotTried if it could not be saved."""
    if not path:
        raise NotTried(f"the server saves no {what}")
    return path
