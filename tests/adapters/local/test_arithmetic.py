"""The packaged sums keep the promises of their README."""

import json
import re
from itertools import product
from pathlib import Path

from adapters.local.arithmetic import make

FOLDER = Path(make.__file__).parent


def shipped(name: str) -> dict[tuple[int, str, int], str]:
    """Return the problems of a file and their answers."""
    answers = {}
    for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        match = re.fullmatch(
            r"What is (\d) (.) (\d)\? Answer with the number alone\.", row["prompt"]
        )
        assert match
        assert list(row) == ["prompt", "completion"]
        answers[int(match[1]), match[2], int(match[3])] = row["completion"]
    return answers


def test_script_reproduces_the_shipped_files(tmp_path: Path) -> None:
    make.main(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held_out.jsonl", "train.jsonl"]
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()


def test_all_problems_occur_once_with_right_answers() -> None:
    train, held_out = shipped("train"), shipped("held_out")
    assert (len(train), len(held_out)) == (200, 100)
    everything = {**train, **held_out}
    assert set(everything) == set(product(range(10), "+-×", range(10)))
    assert all(
        int(answer) == eval(f"{a} {sign.replace('×', '*')} {b}")
        for (a, sign, b), answer in everything.items()
    )


def test_no_held_out_problem_is_a_training_one_reversed() -> None:
    assert not {(b, sign, a) for a, sign, b in shipped("held_out")} & set(shipped("train"))


def test_each_sign_occurs_in_both_files() -> None:
    for name in ("train", "held_out"):
        signs = [sign for _, sign, _ in shipped(name)]
        assert all(signs.count(sign) >= len(signs) / 5 for sign in make.SIGNS)
