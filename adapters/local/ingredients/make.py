"""Generate the files of this data set: `python -m adapters.local.ingredients.make [FOLDER]`."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import TypeVar

from adapters.local.ingredients import grammars, kinds, names
from adapters.local.ingredients.examples import Choice, Example, example, slots
from adapters.local.ingredients.grammars import Grammar
from adapters.local.ingredients.kinds import Serving
from adapters.local.packaged_data import shuffle, write

SEED = 1896  # the year of Fannie Farmer's cookbook, the first with level measures
SIZES = {"train": 1600, "new_names": 200, "new_grammars": 200}  # lines
INSTRUCTION = "Turn the recipe line into JSON: quantity, unit, name, preparation, optional."

Names = Mapping[str, Sequence[str]]
T = TypeVar("T")

_POOLS: dict[str, tuple[str, ...]] = {
    "fill": grammars.FILLS,
    "finish": grammars.FINISHES,
    "note": grammars.NOTES,
    "aside": grammars.ASIDES,
    "squeeze": grammars.SQUEEZES,
    "size": grammars.SIZES,
    "taste": ("to taste",),
    "one": ("a",),
    "few": ("a few",),
}


# -- the draws


def pick(rng: Random, items: Sequence[T]) -> T:
    """Return a random item; only `random()` is guaranteed to stay the same in later Pythons."""
    return items[int(rng.random() * len(items))]


def draw(grammar: Grammar, table: Names, rng: Random, used: Counter[str]) -> Choice:
    """Return a choice that fits the grammar, with one of the names least used so far."""
    fitting = _fitting(grammar, table, rng)
    # unused names come first; a kind of few names (garlic) must still occur often enough to learn
    unused = [kind for kind in fitting if any(not used[name] for name in table[kind])]
    kinds_left = unused or list(fitting)
    weighted = chain.from_iterable([kind] * (len(table[kind]) + 6) for kind in kinds_left)
    kind = pick(rng, list(weighted))
    serving, unit = pick(rng, fitting[kind])
    fewest = min(used[name] for name in table[kind])
    name = pick(rng, [name for name in table[kind] if used[name] == fewest])
    used[name] += 1
    amounts = _amounts(grammar, kind, unit)
    # small amounts are more frequent in recipes than large ones
    low, high = amounts[int(min(rng.random(), rng.random()) * len(amounts))]
    short = any(slot in ("abbr", "glued") for slot in slots(grammar))
    spellings = grammars.UNITS[unit].short if short else grammars.UNITS[unit].spelled
    return Choice(
        kind=kind,
        name=name,
        unit=unit,
        low=low,
        high=high,
        spelling=pick(rng, spellings),
        style=".5" if unit in grammars.METRIC else pick(rng, ("1/2", "1/2", "½")),
        joint=pick(rng, (" to ", " to ", "-", "–")) if low.denominator == 1 else " to ",
        capital=rng.random() < 0.7,
        texts=_texts(grammar, kind, name, unit, serving, table, rng),
    )


def _fitting(grammar: Grammar, table: Names, rng: Random) -> dict[str, list[tuple[Serving, str]]]:
    """Return the kinds that fit the grammar, each with its servings and measures.

    If the grammar lists measures, one of them is drawn.
    """
    fitting = {
        kind: servings for kind in table if table[kind] and (servings := _servings(grammar, kind))
    }
    if not grammar.units:
        return fitting
    common = {unit for _, unit in chain.from_iterable(fitting.values())}
    chosen = pick(rng, [unit for unit in grammar.units if unit in common])
    matching = {}
    for kind, servings in fitting.items():
        measured = [pair for pair in servings if pair[1] == chosen]
        if measured:
            matching[kind] = measured
    return matching


def _servings(grammar: Grammar, kind: str) -> list[tuple[Serving, str]]:
    """Return the servings and measures of a kind that fit the grammar."""
    present = slots(grammar)
    if grammar.kinds and kind not in grammar.kinds:
        return []
    measured = any(slot in present for slot in ("unit", "abbr", "glued"))
    # "salt, to taste"
    if not measured and not any(slot in present for slot in ("q", "range", "word")):
        servings = kinds.KINDS[kind]
        return [(next((serving for serving in servings if serving.before), servings[0]), "")]
    pairs = []
    for serving in kinds.KINDS[kind]:
        if _has_words(present, serving):
            units = [unit for unit in serving.units if bool(unit) == measured]
            pairs += [(serving, unit) for unit in units if _fits(grammar, kind, unit)]
    return pairs


def _has_words(present: Sequence[str], serving: Serving) -> bool:
    """Return whether a serving has words for the slots before and after the name."""
    return ("before" not in present or bool(serving.before)) and (
        "after" not in present or bool(_after(present, serving))
    )


def _fits(grammar: Grammar, kind: str, unit: str) -> bool:
    """Return whether a measure of a kind fits the slots of a grammar."""
    present = slots(grammar)
    return (
        (not grammar.units or unit in grammar.units)
        and ("metric" not in present or grammars.UNITS[unit].metric is not None)
        and ("pack" not in present or bool(grammars.UNITS[unit].packs))
        and ("abbr" not in present or bool(grammars.UNITS[unit].short))
        and ("glued" not in present or unit in grammars.METRIC)
        and ("pair" not in present or kind not in names.COUNTED)
        and bool(_amounts(grammar, kind, unit))
    )


def _after(present: Sequence[str], serving: Serving) -> tuple[str, ...]:
    """Return words that may follow the name, but only one phrase with "plus more"."""
    has_plus = "finish" in present or present[0] == "name"
    return tuple(words for words in serving.after if not (has_plus and words.startswith("plus")))


def _amounts(grammar: Grammar, kind: str, unit: str) -> list[tuple[Fraction, Fraction | None]]:
    """Return every amount, or range of amounts, that fits the grammar."""
    present = slots(grammar)
    if not any(slot in ("q", "range", "word", "glued") for slot in present):
        return [(Fraction(1), None)]
    factor, _ = grammars.UNITS[unit].metric or (Fraction(1), "")
    pool = [
        amount
        for amount in grammars.UNITS[unit].amounts
        if ("word" not in present or amount in grammars.WORDS)
        and ("metric" not in present or (amount * factor).denominator == 1)
        and (" x " not in grammar.shape or amount.denominator == 1)
        and ("aside" not in present or amount >= 1)  # half a cup is not "about 3 large"
        and (unit or amount >= 1 or (kind in kinds.HALVED and "range" not in present))
    ]
    if "range" not in present:
        return [(amount, None) for amount in pool]
    ranges: list[tuple[Fraction, Fraction | None]] = []
    for at, low in enumerate(pool):
        highs = pool[at + 1 : at + 3]
        ranges += [(low, high) for high in highs if _is_idiomatic(low, high)]
    return ranges


def _is_idiomatic(low: Fraction, high: Fraction) -> bool:
    """Return whether a recipe would have the range: 1/2 to 3/4 or 2 to 3, not 1 1/4 to 1 1/3."""
    return high <= 1 or (low.denominator == 1 and high.denominator == 1)


def _texts(
    grammar: Grammar, kind: str, name: str, unit: str, serving: Serving, table: Names, rng: Random
) -> dict[str, str]:
    present = slots(grammar)
    pools: dict[str, Sequence[str]] = dict(_POOLS)
    pools["before"] = serving.before
    pools["after"] = _after(present, serving)
    pools["alone"] = kinds.ALONE.get(kind, ())
    pools["pack"] = grammars.UNITS[unit].packs
    pools["other"] = [other for other in table[kind] if other != name] or [name]
    drawn = [slot for slot in present if slot in pools]
    if "sized" in present:
        drawn.append("size")
    if "pair" in present:
        drawn.append("other")
    return {slot: pick(rng, pools[slot]) for slot in drawn}


# -- masking


@cache
def _name_pattern() -> re.Pattern[str]:
    known = set[str]()
    for kind, of_kind in chain(names.TRAINED.items(), names.HELD_OUT.items()):
        for name in of_kind:
            known.update(names.forms(kind, name))
    longest_first = sorted(known, key=lambda form: (-len(form), form))
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", re.IGNORECASE)


_GLYPH = "[½⅓⅔¼¾⅛]"
_WORD = "half an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_WORDED = rf"(?<![\w/.])(?:{_WORD})(?!\w)"
_NUMBER = rf"(?:{_WORDED}|\d+[ -]\d+/\d+|\d+/\d+|\d+(?:\.\d+)?\s?{_GLYPH}|\d+(?:\.\d+)?|{_GLYPH})"
_RANGE = re.compile(
    rf"{_NUMBER}(?:\s*(?:-|–|\bto\b|\bor\b)\s*{_NUMBER})?|^an?(?!\w)", re.IGNORECASE
)


def masked(line: str, name: str = "") -> str:
    """Return the line without its names and numbers, to compare lines apart from those.

    `name` is the line's name, for lines whose name is not on the list.
    """
    if name:
        line = line.replace(name, "NAME")
    line = _name_pattern().sub("NAME", line)
    return " ".join(_RANGE.sub("#", line).lower().split())


# -- the files


def examples(
    table: Names,
    shapes: Sequence[Grammar],
    count: int,
    rng: Random,
    seen: set[str],
    forbidden: Iterable[str] = (),
) -> list[Example]:
    """Return new lines, the grammars in turn, none of which masks to a forbidden one."""
    forbidden_masks = frozenset(forbidden)
    used: Counter[str] = Counter()
    generated: list[Example] = []
    while len(generated) < count:
        for grammar in shapes[: count - len(generated)]:
            for _ in range(20):  # a small grammar may have no new lines left
                new = example(grammar, draw(grammar, table, rng, used))
                if new.line.casefold() not in seen and not forbidden_masks & _masks(new):
                    seen.add(new.line.casefold())
                    generated.append(new)
                    break
    shuffle(generated, rng)
    return generated


def _masks(new: Example) -> frozenset[str]:
    return frozenset({masked(new.line), masked(new.line, new.label["name"])})


def files() -> dict[str, list[Example]]:
    """Return the generated files by name."""
    rng = Random(SEED)
    seen = set[str]()
    train = examples(names.TRAINED, grammars.TRAINING, SIZES["train"], rng, seen)
    new_names = examples(names.HELD_OUT, grammars.TRAINING, SIZES["new_names"], rng, seen)
    known = set(chain.from_iterable(map(_masks, train)))
    new_grammars = examples(
        names.HELD_OUT, grammars.HELD_OUT, SIZES["new_grammars"], rng, seen, known
    )
    return {"train": train, "new_names": new_names, "new_grammars": new_grammars}


def row(item: Example) -> str:
    """Return the example as one line of a JSONL file."""
    contents = {
        "system": INSTRUCTION,
        "user": item.line,
        "assistant": json.dumps(item.label, ensure_ascii=False),
    }
    messages = [{"role": role, "content": content} for role, content in contents.items()]
    return json.dumps({"messages": messages}, ensure_ascii=False)


def main(folder: Path) -> None:
    """Write the generated files into the folder."""
    write(folder, files(), row)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
