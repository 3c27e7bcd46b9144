"""Generate the files of this data set: `python -m adapters.local.arithmetic.make [FOLDER]`."""

import json
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from random import Random

from adapters.local.packaged_data import shuffle, write

SEED = 1887  # the year of the Comptometer, the first calculator with a key for each digit
HELD_OUT = 100  # problems
SIGNS = "+-×"

Problem = tuple[int, str, int]


def files() -> Mapping[str, list[Problem]]:
    """Return all 300 problems; 7 + 8 and 8 + 7 are always in the same file."""
    pairs: list[Problem] = []
    for sign, high in product(SIGNS, range(10)):
        pairs += [(low, sign, high) for low in range(high + 1)]
    shuffle(pairs, Random(SEED))
    problems: dict[str, list[Problem]] = {"train": [], "held_out": []}
    for low, sign, high in pairs:
        both = list(dict.fromkeys([(low, sign, high), (high, sign, low)]))
        has_room = len(problems["held_out"]) + len(both) <= HELD_OUT
        problems["held_out" if has_room else "train"] += both
    return problems


def row(problem: Problem) -> str:
    """Return the problem as one line of a JSONL file."""
    a, sign, b = problem
    answer = {"+": a + b, "-": a - b, "×": a * b}[sign]
    content = {
        "prompt": f"What is {a} {sign} {b}? Answer with the number alone.",
        "completion": str(answer),
    }
    return json.dumps(content, ensure_ascii=False)


def main(folder: Path) -> None:
    """Write the files into the folder."""
    write(folder, files(), row)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
