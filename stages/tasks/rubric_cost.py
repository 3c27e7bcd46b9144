"""Sizes of the judge's calls that a plan shows before a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kitchen.ports.environments import Task
from stages.chat.token_cost import AT_MOST
from stages.tasks.rewards import judge_prompts, judged_questions


def judge_cost_rows(
    tasks: Sequence[Task], group: int, max_tokens: int
) -> tuple[tuple[str, str], ...]:
    """Return table rows for the calls and tokens of the judge, if there is one.

    They are upper bounds, except that a judge without a score is asked again: equal answers to a
    problem are judged once. `max_tokens` is that of an answer, `group` the answers per problem.
    """
    repeats = Counter(map(id, tasks))
    questions = {id(question): question for question in judged_questions(tasks)}
    calls = prompt_tokens = reply_tokens = 0
    for key, question in questions.items():
        assert question.rubric is not None
        config = question.rubric.opened.config
        answers = repeats[key] * group
        calls += answers * config.calls
        prompts = sum(len(prompt) + max_tokens for prompt in judge_prompts(question))
        prompt_tokens += answers * config.draws * prompts
        reply_tokens += answers * config.calls * config.max_tokens
    if not calls:
        return ()
    return (
        ("calls of the judge", f"{AT_MOST}{calls:,}"),
        ("tokens that the judge reads", f"{AT_MOST}{prompt_tokens:,}"),
        ("tokens that the judge writes", f"{AT_MOST}{reply_tokens:,}"),
    )
