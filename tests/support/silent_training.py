"""A training adapter whose samplers never answer."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Any

from adapters.fake.sampling import FakeSampler
from adapters.fake.training import FakeTraining
from kitchen.ports.future import Future, Pending
from kitchen.ports.sampling import Sampler
from kitchen.types import Checkpoint, Sampled


class SilentTraining(FakeTraining):
    """The fake, whose samples stay pending; `pending` are their futures."""

    pending: list[concurrent.futures.Future[Sequence[Sampled]]]

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        inner = super().sampler(weights)
        assert isinstance(inner, FakeSampler)
        pending = self.pending = []

        class Silent(FakeSampler):
            def sample(self, prompt: Any, **options: Any) -> Future[Sequence[Sampled]]:
                future: concurrent.futures.Future[Sequence[Sampled]] = concurrent.futures.Future()
                pending.append(future)
                return Pending(future)

        return Silent(inner.model)
