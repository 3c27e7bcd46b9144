"""A user's folder with a recipe that fails on request."""

from __future__ import annotations

from pathlib import Path

FAKE = ("--training", "fake")
# sl_basic on the fake adapter, in a few hundred milliseconds
SMALL = ("recipes.sl_basic", *FAKE, "reading.limit=40", "max_steps=3", "evaluation.max_tokens=4")
SECRET = "s3cr3t-s3cr3t"
RECIPE = '''"""A recipe that fails on request."""
import os
from typing import Literal
from kitchen import Metrics, Recipe, Stage, Step, Table, sequence
from kitchen.errors import RunFailed
class Boil(Stage):
    """Boil it."""
    wrong: str
    def run(self) -> tuple[Metrics, Table]:
        if self.wrong == "disk":
            raise OSError(28, "No space left on device", "/full")
        if self.wrong == "bug":
            raise ZeroDivisionError("half a pot")
        if self.wrong == "exit":
            raise SystemExit(0)
        if self.wrong == "secret":
            raise RunFailed("refused with " + os.environ["SOUP_API_KEY"])
        table = Table("Soup [bold]", ("pot", "taste"), (("1", "[red]good[/red]"),))
        return Metrics(salt=float("nan"), heat=2.0), table
class Soup(Recipe):
    """Soup of the day."""
    wrong: Literal["no", "disk", "bug", "secret", "exit"] = "no"  # what goes wrong
    def workflow(self) -> Step:
        return sequence(Boil(self.wrong))
'''


def write_soup_recipe(folder: Path) -> None:
    """Write recipes/soup.py, whose module is `recipes.soup`."""
    (folder / "recipes").mkdir()
    (folder / "recipes" / "soup.py").write_text(RECIPE)
