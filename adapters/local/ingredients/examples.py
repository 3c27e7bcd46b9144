"""Recipe lines and their labels, spelled out from a grammar and a choice of words."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypedDict

from adapters.local.ingredients import grammars, names
from adapters.local.ingredients.grammars import Grammar


class Label(TypedDict):
    """The parts of a recipe line; the keys are written in this order."""

    quantity: int | float | list[int | float] | None
    unit: str | None
    name: str
    preparation: str | None
    optional: bool


class Example(NamedTuple):
    """A recipe line, its label, and the shape of the grammar that generated it."""

    line: str
    label: Label
    shape: str = ""  # "": typed by hand


@dataclass(frozen=True)
class Choice:
    """The random choices for the slots of one line."""

    kind: str
    name: str
    unit: str = ""  # "": counted without a measure
    low: Fraction = Fraction(1)
    high: Fraction | None = None  # the upper end of a range
    spelling: tuple[str, str] = ("", "")  # the unit for one, and for many
    style: str = "1/2"  # or ½ or .5
    joint: str = " to "  # between the ends of a range
    capital: bool = True
    texts: Mapping[str, str] = field(default_factory=dict)  # slot: words


_GLYPHS = {"1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼", "3/4": "¾", "1/8": "⅛"}
_QUANTITIES = ("q", "range", "word", "one", "glued")
_NAMES = ("name", "sized", "pair")
_PREPARATIONS = ("before", "after", "finish", "fill", "alone", "taste", "squeeze")


def slots(grammar: Grammar) -> list[str]:
    """Return the slots of a grammar in order of appearance, in lower case."""
    return [slot.lower() for slot in re.findall(r"\{(\w+)\}", grammar.shape)]


def example(grammar: Grammar, choice: Choice) -> Example:
    """Return the line that a choice spells out in a grammar, with its label."""
    line = ""
    name = ""
    preparation = []
    for literal, slot in re.findall(r"([^{]*)(?:\{(\w+)\})?", grammar.shape):
        text = _text(slot.lower(), choice, slots(grammar))
        if slot != slot.lower() and choice.capital:
            text = text[0].upper() + text[1:]
        line += literal + text
        if slot.lower() in _NAMES:
            name = text
        if slot.lower() in _PREPARATIONS:
            preparation.append(text)
    counted = any(slot in _QUANTITIES for slot in slots(grammar))
    label: Label = {
        "quantity": _quantity(choice) if counted else None,
        "unit": choice.unit or None,
        "name": name,
        "preparation": ", ".join(preparation) or None,
        "optional": grammar.optional,
    }
    return Example(line, label, grammar.shape)


def _quantity(choice: Choice) -> int | float | list[int | float]:
    if choice.high is None:
        return number(choice.low)
    return [number(choice.low), number(choice.high)]


def _text(slot: str, choice: Choice, around: Sequence[str]) -> str:
    many = (choice.high or choice.low) > 1 or "few" in around
    # "1 lemon", "2 lemons", but "1 pound carrots" and "lemons, for serving"
    bare = choice.unit == "" and any(other in _QUANTITIES for other in around)
    is_plural = choice.kind in names.COUNTED and (many or not bare)
    name = names.plural(choice.name) if is_plural else choice.name
    match slot:
        case "q":
            return written(choice.low, choice.style)
        case "range" if choice.high is not None:
            return (
                written(choice.low, choice.style)
                + choice.joint
                + written(choice.high, choice.style)
            )
        case "word":
            return grammars.WORDS[choice.low]
        case "unit" | "abbr":
            return choice.spelling[many]
        case "glued":
            return written(choice.low, ".5") + choice.spelling[many]
        case "metric":
            return metric(choice.low, choice.unit)
        case "name":
            return name
        case "sized":
            return f"{choice.texts['size']} {name}"
        case "pair":
            return f"{name} or {choice.texts['other']}"
    return choice.texts[slot] if slot else ""


def number(amount: Fraction) -> int | float:
    """Return the amount as a JSON number: whole, or with at most three decimals."""
    return int(amount) if amount.denominator == 1 else round(float(amount), 3)


def written(amount: Fraction, style: str) -> str:
    """Return the amount as a cook writes it: 1 1/2, 1½ or 1.5."""
    whole, part = divmod(amount, 1)
    if part == 0:
        return str(whole)
    if style == ".5":
        return f"{float(amount):g}"
    if style == "½":
        return (str(whole) if whole else "") + _GLYPHS[str(part)]
    return f"{whole} {part}" if whole else str(part)


def metric(amount: Fraction, unit: str) -> str:
    """Return the amount in millilitres or grams: 360 ml, or 1.35 kg from a thousand on."""
    factor, small = grammars.UNITS[unit].metric or (Fraction(1), "")
    value = amount * factor
    if value < 1000 or value % 10:
        return f"{float(value):g} {small}"
    return f"{float(value / 1000):g} {'L' if small == 'ml' else 'kg'}"
