"""Rollouts, and the training data made of them, against the formulas."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fake.tokenizer import CONTEXT
from adapters.fake.training import FakeTraining
from kitchen.backend.datum_checks import check_data
from kitchen.backend.losses import scored_positions
from kitchen.errors import BackendError, ConfigError, DataError, Diverged, RunFailed
from kitchen.ports import Message
from kitchen.ports.environments import StepResult
from kitchen.types import LossOutput, OptimStepResult, Sampled
from stages.evaluate.reference import MAX_SEED, spawn_seeds
from stages.rl.policy_gradient import (
    AdvantageName,
    ComputeAdvantages,
    Minibatches,
    PolicyData,
    ReportPolicy,
    RolloutLogprobs,
    advantages,
    reference_kl,
)
from stages.rl.rollouts import (
    Episode,
    ReportRollouts,
    Rollout,
    RolloutConfig,
    RolloutRunner,
    Rollouts,
    StopReason,
    append_answer,
    turn_seed,
)
from stages.tasks.rewards import Question, exact_reward
from stages.tasks.tasks import TaskBatches, Tasks
from stages.train.optim import LearningRate
from tests.support.bigram_policy import BigramPolicy, datums_of
from tests.support.virtual_time import advance, run_in_virtual_time


def rollout(reward: float, answer: int = 2, failed: str = "") -> Rollout:
    tokens = np.arange(3 + answer)
    acted = tokens >= 3
    played = Episode(tokens, np.where(acted, -0.5, 0).astype(np.float32), acted)
    return Rollout.failure("t", failed) if failed else Rollout((played,), reward, "t", "")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("centred", [1.25, -0.75, 0.25, -0.75]),
        ("leave_one_out", [5 / 3, -1, 1 / 3, -1]),
        (
            "normalised",
            [
                1.25 / math.sqrt(0.6875),
                -0.75 / math.sqrt(0.6875),
                0.25 / math.sqrt(0.6875),
                -0.75 / math.sqrt(0.6875),
            ],
        ),
    ],
)
def test_advantages_within_a_group(how: Any, expected: Sequence[float]) -> None:
    found = advantages([rollout(reward) for reward in (2.0, 0.0, 1.0, 0.0)], how)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("how", get_args(AdvantageName))
def test_equal_rewards_have_zero_advantages(how: Any) -> None:
    same = [rollout(0.1)] * 3
    assert np.mean([0.1] * 3) != 0.1
    assert advantages(same, how).tolist() == [0.0] * 3


EQUAL_UP_TO_ROUNDING = [
    [0.1 + 0.2, 0.3],
    [0.7 + 0.1, 0.8, 0.8, 0.7 + 0.1],
    [0.0, 1e-16],
    [0.1 + 0.2 - 0.3, 0.0, 0.0],
    [1 / 3 + 1 / 3 + 1 / 3, sum([0.1] * 10), 1.0],
    [-0.3, -0.1 - 0.2, -0.3],
    [1e6 + 0.1 + 0.2, 1e6 + 0.3],
    [1e150, 1e150 * (1 + 1e-15)],
    [1e9, 1e9 + 1e-4],
    [1.0, 1.0 + 9e-13],
    [2e-15, 9e-15],
]


@pytest.mark.parametrize("how", get_args(AdvantageName))
@pytest.mark.parametrize("rewards", EQUAL_UP_TO_ROUNDING)
def test_rewards_that_differ_by_rounding_are_equal(how: Any, rewards: list[float]) -> None:
    assert len(set(rewards)) > 1
    group = tuple(rollout(reward) for reward in rewards)
    assert advantages(group, how).tolist() == [0.0] * len(rewards)
    assert ComputeAdvantages(how).run(Rollouts((group,))).examples == ()
    metrics, _ = ReportRollouts().run(Rollouts((group, (rollout(0.0), rollout(1.0)))))
    assert metrics["frac_constant_groups"] == 0.5


@pytest.mark.parametrize("how", get_args(AdvantageName))
@pytest.mark.parametrize(
    "rewards",
    [
        [1.0, 1.0 + 1e-6],
        [1e-8, 2e-8],
        [-1e-12, 1e-12],
        [0.0, 1e-10],
        [100.0, 100.001],
        [1e9, 1e9 + 1],
        [-1e9 - 1, -1e9],
        [1e6, 1e6 + 1e-5],
        [1.0, 1.0 + 2e-12],
        [0.0, 2e-14],
    ],
)
def test_small_true_differences_count(how: Any, rewards: list[float]) -> None:
    group = tuple(rollout(reward) for reward in rewards)
    worse, better = advantages(group, how).tolist()
    assert worse < 0 < better
    assert len(ComputeAdvantages(how).run(Rollouts((group,))).examples) == 2


@given(
    rewards=st.lists(st.floats(0.1, 100), min_size=2, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_sums_in_any_order_are_one_reward(rewards: list[float], order: Any) -> None:
    sums = []
    for _ in range(4):
        order.shuffle(rewards)
        sums.append(rollout(sum(rewards)))
    for how in get_args(AdvantageName):
        assert advantages(sums, how).tolist() == [0.0] * 4


def test_the_data_of_an_update() -> None:
    groups = Rollouts(
        (
            (rollout(1.0), rollout(0.0, answer=4)),
            (rollout(0.5), rollout(0.5)),
            (rollout(9.0, failed="broken"), rollout(1.0), rollout(0.0)),
        )
    )
    data = datums_of(ComputeAdvantages().run(groups))
    assert len(data) == 4, "the constant group and what failed are left out"
    first = data[0]
    assert first.tokens.tolist() == [0, 1, 2, 3]
    assert first.targets.tolist() == [1, 2, 3, 4]
    # of 2 + 4 + 2 + 2 tokens
    np.testing.assert_allclose(first.loss_inputs["advantages"], [0, 0, 0.05, 0.05])
    np.testing.assert_allclose(first.loss_inputs["logprobs"], [0, 0, -0.5, -0.5])
    assert sum(float(one.loss_inputs["advantages"].sum()) for one in data[2:]) == pytest.approx(0.0)


def test_kl_penalties_are_discounted() -> None:
    one, other = rollout(0.0, answer=3), rollout(0.0, answer=3)
    # 1, 0 and 2 nats under the policy
    reference = np.array([np.nan, 9, 9, -1.5, -0.5, -2.5], np.float32)
    scores = RolloutLogprobs((reference,) * 2)
    data = datums_of(
        ComputeAdvantages(penalty=0.3, discount=0.5).run(Rollouts(((one, other),)), scores)
    )
    costs = [1 + 0.5 * (0 + 0.5 * 2), 0 + 0.5 * 2, 2]
    np.testing.assert_allclose(
        data[0].loss_inputs["advantages"][2:], [-0.3 * cost / 6 for cost in costs], rtol=1e-6
    )
    with pytest.raises(ConfigError, match=r"a discount of 0\.5 applies to the KL penalties"):
        ComputeAdvantages(discount=0.5)
    with pytest.raises(ConfigError, match="a KL penalty needs a reference"):
        ComputeAdvantages(penalty=0.3).run(Rollouts(((one, other),)))


@pytest.mark.parametrize("value", [np.nan, -np.inf, 0.1])
def test_a_kl_of_wrong_log_probabilities_is_refused(value: float) -> None:
    rollouts = Rollouts(((rollout(0.0, answer=3),),))
    right = np.array([np.nan, 9, 9, -1.5, -0.5, -2.5], np.float32)
    assert np.isfinite(reference_kl(rollouts, [right], "teacher")[1]["kl_teacher"])
    right[4] = value
    with pytest.raises(BackendError, match=f"the teacher returned the log-probability {value:g} "):
        reference_kl(rollouts, [right], "teacher")


def test_a_policy_that_diverged_is_not_resumed() -> None:
    diverged = rollout(0.0, answer=3)
    [episode] = diverged.episodes
    episode.logprobs[-1] = np.nan
    with pytest.raises(Diverged, match="the policy returned the log-probability nan"):
        reference_kl(Rollouts(((diverged,),)), [np.full(6, -1.0, np.float32)], "reference")


def test_metrics_count_every_sampled_token() -> None:
    """Tokens with an advantage of 0, or with a certain choice, count like all others."""
    certain = Rollout(
        (Episode(np.arange(4), np.zeros(4, np.float32), np.arange(4) == 3),), 1.0, "t", ""
    )
    group = (rollout(2.0), rollout(1.0, answer=3), rollout(0.0), certain)
    [batch] = Minibatches(1).run(ComputeAdvantages().run(Rollouts((group,))))
    now = tuple(
        np.where(scored_positions("ppo", one), -1.5, 0.0).astype(np.float32) for one in batch.data
    )
    metrics = ReportPolicy().run(
        batch, LossOutput(now, {}), OptimStepResult({"grad_norm": 1.0}), LearningRate(1.0)
    )
    assert metrics["trained_tokens"] == 8.0
    assert metrics["entropy"] == pytest.approx(0.5 * 7 / 8)
    assert metrics["kl_sampler_v1"] == pytest.approx((7 * 1.0 + 1.5) / 8)


@pytest.mark.parametrize("loss, fraction", [("ppo", 1.0), ("gspo", 0.6)])
def test_gspo_clips_whole_sequences(loss: str, fraction: float) -> None:
    """Ratios of exp(1/2) and exp(-1/2) are 1 together; three tokens have one more of the first."""
    group = (rollout(1.0, answer=2), rollout(0.0, answer=3))
    [batch] = Minibatches(1).run(ComputeAdvantages().run(Rollouts((group,))))
    now = []
    for datum in batch.data:
        sampled = datum.loss_inputs["logprobs"]
        signs = np.where(np.arange(len(sampled)) % 2 == len(sampled) % 2, -0.5, 0.5)
        now.append(np.where(sampled != 0, sampled - signs, 0.0).astype(np.float32))
    metrics = ReportPolicy(loss).run(
        batch, LossOutput(tuple(now), {}), OptimStepResult({"grad_norm": 1.0}), LearningRate(1.0)
    )
    assert metrics["clip_fraction"] == pytest.approx(fraction)


@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_truncated_rollouts_get_no_gradient(penalty: float) -> None:
    cut = replace(rollout(0.0, answer=4), truncated=True)
    rollouts = Rollouts(((rollout(2.0), cut, rollout(1.0, answer=3)), (cut, cut)))
    logprobs = [
        np.full(len(episode.tokens), -float(at)) for at, episode in enumerate(rollouts.episodes())
    ]
    reference = RolloutLogprobs(tuple(logprobs)) if penalty else None
    everything = ComputeAdvantages(penalty=penalty).run(rollouts, reference)
    masked = ComputeAdvantages(penalty=penalty, mask_truncated=True).run(rollouts, reference)
    kept = [everything.examples[at] for at in (0, 2)]
    assert [count for _, count in masked.examples] == [2, 3]
    for (datum, _), (expected, _) in zip(masked.examples, kept, strict=True):
        np.testing.assert_array_equal(
            datum.loss_inputs["advantages"], expected.loss_inputs["advantages"]
        )
    assert sum(float(one.loss_inputs["advantages"].sum()) for one, _ in masked.examples) > 0


def test_each_minibatch_is_a_mean_over_its_tokens() -> None:
    found = ComputeAdvantages(weighted=True).run(
        Rollouts(((rollout(1.0), rollout(0.0, answer=3), rollout(0.0)),))
    )
    batches: list[Any] = list(Minibatches(2).run(found))
    assert [len(batch.data) for batch in batches] == [2, 1]
    for batch in batches:
        assert sum(float(one.loss_inputs["weights"].sum()) for one in batch.data) == pytest.approx(
            1.0
        )
    np.testing.assert_allclose(
        batches[1].data[0].loss_inputs["advantages"], [0, 0, -1 / 9, -1 / 9, -1 / 9], rtol=1e-6
    )
    assert list(Minibatches(2).run(PolicyData(()))) == []


def test_gspo_reads_which_tokens_were_sampled() -> None:
    stage = ComputeAdvantages.for_loss("gspo", "centred", 0.0, 0.0, mask_truncated=False)
    examples = stage.run(Rollouts(((rollout(1.0), rollout(0.0)),))).examples
    [batch] = list(Minibatches(1).run(PolicyData(examples)))
    for datum in batch.data:
        inputs = datum.loss_inputs
        np.testing.assert_array_equal(inputs["sequence_ratio_mask"], inputs["logprobs"] != 0)
        check_data([datum], "gspo", None, vocabulary=1000, context=1000)
    plain = ComputeAdvantages.for_loss("ppo", "centred", 0.0, 0.0, mask_truncated=False)
    assert plain == ComputeAdvantages()


@dataclass
class Guessing:
    """Says "again" until it has been answered three times."""

    seconds: float = 0.0  # virtual time that each step takes
    fails: bool = False
    reward: float = 1.0  # of each answer
    first: str = "guess"
    answers: list[str] = field(default_factory=list)
    tag: str = "guessing"

    def env(self) -> Guessing:
        return Guessing(self.seconds, self.fails, self.reward)

    async def reset(self) -> Sequence[Message]:
        return [{"role": "user", "content": self.first}]

    async def step(self, answer: str) -> StepResult:
        if self.seconds:
            await advance(self.seconds)
        if self.fails:
            raise ValueError("the grader broke")
        self.answers.append(answer)
        is_over = len(self.answers) == 3
        messages: tuple[Message, ...] = () if is_over else ({"role": "user", "content": "again"},)
        return StepResult(self.reward, messages, parsed=not is_over)


def play(*tasks: Any, **settings: Any) -> Rollouts:
    client = FakeTraining()
    config = RolloutConfig(**{"max_tokens": 4, **settings})
    runner = RolloutRunner(client.sampler("fake"), client.tokenizer("fake"), config)
    return run_in_virtual_time(runner.run(tasks, 2, [0, 0]))


def test_several_turns_are_one_rollout() -> None:
    [[one, other]] = play(Guessing()).groups
    assert (one.reward, one.parsed, one.tag) == (3.0, False, "guessing")
    assert sum(int(episode.action_mask.sum()) for episode in one.episodes) <= 12
    tokens = [[episode.tokens.tolist() for episode in each.episodes] for each in (one, other)]
    assert tokens[0] != tokens[1], "each has a seed of its own"
    whole = [len(each.episodes) for each in (one, other)]
    assert ReportRollouts().run(Rollouts(((one, other),)))[0]["sequences"] == sum(whole) / 2
    cut = play(Guessing(), max_turns=2)
    assert [(each.reward, each.stop_reason) for each in (cut.groups[0][0], one)] == [
        (2.0, StopReason.MAX_TURNS),
        (3.0, StopReason.DONE),
    ]
    assert ReportRollouts().run(cut)[0]["unfinished"] == 1.0


class SeedRecorder:
    """A sampler that records the seeds of its requests."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.seeds = list[int]()

    def sample(self, prompt: Any, *, seed: int, **options: Any) -> Any:
        self.seeds.append(seed)
        return self.inner.sample(prompt, seed=seed, **options)


def test_each_rollout_and_turn_has_its_own_seed() -> None:
    client = FakeTraining()
    sampler: Any = SeedRecorder(client.sampler("fake"))
    runner = RolloutRunner(sampler, client.tokenizer("fake"), RolloutConfig(max_tokens=4))
    asyncio.run(runner.run([Guessing()], 2, [0, 0]))
    first, second = spawn_seeds([0, 0], 2)
    assert sampler.seeds == [first, second, first + 1, second + 1, first + 2, second + 2]


def test_seeds_of_later_turns_stay_below_the_maximum() -> None:
    assert turn_seed(MAX_SEED - 2, 1) == MAX_SEED - 1
    assert turn_seed(MAX_SEED - 1, 1) == 0


def test_a_continued_answer_stays_in_its_episode() -> None:
    def drawn(*ids: int) -> Sampled:
        return Sampled(np.array(ids), np.full(len(ids), -1.0, np.float32), "stop")

    first = append_answer([], np.array([1, 2]), drawn(3, 4))
    [whole] = append_answer(first, np.array([1, 2, 3, 4, 5, 6]), drawn(7))
    assert whole.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert whole.action_mask.tolist() == [False, False, True, True, False, False, True]
    assert whole.logprobs.tolist() == [0, 0, -1, -1, 0, 0, -1]
    apart = append_answer(first, np.array([1, 2, 9, 5]), drawn(7))
    assert [each.tokens.tolist() for each in apart] == [[1, 2, 3, 4], [1, 2, 9, 5, 7]]


def test_rollouts_may_fail_up_to_a_limit() -> None:
    found = play(*[Guessing()] * 4, Guessing(fails=True)).groups
    assert [bool(one.failed) for group in found for one in group] == [False] * 8 + [True] * 2
    assert re.fullmatch(
        r"ValueError: the grader broke \(.*test_policy_gradient\.py:\d+ in step\)",
        found[4][0].error,
    )
    with pytest.raises(
        RunFailed,
        match=r"2 of 4 rollouts failed.*20%.*ValueError: the grader broke",
    ):
        play(Guessing(), Guessing(fails=True))
    [[late, _]] = play(Guessing(seconds=60.0), max_seconds=59.0, max_failed=1.0).groups
    assert late.error == "the environment took more than 59 s (playing.max_seconds)"
    [[odd, _]] = play(Guessing(reward=math.nan), max_failed=1.0).groups
    assert odd.error.endswith("Guessing.step returned the reward nan, not a finite number")
    [[none, _]] = play(Unmade(), max_failed=1.0).groups
    assert none.tag == "unmade"
    assert none.error.startswith("OSError: no room for it (")


@dataclass
class Drawing:
    """A problem that is another one each time."""

    drawn: int = 0
    tag: str = "drawing"

    def env(self) -> Guessing:
        self.drawn += 1
        return Guessing(first=f"number {self.drawn}")


def test_a_group_must_have_one_prompt() -> None:
    with pytest.raises(
        DataError, match=r"different messages: .*number 1.* and .*number 2.*Drawing.env\(\)"
    ):
        play(Drawing())


def test_unknown_advantages_are_an_error() -> None:
    with pytest.raises(
        ConfigError, match="advantages='normalized' is unknown; did you mean 'normalised'"
    ):
        ComputeAdvantages("normalized")  # type: ignore[arg-type]


def test_messages_that_the_template_refuses_fail_a_rollout() -> None:
    class Odd(Guessing):
        def env(self) -> Guessing:
            return Odd()

        async def step(self, answer: str) -> StepResult:
            return StepResult(0.0, ({"role": "narrator", "content": "meanwhile"},))

    [[odd, _], [one, _]] = play(Odd(), Guessing(), max_failed=1.0).groups
    assert "the role 'narrator' is unknown" in odd.error
    assert (odd.episodes, one.error) == ((), "")

    class Wrong(Guessing):
        async def reset(self) -> Sequence[Message]:
            return [{"role": "narrator", "content": "meanwhile"}]

        def env(self) -> Guessing:
            return Wrong()

    with pytest.raises(DataError, match="'narrator' is unknown"):
        play(Wrong(), max_failed=1.0)


def test_a_too_long_prompt_fails_the_rollout() -> None:
    class Long(Guessing):
        def env(self) -> Guessing:
            return Long()

        async def step(self, answer: str) -> StepResult:
            return StepResult(0.0, ({"role": "user", "content": "x" * CONTEXT},))

    [[long, _], [one, _]] = play(Long(), Guessing(), max_failed=1.0).groups
    assert "more than the model's context" in long.error
    assert one.error == ""


class Unmade:
    """Has no environment to give."""

    tag = "unmade"

    def env(self) -> Guessing:
        raise OSError("no room for it")


class Crowded:
    """Counts how many of its steps run at the same time."""

    tag = "crowded"

    def __init__(self) -> None:
        self.running = self.max_running = 0

    def env(self) -> Crowded:
        return self

    async def reset(self) -> Sequence[Message]:
        return [{"role": "user", "content": "?"}]

    async def step(self, answer: str) -> StepResult:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        await advance(20.0)
        self.running -= 1
        return StepResult(1.0)


def test_waiting_for_a_slot_does_not_count_as_time() -> None:
    crowded = Crowded()
    groups = play(*[crowded] * 5, max_acting=2, max_seconds=21.0).groups
    assert crowded.max_running == 2
    failed = [rollout for group in groups for rollout in group if rollout.failed]
    assert not failed, "the last of ten calls, two at a time, waits for 80 s and takes 20 s"


class CountedAnswer:
    """An answer that records the number of requests made until it arrives."""

    def __init__(self, sampler: RequestCounter, answer: Any) -> None:
        self.sampler, self.answer = sampler, answer

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._arrive().__await__()

    async def _arrive(self) -> Any:
        await advance(1.0)
        self.sampler.requests_at_arrival.append(self.sampler.requests)
        return self.answer


class RequestCounter:
    """A sampler that counts its requests; answers take a second of virtual time."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.requests = 0
        self.requests_at_arrival = list[int]()

    def sample(self, prompt: Any, **options: Any) -> CountedAnswer:
        self.requests += 1
        return CountedAnswer(self, self.inner.sample(prompt, **options).result())


def test_all_rollouts_take_their_turns_together() -> None:
    client = FakeTraining()
    sampler: Any = RequestCounter(client.sampler("fake"))
    config = RolloutConfig(max_tokens=4, max_acting=2)
    runner = RolloutRunner(sampler, client.tokenizer("fake"), config)
    tasks = [Guessing(seconds=2.0), Guessing(seconds=30.0), Guessing()]
    run_in_virtual_time(runner.run(tasks, 2, [0]))
    assert sampler.requests_at_arrival == [6] * 6 + [12] * 6 + [18] * 6


def test_a_batch_without_rollouts_reports_no_shares() -> None:
    metrics, samples = ReportRollouts().run(Rollouts(()))
    assert metrics == {"rollouts": 0, "sampled_tokens": 0}
    assert samples.rows == ()


def test_failed_rollouts_are_left_out_of_mean_rewards() -> None:
    failed = Rollout.failure("t", "broken")
    metrics, samples = ReportRollouts().run(Rollouts(((rollout(1.0), failed, rollout(0.0)),)))
    assert (metrics["failed"], metrics["reward"], metrics["reward/t"], metrics["parsed"]) == (
        1 / 3,
        0.5,
        0.5,
        2 / 3,
    )
    assert [row["failed"] for row in samples.rows] == ["", "", "broken"]
    metrics, samples = ReportRollouts().run(Rollouts(((failed, failed),)))
    assert metrics == {
        "rollouts": 2,
        "failed": 1,
        "truncated": 0,
        "parsed": 0,
        "unfinished": 0,
        "sequences": 0,
        "frac_constant_groups": 1,
        "sampled_tokens": 0,
    }
    assert [row["failed"] for row in samples.rows] == ["broken"]


def test_tokens_of_failed_rollouts_count() -> None:
    whole, failed = play(Guessing()), play(Guessing(fails=True), max_failed=1.0)
    first_turns = play(Guessing(), max_turns=1)
    assert [one.lost_tokens for one in whole.all()] == [0, 0]
    metrics, _ = ReportRollouts().run(failed)
    expected, _ = ReportRollouts().run(first_turns)
    assert metrics["sampled_tokens"] == expected["sampled_tokens"] > 0
    assert (metrics["truncated"], metrics["parsed"]) == (expected["truncated"], 0.0)


def test_shares_are_of_all_rollouts() -> None:
    failed = Rollout.failure("t", "broken", truncated=True, lost_tokens=7)
    abstained = replace(rollout(0.0), abstained=True, parsed=False)
    cut = replace(rollout(1.0), stop_reason=StopReason.MAX_TURNS, truncated=True)
    metrics, _ = ReportRollouts().run(Rollouts(((rollout(1.0), failed, abstained, cut),)))
    names = ("failed", "abstained", "parsed", "truncated", "unfinished")
    assert [metrics[name] for name in names] == [1 / 4, 1 / 4, 2 / 4, 2 / 4, 1 / 4]
    assert (metrics["rollouts"], metrics["sequences"]) == (4.0, 1.0)


def test_batches_take_every_problem_once_before_one_comes_again() -> None:
    tasks = Tasks(tuple(Question((), str(at), exact_reward, "t") for at in range(6)), {})
    batches: list[Any] = list(TaskBatches(4, 3, seed=1).run(tasks))
    rights = [question.answer for batch in batches for question in batch.tasks]
    assert sorted(rights[:6]) == sorted(rights[6:]) == list("012345")
    assert rights[:6] != rights[6:]


def test_the_policy_gradient_of_the_expected_reward() -> None:
    """All answers of one token, weighted by their probabilities, against finite differences."""
    policy = BigramPolicy()
    rewards = np.random.default_rng(0).normal(size=policy.vocabulary)
    often = policy.weighted_by_probability(ComputeAdvantages().run(policy.rollouts(rewards)))
    policy.session.forward_backward(often, "importance_sampling").result()
    for token in (5, 66, 200):
        expected = policy.finite_difference(token, lambda chances: chances @ rewards)
        assert -policy.gradient(token) == pytest.approx(expected, rel=1e-5, abs=1e-9)


class Judged(Guessing):
    """Gives a reward to the first answer of every second rollout, and none to the others."""

    rollouts = 0

    def env(self) -> Judged:
        self.rollouts += 1
        given = Judged()
        given.reward = 2.0 if self.rollouts % 2 else None  # type: ignore[assignment]
        return given


def test_rollout_without_a_reward_leaves_its_group() -> None:
    rollouts = play(Judged())
    [[one, other]] = rollouts.groups
    assert (one.reward, one.abstained, other.abstained, other.failed) == (6.0, False, True, False)
    metrics, samples = ReportRollouts().run(rollouts)
    assert (metrics["abstained"], metrics["failed"], metrics["reward"]) == (0.5, 0.0, 6.0)
    assert [row["reward"] for row in samples.rows] == [6.0, None]
    assert ComputeAdvantages().run(rollouts).examples == ()  # one reward is no comparison


def test_reference_stays_aligned_around_rollouts_without_reward() -> None:
    abstained = replace(rollout(0.0, 4), abstained=True)
    group = (rollout(1.0, 2), abstained, rollout(0.0, 3))
    logprobs = [np.full(3 + count, -0.1 * count, np.float32) for count in (2, 4, 3)]
    together = ComputeAdvantages(penalty=0.5).run(
        Rollouts((group,)), RolloutLogprobs(tuple(logprobs))
    )
    alone = ComputeAdvantages(penalty=0.5).run(
        Rollouts(((group[0], group[2]),)), RolloutLogprobs((logprobs[0], logprobs[2]))
    )
    assert len(together.examples) == 2
    for (one, _), (other, _) in zip(together.examples, alone.examples, strict=True):
        assert one.loss_inputs["advantages"].tolist() == other.loss_inputs["advantages"].tolist()


def test_batch_without_any_reward_is_an_error() -> None:
    with pytest.raises(RunFailed, match="none of 2 rollouts has a reward"):
        play(Guessing(reward=None))  # type: ignore[arg-type]


class Misshapen(Guessing):
    """An environment that breaks the port in one of several ways."""

    kind = ""

    def env(self) -> Any:
        if self.kind == "none":
            return None
        env = type(self)()
        if self.kind == "blocking":
            env.step = lambda answer: StepResult(1.0)  # type: ignore[method-assign,assignment,return-value]
        return env

    async def reset(self) -> Any:
        return {"text": "Hi", "nothing": None, "empty": []}.get(self.kind, await super().reset())


@pytest.mark.parametrize(
    "kind, error",
    [
        ("none", "Misshapen.env returned None, and must return an Env"),
        ("blocking", "is not a coroutine function"),
        ("text", "reset returned 'Hi' as its messages"),
        ("nothing", "reset returned None as its messages"),
        ("empty", "reset returned no message"),
    ],
)
def test_misshapen_environment_is_named(kind: str, error: str) -> None:
    task = type("Misshapen", (Misshapen,), {"kind": kind, "__qualname__": "Misshapen"})()
    [[failed, _]] = play(task, max_failed=1.0).groups
    assert error in failed.error


class Blocking(Guessing):
    """Blocks the event loop for as long as it computes."""

    def env(self) -> Blocking:
        return Blocking()

    async def step(self, answer: str) -> StepResult:
        clock = asyncio.get_running_loop()
        until = clock.time() + 0.01
        while clock.time() < until:
            pass
        return StepResult(1.0)


def test_environment_that_blocks_is_too_late() -> None:
    [[late, _]] = play(Blocking(), max_seconds=0.005, max_failed=1.0).groups
    assert (
        late.error
        == "the environment took more than 0.005 s (playing.max_seconds), and blocked the others"
    )
