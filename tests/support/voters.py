"""A training backend whose models answer yes or no with a known accuracy, independently."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from adapters.fake.datasets import FakeDatasets
from adapters.fake.sampling import FakeSampler
from adapters.fake.tokenizer import END_OF_TURN, ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.errors import ApiError, BackendError
from kitchen.ports.future import Done, Failed, Future, Pending
from kitchen.ports.sampling import Sampler
from kitchen.types import Checkpoint, Sampled, Tokens


def questions(count: int, answer: str = "yes", first: int = 0) -> list[dict[str, str]]:
    """Return rows that ask for the answer."""
    numbers = range(first, first + count)
    return [{"prompt": f"{n}: {answer}?", "completion": answer} for n in numbers]


DATA = FakeDatasets(
    {
        "votes": {
            "train": questions(40, first=1000),
            "held": questions(40),
            "leaked": [*questions(20), *questions(20, first=2000)],
        },
        "many": {"test": questions(600)},
    }
)


class Voters(FakeTraining):
    """Models called NAME-ACCURACY, such as a-0.7, whose options follow: -die20, -hang20, -nan.

    `die20` fails from its 20th request on, `hang20` never answers from then on, `nan` reports no
    log-probabilities, and `refuse401` refuses all requests with this HTTP status. Temperature and
    seed do not matter: an answer depends on name and prompt.
    """

    reads_seed = False

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, int] = {}
        self.weights_opened: list[str] = []
        self.opened = self.most_opened = 0  # samplers

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        if not isinstance(weights, str):
            return super().sampler(weights)
        self.opened += 1
        self.weights_opened.append(weights)
        self.most_opened = max(self.most_opened, self.opened)
        return Voter(weights, self)


class Voter(FakeSampler):
    """One model of Voters."""

    def __init__(self, name: str, voters: Voters) -> None:
        self.name, self.voters = name, voters
        _, accuracy, *options = name.split("-")
        self.accuracy, self.options = float(accuracy), options

    def sample(
        self, prompt: Tokens, *, count: int = 1, **options: Any
    ) -> Future[Sequence[Sampled]]:
        asked = self.voters.asked[self.name] = self.voters.asked.get(self.name, 0) + 1
        for option in self.options:
            if option.startswith("die") and asked >= int(option[3:]):
                return Failed(BackendError("the server has died"))
            if option.startswith("hang") and asked >= int(option[4:]):
                return Pending(_never())
            if option.startswith("refuse"):
                return Failed(ApiError("the request is refused", status=int(option[6:])))
        text = ByteTokenizer().decode(prompt)
        seed = str(options.get("seed")) if self.voters.reads_seed else ""
        draw = np.random.default_rng([zlib.crc32(f"{self.name} {text}{seed}".encode())]).random()
        right = text.split()[-1].removesuffix("?")
        wrong = "no" if right == "yes" else "yes"
        return Done([self._sampled(right if draw < self.accuracy else wrong)] * count)

    def _sampled(self, answer: str) -> Sampled:
        tokens = np.append(ByteTokenizer().encode(answer), END_OF_TURN)
        value = np.nan if "nan" in self.options else -0.1
        return Sampled(tokens, np.full(len(tokens), value, np.float32), "stop")

    def close(self) -> None:
        self.voters.opened -= 1


def _never() -> Any:
    from concurrent.futures import Future as WorkFuture

    return WorkFuture()
