"""Laws of sampling: what is drawn, when it stops, and what it scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kitchen.errors import KitchenError
from kitchen.ports.training import Sampler, TrainingClient, TrainingSession
from kitchen.testing.subject import TrainingSubject
from kitchen.types import Adam, Array, Datum, Sampled, Tokens


class SamplingLaws(TrainingSubject):
    """Drawn tokens come from the temperature-scaled distribution; a stop token is among the tokens returned."""

    @pytest.fixture
    def prompt(self, session: TrainingSession) -> Tokens:
        return session.tokenizer().encode("two cups of")

    @pytest.fixture
    def sampler(self, session: TrainingSession) -> Sampler:
        session.forward_backward(self.data(session))
        session.optim_step(Adam(0.01))
        return session.snapshot().result()

    def test_train_and_sample_logprobs_agree(self, session: TrainingSession, sampler: Sampler) -> None:
        """There is no shift inside: what is predicted at position i stands at i + 1 of the scored sequence."""
        data = self.data(session)
        for datum, trained in zip(data, session.forward(data).result().logprobs, strict=True):
            scored = sampler.logprobs(np.append(datum.tokens, datum.targets[-1])).result()
            assert np.abs(scored[1:] - trained).mean() < self.agreement

    def test_a_sequence_is_scored_but_for_its_first_token(self, sampler: Sampler, prompt: Tokens) -> None:
        scored = sampler.logprobs(prompt).result()
        assert scored.shape == prompt.shape
        assert scored.dtype == np.float32
        assert np.isnan(scored[0])
        assert (scored[1:] < 0).all()
        np.testing.assert_array_equal(sampler.logprobs(prompt[:1]).result(), [np.float32(np.nan)])

    def test_drawn_logprobs_agree_with_scored_ones(self, sampler: Sampler, prompt: Tokens) -> None:
        for drawn in sampler.sample(prompt, count=3, max_tokens=12, seed=3).result():
            scored = sampler.logprobs(np.concatenate([prompt, drawn.tokens])).result()[len(prompt):]
            assert drawn.logprobs.shape == drawn.tokens.shape
            assert np.abs(scored - drawn.logprobs).mean() < self.agreement

    @pytest.mark.parametrize("temperature", [0.5, 2.0])
    def test_drawn_logprobs_are_of_the_scaled_distribution(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, prompt: Tokens, temperature: float
    ) -> None:
        [drawn] = sampler.sample(prompt, max_tokens=8, temperature=temperature, seed=4).result()
        table = self.table(training, session, sampler, np.concatenate([prompt, drawn.tokens]))[len(prompt) - 1:]
        scaled = table / temperature - np.log(np.exp(table / temperature).sum(1, keepdims=True))
        expected = scaled[np.arange(len(drawn.tokens)), drawn.tokens]
        assert np.abs(expected - drawn.logprobs).mean() < self.agreement / min(temperature, 1.0)

    def table(self, training: TrainingClient, session: TrainingSession, sampler: Sampler, tokens: Tokens) -> Array:
        """(T - 1, V) nats: the whole distribution over what follows each prefix."""
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
        at = np.take_along_axis(table, ids[1:], axis=1)
        np.testing.assert_allclose(values[1:], at, atol=self.agreement)

    def test_the_same_request_gives_the_same_bits(self, sampler: Sampler, prompt: Tokens) -> None:
        one, two, other = (sampler.sample(prompt, count=3, max_tokens=12, seed=seed).result() for seed in (7, 7, 8))
        assert texts(one) == texts(two) != texts(other)
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a.logprobs, b.logprobs)

    def test_count_completions_that_differ(self, sampler: Sampler, prompt: Tokens) -> None:
        drawn = sampler.sample(prompt, count=5, max_tokens=12, seed=1).result()
        assert len(drawn) == 5
        assert len({tuple(one.tokens) for one in drawn}) > 1

    @pytest.mark.parametrize("setting", [
        {"temperature": 0.0, "seed": 9}, {"temperature": 0.0, "count": 2}, {"top_k": 1}, {"top_p": 1e-6},
        {"temperature": 1e-3},
    ], ids=str)
    def test_many_settings_are_greedy(self, sampler: Sampler, prompt: Tokens, setting: dict[str, Any]) -> None:
        [greedy] = sampler.sample(prompt, max_tokens=6, temperature=0.0).result()
        for drawn in sampler.sample(prompt, max_tokens=6, **setting).result():
            assert drawn.tokens.tolist() == greedy.tokens.tolist()
            assert np.isfinite(drawn.logprobs).all()

    def test_greedy_takes_the_likeliest_token(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, prompt: Tokens
    ) -> None:
        [greedy] = sampler.sample(prompt, max_tokens=6, temperature=0.0).result()
        table = self.table(training, session, sampler, np.concatenate([prompt, greedy.tokens]))[len(prompt) - 1:]
        assert greedy.tokens.tolist() == table.argmax(1).tolist()

    def test_top_k_and_top_p_keep_the_likeliest(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, prompt: Tokens
    ) -> None:
        row = self.table(training, session, sampler, np.append(prompt, prompt[0]))[-1]
        order = np.argsort(-row)
        share = float(np.exp(row[order[:4]]).sum())  # with a little less than this, top_p keeps these four
        settings: list[tuple[dict[str, Any], int]] = [
            ({"top_k": 3}, 3), ({"top_p": share * 0.999}, 4), ({"top_k": 2, "top_p": 0.999}, 2)]
        for setting, kept in settings:
            drawn = sampler.sample(prompt, count=64, max_tokens=1, seed=2, **setting).result()
            assert {int(one.tokens[0]) for one in drawn} <= set(order[:kept].tolist())
            assert len({int(one.tokens[0]) for one in drawn}) > 1

    def test_tokens_are_drawn_as_often_as_they_are_likely(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, prompt: Tokens
    ) -> None:
        """Of the two likeliest, the share of the first lies within 5 standard deviations (at most 0.5 / sqrt(n))."""
        row = self.table(training, session, sampler, np.append(prompt, prompt[0]))[-1]
        first, second = np.argsort(-row)[:2]
        for temperature in (1.0, 0.25):
            odds = (row[first] - row[second]) / temperature
            drawn = sampler.sample(prompt, count=400, max_tokens=1, top_k=2, temperature=temperature, seed=5).result()
            share = np.mean([one.tokens[0] == first for one in drawn])
            assert abs(share - 1 / (1 + np.exp(-odds))) < 5 * 0.5 / 20


class StopLaws(TrainingSubject):
    """A completion ends with the token that stops it, or at its limit."""

    def run(self, session: TrainingSession, **setting: Any) -> Sampled:
        prompt = session.tokenizer().encode("two cups of")
        [drawn] = session.snapshot().result().sample(prompt, seed=11, **setting).result()
        return drawn

    @pytest.mark.parametrize("limit", [1, 2, 9])
    def test_the_limit_stops(self, session: TrainingSession, limit: int) -> None:
        drawn = self.run(session, max_tokens=limit)
        if drawn.stop_reason == "length":
            assert len(drawn.tokens) == limit
        assert len(drawn.tokens) <= limit
        assert (drawn.stop_reason == "stop") == (int(drawn.tokens[-1]) in session.tokenizer().stop_ids)

    def test_a_stop_token_stops_and_is_returned(self, session: TrainingSession) -> None:
        free = self.run(session, max_tokens=12).tokens.tolist()
        stop = free[len(free) // 2]
        drawn = self.run(session, max_tokens=12, stop=(stop,))
        assert drawn.tokens.tolist() == free[:free.index(stop) + 1]
        assert drawn.stop_reason == "stop"
        assert len(drawn.logprobs) == len(drawn.tokens)

    def test_a_stop_string_ends_with_the_token_that_completes_it(self, session: TrainingSession) -> None:
        tokenizer, free = session.tokenizer(), self.run(session, max_tokens=60).tokens
        prefixes = [tokenizer.decode(free[:end]) for end in range(len(free) + 1)]
        letters = [letter for letter in prefixes[-1][1:] if " " < letter < "\x7f"]
        assert letters, "60 tokens without a letter: choose a model that writes text"
        for stop in (letters[0], letters[-1]):
            drawn = self.run(session, max_tokens=60, stop=("\x00never\x00", stop))
            end = next(end for end, text in enumerate(prefixes) if stop in text)
            assert drawn.tokens.tolist() == free[:end].tolist()
            assert drawn.stop_reason == "stop"

    def test_the_models_own_stop_tokens_stop(self, session: TrainingSession) -> None:
        """Trained to answer with nothing but an end, a model ends."""
        tokenizer = session.tokenizer()
        prompt, end = tokenizer.encode("two cups of"), tokenizer.stop_ids[0]
        ids = np.append(prompt, end)
        weights = np.append(np.zeros(len(prompt) - 1, np.float32), np.float32(1.0))
        datum = Datum(ids[:-1], {"target_tokens": ids[1:], "weights": weights})
        for _ in range(30):
            session.forward_backward([datum])
            session.optim_step(Adam(0.003))
        drawn = self.run(session, max_tokens=5, temperature=0.0)
        assert (drawn.tokens.tolist(), drawn.stop_reason) == ([end], "stop")

    @pytest.mark.parametrize("setting", [
        {"max_tokens": 0}, {"max_tokens": 4, "temperature": -1.0}, {"max_tokens": 4, "top_p": 0.0},
        {"max_tokens": 4, "top_k": -1}, {"max_tokens": 4, "count": 0},
    ], ids=str)
    def test_a_request_that_makes_no_sense_is_refused(self, session: TrainingSession, setting: dict[str, Any]) -> None:
        future = session.snapshot().result().sample(session.tokenizer().encode("two"), **setting)
        with pytest.raises(KitchenError, match=list(setting)[-1]):
            future.result()

    def test_prompts_that_cannot_be_read_are_refused(self, session: TrainingSession) -> None:
        sampler, vocabulary = session.snapshot().result(), session.tokenizer().vocabulary
        for prompt in (np.empty(0, np.int64), np.array([-1]), np.array([vocabulary + 100_000]),
                       np.ones(self.context + 1, np.int64)):
            for future in (sampler.sample(prompt, max_tokens=1), sampler.logprobs(prompt)):
                with pytest.raises(KitchenError):
                    future.result()


def texts(drawn: Sequence[Sampled]) -> list[list[int]]:
    return [one.tokens.tolist() for one in drawn]
