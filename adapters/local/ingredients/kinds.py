"""The measures and the preparations of each kind of ingredient."""

from dataclasses import dataclass

HALVED = ("citrus", "peeled", "pepper")  # counted kinds that recipes may halve


@dataclass(frozen=True)
class Serving:
    """Measures of a kind, and preparations that go with them before the name or after it."""

    units: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


def _serving(units: str, before: str = "", after: str = "") -> Serving:
    return Serving(_list(units), _list(before), _list(after))


_CUT = (
    "chopped, finely chopped, diced, finely diced, thinly sliced, roughly chopped, coarsely chopped"
)
_WEIGHTS = "pound, ounce, gram, kilogram"
_GRATED = "grated, finely grated, freshly grated, shredded, coarsely grated"

KINDS: dict[str, tuple[Serving, ...]] = {
    "egg": (
        Serving(
            ("",),
            (),
            _list("beaten, lightly beaten, at room temperature, well beaten, whisked, chilled"),
        ),
    ),
    "citrus": (
        Serving(
            ("",),
            _list("halved, thinly sliced, quartered"),
            _list(
                "juiced, zested, halved, thinly sliced, zested and juiced, cut into wedges, cut "
                "into 8 wedges"
            ),
        ),
    ),
    "bun": (
        Serving(
            ("",), _list("toasted, warmed"), _list("toasted, warmed, lightly toasted, cut in half")
        ),
    ),
    "leaf": (Serving(("",), _list("torn"), _list("torn, crumbled, bruised, torn in half")),),
    "peeled": (
        _serving(
            "cup", _CUT, "chopped, diced, peeled and diced, peeled and chopped, thinly sliced"
        ),
        _serving(
            _WEIGHTS,
            "peeled, diced, thinly sliced, chopped",
            "peeled and diced, peeled and thinly sliced, cut into chunks, peeled and cut into "
            "1-inch pieces",
        ),
        Serving(
            ("",),
            _list("diced, chopped, thinly sliced, peeled"),
            _list(
                "diced, peeled and chopped, thinly sliced, finely chopped, quartered, peeled and "
                "halved,"
                "cut into 1/2-inch dice, cut into wedges"
            ),
        ),
    ),
    "firm": (
        _serving("cup", _CUT, "chopped, diced, thinly sliced, finely chopped"),
        _serving(
            _WEIGHTS,
            "chopped, thinly sliced, diced, quartered",
            "quartered, sliced, cut into chunks, rinsed",
        ),
        Serving(
            ("",),
            _list("chopped, thinly sliced, diced"),
            _list(
                "thinly sliced, finely chopped, halved, sliced on the diagonal, halved lengthwise, "
                "quartered"
            ),
        ),
    ),
    "pepper": (
        _serving("cup", _CUT, "seeded and chopped, diced, seeded and diced"),
        Serving(
            ("",),
            _list("seeded, diced, minced, thinly sliced"),
            _list(
                "seeded and minced, seeded and diced, stemmed and seeded, cut into thin strips, "
                "halved and seeded"
            ),
        ),
    ),
    "leafy": (
        _serving(
            "cup",
            "packed, loosely packed, chopped, roughly chopped, shredded",
            "washed and dried, stems removed, roughly chopped, torn into pieces",
        ),
        _serving(
            "handful, bunch, " + _WEIGHTS,
            "chopped, roughly chopped, washed",
            "washed and dried, stems removed, roughly chopped, torn into pieces",
        ),
        _serving("bag", "", "rinsed, roughly chopped"),
    ),
    "berry": (
        _serving(
            "cup, pint, handful, " + _WEIGHTS,
            "rinsed, crushed, chilled",
            "rinsed, rinsed and patted dry, washed, lightly crushed, at room temperature",
        ),
    ),
    "trimmed": (
        _serving(
            "cup, handful, " + _WEIGHTS,
            "trimmed, sliced, thinly sliced, halved, chopped",
            "trimmed, trimmed and halved, thinly sliced, cut into 1-inch pieces, trimmed and "
            "sliced",
        ),
    ),
    "herb": (
        _serving(
            "tablespoon, cup, teaspoon",
            "chopped, finely chopped, minced, roughly chopped, torn",
            "chopped, finely chopped, minced, roughly chopped",
        ),
        _serving(
            "sprig, sprig, bunch, handful",
            "",
            "leaves only, leaves picked, stems removed, roughly chopped, rinsed",
        ),
    ),
    "flour": (
        _serving(
            "cup, tablespoon, gram, ounce",
            "sifted, lightly spooned",
            "sifted, plus more for dusting, sifted twice, whisked",
        ),
        _serving("teaspoon", "", "plus more for dusting, sifted"),
    ),
    "sugar": (
        _serving(
            "cup, tablespoon, gram",
            "packed, firmly packed, lightly packed",
            "packed, firmly packed, plus more for sprinkling, sifted",
        ),
    ),
    "grain": (
        _serving(
            "cup",
            "rinsed, cooked, uncooked, rinsed and drained",
            "rinsed, rinsed and drained, soaked overnight, cooked, rinsed until the water runs "
            "clear",
        ),
        _serving(_WEIGHTS, "rinsed", "rinsed, soaked overnight, soaked and drained"),
        _serving("bag", "", "rinsed, rinsed and drained"),
    ),
    "pasta": (
        _serving(
            _WEIGHTS,
            "cooked, uncooked, cooked and drained",
            "cooked and drained, cooked, cooked until just tender",
        ),
        _serving("box, package", "", "cooked and drained, cooked according to package directions"),
    ),
    "nut": (
        _serving(
            "cup, tablespoon, ounce, gram, handful",
            "chopped, roughly chopped, toasted, coarsely chopped",
            "toasted, chopped, toasted and chopped, roughly chopped, lightly toasted",
        ),
    ),
    "seed": (
        _serving(
            "cup, tablespoon, gram, ounce",
            "toasted, lightly toasted",
            "toasted, lightly toasted, plus more for sprinkling, toasted and cooled",
        ),
    ),
    "dried fruit": (
        _serving(
            "cup, ounce, gram, handful",
            "chopped, finely chopped, roughly chopped",
            "chopped, soaked in warm water, soaked and drained, roughly chopped",
        ),
    ),
    "chocolate": (
        _serving(
            "ounce, gram, cup",
            "chopped, finely chopped, melted, grated",
            "chopped, melted, melted and cooled, broken into pieces, finely chopped",
        ),
    ),
    "spice": (
        _serving("teaspoon, tablespoon", "", "plus more to taste, plus more for sprinkling"),
        _serving("pinch, dash", "", "plus more to taste"),
    ),
    "whole spice": (
        _serving(
            "teaspoon, tablespoon",
            "toasted, crushed, lightly crushed, coarsely ground",
            "toasted, crushed, lightly crushed, toasted and ground",
        ),
    ),
    "mill": (
        _serving(
            "teaspoon, tablespoon",
            "freshly ground, coarsely ground, freshly cracked",
            "plus more to taste, coarsely ground",
        ),
        _serving("pinch, dash", "freshly ground", "plus more to taste"),
    ),
    "leavening": (_serving("teaspoon, tablespoon", "sifted", "sifted, sifted with the flour"),),
    "stock": (
        _serving(
            "cup, tablespoon, milliliter, liter, quart, pint, fluid ounce",
            "warmed, chilled",
            "warmed, at room temperature, chilled, plus more as needed, heated until steaming",
        ),
        _serving("splash", "", "warmed"),
    ),
    "cream": (
        _serving(
            "cup, tablespoon, milliliter, pint, fluid ounce",
            "chilled, whipped, lightly whipped",
            "whipped, chilled, well chilled, whipped to soft peaks",
        ),
        _serving("splash", "", "plus more for serving"),
    ),
    "water": (_serving("cup, tablespoon, milliliter, liter, quart", "", "plus more as needed"),),
    "juice": (
        _serving(
            "cup, tablespoon, teaspoon, milliliter, fluid ounce",
            "freshly squeezed, strained",
            "strained, freshly squeezed, plus more to taste",
        ),
        _serving("splash", "freshly squeezed", "plus more to taste"),
    ),
    "oil": (
        _serving(
            "tablespoon, teaspoon, cup, milliliter",
            "",
            "plus more for drizzling, plus more for the pan, warmed",
        ),
        _serving("drizzle, splash, bottle", "", "plus more for drizzling"),
    ),
    "sauce": (
        _serving(
            "tablespoon, teaspoon, cup",
            "",
            "plus more to taste, plus more for serving, whisked until smooth",
        ),
        _serving("bottle", "", "at room temperature, shaken well"),
    ),
    "extract": (
        _serving("teaspoon", "", "plus more to taste"),
        _serving("dash, drop, drop", "", "plus more to taste"),
    ),
    "yogurt": (
        _serving(
            "cup, tablespoon, gram, ounce",
            "drained, chilled, strained",
            "at room temperature, drained, plus more for serving, whisked until smooth",
        ),
    ),
    "butter": (
        _serving(
            "tablespoon, cup, ounce, gram, stick, stick, stick",
            "melted, softened, chilled, cubed",
            "melted, softened, at room temperature, cut into cubes, melted and cooled, chilled and "
            "diced,"
            "cut into 1/2-inch cubes",
        ),
        _serving("knob", "softened", "plus more for the pan, softened"),
    ),
    "cheese": (
        _serving(
            "cup, ounce, gram", _GRATED, "grated, shredded, finely grated, plus more for serving"
        ),
        _serving("handful", "grated, shredded", "grated, shredded"),
    ),
    "soft cheese": (
        _serving(
            "cup, ounce, gram",
            "crumbled, finely crumbled",
            "crumbled, drained and crumbled, plus more for serving",
        ),
    ),
    "meat": (
        _serving(
            _WEIGHTS,
            "trimmed, cubed, diced, thinly sliced",
            "cut into 1-inch cubes, trimmed, patted dry, cut into bite-size pieces, thinly sliced,"
            "cut into strips, trimmed and cubed",
        ),
    ),
    "bony meat": (
        _serving(
            _WEIGHTS, "trimmed", "patted dry, trimmed, at room temperature, trimmed of excess fat"
        ),
    ),
    "ground meat": (
        _serving(
            _WEIGHTS, "crumbled, browned", "at room temperature, crumbled, browned and drained"
        ),
        _serving("package", "", "thawed, at room temperature"),
    ),
    "seafood": (
        _serving(
            "pound, ounce, gram, kilogram, bag",
            "cleaned, rinsed, thawed",
            "cleaned, rinsed, patted dry, thawed if frozen, rinsed and patted dry",
        ),
    ),
    "fish": (
        _serving(
            "fillet, fillet",
            "",
            "skin removed, patted dry, pin bones removed, skin removed and patted dry",
        ),
        _serving(
            "pound, gram, ounce",
            "cubed, flaked",
            "cut into chunks, skin removed, cooked and flaked",
        ),
    ),
    "garlic": (
        _serving(
            "clove, clove, clove",
            "minced, crushed, grated, chopped, thinly sliced, smashed",
            "minced, crushed, finely grated, peeled, peeled and smashed, thinly sliced, finely "
            "chopped",
        ),
        _serving("head", "", "cloves separated, halved crosswise, top sliced off"),
        _serving(
            "tablespoon, teaspoon",
            "minced, chopped, grated, finely chopped",
            "minced, finely chopped",
        ),
    ),
    "stalk": (
        _serving(
            "stalk, stalk",
            "chopped, diced, finely chopped, thinly sliced",
            "chopped, trimmed, thinly sliced, diced, cut into 1/2-inch pieces, trimmed and finely "
            "chopped",
        ),
        _serving("cup, gram, pound", "chopped, diced, thinly sliced", "chopped, thinly sliced"),
    ),
    "head": (
        _serving(
            "head, head",
            "shredded, chopped",
            "cored and chopped, outer leaves removed, quartered, trimmed, cut into bite-size "
            "pieces",
        ),
        _serving(
            "cup, pound, gram", "shredded, chopped, thinly sliced", "chopped, roughly chopped"
        ),
    ),
    "corn": (
        _serving(
            "ear",
            "shucked, grilled",
            "husked, shucked, kernels cut from the cob, shucked and halved",
        ),
    ),
    "bread": (
        _serving(
            "slice, slice",
            "toasted, cubed, buttered",
            "toasted, lightly toasted, crusts removed, torn into pieces",
        ),
        _serving(
            "loaf", "", "cut into cubes, thickly sliced, crusts removed, cut into 1-inch cubes"
        ),
    ),
    "bacon": (
        _serving(
            "slice, strip, slice",
            "diced, chopped, cooked",
            "chopped, diced, cut into thin strips, cut crosswise into 1/2-inch pieces, cooked "
            "until crisp",
        ),
        _serving("ounce, gram", "diced, chopped, thinly sliced", "chopped, diced, finely chopped"),
    ),
    "root": (
        _serving(
            "piece, piece, knob",
            "peeled",
            "peeled, peeled and grated, peeled and minced, thinly sliced",
        ),
        _serving(
            "tablespoon, teaspoon",
            "grated, minced, finely grated, peeled and grated",
            "grated, minced, peeled",
        ),
    ),
    "pastry": (
        _serving(
            "package, ounce, gram, box", "thawed", "thawed, thawed if frozen, at room temperature"
        ),
    ),
    "beans": (
        _serving(
            "can, can, jar",
            "drained, drained and rinsed",
            "drained, drained and rinsed, rinsed, undrained, rinsed and drained",
        ),
        _serving("cup", "drained, rinsed, mashed", "drained and rinsed, lightly mashed"),
    ),
    "canned sauce": (
        _serving(
            "can, can, jar",
            "chilled",
            "shaken well, chilled overnight, at room temperature, warmed",
        ),
        _serving("cup", "warmed", "at room temperature, warmed, plus more as needed"),
    ),
    "pickle": (
        _serving("jar", "drained", "drained, drained and chopped, rinsed, drained and patted dry"),
        _serving(
            "cup, tablespoon, ounce, gram",
            "chopped, drained, sliced, roughly chopped, finely chopped",
            "drained, rinsed, chopped, drained and chopped, roughly chopped",
        ),
    ),
    "tofu": (
        _serving(
            "package, block",
            "drained, cubed, pressed",
            "drained, pressed and cubed, drained and patted dry, cut into cubes",
        ),
        _serving(
            "ounce, gram", "cubed, crumbled, drained", "cubed, crumbled, cut into 1-inch cubes"
        ),
    ),
    "frozen": (
        _serving(
            "cup, bag, package, ounce, gram",
            "thawed, thawed and drained",
            "thawed, thawed and drained, thawed and patted dry",
        ),
    ),
    "cracker": (
        _serving(
            "cup, ounce, gram, handful",
            "crushed, finely crushed, lightly crushed",
            "crushed, finely crushed, crushed into crumbs, broken into pieces",
        ),
        _serving("package, box, bag", "crushed", "crushed, broken into pieces, finely crushed"),
    ),
    "sweet": (
        _serving(
            "cup, bag, tablespoon, handful",
            "melted, chopped",
            "melted, plus more for topping, plus more for sprinkling",
        ),
    ),
}

ALONE: dict[str, tuple[str, ...]] = {  # preparations for lines without an amount
    "oil": _list(
        "for frying, for brushing, for drizzling, for greasing, for the pan, for deep-frying"
    ),
    "herb": _list("for garnish, for serving"),
    "berry": _list("for serving, for garnish, for topping"),
    "butter": _list("for greasing, for the pan, for serving"),
    "flour": _list("for dusting, for rolling, for the work surface"),
    "sauce": _list("for serving, for dipping, for drizzling"),
    "yogurt": _list("for serving, for topping"),
    "cheese": _list("for serving, for topping, for sprinkling"),
    "seed": _list("for sprinkling, for garnish, for topping"),
    "nut": _list("for topping, for garnish"),
    "cracker": _list("for serving, for dipping"),
    "bread": _list("for serving"),
    "cream": _list("for serving"),
}
