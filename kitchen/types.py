"""Types that flow between stages and through ports."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, GetCoreSchemaHandler, PlainSerializer, PlainValidator
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from kitchen.errors import ConfigError, check_numbers

Array = npt.NDArray[Any]


def _pack(array: Array) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpack(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return np.load(io.BytesIO(base64.b64decode(value)), allow_pickle=False)


# through JSON without losing a bit
_EXACT = (PlainValidator(_unpack), PlainSerializer(_pack, return_type=str))
Tokens = Annotated[npt.NDArray[np.int64], *_EXACT]  # (T,) token ids
Floats = Annotated[npt.NDArray[np.float32], *_EXACT]  # (T,) one number per token
Mask = Annotated[npt.NDArray[np.bool_], *_EXACT]  # (T,)


class Result:
    """Marker of types that a stage may write even if no later stage reads them."""


class Published:
    """Marker of types that go to the observers rather than into scope."""


@dataclass(frozen=True)
class Datum:
    """One training sequence of N tokens, with the inputs of its loss.

    Targets are shifted already: `loss_inputs["target_tokens"][i]` is predicted at position i.
    """

    tokens: Tokens  # (N,) input of the model
    # each (N,) or (N, K): "target_tokens", "weights", "advantages", ...
    loss_inputs: Mapping[str, Array]

    @property
    def targets(self) -> Tokens:
        """(N,) or (N, K) token ids."""
        return self.loss_inputs["target_tokens"]


@dataclass(frozen=True)
class Batch:
    """The data of one optimiser step."""

    data: tuple[Datum, ...]


SEEDS = 2**64  # number of random seeds: PyTorch takes no larger ones
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
LoraRank = Annotated[int, Field(gt=0, le=65_536)]  # above the width of any layer
Tries = Annotated[int, Field(gt=0, le=10_000)]  # answers sampled to one prompt at once


def with_absolute_path(name: str) -> str:
    """Return `path:FOLDER` or `ensemble:FILE` with an absolute path, for resuming from anywhere."""
    kind, _, path = name.partition(":")
    if kind not in ("path", "ensemble") or not path or os.path.isabs(path):
        return name
    return f"{kind}:{os.path.join(os.getcwd(), os.path.expanduser(path))}"


# a setting that names a model or weights, such as path:DIR or run:ID
ModelName = Annotated[str, AfterValidator(with_absolute_path)]


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


DEFAULT_ALPHA = 32.0  # of LoRA at every rank, on Tinker and on the local engine


# plain LoRA; rank-stabilised: scaled by alpha / √rank (Kalajdzievski, 2023, arXiv:2312.03732); with
# trained magnitudes of the weights (Liu et al., 2024, arXiv:2402.09353)
LoraKind = Literal["lora", "rslora", "dora"]


@dataclass(frozen=True)
class Lora:
    """Shape and scope of LoRA weights (Hu et al., 2021, arXiv:2106.09685)."""

    rank: int = 32
    alpha: float | None = None  # None for DEFAULT_ALPHA
    kind: LoraKind = "lora"
    dropout: float = 0.0
    seed: int = 0  # of the initial weights and of dropout
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEEDS:
            raise ConfigError(f"the seed is {self.seed}, and must be at least 0 and below 2^64")


@dataclass(frozen=True)
class FullWeights:
    """All weights of the model are trained, without LoRA."""


Trainable = Lora | FullWeights  # the weights that a session trains


@dataclass(frozen=True)
class OptimStepResult(Result):
    """The result of an optimiser step."""

    metrics: Mapping[str, float] = field(default_factory=dict)  # "grad_norm", before clipping


@dataclass(frozen=True)
class LossOutput:
    """Result of a forward pass."""

    logprobs: tuple[Floats, ...]  # one array per datum, of the shape of its targets, nats
    # "loss:sum", ...; the end of a key says how values of several batches are combined
    metrics: Mapping[str, float] = field(default_factory=dict)
    # one (N,) per datum: where log-probabilities were computed; empty: everywhere
    scored: tuple[Mask, ...] = ()

    # a later stage must read this type and write that one: the gradient must be applied
    must_be_followed_by: ClassVar[type] = OptimStepResult


@dataclass(frozen=True)
class Checkpoint(Result):
    """Handle of saved weights; only the adapter that made it can open it."""

    # whether run:ID@STEP may name it; False for the weights of a judge or a critic
    policy: ClassVar[bool] = True
    # whether run:ID@final names it: the weights at the end of training
    final: ClassVar[bool] = False
    path: str
    step: int  # optimiser steps taken when it was saved
    kind: Literal["training", "weights"] = "training"  # with optimiser, or for sampling only
    sha256: str = ""  # of its content, where the backend knows it


@dataclass(frozen=True)
class Sampled:
    """One completion."""

    tokens: Tokens  # (T,) the completion alone, its stop token included
    logprobs: Floats  # (T,) nats, under the temperature-scaled distribution it was drawn from
    stop_reason: Literal["stop", "length"]


class Loss(Protocol):
    """Custom loss: a function of the log-probabilities of each datum.

    Returns the value, its gradient with respect to each log-probability, and metrics. Positions are
    scored where `weights` is not 0, or everywhere without weights. An attribute `group: int` says
    that the loss couples that many adjacent datums, so that a backend may split the batch between
    groups.
    """

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]: ...


@dataclass(frozen=True)
class RunId:
    """Name of the run, which is also its folder in the BlobStore."""

    id: str


class Metrics(dict[str, float], Published):
    """Numbers for the log, by name."""

    # the metric by which run:ID@best chooses among exported weights; none if it is empty
    selects_by: str = ""
    greater_is_better: bool = False

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(cls, handler(dict[str, float]))


class Facts(dict[str, str], Published):
    """Digests, device and versions that the numbers of a run depend on.

    A resumed run must find the same again; keys that start with "machine." may differ if the user
    allows it.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(cls, handler(dict[str, str]))


@dataclass(frozen=True)
class Table(Published):
    """Table for people to read."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Price:
    """Price of training on a million tokens, in any currency; known only in previews."""

    per_million: float


class RenderingSettings:
    """Marker of settings that turn conversations into tokens; chat and eval of a run reuse them."""


@dataclass(frozen=True)
class Samples(Published):
    """Texts that the model wrote, one mapping per line of `samples.jsonl`."""

    rows: tuple[Mapping[str, Any], ...]
