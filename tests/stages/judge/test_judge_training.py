"""The judge's preferences against formulas, its training data, measurements and rewards."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from adapters.fake.tokenizer import END_OF_TURN, ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError, DataError
from kitchen.types import Lora
from stages.chat.conversations import Conversation, Message
from stages.chat.prompts import prompt_messages, reference_answer
from stages.chat.template import PromptRendering
from stages.judge.judge import (
    Judge,
    JudgeConfig,
    JudgeSays,
    answer_conversation,
    letter_conversation,
)
from stages.judge.judge_rewards import CompareByJudge, EvaluateJudge, JudgeRollouts, judge_group
from stages.judge.judge_training import BuildJudgePairs, BuildJudgeQuestions, CheckReadable
from stages.preference.comparisons import Comparison, Comparisons
from stages.rl.rollout_eval import PolicyAfter, PolicyBefore
from stages.rl.rollouts import Rollout, RolloutConfig, Rollouts
from stages.tasks.rewards import Question, exact_reward
from stages.tasks.tasks import TaskBatch, Tasks
from tests.support.bracket_judge import BracketSampler, bracket_judge
from tests.support.no_chat_template import PlainTokenizer, TrainingWithoutTemplate
from tests.support.tokenizers import trained_tokenizer
from tests.support.tool_template import PLAIN_TEMPLATE, text_of, tool_tokenizer

REQUEST = (Message("user", "2 eggs"),)
TASK = Question(({"role": "user", "content": "2 eggs"},), "{}", exact_reward, "t")
JUDGE = bracket_judge()


def probability_of_a(apart: int) -> float:
    """The probability of A if the first answer has `apart` more brackets."""
    return 1 / (1 + math.exp(-apart - BracketSampler.position_bias))


def preference(apart: int) -> float:
    return 0.5 + (probability_of_a(apart) - probability_of_a(-apart)) / 2


def compared(chosen: str, rejected: str) -> Comparison:
    one, other = (
        Conversation((*REQUEST, Message("assistant", text)), "a:1") for text in (chosen, rejected)
    )
    return Comparison(one, other)


def rollout(text: str, reward: float, *, truncated: bool = False) -> Rollout:
    return Rollout((), reward, "t", text, truncated=truncated)


def test_a_judge_reads_the_request_and_both_answers() -> None:
    text = (
        letter_conversation((Message("system", "As JSON."), *REQUEST), "{}", "[]", "B")
        .messages[0]
        .content
    )
    parts = ("system: As JSON.\nuser: 2 eggs", "Answer A:\n{}", "Answer B:\n[]", "A or B")
    where = [text.index(part) for part in parts]
    assert where == sorted(where)


def test_preference_of_letters_is_the_mean_of_both_orders() -> None:
    assert asyncio.run(JUDGE.prefers(REQUEST, "{}", "[]")) == pytest.approx(preference(2), rel=1e-5)
    assert asyncio.run(JUDGE.prefers(REQUEST, "[]", "{}")) == pytest.approx(
        1 - preference(2), rel=1e-5
    )
    assert asyncio.run(JUDGE.prefers(REQUEST, "{}", "{}")) == 0.5


def test_a_judge_of_answers_compares_mean_log_probabilities() -> None:
    client = FakeTraining()
    judge = Judge(
        client.sampler("any"), client.tokenizer("any"), JudgeConfig(beta=3.0, max_tokens=40)
    )

    def strength(text: str) -> float:
        read = client.tokenizer("any").render([{"role": "user", "content": "2 eggs"}], answer=True)
        whole = np.concatenate([read, client.tokenizer("any").encode(text), [END_OF_TURN]])
        return float(client.sampler("any").logprobs(whole).result()[len(read) :].mean())

    expected = 1 / (1 + math.exp(-3 * (strength("{}") - strength("[1, 2]"))))
    assert expected != 0.5
    assert asyncio.run(judge.prefers(REQUEST, "{}", "[1, 2]")) == pytest.approx(expected, rel=1e-5)
    assert asyncio.run(judge.prefers(REQUEST, "[1, 2]", "{}")) == pytest.approx(
        1 - expected, rel=1e-5
    )
    assert asyncio.run(judge.prefers(REQUEST, "{}", "{}")) == 0.5
    for answer, other in (("{" * 40, "{}"), ("{}", "{" * 40)):
        assert asyncio.run(judge.prefers(REQUEST, answer, other)) is None


@pytest.mark.parametrize("setting", [{"beta": 2.0}, {"imitation": 0.0}])
def test_settings_of_answers_are_errors_with_letters(setting: Any) -> None:
    with pytest.raises(ConfigError, match=rf"judge\.{next(iter(setting))}=.*judge\.says=letter"):
        JudgeConfig("letter", **setting)
    assert JudgeConfig(**setting).says == "answer"


def test_too_long_pairs_are_left_out_and_counted() -> None:
    comparisons = Comparisons((compared("{}", "[]"), compared("{}", "[" * 40)), {})
    pairs, metrics = BuildJudgePairs(JudgeConfig(max_tokens=40).rendering).run(
        comparisons, ByteTokenizer()
    )
    assert [ByteTokenizer().decode(datum.tokens) for datum in pairs.data[0]] == [
        "2 eggs{}",
        "2 eggs[]",
    ]
    assert (len(pairs.data), metrics) == (1, {"data/unread": 1.0})
    with pytest.raises(DataError, match=r"none of the 2 comparisons.*judge\.max_tokens=5"):
        BuildJudgePairs(JudgeConfig(max_tokens=5).rendering).run(comparisons, ByteTokenizer())


def test_unreadable_answers_are_left_out_and_counted() -> None:
    tight, long = bracket_judge(max_tokens=200), "{" * 200
    assert (asyncio.run(tight.prefers(REQUEST, "{}", "[]")) or 0) > 0.5
    assert (
        asyncio.run(tight.prefers(REQUEST, long, "[]"))
        is asyncio.run(tight.prefers(REQUEST, "[]", long))
        is None
    )
    held = [compared("{}", "[1, 2]"), compared(long, "{"), compared("{", long)]
    metrics, table, samples = asyncio.run(
        EvaluateJudge().run(tight, Comparisons((), {"held": held, "none": held[1:]}))
    )
    assert (metrics["held/judge_accuracy"], metrics["held/judge_unread"]) == (1.0, 2.0)
    assert metrics["none/judge_unread"] == 2.0
    assert "none/judge_accuracy" not in metrics
    assert [row[1] for row in table.rows] == ["3, 2 failed", "3", "3", "2", "2"]
    assert [(row["set"], row["scores"], row["failed"]) for row in samples.rows[:2]] == [
        ("held", {"judge_accuracy": 1.0}, ""),
        ("held", {}, "the judge cannot read it"),
    ]
    rollouts = [rollout(text, 1.0) for text in (long, long, "{}")]
    group, unread = asyncio.run(judge_group(tight, REQUEST, rollouts, "[", ByteTokenizer()))
    assert ([each.reward > 0 for each in group], unread) == ([False, False, True], 2)
    before, after = (
        kind({}, {}, {"held": (long, text)})
        for kind, text in ((PolicyBefore, "[]"), (PolicyAfter, "{}"))
    )
    metrics, _, samples = asyncio.run(
        CompareByJudge().run(
            tight, ByteTokenizer(), Tasks((), {"held": (TASK,) * 2}), before, after
        )
    )
    assert metrics["held/unread"] == 1.0
    assert metrics["held/preferred"] > 0.5, "by the one that it can read"
    assert [row["failed"] for row in samples.rows] == ["the judge cannot read it", ""]
    assert samples.rows[1]["scores"] == {"preferred": metrics["held/preferred"]}


def test_judge_questions_have_both_orders() -> None:
    rows = BuildJudgeQuestions().run(Comparisons((compared("{}", "[]"),), {})).conversations
    assert [reference_answer(each) for each in rows] == ["A", "B"]
    texts = [prompt_messages(each)[0].content for each in rows]
    assert [text.index("{}") < text.index("[]") for text in texts] == [True, False]
    assert {each.where for each in rows} == {"a:1"}


def test_judge_accuracy_beside_simple_rules() -> None:
    held = [
        compared("{}", "[1, 2]"),
        compared("{} ", "{"),
        compared("no", "on"),
        compared("x", "{}"),
    ]
    metrics, table, _ = asyncio.run(
        EvaluateJudge().run(JUDGE, Comparisons((), {"held": held, "none": []}))
    )
    assert metrics["held/judge_accuracy"] == (1 + 1 + 0.5 + 0) / 4, "the third is a tie"
    assert metrics["held/judge_preference"] == pytest.approx(
        np.mean([preference(apart) for apart in (2, 1, 0, -2)]), rel=1e-5
    )
    assert metrics["held/shorter_wins"] == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert metrics["held/json_wins"] == pytest.approx((0.5 + 1 + 0.5 + 0) / 4)
    assert [row[2] for row in table.rows] == ["judge", "shorter wins", "json wins"]


def test_the_judge_replaces_rewards() -> None:
    group = [
        rollout("{}", 1.0),
        rollout("[]", 0.0),
        rollout("{}", 1.0),
        Rollout.failure("t", "broken"),
        rollout("{{{", 1.0, truncated=True),
    ]
    found, unread = asyncio.run(judge_group(JUDGE, REQUEST, group, "[]", ByteTokenizer()))
    assert unread == 0
    value = preference(2)
    assert [each.reward for each in found] == pytest.approx([value, 0.5, value, 0.0, 0.0], rel=1e-5)
    assert [each.text for each in found] == [each.text for each in group]


def test_separators_are_stripped_by_the_policys_tokenizer() -> None:
    client = FakeTraining()
    group, other = [rollout(" {}", 1.0)], " [1, 2]"

    def reward(judge_tokenizer: ByteTokenizer, policy_tokenizer: ByteTokenizer) -> float:
        judge = Judge(client.sampler("any"), judge_tokenizer, JudgeConfig())
        [rewarded], _ = asyncio.run(judge_group(judge, REQUEST, group, other, policy_tokenizer))
        return rewarded.reward

    as_it_is, stripped = (
        asyncio.run(
            Judge(client.sampler("any"), ByteTokenizer(), JudgeConfig()).prefers(REQUEST, *both)
        )
        for both in ((" {}", " [1, 2]"), ("{}", "[1, 2]"))
    )
    assert as_it_is != stripped
    assert (
        reward(ByteTokenizer(), PlainTokenizer()),
        reward(ByteTokenizer(), ByteTokenizer()),
    ) == (
        stripped,
        as_it_is,
    )
    assert reward(PlainTokenizer(), PlainTokenizer()) != reward(PlainTokenizer(), ByteTokenizer())


def test_a_judge_without_a_template_reads_single_messages() -> None:
    prompted = Question(
        ({"role": "system", "content": "As JSON."}, *TASK.messages), "{}", exact_reward, "t"
    )
    some = Tasks((TASK,), {"held": (TASK, prompted)})
    templated, untemplated = FakeTraining(), TrainingWithoutTemplate()
    with pytest.raises(
        DataError,
        match=r"held: a prompt has several messages \(system, user\).*judge\.model",
    ):
        CheckReadable("any", JudgeConfig()).run(untemplated, untemplated, some)
    CheckReadable("any", JudgeConfig("letter")).run(untemplated, untemplated, some)
    CheckReadable("any", JudgeConfig()).run(untemplated, untemplated, Tasks((TASK,), {}))
    CheckReadable("any", JudgeConfig()).run(templated, templated, some)


@pytest.mark.parametrize(
    ("judge_model", "is_policy"), [(None, True), ("path:m", True), ("path:other", False)]
)
@pytest.mark.parametrize("says", ["answer", "letter"])
def test_a_judge_renders_as_the_model_that_it_starts_from(
    says: JudgeSays, judge_model: str | None, is_policy: bool
) -> None:
    prompts = PromptRendering(chat_template_kwargs={"enable_thinking": False})
    config = JudgeConfig(says, judge_model, max_tokens=500).with_prompts_of("path:m", prompts)
    tokenizer = tool_tokenizer()
    conversation = answer_conversation(REQUEST, "{}")
    if says == "letter":
        conversation = letter_conversation(REQUEST, "{}", "[]", "A")
    [datum] = config.rendering.datums(conversation, tokenizer)
    assert ("<think></think>" in text_of(tokenizer, datum.tokens)) is is_policy
    assert config.max_tokens == 500


def test_a_policys_template_makes_its_judge_chat() -> None:
    prompts = PromptRendering(template=PLAIN_TEMPLATE)
    config = JudgeConfig(max_tokens=500).with_prompts_of("path:m", prompts)
    base = trained_tokenizer("byte-level")
    [datum] = config.rendering.datums(answer_conversation(REQUEST, "{}"), base)
    assert text_of(base, datum.tokens).startswith("<|im_start|>user\n2 eggs<|im_end|>\n")


def test_answers_are_compared_with_the_references() -> None:
    session = FakeTraining().open("fake", Lora(seed=3))
    reference, tokenizer = session.snapshot().result(), session.tokenizer()
    [one] = reference.sample(
        tokenizer.render(TASK.messages, answer=True), max_tokens=4, temperature=0.0
    ).result()
    greedy = tokenizer.decode(one.tokens)
    rollouts = Rollouts(((rollout(greedy, 0.25), rollout("{}", 0.75)),))
    batch, stage = TaskBatch((TASK,)), JudgeRollouts(RolloutConfig(max_tokens=4))
    found, metrics = asyncio.run(stage.run(JUDGE, reference, tokenizer, batch, rollouts))
    assert [each.reward for each in found.all()] == [
        0.5,
        asyncio.run(JUDGE.prefers(REQUEST, "{}", greedy)),
    ]
    assert metrics == {"true_reward": 0.5, "judge_unread": 0.0}
    stage = JudgeRollouts(RolloutConfig(max_tokens=4), has_true_rewards=False)
    assert asyncio.run(stage.run(JUDGE, reference, tokenizer, batch, rollouts))[1] == {
        "judge_unread": 0.0
    }


def test_new_answers_are_compared_with_old_ones() -> None:
    before = PolicyBefore({}, {}, {"held": ("[]", "[]", None, None)})
    after = PolicyAfter({}, {}, {"held": ("{}", None, "{}", None)})
    metrics, _, samples = asyncio.run(
        CompareByJudge().run(
            JUDGE, ByteTokenizer(), Tasks((), {"held": (TASK,) * 4}), before, after
        )
    )
    assert metrics["held/preferred"] == pytest.approx((preference(2) + 0 + 1 + 0.5) / 4, rel=1e-5)
    assert [row["scores"]["preferred"] for row in samples.rows[1:]] == [0.0, 1.0, 0.5]
