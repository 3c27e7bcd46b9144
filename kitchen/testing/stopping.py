"""Laws of sampling: when it stops, and which requests it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from kitchen.errors import KitchenError
from kitchen.ports.training import TrainingSession
from kitchen.testing.subject import TrainingSubject
from kitchen.types import Adam, Datum, Sampled

BAD_SETTINGS: Mapping[str, dict[str, Any]] = {
    "no tokens": {"max_tokens": 0},
    "negative temperature": {"max_tokens": 4, "temperature": -1.0},
    "top_p of 0": {"max_tokens": 4, "top_p": 0.0},
    "negative top_k": {"max_tokens": 4, "top_k": -1},
    "no completions": {"max_tokens": 4, "count": 0},
    "fractional count": {"max_tokens": 4, "count": 2.0},
    "fractional tokens": {"max_tokens": 2.5},
    "fractional top_k": {"max_tokens": 4, "top_k": 1.5},
    "fractional seed": {"max_tokens": 4, "seed": 1.5},
}


class StopLaws(TrainingSubject):
    """A completion ends with the token that stops it, or at its limit."""

    def run(self, session: TrainingSession, **setting: Any) -> Sampled:
        prompt = session.tokenizer().encode("two cups of")
        [completion] = session.snapshot().result().sample(prompt, seed=11, **setting).result()
        return completion

    @pytest.mark.parametrize("limit", [1, 2, 9])
    def test_the_limit_stops(self, session: TrainingSession, limit: int) -> None:
        completion = self.run(session, max_tokens=limit)
        if completion.stop_reason == "length":
            assert len(completion.tokens) == limit
        assert len(completion.tokens) <= limit
        assert (completion.stop_reason == "stop") == (
            int(completion.tokens[-1]) in session.tokenizer().stop_ids
        )

    def test_a_stop_token_stops_and_is_returned(self, session: TrainingSession) -> None:
        unstopped = self.run(session, max_tokens=12).tokens.tolist()
        stop = unstopped[len(unstopped) // 2]
        completion = self.run(session, max_tokens=12, stop=(stop,))
        assert completion.tokens.tolist() == unstopped[: unstopped.index(stop) + 1]
        assert completion.stop_reason == "stop"
        assert len(completion.logprobs) == len(completion.tokens)

    def test_a_stop_string_ends_with_the_token_that_completes_it(
        self, session: TrainingSession
    ) -> None:
        tokenizer, unstopped = session.tokenizer(), self.run(session, max_tokens=60).tokens
        prefixes = [tokenizer.decode(unstopped[:end]) for end in range(len(unstopped) + 1)]
        letters = [letter for letter in prefixes[-1][1:] if " " < letter < "\x7f"]
        assert letters, "60 tokens without a letter: choose a model that writes text"
        for stop in (letters[0], letters[-1]):
            completion = self.run(session, max_tokens=60, stop=("\x00never\x00", stop))
            end = next(end for end, text in enumerate(prefixes) if stop in text)
            assert completion.tokens.tolist() == unstopped[:end].tolist()
            assert completion.stop_reason == "stop"

    def test_the_models_own_stop_tokens_stop(self, session: TrainingSession) -> None:
        """A model trained to answer with an end token alone stops at once."""
        tokenizer = session.tokenizer()
        prompt, end = tokenizer.encode("two cups of"), tokenizer.stop_ids[0]
        ids = np.append(prompt, end)
        weights = np.append(np.zeros(len(prompt) - 1, np.float32), np.float32(1.0))
        datum = Datum(ids[:-1], {"target_tokens": ids[1:], "weights": weights})
        for _ in range(30):
            session.forward_backward([datum])
            session.optim_step(Adam(0.003))
        completion = self.run(session, max_tokens=5, temperature=0.0)
        assert (completion.tokens.tolist(), completion.stop_reason) == ([end], "stop")

    def test_bad_settings_are_refused_by_name(self, session: TrainingSession) -> None:
        prompt = session.tokenizer().encode("two")
        sampler = session.snapshot().result()
        for setting in self.cases(BAD_SETTINGS, ("no tokens", "negative temperature")).values():
            future = sampler.sample(prompt, **setting)
            with pytest.raises(KitchenError, match=list(setting)[-1]):
                future.result()

    def test_unreadable_prompts_are_refused(self, session: TrainingSession) -> None:
        sampler, vocabulary = session.snapshot().result(), session.tokenizer().vocabulary
        for prompt in (
            np.empty(0, np.int64),
            np.array([-1]),
            np.array([vocabulary + 100_000]),
            np.ones(self.context + 1, np.int64),
        ):
            for future in (sampler.sample(prompt, max_tokens=1), sampler.logprobs(prompt)):
                with pytest.raises(KitchenError):
                    future.result()
