"""Log-probabilities that sampling requests ask for beyond those of the sampled tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from tinker.proto.response_conv import deserialize_sample_response

from adapters.fake.blobs import FakeBlobs
from adapters.fake.tokenizer import VOCABULARY
from adapters.fake.training import FakeTraining
from kitchen.types import Array
from tests.support.tinker_http import Client, connected

PROMPT = [72, 101, 108, 108, 111]


@pytest.fixture
def client() -> Iterator[Client]:
    with connected() as client:
        yield client


def sample(client: Client, **options: Any) -> Any:
    """Return the queued request to a new sampling session of the base model."""
    session = client.session()
    opened = client.post(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"},
    ).json()
    body = {
        "sampling_session_id": opened["sampling_session_id"],
        "seq_id": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
        "sampling_params": {"max_tokens": 4, "seed": 3},
        **options,
    }
    return client.post("asample", body)


def response(client: Client, **options: Any) -> Any:
    """Return the answer as the SDK decodes it."""
    return deserialize_sample_response(client.result_bytes(sample(client, **options)))


def table(tokens: list[int]) -> Array:
    """Return (T - 1, V) nats: the distribution of the base model after each prefix."""
    sampler = FakeTraining(FakeBlobs()).sampler("tiny")
    ids, nats = sampler.top_logprobs(np.array(tokens), VOCABULARY).result()
    distribution = np.empty((len(tokens) - 1, VOCABULARY))
    np.put_along_axis(distribution, ids[1:], nats[1:].astype(np.float64), axis=1)
    return distribution


def test_top_tokens_of_each_sampled_position(client: Client) -> None:
    options = {"num_samples": 3, "topk_sample_logprobs": 4}
    sequences = response(client, **options, sampling_params={"max_tokens": 5, "seed": 2}).sequences
    assert len({tuple(sequence.tokens) for sequence in sequences}) > 1
    for sequence in sequences:
        top = sequence.topk_logprobs_np
        assert top.logprobs.shape == (len(sequence.tokens), 4)
        expected = table([*PROMPT, *sequence.tokens])[len(PROMPT) - 1 :]
        np.testing.assert_allclose(top.logprobs, -np.sort(-expected, axis=1)[:, :4], atol=1e-5)
        chosen = np.take_along_axis(expected, top.token_ids.astype(np.int64), axis=1)
        np.testing.assert_allclose(top.logprobs, chosen, atol=1e-5)
    assert all(each.topk_logprobs_np is None for each in response(client).sequences)


def test_target_tokens_are_scored_where_they_are_named(client: Client) -> None:
    ids = np.array([[-1, 7], [101, 0], [-1, -1], [5, 255]])
    tensor = {"data": ids.ravel().tolist(), "dtype": "int64", "shape": [4, 2]}
    scored = response(client, target_prompt_logprobs=tensor).target_prompt_logprobs
    expected = np.take_along_axis(table(PROMPT), np.maximum(ids, 0), axis=1)
    np.testing.assert_allclose(scored.to_numpy(), np.where(ids < 0, 0.0, expected), atol=1e-5)


def test_sparse_targets_get_sparse_logprobs(client: Client) -> None:
    cells = {"sparse_crow_indices": [0, 0, 0, 1, 3], "sparse_col_indices": [1, 0, 2]}
    tensor = {"data": [9, 0, 255], "dtype": "int64", "shape": [4, 3], **cells}
    scored = response(client, target_prompt_logprobs=tensor).target_prompt_logprobs
    assert {name: list(getattr(scored, name)) for name in cells} == cells
    rows = table(PROMPT)
    expected = [rows[2, 9], rows[3, 0], rows[3, 255]]
    np.testing.assert_allclose(scored.data, expected, atol=1e-5)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"shape": [3, 1], "data": [1, 1, 1]}, "shape (4, K)"),
        ({"dtype": "float32", "data": [1.5, 1.0, 1.0, 1.0]}, "must be int64"),
        ({"data": [1, 1]}, "2 ids"),
        ({"data": [-1, -1, -1, -1]}, "names no token"),
        ({"data": [1, 1, 1, VOCABULARY]}, "vocabulary"),
        ({"data": [1, 1, 1, 2**70]}, "not a token id"),
        ({"data": [1, 1, 1, 0.5]}, "not whole"),
        ({"data": [1], "sparse_crow_indices": [0, 1], "sparse_col_indices": [0]}, "sparse"),
        ({"shape": [4, 10**8], "data": [1]}, "cells"),
    ],
)
def test_invalid_target_tokens_are_refused(
    client: Client, changes: dict[str, Any], words: str
) -> None:
    tensor = {"data": [1, 1, 1, 1], "dtype": "int64", "shape": [4, 1], **changes}
    refused = client.result(sample(client, target_prompt_logprobs=tensor))
    assert refused["category"] == "user"
    assert words in refused["error"]
