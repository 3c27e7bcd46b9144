"""How much training is to read, and what that costs, before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from kitchen.types import Price

AT_MOST = "at most "


@dataclass(frozen=True)
class EpochSize:
    """One pass over the training data."""

    count: int
    what: str  # that is counted: "datums"
    tokens: int  # that the model reads
    lead: str = ""  # AT_MOST where some of it is still to be written


def generation_cost_rows(
    asked: int | None, answers: int, price: Price | None, learnt: bool = True
) -> tuple[tuple[str, str], ...]:
    """Rows of a table: tokens of questions, of answers to them at most, and of both, which training
    reads.

    Of games, None are asked: how long what is said is, is not known before they are played.
    """
    if asked is None:
        return *token_cost_rows("tokens of answers, in a turn", answers, AT_MOST, price), (
            "tokens of what they answer",
            "come on top, in each turn",
        )
    read = (
        token_cost_rows("tokens that training reads", asked + answers, AT_MOST, price)
        if learnt
        else ()
    )
    return (
        *token_cost_rows("tokens of questions", asked, "", price),
        *token_cost_rows("tokens of answers", answers, AT_MOST, price),
        *read,
    )


def token_cost_rows(
    what: str, tokens: int, lead: str, price: Price | None
) -> tuple[tuple[str, str], ...]:
    """Rows of a table; the cost where there is a price."""
    counted = (what, f"{lead}{tokens:,}")
    if price is None:
        return (counted,)
    cost = tokens * price.per_million / 1e6
    shown = f"{cost:,.2f}" if cost >= 1 else f"{cost:.2g}"
    return counted, (f"what these cost, at {price.per_million:g} a million", lead + shown)
