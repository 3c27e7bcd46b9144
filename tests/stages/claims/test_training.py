"""The training stage: two gradients, drawn negatives, and a penalty that lowers wrong ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError, DataError
from kitchen.ports import TrainingClient, TrainingSession
from kitchen.progress import Progress
from kitchen.types import Adam, Datum, Lora
from stages.chat.render import RenderDataset
from stages.claims.loading import HeldOutClaims, TrainClaims, claim_row
from stages.claims.rows import ClaimRow
from stages.claims.scifact import documents_by_id
from stages.claims.training import (
    CitationPenalty,
    ClaimBatch,
    ClaimData,
    ForwardBackwardClaims,
    RenderClaims,
    ShuffledClaims,
    TokenWeights,
)
from stages.data.dataset import Epoch
from tests.support.claims import CLAIMS, CORPUS
from tests.support.tiny_model import tiny_model

RENDER = RenderDataset()


def claim_rows() -> tuple[ClaimRow, ...]:
    documents = documents_by_id([(f"c:{at}", row) for at, row in enumerate(CORPUS)], "c")
    return tuple(
        claim_row(row, f"x:{at}", documents=documents, hypothesis=True)
        for at, row in enumerate(CLAIMS)
    )


def rendered(tokenizer: Any, weights: TokenWeights | None = None) -> ClaimData:
    stage = RenderClaims(RENDER, weights or TokenWeights(), held_out_rows=0)
    return stage.run(TrainClaims(claim_rows()), HeldOutClaims({}), tokenizer)[0]


def whole_batch(data: ClaimData) -> ClaimBatch:
    [batch] = ShuffledClaims(len(data.data)).run(data, Epoch(0, 1, 1.0))
    return batch


def test_a_batch_has_its_rows_datums_with_weights_of_sum_1() -> None:
    data = rendered(ByteTokenizer())
    batch = whole_batch(data)
    assert {row.id for row in batch.rows} == {row.id for row in claim_rows()}
    by_where = {item.row.where: item.datum for item in data.data}
    for row, datum in zip(batch.rows, batch.data, strict=True):
        assert np.array_equal(datum.tokens, by_where[row.where].tokens)
    assert sum(datum.loss_inputs["weights"].sum() for datum in batch.data) == pytest.approx(1)


@pytest.mark.parametrize(
    ("weights", "claim", "verb"),
    [
        (TokenWeights(), 1, 15),
        (TokenWeights("by_line"), 5, 1),
        (TokenWeights("by_line", claim=7.0), 7, 1),
        (TokenWeights("uniform", verb=3.0), 1, 3),
    ],
)
def test_named_weights_can_be_changed_in_part(
    weights: TokenWeights, claim: float, verb: float
) -> None:
    datum = rendered(ByteTokenizer(), weights).data[0].datum
    trained = np.flatnonzero(datum.loss_inputs["weights"])
    text = ByteTokenizer().decode(datum.targets[trained])
    by_token = datum.loss_inputs["weights"][trained]
    assert by_token[text.index("Tea helps")] == claim
    assert by_token[text.rindex("supports")] == verb


def test_unknown_names_of_weights_and_penalties_are_errors() -> None:
    with pytest.raises(ConfigError, match="did you mean 'line_start'"):
        TokenWeights("line_starts")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'unlikelihood'"):
        CitationPenalty("unlikelihod")  # type: ignore[arg-type]


def test_weights_of_0_leave_nothing_to_learn() -> None:
    weights = TokenWeights("uniform", 0.0, 0.0, 0.0, end=0.0)
    with pytest.raises(DataError, match="no token of this row and of all others"):
        rendered(ByteTokenizer(), weights)


def test_a_held_out_loss_needs_claims_with_evidence() -> None:
    unlabelled = HeldOutClaims({"new": (replace(claim_rows()[0], answer=None),)})
    with pytest.raises(DataError, match="set eval_every=0"):
        RenderClaims(RENDER).run(TrainClaims(claim_rows()), unlabelled, ByteTokenizer())


def drawn(seed: int, step: int, penalty: CitationPenalty) -> list[Datum]:
    data = rendered(ByteTokenizer())
    stage = ForwardBackwardClaims(penalty, RENDER, seed)
    return stage.negatives(whole_batch(data), data, ByteTokenizer(), Progress(step))


def test_negatives_depend_on_seed_step_and_row_only() -> None:
    def texts(seed: int, step: int) -> list[str]:
        data = drawn(seed, step, CitationPenalty())
        return [ByteTokenizer().decode(datum.targets) for datum in data]

    assert texts(1, 2) == texts(1, 2)
    assert len({tuple(texts(seed, step)) for seed in (1, 2) for step in (0, 1, 2)}) == 6


def test_negatives_are_the_same_wherever_the_data_is_stored() -> None:
    def texts(folder: str) -> list[str]:
        data = rendered(ByteTokenizer())
        batch = whole_batch(data)
        moved = tuple(replace(row, where=f"{folder}/{row.where}") for row in batch.rows)
        stage = ForwardBackwardClaims(CitationPenalty(), RENDER)
        batch = replace(batch, rows=moved)
        drawn = stage.negatives(batch, data, ByteTokenizer(), Progress(0))
        return [ByteTokenizer().decode(datum.targets) for datum in drawn]

    assert texts("/a") == texts("b/../c")


@pytest.mark.parametrize(("rows", "count"), [(None, 5), (2, 2)])
def test_the_penalty_is_a_mean_over_the_rows_with_citations(rows: int | None, count: int) -> None:
    data = drawn(0, 0, CitationPenalty(weight=3.0, rows=rows))
    assert len(data) == count
    lowest = [float(datum.loss_inputs["advantages"].min()) for datum in data]
    assert lowest == pytest.approx([-3.0 / count] * count)


def wrong_probs(session: TrainingSession, data: Sequence[Datum]) -> list[float]:
    """Return the summed probabilities of the penalised tokens of each datum."""
    output = session.forward(data, "importance_sampling").result()
    masks = [datum.loss_inputs["advantages"] != 0 for datum in data]
    pairs = zip(output.logprobs, masks, strict=True)
    return [float(np.exp(logprobs[mask]).sum()) for logprobs, mask in pairs]


def local(folder: Path) -> TrainingClient:
    pytest.importorskip("torch")
    from adapters.local.blobs import LocalBlobs
    from adapters.local.hub import LocalHub
    from adapters.peft.client import PeftTraining

    hub, blobs = LocalHub(str(folder / "cache")), LocalBlobs(str(folder))
    return PeftTraining(hub, blobs, dtype="float32", device="cpu", threads=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("backend", ["fake", "local"])
def test_the_penalty_lowers_wrong_ids_at_random_states(
    backend: str, seed: int, tmp_path: Path
) -> None:
    client: Any = FakeTraining()
    name = f"model{seed}"
    if backend == "local":
        client = local(tmp_path)
        name = f"path:{tiny_model(tmp_path / 'tiny', seed=seed, context=1024)}"
    session = client.open(name, Lora(4, 8.0, seed=seed))
    tokenizer = session.tokenizer()
    data = rendered(tokenizer)
    batch = whole_batch(data)
    for _ in range(seed):  # to states that differ from the initial one
        session.forward_backward(batch.data)
        session.optim_step(Adam(1e-2)).result()
    stage = ForwardBackwardClaims(CitationPenalty(weight=1000.0), RENDER, seed)
    negatives = stage.negatives(batch, data, tokenizer, Progress(seed))
    before = wrong_probs(session, negatives)
    session.forward_backward(negatives, "importance_sampling")
    session.optim_step(Adam(1e-3)).result()
    after = wrong_probs(session, negatives)
    assert sum(after) < sum(before)
    assert sum(now < then for now, then in zip(after, before, strict=True)) >= len(after) - 1


def test_both_gradients_are_summed_before_the_step() -> None:
    async def weights_after(penalty: CitationPenalty) -> Any:
        session: Any = FakeTraining().open("model", Lora(4))
        data = rendered(session.tokenizer())
        stage = ForwardBackwardClaims(penalty, RENDER)
        await stage.run(session, session.tokenizer(), data, whole_batch(data), Progress(0))
        session.optim_step(Adam(0.1)).result()
        return session.adapter.b

    penalties = CitationPenalty("none"), CitationPenalty(), CitationPenalty(weight=10.0)
    without, penalised, doubled = (asyncio.run(weights_after(each)) for each in penalties)
    assert not np.array_equal(without, penalised)
    assert not np.array_equal(doubled, penalised)


async def dpo_loss_after(steps: int, client: Any) -> float:
    """Return the penalty after some steps of training with it."""
    session, reference = client.open("model", Lora(4)), client.sampler("model")
    data = rendered(session.tokenizer())
    stage = ForwardBackwardClaims(CitationPenalty("dpo", beta=0.5), RENDER)
    batch = whole_batch(data)
    for _ in range(steps):
        await stage.run(session, session.tokenizer(), data, batch, Progress(0), reference)
        session.optim_step(Adam(0.01)).result()
    _, penalty = await stage.run(session, session.tokenizer(), data, batch, Progress(0), reference)
    return (await penalty).loss


def test_dpo_on_the_same_pairs_starts_at_log_2_and_falls() -> None:
    client = FakeTraining()
    assert asyncio.run(dpo_loss_after(0, client)) == pytest.approx(5 * np.log(2), rel=1e-5)
    assert asyncio.run(dpo_loss_after(3, client)) < 5 * np.log(2) - 0.1


def test_beta_without_dpo_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"penalty\.beta has no effect"):
        CitationPenalty(beta=0.1)
