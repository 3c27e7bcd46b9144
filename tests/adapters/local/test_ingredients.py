"""The packaged recipe lines keep the promises of their README."""

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from adapters.local.ingredients import grammars, make, names
from adapters.local.ingredients.examples import Choice, Example, Label, example
from adapters.local.ingredients.grammars import Grammar
from adapters.local.packaged_data import write

FOLDER = Path(make.__file__).parent
COUNTS = {"train": 1600, "new_names": 200, "new_grammars": 200, "hand_typed": 60}
KEYS = ["quantity", "unit", "name", "preparation", "optional"]


def shipped(name: str) -> list[Example]:
    """Return the lines of a file and their labels."""
    text = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    examples = []
    for row in text.splitlines():
        system, user, assistant = json.loads(row)["messages"]
        assert [system["role"], user["role"], assistant["role"]] == ["system", "user", "assistant"]
        assert system["content"] == make.INSTRUCTION
        label: Label = json.loads(assistant["content"])
        assert assistant["content"] == json.dumps(label, ensure_ascii=False)
        examples.append(Example(user["content"], label))
    return examples


@pytest.fixture(scope="module")
def generated() -> dict[str, list[Example]]:
    return make.files()


def everything() -> list[Example]:
    return [each for name in COUNTS for each in shipped(name)]


def test_script_reproduces_the_shipped_files(
    tmp_path: Path, generated: dict[str, list[Example]]
) -> None:
    write(tmp_path, generated, make.row)
    assert sorted(path.stem for path in tmp_path.iterdir()) == [
        "new_grammars",
        "new_names",
        "train",
    ]
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()


@pytest.mark.parametrize("name, count", COUNTS.items())
def test_each_file_has_its_number_of_lines(name: str, count: int) -> None:
    assert len(shipped(name)) == count


def test_there_are_enough_names_units_and_grammars() -> None:
    trained = [name for kind in names.TRAINED.values() for name in kind]
    held_out = [name for kind in names.HELD_OUT.values() for name in kind]
    assert len(set(trained + held_out)) == len(trained) + len(held_out) >= 400
    assert len(held_out) == 100
    assert len([unit for unit in grammars.UNITS if unit]) >= 25
    assert len({grammar.shape for grammar in grammars.TRAINING}) >= 30
    assert len({grammar.shape for grammar in grammars.HELD_OUT}) >= 8
    assert not set(grammars.TRAINING) & set(grammars.HELD_OUT)


def test_every_grammar_and_every_name_is_used(generated: dict[str, list[Example]]) -> None:
    shapes = {name: {each.shape for each in made} for name, made in generated.items()}
    assert (
        shapes["train"] == shapes["new_names"] == {grammar.shape for grammar in grammars.TRAINING}
    )
    assert shapes["new_grammars"] == {grammar.shape for grammar in grammars.HELD_OUT}
    for made, table in (
        (generated["train"], names.TRAINED),
        (generated["new_names"], names.HELD_OUT),
    ):
        lines = "\n".join(each.line.lower() for each in made)
        for kind, some in table.items():
            for name in some:
                forms = names.forms(kind, name)
                assert any(form.lower() in lines for form in forms), name


def held_out_forms() -> set[str]:
    """Return all forms of the held-out names."""
    forms = set[str]()
    for kind, some in names.HELD_OUT.items():
        for name in some:
            forms.update(names.forms(kind, name))
    return forms


def test_no_training_line_has_a_held_out_name() -> None:
    lines = "\n".join(each.line for each in shipped("train"))
    for form in held_out_forms():
        assert not re.search(rf"(?<!\w){re.escape(form)}(?!\w)", lines, re.IGNORECASE), form


def test_new_names_are_held_out_names() -> None:
    forms = held_out_forms()
    for each in shipped("new_names") + shipped("new_grammars"):
        assert any(form.lower() in each.label["name"].lower() for form in forms), each


@pytest.mark.parametrize("name", ["new_grammars", "hand_typed"])
def test_held_out_lines_differ_beyond_names_and_numbers(name: str) -> None:
    train = {mask for each in shipped("train") for mask in _masks(each)}
    assert not [each.line for each in shipped(name) if _masks(each) & train]


def _masks(of: Example) -> set[str]:
    return {make.masked(of.line), make.masked(of.line, of.label["name"])}


@pytest.mark.parametrize(
    "line, name, mask",
    [
        (
            "1 1/2 cups (360 ml) finely chopped yellow onions, divided",
            "",
            "# cups (# ml) finely chopped name, divided",
        ),
        ("2–3 lemons", "", "# name"),
        ("Half a bay leaf", "", "# name"),
        ("1½ to 2 tbsp. nduja, torn", "nduja", "# tbsp. name, torn"),
        ("A pinch of Kosher salt", "", "# pinch of name"),
        ("2 14.5-ounce cans plum tomatoes", "", "# #-ounce cans name"),
    ],
)
def test_names_and_numbers_are_masked(line: str, name: str, mask: str) -> None:
    assert make.masked(line, name) == mask


def test_no_line_occurs_twice() -> None:
    lines = [each.line.casefold() for each in everything()]
    assert len(set(lines)) == len(lines)


def check_quantity(quantity: Any, line: str) -> None:
    """A quantity is None, a positive number, or a range of two of them."""
    if quantity is None:
        return
    ends = quantity if isinstance(quantity, list) else [quantity]
    for end in ends:
        assert type(end) in (int, float), line
        assert round(end, 3) == end > 0, line
    if isinstance(quantity, list):
        low, high = quantity
        assert low < high, line


def test_every_label_has_the_right_keys_and_types() -> None:
    for line, label, _ in everything():
        assert list(label) == KEYS
        check_quantity(label["quantity"], line)
        assert label["unit"] is None or label["unit"] in grammars.UNITS, line
        assert isinstance(label["optional"], bool)


def test_name_and_preparation_occur_in_the_line() -> None:
    for line, label, _ in everything():
        assert label["name"] in line
        preparation = label["preparation"]
        assert preparation is None or all(
            part and part in line for part in preparation.split(", ")
        ), line


def test_optional_label_matches_the_line() -> None:
    for line, label, _ in everything():
        match = re.search(r"\boptional\b|if desired|if you like", line, re.IGNORECASE)
        assert label["optional"] == bool(match), line
        assert not re.search(r"optional|if desired|if you like", str(label["preparation"])), line


ONION = Choice(
    "peeled",
    "yellow onion",
    "cup",
    Fraction(3, 2),
    spelling=("cup", "cups"),
    texts={"before": "finely chopped", "finish": "divided"},
)
LABELS = [  # (grammar, choice, line, quantity, unit, name, preparation, optional)
    (
        Grammar("{q} {unit} ({metric}) {before} {name}, {finish}"),
        ONION,
        "1 1/2 cups (360 ml) finely chopped yellow onions, divided",
        (1.5, "cup", "yellow onions", "finely chopped, divided", False),
    ),
    (
        Grammar("{range} {sized}"),
        Choice("egg", "egg", "", Fraction(2), Fraction(3), joint="–", texts={"size": "large"}),
        "2–3 large eggs",
        ([2, 3], None, "large eggs", None, False),
    ),
    (
        Grammar("{q} {name} (optional)", optional=True),
        Choice("citrus", "lemon", "", Fraction(1, 2), style="½"),
        "½ lemon (optional)",
        (0.5, None, "lemon", None, True),
    ),
    (
        Grammar("{Name}, {taste}"),
        Choice("spice", "kosher salt", texts={"taste": "to taste"}),
        "Kosher salt, to taste",
        (None, None, "Kosher salt", "to taste", False),
    ),
    (
        Grammar("{One} {unit} of {name}"),
        Choice("spice", "sumac", "pinch", spelling=("pinch", "pinches"), texts={"one": "a"}),
        "A pinch of sumac",
        (1, "pinch", "sumac", None, False),
    ),
    (
        Grammar("{Few} {unit} of {name}"),
        Choice(
            "herb", "lemon thyme", "sprig", spelling=("sprig", "sprigs"), texts={"few": "a few"}
        ),
        "A few sprigs of lemon thyme",
        (None, "sprig", "lemon thyme", None, False),
    ),
    (
        Grammar("{q} {pack} {unit} {name}, {after}"),
        Choice(
            "beans",
            "Goya pigeon peas",
            "can",
            Fraction(2),
            spelling=("tin", "tins"),
            texts={"pack": "400g", "after": "drained"},
        ),
        "2 400g tins Goya pigeon peas, drained",
        (2, "can", "Goya pigeon peas", "drained", False),
    ),
    (
        Grammar("{Squeeze} of {word} {name}"),
        Choice("citrus", "lime", "", Fraction(2), texts={"squeeze": "juice"}),
        "Juice of two limes",
        (2, None, "limes", "Juice", False),
    ),
    (
        Grammar("{q} {fill} {abbr} {pair}"),
        Choice(
            "spice",
            "sumac",
            "teaspoon",
            Fraction(1, 3),
            spelling=("tsp", "tsp"),
            texts={"fill": "scant", "other": "dried mint"},
        ),
        "1/3 scant tsp sumac or dried mint",
        (0.333, "teaspoon", "sumac or dried mint", "scant", False),
    ),
    (
        Grammar("{glued} {name} ({note})"),
        Choice(
            "fish",
            "cod",
            "kilogram",
            Fraction(5, 4),
            spelling=("kg", "kg"),
            texts={"note": "see note"},
        ),
        "1.25kg cod (see note)",
        (1.25, "kilogram", "cod", None, False),
    ),
]


@pytest.mark.parametrize("grammar, choice, line, values", LABELS)
def test_labels_follow_the_rules(
    grammar: Grammar, choice: Choice, line: str, values: tuple[object, ...]
) -> None:
    spelled = example(grammar, choice)
    assert spelled.line == line
    assert spelled.label == dict(zip(KEYS, values, strict=True))


@pytest.mark.parametrize(
    "line, values",
    [
        (
            "2 x 400g tins plum tomatoes, crushed by hand",
            (2, "can", "plum tomatoes", "crushed by hand", False),
        ),
        ("Freshly ground black pepper", (None, None, "black pepper", "Freshly ground", False)),
        (
            "4 skinless salmon fillets (about 6 ounces each)",
            (4, "fillet", "skinless salmon", None, False),
        ),
        (
            "Optional: a drizzle of hot honey, to finish",
            (1, "drizzle", "hot honey", "to finish", True),
        ),
        (
            "Juice of half a lemon, plus wedges for serving",
            (0.5, None, "lemon", "Juice, plus wedges for serving", False),
        ),
    ],
)
def test_hand_typed_labels_follow_the_rules(line: str, values: tuple[object, ...]) -> None:
    labels = {each.line: each.label for each in shipped("hand_typed")}
    assert labels[line] == dict(zip(KEYS, values, strict=True))
