"""The judge of a rubric: a language model that is asked for scores, and not trained."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kitchen.errors import ConfigError
from kitchen.ports import Message, Sampler, Tokenizer
from kitchen.ports.environments import StepResult
from kitchen.types import Tokens
from stages.chat.messages import messages_from_dicts
from stages.chat.prompts import request_text
from stages.chat.template import TemplateInputs
from stages.tasks.asked_model import AskedModel, Judgement
from stages.tasks.grading import GradingConfig
from stages.tasks.rubric import RUBRIC, RubricConfig, judge_prompt

NOT_OPENED = (
    "reward=rubric has no judge: the workflow needs the stage OpenRubricJudge after the one that "
    "loads the problems, as in ProblemSources.stage()"
)


@dataclass(frozen=True)
class Verdict:
    """A judge's scores of an answer, 0..1 by criterion, and the replies that they come from."""

    reward: float | None  # weighted mean of the scores; None if a criterion has no score
    scores: Mapping[str, float]
    judgements: tuple[Judgement, ...] = ()
    problem: str = ""  # the reason why there is no reward
    parsed: bool = True  # whether the answer has the form that is asked for


@dataclass(frozen=True)
class RubricJudge:
    """A language model that scores answers by the criteria of a rubric."""

    config: RubricConfig
    model: AskedModel

    @classmethod
    def of(
        cls, config: RubricConfig, tokenizer: Tokenizer, sampler: Sampler | None, seed: int
    ) -> RubricJudge:
        """Return the judge that a sampler is; None for that of a plan, which asks nothing."""
        limits = config.max_tokens, "rubric.max_tokens", config.temperature, config.retries
        return cls(config, AskedModel(tokenizer, sampler, *limits, seed))

    async def judge(self, request: str, references: Sequence[str], answer: str) -> Verdict:
        """Score an answer by all criteria."""
        prompts = {
            name: judge_prompt(request, references, answer, criterion.text, self.config)
            for name, criterion in self.config.criteria_by_name.items()
        }
        judgements = await asyncio.gather(*(self._ask(*each) for each in prompts.items()))
        scores = {each.criterion: each.score for each in judgements if each.score is not None}
        unscored = next((each for each in judgements if each.score is None), None)
        if unscored is not None:
            return Verdict(None, scores, tuple(judgements), unscored.problem)
        return Verdict(self.config.reward(scores), scores, tuple(judgements))

    async def _ask(self, criterion: str, prompt: str) -> Judgement:
        """Ask for all draws of a criterion, and return their mean score as a number from 0 to 1."""
        config = self.config
        judged = await self.model.judge(criterion, prompt, config.draws, config.read, config.form)
        score = None if judged.score is None else config.scaled(judged.score)
        return replace(judged, score=score)

    def close(self) -> None:
        self.model.close()


@dataclass(frozen=True)
class RubricReward:
    """The reward of a question by a rubric, alone or as one of several rewards."""

    weight: float = 1.0
    summed: bool = False  # whether it is one of several
    references: tuple[str, ...] = ()  # right answers, if there are any
    prefill: str = ""  # the text before an answer that the judge is to see
    grading: GradingConfig = field(default_factory=GradingConfig)
    judge: RubricJudge | None = field(default=None, repr=False, compare=False)

    @property
    def opened(self) -> RubricJudge:
        """The judge; raises ConfigError if it is not opened yet."""
        if self.judge is None:
            raise ConfigError(NOT_OPENED)
        return self.judge

    async def score(
        self, messages: Sequence[Message], inputs: TemplateInputs, answer: str
    ) -> Verdict:
        """Ask the judge for the reward of an answer, without its weight.

        A text without a match for grading.extract is wrong.
        """
        text = self.grading.extracted(self.prefill + answer)
        if text is None:
            return Verdict(0.0, {}, parsed=False)
        request = request_text(messages_from_dicts(messages), inputs)
        return await self.opened.judge(request, self.references, text)

    def result(self, verdict: Verdict) -> StepResult:
        """Return what a verdict adds to the reward of a rollout, and its parts."""
        if verdict.reward is None:
            return StepResult(None)
        parts = dict(verdict.scores) if len(verdict.scores) > 1 else {}
        if self.summed:
            parts = {f"{RUBRIC}/{name}": score for name, score in parts.items()}
            parts[RUBRIC] = verdict.reward
        return StepResult(self.weight * verdict.reward, parsed=verdict.parsed, parts=parts)

    def prompts(self, messages: Sequence[Message], inputs: TemplateInputs) -> list[Tokens]:
        """Return the judge's prompts about an empty answer, one per criterion, each (T,)."""
        judge, request = self.opened, request_text(messages_from_dicts(messages), inputs)
        texts = [
            judge_prompt(request, self.references, "", criterion.text, judge.config)
            for criterion in judge.config.criteria_by_name.values()
        ]
        return list(map(judge.model.tokens, texts))
