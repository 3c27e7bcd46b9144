"""Tables of tokens in previews, with marks that say which of them are trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from kitchen.ports import Tokenizer
from kitchen.types import Datum, Mask, Table, Tokens

SHOWN = 1000  # characters shown at each end of a long text


@dataclass(frozen=True)
class MarkedTokens:
    """A sequence of tokens, each of which is context or trained on."""

    tokens: Tokens  # (T,)
    trained: Mask  # (T,)
    label: str = ""
    start: int = 0  # index of the first token to show

    @classmethod
    def of_prompt(cls, tokens: Tokens, label: str = "") -> MarkedTokens:
        """Return the tokens of a prompt, which are all context."""
        return cls(tokens, np.zeros(len(tokens), bool), label)

    @classmethod
    def of_datum(cls, datum: Datum, label: str = "") -> MarkedTokens:
        """Return the tokens of a datum, with the last target; those with a weight are trained."""
        trained = np.append([False], datum.loss_inputs["weights"] != 0)
        return cls(np.append(datum.tokens, datum.targets[-1]), trained, label)


def token_table(
    title: str,
    sequences: Iterable[MarkedTokens],
    tokenizer: Tokenizer,
    column: str = "",
    mark: str = "trained",
) -> Table:
    """Return a table with a row for each run of tokens that are all context or all `mark`.

    With `column`, the first column of this name has the labels of the sequences. Special tokens are
    shown by name, a line break as ↵, and a space at either end of a run as ␣.
    """
    rows: list[tuple[str, ...]] = []
    for sequence in sequences:
        label = sequence.label
        for is_trained, count, text in _runs(sequence, tokenizer):
            row = (mark if is_trained else "context", f"{count:,}", visible(text))
            rows.append((label, *row) if column else row)
            label = ""
    columns = ("mark", "tokens", "text")
    return Table(title, (column, *columns) if column else columns, tuple(rows))


def pair_table(title: str, chosen: Datum, rejected: Datum | None, tokenizer: Tokenizer) -> Table:
    """Return the table of a pair, with their common prompt once; None is yet to be sampled."""
    first = MarkedTokens.of_datum(chosen, "chosen")
    sequences = [first]
    if rejected is not None:
        sequences = _with_common_prompt(first, MarkedTokens.of_datum(rejected, "rejected"))
    table = token_table(title, sequences, tokenizer, column="answer")
    if rejected is not None:
        return table
    sampled = ("rejected", "", "", "(sampled from the model when the run starts)")
    return Table(table.title, table.columns, (*table.rows, sampled))


def _with_common_prompt(first: MarkedTokens, second: MarkedTokens) -> list[MarkedTokens]:
    """Return the context that both begin with, then the rest of each."""
    length = min(len(first.tokens), len(second.tokens))
    differ = first.tokens[:length] != second.tokens[:length]
    differ |= first.trained[:length] | second.trained[:length]
    common = int(np.argmax(differ)) if differ.any() else length
    return [
        MarkedTokens.of_prompt(first.tokens[:common], "both"),
        MarkedTokens(first.tokens, first.trained, first.label, common),
        MarkedTokens(second.tokens, second.trained, second.label, common),
    ]


def _runs(sequence: MarkedTokens, tokenizer: Tokenizer) -> Iterator[tuple[bool, int, str]]:
    """Yield the mark, the number of tokens and the text of each run of equal marks."""
    indices = range(sequence.start, len(sequence.tokens))
    for is_trained, run in groupby(indices, key=sequence.trained.tolist().__getitem__):
        run_indices = list(run)
        first, after = run_indices[0], run_indices[-1] + 1
        yield is_trained, after - first, _text(sequence.tokens, first, after, tokenizer)


def _text(tokens: Tokens, first: int, after: int, tokenizer: Tokenizer) -> str:
    """Return the text of some tokens; in some vocabularies, it depends on those before."""
    before = tokenizer.decode(tokens[:first], special=True)
    through = tokenizer.decode(tokens[:after], special=True)
    if through.startswith(before):
        return through.removeprefix(before)
    return tokenizer.decode(tokens[first:after], special=True)  # a character was split


def visible(text: str) -> str:
    """Return a text with visible line breaks and outer spaces, without the middle if it is long."""
    core = text.strip(" ")
    leading = len(text) - len(text.lstrip(" "))
    trailing = len(text) - len(core) - leading if core else 0
    shown = "␣" * leading + core + "␣" * trailing
    if len(shown) > 2 * SHOWN:
        omitted = f"\n[... {len(shown) - 2 * SHOWN:,} characters ...]\n"
        return _with_breaks(shown[:SHOWN]) + omitted + _with_breaks(shown[-SHOWN:])
    return _with_breaks(shown)


def _with_breaks(text: str) -> str:
    return text.replace("\n", "↵\n").removesuffix("\n")
