"""Checks of SkyRL: our recipes on it and on the local engine, and all ways to use weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from adapters.tinker.client import TinkerTraining
from adapters.tinker.service import wait_for_closing
from kitchen.ports.sampling import Sampler
from kitchen.ports.training import TrainingSession
from kitchen.types import Adam, Array, Datum, Lora
from tests.support.fake_runs import run_recipe

TOLERANCE = 1e-4  # nats
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Result:
    """A row of the table: the outcome of a check, and its figures."""

    name: str
    works: bool
    outcome: str
    figures: Sequence[str] = ()


def compare(name: str, model: Path, url: str) -> Iterator[Result]:
    """Run a recipe on both engines and compare its training steps."""
    local, remote = _run_both(name, model, url)
    failure = _find_failure(local, remote)
    losses = [f"{rows[at]['loss']:.4f}" for at in (0, -1) for rows in (local, remote)]
    figures = [str(len(remote)), *losses, _format_kl(remote)]
    yield Result(name, not failure, failure or "works", figures)


def compare_weights(model: Path, url: str, folder: Path) -> Iterator[Result]:
    """Compare weights that were saved, loaded and exported with those under training."""
    abandoned = "training after a session without a step"
    differences = chain(
        [(abandoned, _abandoned_difference(model, url))], _weight_differences(model, url, folder)
    )
    for name, difference in differences:
        works = difference < TOLERANCE
        outcome = f"{'works' if works else 'FAILS'}: {difference:.0e} nats"
        yield Result(name, works, outcome)


def _weight_differences(model: Path, url: str, folder: Path) -> Iterator[tuple[str, float]]:
    """Yield the largest difference in nats of each way to use weights, after two steps."""
    client, hub = skyrl_client(url, model, FakeBlobs()), LocalHub()
    tokens = np.array([5, 9, 17, 33, 65, 12, 7, 81])
    inputs = {"target_tokens": tokens[1:], "weights": np.ones(len(tokens) - 1)}
    batch, adam = [Datum(tokens[:-1], inputs)], Adam(learning_rate=1e-2)

    def step(session: TrainingSession) -> Array:
        session.forward_backward(batch).result()
        session.optim_step(adam).result()
        return session.forward(batch).result().logprobs[0]

    def difference(sampler: Sampler, expected: Array) -> float:
        return float(np.abs(sampler.logprobs(tokens).result()[1:] - expected).max())

    session, resumed = (client.open(str(model), Lora(rank=8)) for _ in range(2))
    first = step(session)
    state, weights = session.save("state").result(), session.save_weights("weights").result()
    second = step(session)
    yield "samples of an earlier checkpoint", difference(client.sampler(weights), first)
    undisturbed = session.forward(batch).result().logprobs[0]
    yield "training after these samples", float(np.abs(undisturbed - second).max())
    resumed.load(state).result()
    yield "resume", float(np.abs(step(resumed) - second).max())
    resumed.load_weights(weights).result()
    loaded = resumed.forward(batch).result().logprobs[0]
    yield "model=run:", float(np.abs(loaded - first).max())
    client.export(weights, folder / "export")
    exported = PeftTraining(hub, FakeBlobs(), device="cpu", dtype="float32")
    sampler = exported.sampler(f"path:{folder}/export")
    yield "export, read by the local engine", difference(sampler, first)


def _abandoned_difference(model: Path, url: str) -> float:
    """Return by how many nats a session that ends before its step changes the next session."""
    tokens = np.array([5, 9, 17, 33, 65, 12, 7, 81])
    batch = [Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": np.ones(7)})]
    other = [Datum(tokens[1:], {"target_tokens": tokens[:-1], "weights": np.ones(7)})]

    def train(data: Sequence[Datum], steps: int) -> Array:
        session = skyrl_client(url, model, FakeBlobs()).open(str(model), Lora(rank=8))
        session.forward_backward(data).result()
        for _ in range(steps):
            session.optim_step(Adam(learning_rate=1e-2)).result()
        logprobs = session.forward(batch).result().logprobs[0]
        session.close()
        wait_for_closing(60)
        return logprobs

    expected = train(batch, 1)
    train(other, 0)
    return float(np.abs(train(batch, 1) - expected).max())


def _run_both(name: str, model: Path, url: str) -> tuple[Rows, Rows]:
    """Return the metrics of the training steps on the local engine and on the server."""
    hub, local_blobs, remote_blobs = LocalHub(), FakeBlobs(), FakeBlobs()
    engine = PeftTraining(hub, local_blobs, device="cpu", dtype="float32")
    path = f"path:{model}"
    local = run_recipe(name, engine, local_blobs, model=path, teacher=path, lora_rank=16)
    client = skyrl_client(url, model, remote_blobs)
    path = str(model)
    remote = run_recipe(name, client, remote_blobs, model=path, teacher=path, lora_rank=16)
    return _training_steps(local), _training_steps(remote)


def skyrl_client(url: str, model: Path, blobs: FakeBlobs) -> TinkerTraining:
    return TinkerTraining(
        LocalHub(), blobs, base_url=url, server="skyrl", tokenizer=f"path:{model}"
    )


def _training_steps(rows: Rows) -> Rows:
    return [row for row in rows if "learning_rate" in row]


def _find_failure(local: Rows, remote: Rows) -> str:
    if len(local) != len(remote):
        return f"FAILS: {len(remote)} steps, not {len(local)}"
    # samples and losses differ, but sampling and training must agree on each sample
    if "entropy" in remote[0]:
        on_policy = [row["kl_sampler_v2"] for row in remote if row["step"] % 2 == 0]
        if max(on_policy) < TOLERANCE**2:
            return ""
        return f"FAILS: sampling and training differ by {max(on_policy):.1e}"
    if abs(local[0]["loss"] - remote[0]["loss"]) > TOLERANCE:
        return "FAILS: the first losses differ"
    return "" if remote[-1]["loss"] < remote[0]["loss"] else "FAILS: the loss did not fall"


def _format_kl(rows: Rows) -> str:
    if "kl_sampler_v2" not in rows[0]:
        return ""
    return f"KL {max(row['kl_sampler_v2'] for row in rows[::2]):.0e}"
