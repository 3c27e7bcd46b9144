"""Sizes and token costs that a plan shows before a run."""

from __future__ import annotations

from dataclasses import dataclass

from kitchen.types import Price

AT_MOST = "at most "


@dataclass(frozen=True)
class EpochSize:
    """The size of one pass over the training data."""

    count: int  # number of items
    unit: str  # name of the items: "datums"
    tokens: int  # number of tokens that the model reads
    bound: str = ""  # AT_MOST if some items are yet to be sampled


def generation_cost_rows(
    prompt_tokens: int | None, answer_tokens: int, price: Price | None, trained: bool = True
) -> tuple[tuple[str, str], ...]:
    """Return table rows for the tokens of prompts, of answers (at most), and of training.

    `prompt_tokens` is None for games of several turns, whose later prompts are not known before
    they are played.
    """
    if prompt_tokens is None:
        return (
            *token_cost_rows("tokens of answers, in a turn", answer_tokens, AT_MOST, price),
            ("tokens of the prompts", "not known before the games are played"),
        )
    rows = (
        *token_cost_rows("tokens of questions", prompt_tokens, "", price),
        *token_cost_rows("tokens of answers", answer_tokens, AT_MOST, price),
    )
    if not trained:
        return rows
    total = prompt_tokens + answer_tokens
    return (*rows, *token_cost_rows("tokens that training reads", total, AT_MOST, price))


def token_cost_rows(
    label: str, tokens: int, bound: str, price: Price | None
) -> tuple[tuple[str, str], ...]:
    """Return a table row with a token count, and one with its cost if there is a price."""
    count_row = (label, f"{bound}{tokens:,}")
    if price is None:
        return (count_row,)
    cost = tokens * price.per_million / 1e6
    amount = f"{cost:,.2f}" if cost >= 1 else f"{cost:.2g}"
    return count_row, (f"cost of these, at {price.per_million:g} per million", bound + amount)


def answer_cost_rows(
    answers: int, tokens_read: int, most_answer_tokens: int, bound: str, price: Price | None
) -> tuple[tuple[str, str], ...]:
    """Return the table rows of an evaluation: the counts of its answers and tokens, with costs.

    `bound` marks counts that are the most there can be; those of the answers' tokens always are.
    """
    return (
        ("answers in all", f"{bound}{answers:,}"),
        *token_cost_rows("tokens read", tokens_read, bound, price),
        *token_cost_rows("tokens of answers", most_answer_tokens, AT_MOST, price),
    )
