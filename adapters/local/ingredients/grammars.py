"""The measures, function words and grammars of a recipe line."""

from dataclasses import dataclass
from fractions import Fraction

from adapters.local.ingredients.kinds import ALONE


def _amounts(text: str) -> tuple[Fraction, ...]:
    return tuple(Fraction(amount) for amount in text.split())


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Parse `cup/cups|c.` into (one, many) spellings; one without a slash is used for both."""
    pairs = []
    for spelling in filter(None, text.split("|")):
        one, _, many = spelling.partition("/")
        pairs.append((one, many or one))
    return tuple(pairs)


@dataclass(frozen=True)
class Unit:
    """A measure: its spellings and abbreviations, and its usual amounts."""

    spelled: tuple[tuple[str, str], ...]  # (one, many)
    short: tuple[tuple[str, str], ...]  # (one, many)
    amounts: tuple[Fraction, ...]
    metric: tuple[Fraction, str] | None = None  # (ml or g in one unit, "ml" or "g")
    packs: tuple[str, ...] = ()  # sizes in which a container or piece is sold


def _unit(
    spelled: str, short: str, amounts: str, metric: tuple[int, str] | None = None, packs: str = ""
) -> Unit:
    grams = None if metric is None else (Fraction(metric[0]), metric[1])
    sizes = tuple(packs.split("|")) if packs else ()
    return Unit(_pairs(spelled), _pairs(short), _amounts(amounts), grams, sizes)


_CUPS = "1/8 1/4 1/3 1/2 2/3 3/4 1 5/4 4/3 3/2 5/3 7/4 2 9/4 5/2 3 7/2 4 5 6"
_FEW = "1 2 3 4"
_GRAMS = (
    "25 30 40 50 60 75 80 100 115 120 125 150 175 180 200 225 250 300 350 400 450 500 600 750 800"
)
_CANS = "14-ounce|15-ounce|14.5-ounce|28-ounce|8-ounce|15.5-ounce|19-ounce|400 g|400g|400-gram"
_PACKS = "8-ounce|10-ounce|12-ounce|14-ounce|16-ounce|1-pound|250 g|300g|500-gram"

UNITS: dict[str, Unit] = {
    "cup": _unit("cup/cups", "c.|c|C.", _CUPS, (240, "ml")),
    "tablespoon": _unit(
        "tablespoon/tablespoons",
        "tbsp|tbsp.|Tbsp|Tbsp.|tbs|T",
        "1/2 1 3/2 2 5/2 3 4 5 6",
        (15, "ml"),
    ),
    "teaspoon": _unit(
        "teaspoon/teaspoons", "tsp|tsp.|Tsp", "1/8 1/4 1/2 3/4 1 5/4 3/2 2 3", (5, "ml")
    ),
    "fluid ounce": _unit(
        "fluid ounce/fluid ounces", "fl oz|fl. oz.", "2 3 4 6 8 10 12 16", (30, "ml")
    ),
    "pint": _unit("pint/pints", "pt|pt.", "1/2 1 3/2 2 3", (480, "ml")),
    "quart": _unit("quart/quarts", "qt|qt.|qts", "1 3/2 2 3 4", (960, "ml")),
    "milliliter": _unit("milliliter/milliliters|millilitre/millilitres", "ml|mL", _GRAMS),
    "liter": _unit("liter/liters|litre/litres", "L|l", "1/2 1 3/2 2 3"),
    "ounce": _unit("ounce/ounces", "oz|oz.", "1 2 3 4 5 6 8 10 12 14 16", (28, "g")),
    "pound": _unit(
        "pound/pounds", "lb/lbs|lb.|lb|lb./lbs.", "1/4 1/2 3/4 1 5/4 3/2 2 5/2 3 4 5", (450, "g")
    ),
    "gram": _unit("gram/grams", "g", _GRAMS),
    "kilogram": _unit("kilogram/kilograms|kilo/kilos", "kg", "1/2 1 5/4 3/2 2 5/2 3"),
    "pinch": _unit("pinch/pinches", "", "1 2 3"),
    "dash": _unit("dash/dashes", "", _FEW),
    "drop": _unit("drop/drops", "", "1 2 3 4 5 6 8"),
    "splash": _unit("splash/splashes", "", "1 2"),
    "drizzle": _unit("drizzle/drizzles", "", "1 2"),
    "handful": _unit("handful/handfuls", "", "1/2 1 2 3"),
    "knob": _unit("knob/knobs", "", "1 2"),
    "stick": _unit("stick/sticks", "", "1/2 1 3/2 2 3"),
    "clove": _unit("clove/cloves", "", "1 2 3 4 5 6 8 10 12"),
    "head": _unit("head/heads", "", "1/2 1 2 3"),
    "stalk": _unit("stalk/stalks", "", "1 2 3 4 5 6"),
    "ear": _unit("ear/ears", "", "2 3 4 5 6 8"),
    "sprig": _unit("sprig/sprigs", "", "1 2 3 4 5 6 8"),
    "bunch": _unit("bunch/bunches", "", "1/2 1 2 3"),
    "slice": _unit("slice/slices", "", "1 2 3 4 5 6 8 10 12"),
    "strip": _unit("strip/strips", "", "2 3 4 5 6 8"),
    "loaf": _unit("loaf/loaves", "", "1/2 1 2"),
    "fillet": _unit(
        "fillet/fillets", "", "1 2 3 4 6 8", None, "6-ounce|5-ounce|8-ounce|150 g|180g"
    ),
    "piece": _unit("piece/pieces", "", "1 2 3", None, "1-inch|2-inch|3-inch|4-inch|3 cm|5-cm"),
    "can": _unit("can/cans|tin/tins", "", "1/2 1 2 3 4", None, _CANS),
    "jar": _unit("jar/jars", "", "1/2 1 2 3", None, "6-ounce|8-ounce|12-ounce|16-ounce|340 g|200g"),
    "package": _unit("package/packages|packet/packets", "pkg.|pkg/pkgs", "1/2 1 2 3", None, _PACKS),
    "bag": _unit("bag/bags", "", "1/2 1 2 3", None, _PACKS),
    "block": _unit("block/blocks", "", "1/2 1 2", None, "14-ounce|12-ounce|280 g"),
    "box": _unit("box/boxes", "", "1/2 1 2 3", None, "8-ounce|12-ounce|16-ounce|1-pound|500 g"),
    "bottle": _unit("bottle/bottles", "", "1/2 1 2", None, "12-ounce|5-ounce|10-ounce|250 ml"),
    # counted without a measure: 2 lemons
    "": Unit((("", ""),), (), _amounts("1/2 1 2 3 4 5 6 8 10 12")),
}

# written with decimals, and glued to the number: 200g
METRIC = ("gram", "kilogram", "milliliter", "liter")

FILLS = ("heaping", "scant", "level", "rounded")
FINISHES = ("divided", "plus more for serving", "plus more as needed", "or as needed")
NOTES = (
    "see note", "see headnote", "any kind will do", "store-bought or homemade", "use the best you can find",
    "not the fancy kind", "my favorite", "trust me", "or whatever you have on hand", "preferably organic",
)  # fmt: skip
ASIDES = (
    "about 2 medium", "about 3 large", "from 2 large", "about 4", "roughly 3 small", "from 1 medium",
    "2 or 3, depending on size", "about 1 large",
)  # fmt: skip
SQUEEZES = ("juice", "zest", "grated zest", "finely grated zest", "zest and juice")
SIZES = ("large", "medium", "small")
WORDS: dict[Fraction, str] = {
    Fraction(1, 2): "half a",
    Fraction(1): "one",
    Fraction(2): "two",
    Fraction(3): "three",
    Fraction(4): "four",
    Fraction(5): "five",
    Fraction(6): "six",
    Fraction(8): "eight",
    Fraction(10): "ten",
    Fraction(12): "twelve",
}
SEASONINGS = ("spice", "mill", "sauce", "juice")


@dataclass(frozen=True)
class Grammar:
    """The shape of a line; the slots in braces are filled by random draws."""

    shape: str
    units: tuple[str, ...] = ()  # only these; empty: all measures of the kind
    kinds: tuple[str, ...] = ()  # only these; empty: every kind that fits
    optional: bool = False


_TINY = ("pinch", "dash", "handful", "knob", "drop", "bunch", "sprig", "splash", "drizzle")
_SOLD_IN = ("can", "jar", "package", "bag", "box", "bottle", "block", "fillet", "piece")
_NAME_FIRST = ("clove", "stalk", "sprig", "fillet", "slice")
_HEAPED = ("spice", "whole spice", "leavening", "flour", "sugar", "seed", "nut", "dried fruit")

TRAINING: tuple[Grammar, ...] = (
    # an amount, a measure, a name
    Grammar("{q} {unit} {name}"),
    Grammar("{q} {unit} {before} {name}"),
    Grammar("{q} {unit} {name}, {after}"),
    Grammar("{q} {unit} {before} {name}, {finish}"),
    Grammar("{q} {unit} of {name}"),
    Grammar("{q} {unit} {name}, {after}, {finish}"),
    Grammar("{q} {fill} {unit} {name}", units=("teaspoon", "tablespoon", "cup"), kinds=_HEAPED),
    # with its metric equivalent, which is dropped
    Grammar("{q} {unit} ({metric}) {name}"),
    Grammar("{q} {unit} ({metric}) {before} {name}"),
    Grammar("{q} {unit} ({metric}) {before} {name}, {finish}"),
    Grammar("{q} {unit} ({metric}) {name}, {after}"),
    # abbreviated
    Grammar("{q} {abbr} {name}"),
    Grammar("{q} {abbr} {before} {name}"),
    Grammar("{q} {abbr} {name}, {after}"),
    Grammar("{glued} {name}"),
    Grammar("{glued} {before} {name}"),
    Grammar("{glued} {name}, {after}"),
    # ranges
    Grammar("{range} {unit} {name}"),
    Grammar("{range} {unit} {name}, {after}"),
    Grammar("{range} {abbr} {before} {name}"),
    Grammar("{range} {sized}, {after}", units=("",)),
    # counted
    Grammar("{q} {name}", units=("",)),
    Grammar("{q} {name}, {after}", units=("",)),
    Grammar("{q} {sized}", units=("",)),
    Grammar("{q} {sized}, {after}", units=("",)),
    Grammar("{q} {name} {unit}, {after}", units=_NAME_FIRST),
    Grammar("{Squeeze} of {q} {name}", kinds=("citrus",)),
    # containers, whose size is dropped
    Grammar("{q} ({pack}) {unit} {name}", units=_SOLD_IN),
    Grammar("{q} ({pack}) {unit} {name}, {after}", units=_SOLD_IN),
    Grammar("{q} {pack} {unit} {name}, {after}", units=_SOLD_IN),
    # in words, or without a number
    Grammar("{Word} {unit} of {name}"),
    Grammar("{One} {unit} of {name}", units=_TINY),
    Grammar("{Few} {unit} of {name}", units=("sprig", "slice", "dash", "drop", "handful", "strip")),
    Grammar("{Name}, {taste}", kinds=SEASONINGS),
    Grammar("{Before} {name}, {taste}", kinds=("mill", "juice", "whole spice")),
    Grammar("{Name}, {alone}", kinds=tuple(ALONE)),
    Grammar("{Name} {alone}", kinds=tuple(ALONE)),
    # optional
    Grammar("{q} {unit} {name} (optional)", optional=True),
    Grammar("{q} {unit} {name}, {after} (optional)", optional=True),
    Grammar("{q} {abbr} {before} {name}, optional", optional=True),
    Grammar("{q} {unit} {before} {name}, if desired", optional=True),
    Grammar("{Name}, {alone} (optional)", kinds=tuple(ALONE), optional=True),
    # asides and alternatives
    Grammar("{q} {unit} {name} ({after})"),
    Grammar(
        "{q} {unit} {before} {name} ({aside})", units=("cup",), kinds=("peeled", "firm", "pepper")
    ),
    Grammar("{q} {unit} {name} ({note})"),
    Grammar("{q} {unit} {pair}"),
)

HELD_OUT: tuple[Grammar, ...] = (
    Grammar("{Name}: {q} {unit}"),
    Grammar("{Name}, {after}, {q} {unit}"),
    Grammar("About {q} {unit} {before} {name}"),
    Grammar("Optional: {q} {unit} {name}, {after}", optional=True),
    Grammar(
        "{q} x {pack} {unit} {name}, {after}", units=("can", "jar", "package", "bag", "fillet")
    ),
    Grammar("{q} {before} {name}, {finish}", units=("",)),
    Grammar("{q} {sized} ({after}), optional", units=("",), optional=True),
    Grammar("{q} {abbr} ({metric}) {before} {name} (optional)", optional=True),
    Grammar("{range} {unit} of {before} {name}"),
    Grammar("{glued} {name} ({note}), {after}"),
    Grammar("{q} {unit} {name} - {after}"),
    Grammar("The {squeeze} of {q} {name}", kinds=("citrus",)),
    Grammar("{range} {name} {unit} ({after})", units=_NAME_FIRST),
    Grammar("{q} {unit} {name}, {after}, if you like", optional=True),
)
