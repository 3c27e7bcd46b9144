"""The ingredients: what flows between stages and through ports."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import GetCoreSchemaHandler, PlainSerializer, PlainValidator
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from kitchen.errors import check_numbers

Array = npt.NDArray[Any]


def _pack(array: Array) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpack(value: Any) -> Any:
    return (
        np.load(io.BytesIO(base64.b64decode(value)), allow_pickle=False)
        if isinstance(value, str)
        else value
    )


# to the last bit, through JSON
_EXACT = (PlainValidator(_unpack), PlainSerializer(_pack, return_type=str))
Tokens = Annotated[npt.NDArray[np.int64], *_EXACT]  # (T,) token ids
Floats = Annotated[npt.NDArray[np.float32], *_EXACT]  # (T,) one number per token
Mask = Annotated[npt.NDArray[np.bool_], *_EXACT]  # (T,)


class Result:
    """A mark: a value worth leaving even if no later stage reads it."""


class Published:
    """A mark: what a stage returns of this type goes to the observers, not onto the counter."""


@dataclass(frozen=True)
class Datum:
    """One training sequence of N tokens: what the model reads, and what the loss reads.

    There is no shift inside: `loss_inputs["target_tokens"][i]` is predicted at position i.
    """

    tokens: Tokens  # (N,) what the model reads
    # each (N,), or (N, K): "target_tokens", "weights", "advantages", ...
    loss_inputs: Mapping[str, Array]

    @property
    def targets(self) -> Tokens:
        """(N,) or (N, K) token ids."""
        return self.loss_inputs["target_tokens"]


@dataclass(frozen=True)
class Batch:
    """The data of one optimiser step."""

    data: tuple[Datum, ...]


@dataclass(frozen=True)
class Adam:
    """Hyper-parameters of one AdamW step (Loshchilov and Hutter, 2019, arXiv:1711.05101)."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0  # decoupled
    grad_clip_norm: float = 0.0  # on the global norm of the summed gradient; 0 is off

    def __post_init__(self) -> None:
        check_numbers(vars(self), above_0=("eps",), below_1=("beta1", "beta2"))


@dataclass(frozen=True)
class Lora:
    """Which low-rank weights to train (Hu et al., 2021, arXiv:2106.09685)."""

    rank: int = 32
    alpha: float | None = None  # None: the backend's own, which is 32 at every rank locally
    dropout: float = 0.0
    seed: int = 0  # of the initial weights and of dropout
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = False


@dataclass(frozen=True)
class Stepped(Result):
    """The optimiser has stepped."""

    metrics: Mapping[str, float] = field(default_factory=dict)  # "grad_norm", before clipping


@dataclass(frozen=True)
class LossOutput:
    """What came back from a forward pass."""

    logprobs: tuple[Floats, ...]  # one array per datum, of the shape of its targets, nats
    # "loss:sum", ...; the end of a key is how it adds up
    metrics: Mapping[str, float] = field(default_factory=dict)
    # one (N,) per datum: where log-probabilities were computed; empty: everywhere
    scored: tuple[Mask, ...] = ()

    # on the counter, a stage that leaves this type must use it
    settled_by: ClassVar[type] = Stepped


@dataclass(frozen=True)
class Checkpoint(Result):
    """A handle on saved weights; only the adapter that made it can open it."""

    # whether run:ID@STEP may mean it; False for a judge's, a critic's
    policy: ClassVar[bool] = True
    path: str
    step: int  # optimiser steps taken when it was saved
    kind: Literal["training", "weights"] = "training"  # with optimiser, or for sampling only
    sha256: str = ""  # of its content, where the backend can say


@dataclass(frozen=True)
class Sampled:
    """One completion."""

    tokens: Tokens  # (T,) the completion only, its stop token included
    logprobs: Floats  # (T,) nats, under the temperature-scaled distribution that it was drawn from
    stop_reason: Literal["stop", "length"]


class Loss(Protocol):
    """A custom loss: from each datum's log-probabilities to its value and their gradients.

    It is scored where `weights` is not 0, or everywhere if there are none. An attribute `group:
    int` says that it sums over runs of that many adjacent datums, so that a backend may cut the
    batch between runs.
    """

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]: ...


@dataclass(frozen=True)
class RunId:
    """The name of the run, and the folder of the BlobStore that is its own."""

    id: str


class Metrics(dict[str, float], Published):
    """Numbers for the log."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(cls, handler(dict[str, float]))


class Facts(dict[str, str], Published):
    """What a run depends on: digests, device, versions. A resumed run must find the same again.

    Keys that begin with "machine." may differ if the user says so.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(cls, handler(dict[str, str]))


@dataclass(frozen=True)
class Table(Published):
    """Something for people to read."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Price:
    """What a million tokens cost to train on, in any currency; known to previews alone, where
    somebody gave one.
    """

    per_million: float


@dataclass(frozen=True)
class Samples(Published):
    """Texts that the model wrote, for the record: one mapping per line of `samples.jsonl`."""

    rows: tuple[Mapping[str, Any], ...]
