"""Writes the generated files of this data set: `python -m adapters.local.ingredients.make
[FOLDER]`.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeVar

from adapters.local.ingredients import grammars, kinds, names
from adapters.local.ingredients.grammars import Grammar
from adapters.local.ingredients.kinds import Serving
from adapters.local.ingredients.lines import Choice, Example, example, slots
from adapters.local.making import shuffle, write

SEED = 1896  # the year of Fannie Farmer's cookbook, the first to ask for level measures
SIZES = {"train": 1600, "new_names": 200, "new_grammars": 200}  # lines
INSTRUCTION = "StepResult the recipe line into JSON: quantity, unit, name, preparation, optional."

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


def pick(rng: Random, of: Sequence[T]) -> T:
    """One of them; only `random()` itself is promised to stay the same from one Python to the next."""
    return of[int(rng.random() * len(of))]


def draw(grammar: Grammar, of: Names, rng: Random, used: Counter[str]) -> Choice:
    """A choice that fits the grammar, of one of the names least used so far."""
    fitting = _fitting(grammar, of, rng)
    # a name not met yet goes first; a kind of few names (garlic) must still be met often enough to
    # be learnt
    fresh = [kind for kind in fitting if any(not used[name] for name in of[kind])] or list(fitting)
    kind = pick(rng, [kind for kind in fresh for _ in range(len(of[kind]) + 6)])
    serving, unit = pick(rng, fitting[kind])
    fewest = min(used[name] for name in of[kind])
    name = pick(rng, [name for name in of[kind] if used[name] == fewest])
    used[name] += 1
    amounts = _amounts(grammar, kind, unit)
    # cooks ask for little more often than for much
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
        texts=_texts(grammar, kind, name, unit, serving, of, rng),
    )


def _fitting(grammar: Grammar, of: Names, rng: Random) -> dict[str, list[tuple[Serving, str]]]:
    """How each kind may be served in this grammar; of the measures that a grammar lists, one at a
    time.
    """
    fitting = {kind: servings for kind in of if of[kind] and (servings := _servings(grammar, kind))}
    if not grammar.units:
        return fitting
    common = {unit for servings in fitting.values() for _, unit in servings}
    chosen = pick(rng, [unit for unit in grammar.units if unit in common])
    return {
        kind: ok
        for kind in fitting
        if (ok := [pair for pair in fitting[kind] if pair[1] == chosen])
    }


def _servings(grammar: Grammar, kind: str) -> list[tuple[Serving, str]]:
    """How the kind may be served in this grammar: what is done to it, and the measure."""
    found = slots(grammar)
    if grammar.kinds and kind not in grammar.kinds:
        return []
    measured = any(slot in found for slot in ("unit", "abbr", "glued"))
    # "salt, to taste"
    if not measured and not any(slot in found for slot in ("q", "range", "word")):
        servings = kinds.KINDS[kind]
        return [(next((serving for serving in servings if serving.before), servings[0]), "")]
    return [
        (serving, unit)
        for serving in kinds.KINDS[kind]
        for unit in serving.units
        if (not grammar.units or unit in grammar.units)
        and bool(unit) == measured
        and ("before" not in found or serving.before)
        and ("after" not in found or _after(found, serving))
        and ("metric" not in found or grammars.UNITS[unit].metric)
        and ("pack" not in found or grammars.UNITS[unit].packs)
        and ("abbr" not in found or grammars.UNITS[unit].short)
        and ("glued" not in found or unit in grammars.METRIC)
        and ("pair" not in found or kind not in names.COUNTED)
        and _amounts(grammar, kind, unit)
    ]


def _after(found: Sequence[str], serving: Serving) -> tuple[str, ...]:
    """What may follow the name; not "plus more for dusting, plus more as needed"."""
    closed = "finish" in found or found[0] == "name"
    return tuple(words for words in serving.after if not (closed and words.startswith("plus")))


def _amounts(grammar: Grammar, kind: str, unit: str) -> list[tuple[Fraction, Fraction | None]]:
    """Every amount, or range of amounts, that the grammar can ask for."""
    found = slots(grammar)
    if not any(slot in ("q", "range", "word", "glued") for slot in found):
        return [(Fraction(1), None)]
    factor, _ = grammars.UNITS[unit].metric or (Fraction(1), "")
    pool = [
        amount
        for amount in grammars.UNITS[unit].amounts
        if ("word" not in found or amount in grammars.WORDS)
        and ("metric" not in found or (amount * factor).denominator == 1)
        and (" x " not in grammar.shape or amount.denominator == 1)
        and ("aside" not in found or amount >= 1)  # half a cup is not "about 3 large"
        and (unit or amount >= 1 or (kind in kinds.HALVED and "range" not in found))
    ]
    if "range" not in found:
        return [(amount, None) for amount in pool]
    return [
        (low, high)
        for at, low in enumerate(pool)
        for high in pool[at + 1 : at + 3]
        if _range(low, high)
    ]


def _range(low: Fraction, high: Fraction) -> bool:
    """Whether a cook would say it: 1/2 to 3/4 or 2 to 3, but not 1 1/4 to 1 1/3."""
    return high <= 1 or (low.denominator == 1 and high.denominator == 1)


def _texts(
    grammar: Grammar, kind: str, name: str, unit: str, serving: Serving, of: Names, rng: Random
) -> dict[str, str]:
    found = slots(grammar)
    pools: dict[str, Sequence[str]] = dict(_POOLS)
    pools["before"] = serving.before
    pools["after"] = _after(found, serving)
    pools["alone"] = kinds.ALONE.get(kind, ())
    pools["pack"] = grammars.UNITS[unit].packs
    pools["other"] = [other for other in of[kind] if other != name] or [name]
    wanted = [slot for slot in found if slot in pools]
    wanted += ["size"] * ("sized" in found) + ["other"] * ("pair" in found)
    return {slot: pick(rng, pools[slot]) for slot in wanted}


# -- masking


@cache
def _name_pattern() -> re.Pattern[str]:
    known = {
        form
        for table in (names.TRAINED, names.HELD_OUT)
        for kind in table
        for name in table[kind]
        for form in names.forms(kind, name)
    }
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
    """The line without its names and numbers: two lines that agree in this differ in nothing else.

    `name` is the line's own name, for lines that name what is not on the list.
    """
    if name:
        line = line.replace(name, "NAME")
    line = _name_pattern().sub("NAME", line)
    return " ".join(_RANGE.sub("#", line).lower().split())


# -- the files


def examples(
    of: Names,
    shapes: Sequence[Grammar],
    count: int,
    rng: Random,
    seen: set[str],
    forbidden: Iterable[str] = (),
) -> list[Example]:
    """As many new lines as asked for, the grammars in turn, none that masks to a forbidden one."""
    closed = frozenset(forbidden)
    used: Counter[str] = Counter()
    made: list[Example] = []
    while len(made) < count:
        for grammar in shapes[: count - len(made)]:
            for _ in range(20):  # a small grammar may have said all it can
                new = example(grammar, draw(grammar, of, rng, used))
                if new.line.casefold() not in seen and not closed & _masks(new):
                    seen.add(new.line.casefold())
                    made.append(new)
                    break
    shuffle(made, rng)
    return made


def _masks(of: Example) -> frozenset[str]:
    return frozenset({masked(of.line), masked(of.line, of.label["name"])})


def files() -> dict[str, list[Example]]:
    """The generated sets by name."""
    rng, seen = Random(SEED), set[str]()
    train = examples(names.TRAINED, grammars.TRAINING, SIZES["train"], rng, seen)
    new_names = examples(names.HELD_OUT, grammars.TRAINING, SIZES["new_names"], rng, seen)
    known = {mask for each in train for mask in _masks(each)}
    new_grammars = examples(
        names.HELD_OUT, grammars.HELD_OUT, SIZES["new_grammars"], rng, seen, known
    )
    return {"train": train, "new_names": new_names, "new_grammars": new_grammars}


def row(of: Example) -> str:
    """The example as one line of a JSONL file."""
    said = {
        "system": INSTRUCTION,
        "user": of.line,
        "assistant": json.dumps(of.label, ensure_ascii=False),
    }
    messages = [{"role": role, "content": content} for role, content in said.items()]
    return json.dumps({"messages": messages}, ensure_ascii=False)


def main(folder: Path) -> None:
    """Write the generated files into the folder."""
    write(folder, files(), row)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
