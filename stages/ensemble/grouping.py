"""Grouping of answers that are equal by the metric of an evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

from kitchen.config.user_functions import is_function_name
from kitchen.ports.environments import StepResult
from stages.evaluate.graded_answers import METRIC_REWARDS
from stages.tasks.grading import GradingConfig
from stages.tasks.rewards import AS_IS, grade_answers, ungradable


@dataclass(frozen=True)
class GroupedAnswer:
    """The group of an answer, and whether it can be read by the metric."""

    group: int  # index of the first answer to the problem that it is equal to
    readable: bool


@dataclass
class AnswerGroups:
    """Groups of equal answers by a metric; comparisons that were made once are remembered.

    Two answers are equal if one would be right with the other as the reference answer: by the
    fields of JSON objects, as mathematics, or as texts. A metric of the user, MODULE:function,
    compares no answers with each other, so they are compared as texts.
    """

    metric: str  # one of METRIC_REWARDS, or MODULE:function
    grading: GradingConfig = AS_IS
    _readable: dict[str, bool] = field(default_factory=dict)
    _equal: dict[tuple[str, str], bool] = field(default_factory=dict)

    async def group(self, problems: Sequence[Sequence[str]]) -> list[list[GroupedAnswer]]:
        """Return the groups of the answers to each problem, in their order."""
        await asyncio.to_thread(self._read, chain.from_iterable(problems))
        await self._compare(problems)
        return [self._grouped(texts) for texts in problems]

    def _read(self, texts: Iterable[str]) -> None:
        """Find out which texts can be read; math-verify may take long, in a separate process."""
        new = [text for text in dict.fromkeys(texts) if text not in self._readable]
        found = [self.grading.extracted(text) is not None for text in new]
        self._readable |= dict(zip(new, found, strict=True))
        if is_function_name(self.metric):
            return
        matched = [text for text in new if self._readable[text]]
        references = [(text,) for text in matched]
        for at in ungradable(METRIC_REWARDS[self.metric], references, self.grading):
            self._readable[matched[at]] = False

    async def _compare(self, problems: Sequence[Sequence[str]]) -> None:
        """Compare the readable answers to each problem with each other, unless they are alike."""
        if is_function_name(self.metric):
            return
        wanted: dict[tuple[str, str], None] = {}
        for texts in problems:
            distinct = combinations(self._distinct(texts).values(), 2)
            wanted |= dict.fromkeys(pair for pair in distinct if pair not in self._equal)
        pairs = list(wanted)
        answers = [(other, (first,)) for first, other in pairs]
        results = await grade_answers(METRIC_REWARDS[self.metric], answers, grading=self.grading)
        for pair, result in zip(pairs, results, strict=True):
            self._equal[pair] = isinstance(result, StepResult) and result.reward == 1

    def _distinct(self, texts: Sequence[str]) -> Mapping[str, str]:
        """Return the first of the readable texts of each normal form, by that form."""
        distinct: dict[str, str] = {}
        for text in texts:
            if self._readable[text]:
                distinct.setdefault(self._normal(text), text)
        return distinct

    def _normal(self, text: str) -> str:
        """Return a form of a text that only equal answers share."""
        extracted = self.grading.extracted(text)
        return self.grading.folded(text if extracted is None else extracted).strip()

    def _grouped(self, texts: Sequence[str]) -> list[GroupedAnswer]:
        distinct = self._distinct(texts)
        grouped: list[GroupedAnswer] = []
        for at, text in enumerate(texts):
            earlier = (other for other in range(at) if grouped[other].group == other)
            same = (other for other in earlier if self._are_equal(texts[other], text, distinct))
            grouped.append(GroupedAnswer(next(same, at), self._readable[text]))
        return grouped

    def _are_equal(self, first: str, other: str, distinct: Mapping[str, str]) -> bool:
        """Return whether two answers are equal; those that cannot be read are, as equal texts."""
        if first == other:
            return True
        if not (self._readable[first] and self._readable[other]):
            return False
        forms = self._normal(first), self._normal(other)
        if forms[0] == forms[1]:
            return True
        pair = distinct[forms[0]], distinct[forms[1]]
        return self._equal.get(pair, False)
