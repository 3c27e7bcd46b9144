"""Shared prefixes: computed once, with equal losses, gradients, scores and resumed sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft.session import PeftSession
from kitchen.types import Adam, Array, Datum, Floats, Lora, LossOutput
from tests.support.peft_sessions import (
    LORA,
    TOGETHER,
    Opened,
    assert_same_step,
    count_distinct_prefixes,
    flat,
    record_token_counts,
    shared_and_alone,
    step,
    with_nonzero_b,
)
from tests.support.sampling import DEVICE

PROMPT = 40  # tokens


def completions(groups: int, each: int) -> list[Array]:
    """Return (T,) ids of `each` completions of 5 to 24 tokens for each of `groups` prompts."""
    rng, sequences = np.random.default_rng(groups), []
    for _ in range(groups):
        prompt = rng.integers(3, 300, PROMPT)
        sequences += [
            np.concatenate([prompt, rng.integers(3, 300, rng.integers(5, 25))]) for _ in range(each)
        ]
    return sequences


def datums(tokens: Sequence[Array], *, everywhere: bool = False, width: int = 0) -> list[Datum]:
    """Weight what follows the prompt, or all; `width` targets at each position if it is set."""
    rng, data = np.random.default_rng(3), []
    for ids in tokens:
        shape = (len(ids) - 1, width) if width else (len(ids) - 1,)
        weights = rng.normal(size=shape)
        weights[: 0 if everywhere else PROMPT - 1] = 0
        targets = rng.integers(3, 300, shape) if width else ids[1:]
        data.append(Datum(ids[:-1], {"target_tokens": targets, "weights": weights}))
    return data


def judged(tokens: Sequence[Array]) -> list[Datum]:
    """Return data as after sampling, with advantages on the completion."""
    rng = np.random.default_rng(8)
    return [
        Datum(
            ids[:-1],
            {
                "target_tokens": ids[1:],
                "logprobs": -5 + rng.normal(size=len(ids) - 1),
                "advantages": np.where(np.arange(1, len(ids)) < PROMPT, 0.0, rng.normal()),
            },
        )
        for ids in tokens
    ]


class Pairs:
    """-log sigmoid of the difference of two sequences' log-probabilities, as in DPO.

    Rafailov et al., 2023, arXiv:2305.18290.
    """

    group = 2

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats]
    ) -> tuple[float, list[Array], dict[str, float]]:
        scores = [
            float((lp * d.loss_inputs["weights"]).sum())
            for d, lp in zip(data, logprobs, strict=True)
        ]
        margins = np.repeat(np.array(scores[::2]) - np.array(scores[1::2]), 2)
        signs = np.resize([-1.0, 1.0], len(data))
        grads = [
            sign / (1 + np.exp(margin)) * d.loss_inputs["weights"]
            for sign, margin, d in zip(signs, margins, data, strict=True)
        ]
        return float(np.logaddexp(0, -margins[::2]).sum()), grads, {}


class PairsInTwoPasses(Pairs):
    """The same loss without its group of two, so that pairs may be split."""

    group = 0


CASES: dict[str, tuple[list[Datum], Any, Any]] = {
    "completions scored": (datums(completions(2, 4)), "cross_entropy", "cross_entropy"),
    "prompts scored too": (
        datums(completions(2, 4), everywhere=True),
        "cross_entropy",
        "cross_entropy",
    ),
    "several targets at a position": (
        datums(completions(2, 3), everywhere=True, width=3),
        "cross_entropy",
        "cross_entropy",
    ),
    "identical": (
        datums([completions(1, 1)[0]] * 4, everywhere=True),
        "cross_entropy",
        "cross_entropy",
    ),
    "one the beginning of the other": (
        datums([completions(1, 1)[0][:length] for length in (42, 20, 45, 18, 33)], everywhere=True),
        "cross_entropy",
        "cross_entropy",
    ),
    "pairs": (datums(completions(3, 2)), Pairs(), PairsInTwoPasses()),
    "policy": (judged(completions(2, 8)), "ppo", "ppo"),
}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_sharing_changes_neither_loss_nor_gradient(
    opened: Opened, case: str, checkpointing: bool
) -> None:
    data, loss, plain = CASES[case]
    shared, alone = shared_and_alone(opened, checkpointing=checkpointing)
    shared_counts, alone_counts = record_token_counts(shared), record_token_counts(alone)
    assert_same_step(step(shared, data, loss), step(alone, data, plain))
    assert (
        sum(shared_counts)
        == count_distinct_prefixes(data)
        < 0.75 * sum(len(datum.tokens) for datum in data)
    )
    assert sum(alone_counts) == sum(len(datum.tokens) for datum in data) * (
        2 if plain is not loss else 1
    )


@pytest.mark.parametrize("quiet", [0, 1])
def test_either_sequence_may_score_the_prefix(opened: Opened, quiet: int) -> None:
    data = datums(completions(1, 2), everywhere=True)
    data[quiet].loss_inputs["weights"][:] = 0
    shared, alone = shared_and_alone(opened)
    assert_same_step(step(shared, data), step(alone, data))


def test_forward_scores_every_position(opened: Opened) -> None:
    shared, alone = shared_and_alone(opened)
    data = datums(completions(2, 4), everywhere=True)
    once = record_token_counts(shared)
    ours, theirs = shared.forward(data).result(), alone.forward(data).result()
    assert sum(once) == count_distinct_prefixes(data)
    for got, expected, datum in zip(ours.logprobs, theirs.logprobs, data, strict=True):
        assert got.shape == datum.targets.shape
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)


def test_batched_scores_equal_single_scores(opened: Opened) -> None:
    sampler = with_nonzero_b(opened(LORA, dtype="float64", **TOGETHER)).snapshot().result()
    tokens = [*completions(2, 4), completions(1, 1)[0][:20], completions(1, 1)[0][:1]]
    together = [
        (sampler.logprobs(ids), sampler.top_logprobs(ids, 3), sampler.top_logprobs(ids, 1 + place))
        for place, ids in enumerate(tokens)
    ]
    for place, (ids, (logprobs, top, more)) in enumerate(zip(tokens, together, strict=True)):
        np.testing.assert_allclose(logprobs.result(), sampler.logprobs(ids).result(), atol=1e-6)
        names, values = top.result()
        alone, expected = sampler.top_logprobs(ids, 3).result()
        np.testing.assert_array_equal(names, alone)
        np.testing.assert_allclose(values, expected, atol=1e-6)
        for got, found in zip(
            more.result(), sampler.top_logprobs(ids, 1 + place).result(), strict=True
        ):
            assert got.shape == (len(ids), 1 + place)
            np.testing.assert_allclose(got, found, atol=1e-6)
        assert len(logprobs.result()) == len(names) == len(ids)
    sampler.close()


def test_training_and_sampling_logprobs_agree(opened: Opened) -> None:
    session = with_nonzero_b(opened(LORA, **TOGETHER))
    tokens = completions(2, 4)
    trained = session.forward(datums(tokens, everywhere=True)).result().logprobs
    sampler = session.snapshot().result()
    futures = [sampler.logprobs(ids) for ids in tokens]
    for ours, theirs in zip(trained, futures, strict=True):
        assert np.abs(ours - theirs.result()[1:]).mean() < 1e-4
    sampler.close()


def test_dropout_shares_nothing_and_is_reproducible(
    opened: Opened,
) -> None:
    data = datums([completions(1, 1)[0]] * 3, everywhere=True)
    lora = Lora(rank=4, seed=2, dropout=0.3)
    session, again = (with_nonzero_b(opened(lora, **TOGETHER)) for _ in range(2))
    once = record_token_counts(session)
    output, gradient = step(session, data)
    assert sum(once) == sum(len(datum.tokens) for datum in data)
    repeated, same_gradient = step(again, data)
    for ours, theirs in zip(output.logprobs, repeated.logprobs, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(flat(gradient), flat(same_gradient))
    assert not np.allclose(output.logprobs[0], output.logprobs[1])  # each datum drops what it drops
    later, _ = step(session, data)
    assert not np.allclose(output.logprobs[0], later.logprobs[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_call_has_the_same_bits(opened: Opened, threads: int) -> None:
    data = datums(completions(4, 3))
    (output, gradient), (again, same_gradient) = (
        step(with_nonzero_b(opened(LORA, threads=threads, micro_batch_tokens=120)), data)
        for _ in range(2)
    )
    for ours, theirs in zip(output.logprobs, again.logprobs, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(flat(gradient), flat(same_gradient))


def test_results_do_not_depend_on_threads_in_float64(opened: Opened) -> None:
    data = judged(completions(4, 3))
    one, two = (
        with_nonzero_b(opened(LORA, dtype="float64", threads=threads, micro_batch_tokens=200))
        for threads in (1, 2)
    )
    assert_same_step(step(two, data, "ppo"), step(one, data, "ppo"))


@pytest.mark.parametrize("cpu_flags", ["", "amx_bf16"], indirect=True)
def test_bfloat16_gradients_agree_with_float32(opened: Opened, cpu_flags: None) -> None:
    """Products are in float32 or, where the processor multiplies it fast, in bfloat16."""
    data = datums(completions(2, 4))
    exact, rounded = (
        with_nonzero_b(opened(LORA, dtype=dtype, **TOGETHER)) for dtype in ("float32", "bfloat16")
    )
    (expected, gradient), (got, other) = step(exact, data), step(rounded, data)
    assert got.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=0.02, abs=1.0)
    for name in gradient:
        one, two = gradient[name].ravel(), other[name].ravel()
        assert one @ two / np.linalg.norm(one) / np.linalg.norm(two) > 0.99, name
        assert 0.97 < np.linalg.norm(two) / np.linalg.norm(one) < 1.03, name


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_session_matches_bit_for_bit(opened: Opened, dtype: str, threads: int) -> None:
    """Without dropout, with hand-written layers and shared prefixes."""
    data, settings = (
        judged(completions(3, 3)),
        {"dtype": dtype, "threads": threads, "micro_batch_tokens": 150},
    )
    straight, resumed = opened(LORA, **settings), opened(LORA, **settings)

    def train(session: PeftSession, steps: int) -> None:
        for _ in range(steps):
            session.forward_backward(data, "importance_sampling")
            session.optim_step(Adam(0.01)).result()

    train(straight, 2)
    resumed.load(straight.save("two").result()).result()
    train(straight, 2)
    train(resumed, 2)
    ours, theirs = (
        session.submit(lambda trainer: trainer.adapter.tensors()).result()
        for session in (resumed, straight)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


LONG = 80  # tokens of a prompt that is carried from one micro-batch to the next


def lengthened(tokens: Sequence[Array]) -> list[Array]:
    """Prepend tokens that all sequences have in common."""
    return [np.concatenate([np.arange(3, 3 + LONG - PROMPT), ids]) for ids in tokens]


def ladder() -> list[Array]:
    """Return sequences of which each is the beginning of others."""
    return [completions(1, 1)[0][np.arange(length) % 45] for length in (120, 80, 130, 90, 70, 90)]


# data, loss, tokens that a lane takes at once
BIT_BY_BIT: dict[str, tuple[list[Datum], str, int]] = {
    "completions scored": (datums(lengthened(completions(2, 6))), "cross_entropy", 40),
    "prompts scored too": (
        datums(lengthened(completions(2, 6)), everywhere=True),
        "cross_entropy",
        40,
    ),
    "one by one": (datums(lengthened(completions(2, 4)), everywhere=True), "cross_entropy", 1),
    "several targets at a position": (
        datums(lengthened(completions(2, 4)), everywhere=True, width=3),
        "cross_entropy",
        40,
    ),
    "policy": (judged(lengthened(completions(2, 6))), "ppo", 40),
    "one the beginning of the other": (datums(ladder(), everywhere=True), "cross_entropy", 25),
    "identical": (
        datums([lengthened(completions(1, 1))[0]] * 4, everywhere=True),
        "cross_entropy",
        40,
    ),
    "beside short ones": (
        datums([*completions(3, 2), *lengthened(completions(1, 6)), *completions(4, 1)]),
        "cross_entropy",
        100,
    ),
    "a prompt that nothing but an end follows": (
        datums(
            [*lengthened(completions(1, 4)), lengthened(completions(1, 1))[0][: LONG + 1]],
            everywhere=True,
        ),
        "cross_entropy",
        30,
    ),
}


@pytest.mark.parametrize(
    ("case", "threads", "checkpointing"),
    [
        *((case, 2, False) for case in BIT_BY_BIT),
        ("completions scored", 1, False),
        ("one by one", 1, False),
        ("prompts scored too", 2, True),
        ("one the beginning of the other", 1, True),
        ("policy", 1, True),
    ],
)
def test_a_long_group_computes_its_prefix_once(
    opened: Opened, case: str, threads: int, checkpointing: bool
) -> None:
    """The result is that of separate calls for each datum."""
    data, loss, budget = BIT_BY_BIT[case]
    how = {"dtype": "float64", "threads": threads, "checkpointing": checkpointing}
    carried = with_nonzero_b(opened(LORA, micro_batch_tokens=budget * threads, **how))
    alone = with_nonzero_b(opened(LORA, micro_batch_tokens=10_000, **how))
    read_here = record_token_counts(carried)
    single = [step(alone, [datum], loss) for datum in data]
    outputs = [output for output, _ in single]
    summed = LossOutput(
        tuple(output.logprobs[0] for output in outputs),
        {"loss:sum": sum(output.metrics["loss:sum"] for output in outputs)},
        (),
    )
    assert_same_step(step(carried, data, loss), (summed, single[-1][1]))
    twice = LONG * (threads - 1)  # where there is one prompt alone, each lane reads it
    assert (
        count_distinct_prefixes(data)
        <= sum(read_here)
        <= count_distinct_prefixes(data) + twice + 3 * PROMPT
        < sum(len(datum.tokens) for datum in data)
    )
    scores = carried.forward(data, loss).result().logprobs
    for ours, theirs in zip(scores, alone.forward(data, loss).result().logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_carried_prefix_custom_loss_gradient(opened: Opened) -> None:
    """The loss takes two passes, because pairs may be split between micro-batches."""
    data = datums(lengthened(completions(2, 6)))
    carried, together = (
        with_nonzero_b(opened(LORA, dtype="float64", micro_batch_tokens=tokens))
        for tokens in (80, 10_000)
    )
    counts = record_token_counts(carried)
    assert_same_step(step(carried, data, PairsInTwoPasses()), step(together, data, Pairs()))
    assert counts.count(LONG) == 4


def test_long_completion_groups_compute_prompts_once(opened: Opened) -> None:
    data = judged(lengthened(completions(4, 6)))
    session = with_nonzero_b(opened(LORA, threads=2, micro_batch_tokens=100))
    counts = record_token_counts(session)
    step(session, data, "importance_sampling")
    assert len(counts) > 8
    assert sum(counts) == count_distinct_prefixes(data) + 3 * (LONG - PROMPT), (
        "what all four have in common is too short to be carried"
    )


def test_carried_prefix_is_deterministic(opened: Opened) -> None:
    data = judged(lengthened(completions(3, 6)))
    sessions = [with_nonzero_b(opened(LORA, threads=2, micro_batch_tokens=80)) for _ in range(2)]
    counts = record_token_counts(sessions[0])
    (output, gradient), (again, same_gradient) = (
        step(session, data, "importance_sampling") for session in sessions
    )
    assert counts.count(LONG) == (4 if DEVICE == "cpu" else 3), "a group is cut for the two lanes"
    for ours, theirs in zip(output.logprobs, again.logprobs, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(flat(gradient), flat(same_gradient))


def test_carried_prefix_gradient_in_bfloat16(opened: Opened) -> None:
    data = datums(lengthened(completions(2, 8)), everywhere=True)
    exact, rounded = (
        with_nonzero_b(opened(LORA, dtype=dtype, micro_batch_tokens=80))
        for dtype in ("float32", "bfloat16")
    )
    counts = record_token_counts(rounded)
    (expected, gradient), (got, other) = step(exact, data), step(rounded, data)
    assert counts.count(LONG) == 2
    assert got.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=0.02, abs=1.0)
    one, two = flat(gradient), flat(other)
    assert one @ two / np.linalg.norm(one) / np.linalg.norm(two) > 0.99
