"""Laws of bad input: refused on the future, by datum and field, before any gradient is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from kitchen.errors import BackendError, ConfigError, DataError, KitchenError
from kitchen.ports.training import TrainingClient, TrainingSession
from kitchen.testing.subject import Open, TrainingSubject
from kitchen.types import Adam, Datum, Floats, FullWeights, Lora, Trainable

# turns a valid datum into bad data
MakeBad = Callable[["RefusalLaws", TrainingSession, Datum], Any]


def _with(field: str, change: Callable[[Any], Any]) -> MakeBad:
    return lambda laws, session, datum: Datum(
        datum.tokens, {**datum.loss_inputs, field: change(np.array(datum.loss_inputs[field]))}
    )


def _set(position: int, value: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[position] = value
        return array

    return change


def _overlong(laws: RefusalLaws, session: TrainingSession, datum: Datum) -> Datum:
    ids = np.resize(datum.tokens, laws.context + 1)
    return Datum(ids, {"target_tokens": ids, "weights": np.ones(len(ids), np.float32)})


BAD_DATA: Mapping[str, tuple[str, MakeBad]] = {
    "short weights": ("weights", _with("weights", lambda w: w[:-1])),
    "short targets": ("shape", _with("target_tokens", lambda t: t[:-1])),
    "NaN weight": ("weights", _with("weights", _set(1, np.nan))),
    "infinite weight": ("weights", _with("weights", _set(1, np.inf))),
    "negative target": ("target_tokens", _with("target_tokens", _set(0, -1))),
    "target beyond": (
        "target_tokens",
        lambda laws, session, datum: _with(
            "target_tokens", _set(0, session.tokenizer().vocabulary + 100_000)
        )(laws, session, datum),
    ),
    "token beyond": (
        "tokens",
        lambda laws, session, datum: Datum(
            _set(0, session.tokenizer().vocabulary + 100_000)(np.array(datum.tokens)),
            datum.loss_inputs,
        ),
    ),
    "fractional tokens": (
        "tokens",
        lambda laws, session, datum: Datum(datum.tokens.astype(np.float64), datum.loss_inputs),
    ),
    "no targets": (
        "target_tokens",
        lambda laws, session, datum: Datum(datum.tokens, {"weights": datum.loss_inputs["weights"]}),
    ),
    "no weights": (
        "weights",
        lambda laws, session, datum: Datum(datum.tokens, {"target_tokens": datum.targets}),
    ),
    "unknown field": (
        "wieghts",
        lambda laws, session, datum: Datum(
            datum.tokens, {**datum.loss_inputs, "wieghts": datum.loss_inputs["weights"]}
        ),
    ),
    "overlong": ("context", _overlong),
    "raw mapping": (
        "RenderDataset",
        lambda laws, session, datum: {"input": "two", "output": "eggs", "weight": 1.0},
    ),
}

REPRESENTATIVE = (
    "short weights",
    "NaN weight",
    "token beyond",
    "unknown field",
    "overlong",
    "raw mapping",
)

# by capability: the text that a refusal contains, and the weights to train
TRAINABLES: Mapping[str, tuple[str, Trainable]] = {
    "rslora": ("rslora", Lora(rank=8, kind="rslora")),
    "dora": ("dora", Lora(rank=8, kind="dora")),
    "full_weights": ("all weights", FullWeights()),
}

# a client of a server can check weights itself; only the server knows the vocabulary
INVALID = ("weights", "target_tokens")


class RefusalLaws(TrainingSubject):
    """Bad data are refused as a batch; an update that fails for another reason ends the session."""

    def invalid(self, session: TrainingSession, datum: Datum, field: str) -> Datum:
        """Return the datum with a NaN weight, or with a target that only the model can refuse."""
        case = {"weights": "NaN weight", "target_tokens": "target beyond"}[field]
        invalid = BAD_DATA[case][1](self, session, datum)
        assert isinstance(invalid, Datum)
        return invalid

    @pytest.mark.parametrize("method", ["forward", "forward_backward"])
    def test_bad_data_are_refused_by_datum_and_field(self, opened: Open, method: str) -> None:
        session = opened()
        for case, (field, make_bad) in self.cases(BAD_DATA, REPRESENTATIVE).items():
            good, bad = self.data(session)[0], make_bad(self, session, self.data(session)[1])
            with pytest.raises(KitchenError) as refused:
                getattr(session, method)([good, bad]).result()
            assert "datum 1" in str(refused.value), case
            assert field in str(refused.value), case

    @pytest.mark.parametrize("field", INVALID)
    def test_a_refused_pass_does_not_end_the_session(
        self, opened: Open, prefix: str, field: str
    ) -> None:
        """The step submitted with it has no gradient; a save and the next batch are unaffected."""
        plain, refused = opened(), opened()
        data, adam = self.data(plain), self.small_step(opened)
        expected = self.moved(plain, adam, data)
        before = self.score(refused)
        batch = refused.forward_backward([data[0], self.invalid(refused, data[1], field)])
        step, saving = refused.optim_step(adam), refused.save(f"{prefix}/after-a-refusal")
        with pytest.raises(DataError, match=field):
            batch.result()
        with pytest.raises(DataError, match="gradient"):
            step.result()
        assert saving.result().step == 0
        np.testing.assert_array_equal(self.score(refused), before)
        self.assert_same_move(self.moved(refused, adam, data), expected)

    @pytest.mark.parametrize("field", INVALID)
    def test_no_step_lacks_a_part_of_its_batch(self, opened: Open, field: str) -> None:
        """The step is refused, the gradient is discarded, and the session continues."""
        plain, refused = opened(), opened()
        data, adam = self.data(plain), self.small_step(opened)
        expected = self.moved(plain, adam, data)
        before = self.score(refused)
        futures = [
            refused.forward_backward(data[:2]),
            refused.forward_backward([data[2], self.invalid(refused, data[3], field)]),
            refused.optim_step(adam),
        ]
        futures[0].result()
        for future, named in zip(futures[1:], (field, "gradient"), strict=True):
            with pytest.raises(DataError, match=named):
                future.result()
        np.testing.assert_array_equal(self.score(refused), before)
        self.assert_same_move(self.moved(refused, adam, data), expected)

    def test_a_batch_submitted_after_a_refusal_is_applied(self, opened: Open) -> None:
        plain, refused = opened(), opened()
        data, adam = self.data(plain), self.small_step(opened)
        for field in INVALID:
            bad = self.invalid(refused, data[0], field)
            with pytest.raises(DataError, match=field):
                refused.forward_backward([bad]).result()
        self.assert_same_move(self.moved(refused, adam, data), self.moved(plain, adam, data))

    @pytest.mark.parametrize("method", ["forward", "forward_backward"])
    def test_an_unknown_loss_is_refused_by_name(
        self, session: TrainingSession, method: str
    ) -> None:
        future = getattr(session, method)(self.data(session), "cross_entrpy")
        with pytest.raises(KitchenError, match="cross_entrpy"):
            future.result()

    def test_an_unknown_option_is_refused_by_name(self, session: TrainingSession) -> None:
        future = session.forward_backward(self.data(session), "cross_entropy", {"clip": 1.0})
        with pytest.raises(KitchenError, match="clip"):
            future.result()

    def test_an_unknown_model_is_refused_by_name(self, training: TrainingClient) -> None:
        with pytest.raises(BackendError, match=self.unknown_model):
            training.open(self.unknown_model, self.lora).snapshot().result()
        with pytest.raises(BackendError, match=self.unknown_model):
            training.sampler(self.unknown_model).logprobs(np.array([1, 2])).result()

    @pytest.mark.parametrize("kind", TRAINABLES)
    def test_a_kind_of_weights_is_trained_or_refused(
        self, training: TrainingClient, kind: str
    ) -> None:
        named, trainable = TRAINABLES[kind]
        if kind not in training.capabilities:
            with pytest.raises(ConfigError, match=named):
                training.open(self.model, trainable)
            return
        session = training.open(self.model, trainable)
        assert self.norm(session, self.data(session)) > 0
        session.close()

    def test_after_a_failed_update_later_calls_fail(
        self, training: TrainingClient, opened: Open, prefix: str
    ) -> None:
        if "custom loss" not in training.capabilities:
            pytest.skip("a custom loss makes the failure")
        session, whole = opened(), opened()
        expected = self.score(whole)
        saved = session.save(f"{prefix}/before").result()
        futures = [
            session.forward_backward(self.data(session), _not_finite),
            session.optim_step(Adam(0.01)),
            session.forward_backward(self.data(session)),
            session.optim_step(Adam(0.01)),
            session.save(f"{prefix}/after"),
        ]
        with pytest.raises(KitchenError, match="datum 0"):
            futures[0].result()
        for future in futures[1:]:
            with pytest.raises(KitchenError):
                future.result()
        whole.load(saved).result()
        np.testing.assert_array_equal(self.score(whole), expected)


def _not_finite(
    data: Sequence[Datum], logprobs: Sequence[Floats]
) -> tuple[float, list[Floats], dict[str, float]]:
    return 1.0, [np.full(lp.shape, np.nan, np.float32) for lp in logprobs], {}
