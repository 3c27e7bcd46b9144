"""Laws of sampling: the distribution of sampled tokens, and their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kitchen.errors import DataError
from kitchen.ports.sampling import Sampler
from kitchen.ports.training import TrainingClient, TrainingSession
from kitchen.testing.subject import TrainingSubject
from kitchen.types import Adam, Array, Sampled, Tokens


class SamplingLaws(TrainingSubject):
    """Sampled tokens follow the temperature-scaled distribution, and are scored under it."""

    @pytest.fixture
    def prompt(self, session: TrainingSession) -> Tokens:
        return session.tokenizer().encode("two cups of")

    @pytest.fixture
    def sampler(self, session: TrainingSession) -> Sampler:
        session.forward_backward(self.data(session))
        session.optim_step(Adam(0.01))
        return session.snapshot().result()

    def test_train_and_sample_logprobs_agree(
        self, session: TrainingSession, sampler: Sampler
    ) -> None:
        """The target at position i is token i + 1 of the scored sequence."""
        data = self.data(session)
        for datum, trained in zip(data, session.forward(data).result().logprobs, strict=True):
            scored = sampler.logprobs(np.append(datum.tokens, datum.targets[-1])).result()
            assert np.abs(scored[1:] - trained).mean() < self.agreement

    def test_a_sequence_is_scored_but_for_its_first_token(
        self, sampler: Sampler, prompt: Tokens
    ) -> None:
        scored = sampler.logprobs(prompt).result()
        assert scored.shape == prompt.shape
        assert scored.dtype == np.float32
        assert np.isnan(scored[0])
        assert (scored[1:] < 0).all()
        np.testing.assert_array_equal(sampler.logprobs(prompt[:1]).result(), [np.float32(np.nan)])

    def test_sampled_logprobs_agree_with_scored_ones(
        self, sampler: Sampler, prompt: Tokens
    ) -> None:
        for completion in sampler.sample(prompt, count=3, max_tokens=12, seed=3).result():
            tokens = np.concatenate([prompt, completion.tokens])
            scored = sampler.logprobs(tokens).result()[len(prompt) :]
            assert completion.logprobs.shape == completion.tokens.shape
            assert np.abs(scored - completion.logprobs).mean() < self.agreement

    @pytest.mark.parametrize("temperature", [0.5, 2.0])
    def test_sampled_logprobs_are_scaled_by_temperature(
        self,
        training: TrainingClient,
        session: TrainingSession,
        sampler: Sampler,
        prompt: Tokens,
        temperature: float,
    ) -> None:
        [completion] = sampler.sample(
            prompt, max_tokens=8, temperature=temperature, seed=4
        ).result()
        tokens = completion.tokens
        table = self.table(training, session, sampler, np.concatenate([prompt, tokens]))
        table = table[len(prompt) - 1 :]
        scaled = table / temperature - np.log(np.exp(table / temperature).sum(1, keepdims=True))
        expected = scaled[np.arange(len(tokens)), tokens]
        tolerance = self.agreement / min(temperature, 1.0)
        assert np.abs(expected - completion.logprobs).mean() < tolerance

    def table(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, tokens: Tokens
    ) -> Array:
        """Return (T - 1, V) nats: the distribution of the token after each prefix."""
        if "top_logprobs" not in training.capabilities:
            pytest.skip(f"{type(training).__name__} gives no top_logprobs")
        vocabulary = session.tokenizer().vocabulary
        ids, values = sampler.top_logprobs(tokens, vocabulary).result()
        table = np.empty((len(tokens) - 1, vocabulary))
        np.put_along_axis(table, ids[1:], values[1:].astype(np.float64), axis=1)
        return table

    def test_top_logprobs_are_the_likeliest_in_order(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, prompt: Tokens
    ) -> None:
        table = self.table(training, session, sampler, prompt)
        np.testing.assert_allclose(np.exp(table).sum(1), 1.0, rtol=1e-3)
        ids, values = sampler.top_logprobs(prompt, 3).result()
        assert ids.shape == values.shape == (len(prompt), 3)
        assert (ids[0] == -1).all()
        assert np.isnan(values[0]).all()
        np.testing.assert_allclose(values[1:], -np.sort(-table, axis=1)[:, :3], atol=self.agreement)
        expected = np.take_along_axis(table, ids[1:], axis=1)
        np.testing.assert_allclose(values[1:], expected, atol=self.agreement)

    def test_other_tokens_are_scored_at_each_position(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, prompt: Tokens
    ) -> None:
        """A sampler may have target_logprobs(tokens, targets) beyond the port."""
        score = getattr(sampler, "target_logprobs", None)
        if score is None:
            pytest.skip(f"{type(sampler).__name__} does not score other tokens")
        table = self.table(training, session, sampler, prompt)
        targets = np.random.default_rng(3).integers(-1, table.shape[1], (len(prompt) - 1, 3))
        targets[0] = [-1, 0, table.shape[1] - 1]
        expected = np.take_along_axis(table, np.maximum(targets, 0), axis=1)
        expected[targets < 0] = np.nan
        np.testing.assert_allclose(score(prompt, targets).result(), expected, atol=self.agreement)
        for wrong in (targets[1:], targets[:, 0], np.full_like(targets, table.shape[1])):
            with pytest.raises(DataError):
                score(prompt, wrong).result()

    def test_the_same_request_gives_the_same_bits(self, sampler: Sampler, prompt: Tokens) -> None:
        first, second, other_seed = (
            sampler.sample(prompt, count=3, max_tokens=12, seed=seed).result() for seed in (7, 7, 8)
        )
        assert token_lists(first) == token_lists(second) != token_lists(other_seed)
        for completion, repeated in zip(first, second, strict=True):
            np.testing.assert_array_equal(completion.logprobs, repeated.logprobs)

    def test_count_completions_that_differ(self, sampler: Sampler, prompt: Tokens) -> None:
        completions = sampler.sample(prompt, count=5, max_tokens=12, seed=1).result()
        assert len(completions) == 5
        assert len({tuple(completion.tokens) for completion in completions}) > 1

    def test_many_settings_are_greedy(self, sampler: Sampler, prompt: Tokens) -> None:
        settings: list[dict[str, Any]] = [
            {"temperature": 0.0, "seed": 9},
            {"temperature": 0.0, "count": 2},
            {"top_k": 1},
            {"top_p": 1e-6},
            {"temperature": 1e-3},
        ]
        [greedy] = sampler.sample(prompt, max_tokens=6, temperature=0.0).result()
        for setting in settings:
            for completion in sampler.sample(prompt, max_tokens=6, **setting).result():
                assert completion.tokens.tolist() == greedy.tokens.tolist(), setting
                assert np.isfinite(completion.logprobs).all(), setting

    def test_greedy_takes_the_likeliest_token(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, prompt: Tokens
    ) -> None:
        [greedy] = sampler.sample(prompt, max_tokens=6, temperature=0.0).result()
        table = self.table(training, session, sampler, np.concatenate([prompt, greedy.tokens]))
        assert greedy.tokens.tolist() == table[len(prompt) - 1 :].argmax(1).tolist()

    def test_top_k_and_top_p_keep_the_likeliest(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, prompt: Tokens
    ) -> None:
        row = self.table(training, session, sampler, np.append(prompt, prompt[0]))[-1]
        order = np.argsort(-row)
        # with a little less than this, top_p keeps these four
        share = float(np.exp(row[order[:4]]).sum())
        less = 1 - max(0.001, 2 * self.agreement)
        settings: list[tuple[dict[str, Any], int]] = [
            ({"top_k": 3}, 3),
            ({"top_p": share * less}, 4),
            ({"top_k": 2, "top_p": 0.999}, 2),
        ]
        for setting, remaining in settings:
            completions = sampler.sample(prompt, count=64, max_tokens=1, seed=2, **setting).result()
            tokens = {int(completion.tokens[0]) for completion in completions}
            assert 1 < len(tokens) <= remaining
            least_likely = row[order[remaining - 1]] - 2 * self.agreement
            assert row[list(tokens)].min() >= least_likely, "likelier tokens were left out"

    def test_tokens_are_sampled_by_their_probability(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, prompt: Tokens
    ) -> None:
        """The share of the likelier of two is within 5 standard deviations, <= 0.5 / sqrt(n)."""
        row = self.table(training, session, sampler, np.append(prompt, prompt[0]))[-1]
        first, second = np.argsort(-row)[:2]
        for temperature in (1.0, 0.25):
            odds = (row[first] - row[second]) / temperature
            completions = sampler.sample(
                prompt, count=400, max_tokens=1, top_k=2, temperature=temperature, seed=5
            ).result()
            share = np.mean([completion.tokens[0] == first for completion in completions])
            assert abs(share - 1 / (1 + np.exp(-odds))) < 5 * 0.5 / 20


def token_lists(completions: Sequence[Sampled]) -> list[list[int]]:
    return [completion.tokens.tolist() for completion in completions]
