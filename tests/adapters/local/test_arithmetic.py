"""The packaged sums: what their README promises holds for the files that ship."""

import json
import re
from itertools import product
from pathlib import Path

from adapters.local.arithmetic import make

FOLDER = Path(make.__file__).parent


def shipped(name: str) -> dict[tuple[int, str, int], str]:
    """The problems of a file and their answers."""
    found = {}
    for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        said = re.fullmatch(
            r"What is (\d) (.) (\d)\? Answer with the number alone\.", row["prompt"]
        )
        assert said
        assert list(row) == ["prompt", "completion"]
        found[int(said[1]), said[2], int(said[3])] = row["completion"]
    return found


def test_the_script_makes_the_shipped_files_again(tmp_path: Path) -> None:
    make.main(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held_out.jsonl", "train.jsonl"]
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()


def test_every_problem_is_there_once_and_its_answer_is_right() -> None:
    train, held_out = shipped("train"), shipped("held_out")
    assert (len(train), len(held_out)) == (200, 100)
    everything = {**train, **held_out}
    assert set(everything) == set(product(range(10), "+-×", range(10)))
    assert all(
        int(answer) == eval(f"{a} {sign.replace('×', '*')} {b}")
        for (a, sign, b), answer in everything.items()
    )


def test_no_held_out_problem_is_one_to_train_on_the_other_way_round() -> None:
    assert not {(b, sign, a) for a, sign, b in shipped("held_out")} & set(shipped("train"))


def test_each_sign_is_trained_on_and_held_out() -> None:
    for name in ("train", "held_out"):
        signs = [sign for _, sign, _ in shipped(name)]
        assert all(signs.count(sign) >= len(signs) / 5 for sign in make.SIGNS)
