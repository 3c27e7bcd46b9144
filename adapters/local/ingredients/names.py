"""The ingredient names by kind: 382 for training, and 100 that training never sees.

The kind decides the measures and preparations of a name (see kinds.py). Names of a counted kind are
in the singular, and `plural` gives the other form; all others are written as they are used.
"""

COUNTED = frozenset({"egg", "citrus", "bun", "leaf", "peeled", "firm", "pepper"})


def _split(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


TRAINED: dict[str, tuple[str, ...]] = {
    "egg": _split("egg, egg yolk, egg white, quail egg"),
    "citrus": _split("lemon, lime, orange, blood orange, Meyer lemon"),
    "bun": _split(
        "hamburger bun, flour tortilla, corn tortilla, English muffin, brioche bun, croissant"
    ),
    "leaf": _split("bay leaf, sage leaf, mint leaf, curry leaf"),
    "peeled": _split(
        "yellow onion, red onion, white onion, sweet onion, shallot, carrot, cucumber,"
        " russet potato, sweet potato,"
        "parsnip, turnip, beet, Granny Smith apple, Bosc pear, peach, mango, avocado, eggplant"
    ),
    "firm": _split(
        "scallion, green onion, plum tomato, Roma tomato, radish, leek, plum, nectarine, apricot, "
        "fig, courgette"
    ),
    "pepper": _split(
        "red bell pepper, green bell pepper, jalapeño, serrano chile, poblano pepper, Thai chile"
    ),
    "leafy": _split(
        "baby spinach, curly kale, baby arugula, Swiss chard, collard greens, mixed salad greens"
    ),
    "berry": _split(
        "blueberries, raspberries, strawberries, blackberries, red grapes, fresh cranberries"
    ),
    "trimmed": _split(
        "green beans, cremini mushrooms, button mushrooms, shiitake mushrooms, Brussels sprouts, "
        "asparagus,"
        "okra, sugar snap peas"
    ),
    "herb": _split(
        "flat-leaf parsley, curly parsley, fresh cilantro, fresh basil, fresh mint, fresh dill, "
        "fresh thyme,"
        "fresh rosemary, fresh oregano, fresh tarragon, fresh marjoram, Thai basil"
    ),
    "flour": _split(
        "all-purpose flour, bread flour, cake flour, whole wheat flour, rye flour, almond flour, "
        "spelt flour,"
        "cornstarch, cocoa powder, powdered sugar, granulated sugar, caster sugar, King Arthur "
        "bread flour,"
        "Bob's Red Mill oat flour, Hershey's cocoa powder"
    ),
    "sugar": _split("brown sugar, light brown sugar, dark brown sugar, muscovado sugar"),
    "grain": _split(
        "long-grain rice, basmati rice, jasmine rice, brown rice, wild rice, quinoa, pearl barley, "
        "farro,"
        "red lentils, green lentils, pinto beans, black-eyed peas, Uncle Ben's rice"
    ),
    "pasta": _split(
        "spaghetti, penne, rigatoni, linguine, fettuccine, egg noodles, rice noodles, orzo, elbow "
        "macaroni,"
        "Barilla penne, De Cecco spaghetti"
    ),
    "nut": _split("walnuts, pecans, almonds, cashews, pistachios, hazelnuts, peanuts"),
    "seed": _split(
        "sesame seeds, pumpkin seeds, sunflower seeds, pine nuts, panko, bread crumbs, coconut "
        "flakes, rolled oats"
    ),
    "dried fruit": _split(
        "raisins, golden raisins, dried cranberries, dried apricots, dried figs, prunes, Medjool "
        "dates"
    ),
    "chocolate": _split(
        "dark chocolate, milk chocolate, white chocolate, bittersweet chocolate, Valrhona dark "
        "chocolate"
    ),
    "spice": _split(
        "kosher salt, sea salt, table salt, ground cumin, ground coriander, ground cinnamon, "
        "smoked paprika,"
        "sweet paprika, cayenne pepper, chili powder, ground turmeric, ground ginger, ground "
        "nutmeg,"
        "ground allspice, ground cloves, garlic powder, onion powder, dried oregano, dried thyme,"
        " dried basil,"
        "curry powder, garam masala, red pepper flakes, Old Bay seasoning, Diamond Crystal kosher "
        "salt,"
        "Maldon sea salt"
    ),
    "whole spice": _split(
        "cumin seeds, fennel seeds, coriander seeds, black peppercorns, mustard seeds, caraway "
        "seeds"
    ),
    "mill": _split("black pepper, white pepper"),
    "leavening": _split(
        "baking powder, baking soda, instant yeast, active dry yeast, cream of tartar"
    ),
    "stock": _split(
        "whole milk, buttermilk, chicken stock, vegetable stock, beef broth, low-sodium chicken "
        "broth,"
        "dry white wine, apple cider, coconut milk, almond milk, Swanson chicken broth, Oatly oat "
        "milk"
    ),
    "cream": _split("heavy cream, half-and-half, whipping cream, double cream"),
    "water": _split("water, cold water, warm water, boiling water"),
    "juice": _split("lemon juice, lime juice, orange juice"),
    "oil": _split(
        "olive oil, extra-virgin olive oil, vegetable oil, canola oil, sesame oil, peanut oil, "
        "grapeseed oil,"
        "coconut oil, Colavita olive oil"
    ),
    "sauce": _split(
        "soy sauce, fish sauce, oyster sauce, hoisin sauce, Dijon mustard, whole-grain mustard, "
        "tomato paste,"
        "ketchup, mayonnaise, honey, maple syrup, molasses, tahini, white miso, sriracha, red wine "
        "vinegar,"
        "balsamic vinegar, rice vinegar, apple cider vinegar, Heinz ketchup, Hellmann's mayonnaise,"
        "Lea & Perrins Worcestershire sauce, peanut butter, apricot jam"
    ),
    "extract": _split(
        "vanilla extract, almond extract, Angostura bitters, liquid smoke, Tabasco sauce"
    ),
    "yogurt": _split(
        "sour cream, Greek yogurt, plain yogurt, ricotta, mascarpone, Philadelphia cream cheese"
    ),
    "butter": _split("unsalted butter, salted butter, vegan butter, margarine, Kerrygold butter"),
    "cheese": _split(
        "Parmesan cheese, cheddar cheese, sharp cheddar, Gruyère, mozzarella, Monterey Jack, "
        "Pecorino Romano,"
        "Manchego, Gouda, Swiss cheese, Tillamook sharp cheddar"
    ),
    "soft cheese": _split("feta cheese, goat cheese, blue cheese, cotija cheese"),
    "meat": _split(
        "boneless skinless chicken breasts, boneless chicken thighs, beef chuck, flank steak, pork "
        "shoulder,"
        "pork tenderloin, boneless leg of lamb, sirloin steak, turkey breast, Spanish chorizo"
    ),
    "bony meat": _split(
        "chicken wings, chicken drumsticks, bone-in chicken thighs, beef short ribs, lamb chops"
    ),
    "ground meat": _split(
        "ground beef, lean ground beef, ground pork, ground turkey, ground lamb, Italian sausage"
    ),
    "seafood": _split("large shrimp, sea scallops, mussels, littleneck clams, tiger prawns"),
    "fish": _split("salmon, cod, halibut, tilapia, sea bass, haddock"),
    "garlic": _split("garlic, purple garlic"),
    "stalk": _split("celery, rhubarb, lemongrass"),
    "head": _split(
        "cauliflower, romaine lettuce, green cabbage, red cabbage, iceberg lettuce, radicchio"
    ),
    "corn": _split("corn, sweet corn"),
    "bread": _split(
        "sourdough bread, white bread, rye bread, whole wheat bread, brioche, Pepperidge Farm "
        "white bread"
    ),
    "bacon": _split("bacon, thick-cut bacon, prosciutto, smoked ham, Oscar Mayer bacon"),
    "root": _split("fresh ginger, galangal, fresh turmeric, fresh horseradish"),
    "pastry": _split("puff pastry, phyllo dough, pie dough"),
    "beans": _split(
        "chickpeas, black beans, kidney beans, cannellini beans, hominy, oil-packed tuna"
    ),
    "canned sauce": _split(
        "sweetened condensed milk, tomato sauce, pumpkin purée, coconut cream, Campbell's tomato "
        "soup"
    ),
    "pickle": _split(
        "capers, Kalamata olives, green olives, roasted red peppers, sun-dried tomatoes, "
        "cornichons,"
        "pickled jalapeños, artichoke hearts"
    ),
    "tofu": _split("extra-firm tofu, firm tofu, smoked tofu, paneer"),
    "frozen": _split("frozen spinach, frozen peas, frozen corn, frozen mixed vegetables"),
    "cracker": _split(
        "graham crackers, Ritz crackers, Oreo cookies, gingersnaps, pretzels, tortilla chips"
    ),
    "sweet": _split(
        "chocolate chips, mini marshmallows, butterscotch chips, Nestlé chocolate chips"
    ),
}

HELD_OUT: dict[str, tuple[str, ...]] = {
    "egg": _split("duck egg"),
    "citrus": _split("grapefruit, clementine"),
    "bun": _split("bagel, pita"),
    "leaf": _split("basil leaf"),
    "peeled": _split("rutabaga, Yukon Gold potato, Fuji apple, Vidalia onion, papaya"),
    "firm": _split("heirloom tomato, tomatillo, persimmon"),
    "pepper": _split("habanero, orange bell pepper"),
    "leafy": _split("watercress, dandelion greens"),
    "berry": _split("gooseberries, green grapes"),
    "trimmed": _split("haricots verts, oyster mushrooms, broccolini"),
    "herb": _split("fresh chervil, lemon thyme, purple basil, fresh sage"),
    "flour": _split("buckwheat flour, chickpea flour, tapioca starch, Ghirardelli cocoa powder"),
    "sugar": _split("coconut sugar"),
    "grain": _split("sushi rice, freekeh, black rice"),
    "pasta": _split("bucatini, farfalle, soba noodles, Rummo fusilli"),
    "nut": _split("macadamia nuts, Marcona almonds"),
    "seed": _split("hemp seeds, Progresso bread crumbs"),
    "dried fruit": _split("dried cherries, sultanas"),
    "chocolate": _split("couverture chocolate, Callebaut chocolate"),
    "spice": _split(
        "ground fenugreek, sumac, za'atar, dried marjoram, Aleppo pepper, Morton kosher salt"
    ),
    "whole spice": _split("pink peppercorns, nigella seeds"),
    "mill": _split("Sichuan pepper"),
    "leavening": _split("fast-action yeast"),
    "stock": _split("fish stock, dashi, Pacific mushroom broth"),
    "cream": _split("single cream"),
    "water": _split("sparkling water"),
    "juice": _split("pomegranate juice"),
    "oil": _split("avocado oil, sunflower oil"),
    "sauce": _split("tamari, gochujang, sherry vinegar, agave nectar, Kewpie mayonnaise"),
    "extract": _split("peppermint extract"),
    "yogurt": _split("labneh, crème fraîche"),
    "butter": _split("cultured butter, Plugrá butter"),
    "cheese": _split("Emmental, Asiago"),
    "soft cheese": _split("Roquefort"),
    "meat": _split("duck breasts, skirt steak"),
    "bony meat": _split("pork chops"),
    "ground meat": _split("ground bison"),
    "seafood": _split("bay scallops"),
    "fish": _split("red snapper, catfish"),
    "garlic": _split("elephant garlic"),
    "stalk": _split("Chinese celery"),
    "head": _split("savoy cabbage"),
    "corn": _split("white corn"),
    "bread": _split("pumpernickel bread"),
    "bacon": _split("pancetta"),
    "root": _split("young ginger"),
    "pastry": _split("shortcrust pastry"),
    "beans": _split("Goya pigeon peas"),
    "canned sauce": _split("enchilada sauce"),
    "pickle": _split("sauerkraut"),
    "tofu": _split("silken tofu"),
    "frozen": _split("frozen edamame"),
    "cracker": _split("Biscoff cookies"),
    "sweet": _split("toffee bits"),
}


def plural(name: str) -> str:
    """Return the plural of a name: tomatoes, bay leaves, peaches, jalapeños."""
    if name.endswith("leaf"):
        return name[:-1] + "ves"
    if name.endswith(("sh", "ch", "tomato", "potato", "mango")):
        return name + "es"
    return name + "s"


def forms(kind: str, name: str) -> tuple[str, ...]:
    """Return every way in which a name is written."""
    return (name, plural(name)) if kind in COUNTED else (name,)
