"""Looking ahead keeps a server busy, and many requests at once are no trouble."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen import Observer, StageDone
from kitchen.types import Lora
from tests.support.fake_runs import run_recipe
from tests.support.faulty_app import FaultyApp
from tests.support.tinker_server import KEY, ByteTinker, RunningServer, serving

STEPS = 20
VERBS = ("forward_backward", "optim_step", "retrieve_future")
CHATS = [{"prompt": f"say {number}", "completion": f"{number}!"} for number in range(2 * STEPS)]
ALONE = {"epochs": 1, "eval_every": 0, "save_every": 0}  # a loop looks ahead to its own end


class Overlap:
    """An ASGI application that counts how many results clients wait for at the same time."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._waiting = 0
        self.most = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_poll = scope.get("path", "").endswith("retrieve_future")
        self._waiting += is_poll
        self.most = max(self.most, self._waiting)
        try:
            await self._app(scope, receive, send)
        finally:
            self._waiting -= is_poll


@contextmanager
def slow_server() -> Iterator[tuple[RunningServer, FaultyApp, Overlap]]:
    blobs = FakeBlobs()
    wrapped = list[tuple[FaultyApp, Overlap]]()

    def wrap(app: Any) -> Any:
        faulty = FaultyApp(app, (), latency=0.1)
        wrapped.append((faulty, Overlap(faulty)))
        return wrapped[0][1]

    with serving(FakeTraining(blobs), blobs, wrap=wrap) as server:
        faulty, overlap = wrapped[0]
        yield server, faulty, overlap


def by_verb(requests: Counter[str]) -> dict[str, int]:
    return {
        verb: sum(count for path, count in requests.items() if path.endswith(verb))
        for verb in VERBS
    }


def run_loop(ahead: int) -> tuple[int, dict[str, int]]:
    """Return how many results overlapped at most, and the requests of the training loop alone."""

    class Watch(Observer):
        def __init__(self) -> None:
            self.before, self.after = Counter[str](), Counter[str]()

        def stage_done(self, event: StageDone) -> None:
            if event.stage.title() == "ShuffledBatches" and not self.before:
                self.before = Counter(faulty.requests)
            if event.stage.title() == "ReportStep":
                self.after = Counter(faulty.requests)

    watch = Watch()
    with slow_server() as (server, faulty, overlap):
        blobs = FakeBlobs()
        run_recipe(
            "sl_basic",
            ByteTinker(blobs, server.url),
            blobs,
            ahead=ahead,
            observers=[watch],
            data={"chats": {"train": CHATS, "held": CHATS[:2]}},
            **ALONE,
        )
    return overlap.most, by_verb(watch.after - watch.before)


def run_by_hand() -> dict[str, int]:
    """Return the requests of a loop over the SDK that submits a step before awaiting the last."""
    from tinker import ServiceClient, types

    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2]),
        loss_fn_inputs={"target_tokens": [2, 3], "weights": [1.0, 1.0]},
    )
    with (
        slow_server() as (server, faulty, _),
        ServiceClient(base_url=server.url, api_key=KEY) as service,
    ):
        training = service.create_lora_training_client("tiny", rank=4, seed=1).result()
        before = Counter(faulty.requests)
        pending = list[Any]()
        for _ in range(STEPS):
            pending += [
                training.forward_backward([datum], "cross_entropy"),
                training.optim_step(types.AdamParams()),
            ]
            for future in pending[:-2]:
                future.result()
            del pending[:-2]
        for future in pending:
            future.result()
        return by_verb(faulty.requests - before)


@pytest.mark.slow
def test_looking_ahead_overlaps_steps_without_more_requests() -> None:
    overlap, requests = run_loop(ahead=0)
    overlap_ahead, requests_ahead = run_loop(ahead=1)
    assert requests == requests_ahead == run_by_hand()
    assert overlap_ahead >= 2 * overlap, (overlap, overlap_ahead)


def test_four_hundred_samples_at_once() -> None:
    server_blobs, blobs = FakeBlobs(), FakeBlobs()
    direct = FakeTraining().open("tiny", Lora(rank=4, seed=1)).snapshot().result()
    with serving(FakeTraining(server_blobs), server_blobs) as server:
        training = ByteTinker(blobs, server.url)
        sampler = training.open("tiny", Lora(rank=4, seed=1)).snapshot().result()
        served, expected = (
            [each.sample(np.array([1, seed % 250]), max_tokens=5, seed=seed) for seed in range(400)]
            for each in (sampler, direct)
        )
        for mine, theirs in zip(served, expected, strict=True):
            np.testing.assert_array_equal(mine.result()[0].tokens, theirs.result()[0].tokens)
