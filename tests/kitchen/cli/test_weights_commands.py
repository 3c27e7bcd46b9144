"""`kitchen sample`, `chat`, `eval`, `export` and `push`, on the fake adapters."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import in_folder, invoke, output

LOCAL = ("--training", "fake", "--hub", "local")
GREEDY = ("--temperature", "0")
AS_TEXT = ("evaluation.metric=text", "evaluation.max_tokens=8")
TRAIN = ("batch_size=3", "learning_rate=0.5", "warmup_steps=0")  # learns "fine" by heart
USER = {"role": "user", "content": "?"}
ASSISTANT = {"role": "assistant", "content": "fine"}
CHAT = json.dumps({"messages": [USER, ASSISTANT]}) + "\n"
PAIR = '{"prompt": "?", "completion": "fine"}\n'
PUBLISHING = '''"""A recipe that publishes the model that it trained."""
from kitchen import Step, sequence
from recipes.sl_basic import SlBasic
from stages.train.publish import Publish
class Publishing(SlBasic):
    """sl_basic, then publish."""
    def workflow(self) -> Step:
        return sequence(super().workflow(), Publish("me/soup"))
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run "dish", which answers "fine", and "joined", trained without template."""
    folder = tmp_path_factory.mktemp("user")
    files = {
        "chats/train.jsonl": CHAT * 12,
        "chats/test.jsonl": CHAT * 3,
        "pairs.jsonl": PAIR * 12,
        "one_split.jsonl": CHAT * 12,
        "recipes/publishing.py": PUBLISHING,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    command = ("run", "recipes.sl_basic", *LOCAL, *TRAIN, *AS_TEXT)
    joined = ("dataset=pairs.jsonl", "reading.held_out_rows=2", "rendering.chat=false")
    with in_folder(folder):
        output(0, *command, "--name", "dish", "dataset=chats", "epochs=10", "eval_every=10")
        output(0, *command, "--name", "joined", *joined, "epochs=12")
        yield folder


@pytest.fixture(autouse=True)
def here(trained: Path) -> Iterator[Path]:
    with in_folder(trained):
        yield trained


def test_a_run_is_sampled_with_its_own_adapters() -> None:
    for name in ("dish", "run:dish", "dish@40", "run:dish@best", "run:dish@final"):
        assert invoke("sample", name, "?", *GREEDY).stdout == "fine\n"


def test_a_stop_text_ends_a_completion() -> None:
    assert invoke("sample", "dish", "?", *GREEDY, "--stop", "x", "--stop", "in").stdout == "fin\n"
    assert "an empty" in output(2, "sample", "dish", "?", *GREEDY, "--stop", "")


def test_a_model_is_sampled_with_the_chosen_adapters() -> None:
    assert output(0, "sample", "packaged:tiny", "?", *LOCAL, "--max-tokens", "4") != "fine\n"
    assert "'fkae'" in output(2, "sample", "dish", "?", "--training", "fkae")


def test_completions_in_json() -> None:
    found = json.loads(invoke("sample", "dish", "?", "--n", "3", *GREEDY, "--json").stdout)
    assert (found["weights"], found["prompt"], found["exit_code"]) == ("run:dish@final", "?", 0)
    assert found["completions"] == [{"text": "fine", "stop_reason": "stop", "tokens": 5}] * 3


def test_several_completions_are_numbered_and_differ() -> None:
    command = [
        "sample",
        "dish",
        "?",
        "--n",
        "2",
        "--temperature",
        "30",
        "--seed",
        "5",
        "--max-tokens",
        "9",
    ]
    shown = output(0, *command)
    first, second = shown.split("[2/2]\n")
    assert first.startswith("[1/2]\n")
    assert first.removeprefix("[1/2]\n").split("\n(")[0].strip() != second.split("\n(")[0].strip()
    assert "(truncated at 9 tokens; --max-tokens allows more)" in shown
    assert output(0, *command) == shown


def test_a_prompt_may_be_piped_raw_or_with_a_system() -> None:
    assert invoke("sample", "dish", "-", *GREEDY, typed="?\n").stdout == "fine\n"
    assert invoke("sample", "dish", "fin", "--raw", *GREEDY).stdout == "e\n"
    assert invoke("sample", "dish", "?", "--system", "be kind", *GREEDY).stdout == "fine\n"
    shown = output(2, "sample", "dish", "?", "--system", "x", "--raw")
    assert "--system" in shown
    assert "--raw" in shown


@pytest.mark.parametrize(
    ("name", "code", "named"),
    [
        ("run:dihs", 2, "'dish'"),
        ("dish@7", 2, "10, 30, 40, final (step 40)"),
        ("dish@lsat", 2, "'final' or 'best'"),
        ("rnu:dish", 2, "'run'"),
        ("path:nothing", 4, "path:nothing"),
        ("", 2, "names no weights"),
    ],
)
def test_weights_that_do_not_exist_are_named(name: str, code: int, named: str) -> None:
    arguments = () if "dish" in name else ("--training", "peft", "--hub", "local")
    if name.startswith("path:"):
        pytest.importorskip("torch")
    assert named in output(code, "sample", name, "?", *arguments)


def test_runs_may_be_in_another_folder(trained: Path, tmp_path: Path) -> None:
    with in_folder(tmp_path):
        for runs in (f"{trained}/runs", f"file://{trained}/runs"):
            assert invoke("sample", "dish", "?", *GREEDY, "--runs", runs).stdout == "fine\n"
        assert "'dish'" in output(2, "sample", "run:dish", "?")


def test_a_run_trained_without_template_is_sampled_so() -> None:
    result = invoke("sample", "joined", "?", *GREEDY)
    assert result.stdout == "fine\n", "the separator is part of neither prompt nor answer"
    assert "rendering.chat=false" in result.stderr
    assert invoke("sample", "joined", "?", "--raw", *GREEDY).stdout == " fine\n"
    assert "--system" in output(2, "sample", "joined", "?", "--system", "be kind")
    assert "rendering.chat=false" in output(2, "chat", "joined", typed="?\n")


def test_an_unknown_plain_name_is_no_run_and_no_model() -> None:
    pytest.importorskip("torch")
    options = ("--training", "peft", "--hub", "local")
    shown = output(4, "sample", "dihs", "?", *options)
    assert "did you mean 'dish'?" in shown
    assert "the local hub" in shown
    assert "did you mean 'dish'?" in output(4, "eval", "dihs", "--dataset", "chats", *options)
    assert "no run" not in output(4, "sample", "me/dihs", "?", *options)


def test_an_adapter_that_was_an_object_must_be_named(here: Path) -> None:
    path = here / "runs/dish/run.json"
    before = path.read_text()
    record = json.loads(before)
    record["order"]["objects"] = ["hub", "datasets"]
    path.write_text(json.dumps(record))
    try:
        assert "--hub NAME" in output(2, "push", "dish", "me/soup")
        shown = invoke("sample", "dish", "?", *GREEDY, "--hub", "fake").stdout
    finally:
        path.write_text(before)
    assert shown == "fine\n", "sampling needs no data sets"


def test_a_conversation_can_be_piped() -> None:
    result = invoke("chat", "dish", *GREEDY, typed="?\n\n/system be kind\n?\n/reset\n?")
    assert result.exit_code == 0
    assert result.stdout == "fine\nfine\nfine\n"
    assert "(the system message is set)" in result.stderr
    assert "(a new conversation)" in result.stderr


def test_nothing_is_read_after_exit() -> None:
    assert invoke("chat", "dish", *GREEDY, typed="?\n/exit\n?\n").stdout == "fine\n"


def test_an_unknown_command_ends_a_piped_conversation() -> None:
    assert "'/reset'" in output(2, "chat", "dish", typed="/rset\n")
    assert invoke("chat", "dish", *GREEDY, typed=" /rset\n").exit_code == 0


def test_a_conversation_beyond_the_context_is_an_error() -> None:
    shown = output(3, "chat", "dish", *GREEDY, typed="?" * 5000 + "\n")
    assert "4096" in shown
    assert "/reset" in shown


def test_an_answer_that_is_cut_is_noted() -> None:
    shown = output(0, "chat", "dish", *GREEDY, "--max-tokens", "3", typed="?\n")
    assert shown == "fin\n(truncated at 3 tokens; --max-tokens allows more)\n"


def test_a_record_without_a_training_adapter_is_an_error(here: Path) -> None:
    path = here / "runs/dish/run.json"
    before = path.read_text()
    record = json.loads(before)
    del record["order"]["adapters"]["training"]
    try:
        for settings in ({}, {"training": {}}):
            record["order"]["adapter_settings"] = settings
            path.write_text(json.dumps(record))
            for command in (("sample", "dish", "?"), ("export", "dish", "elsewhere")):
                assert "order.adapters.training" in output(2, *command)
    finally:
        path.write_text(before)


def test_an_evaluation_is_a_run_with_intervals() -> None:
    command = ("eval", "dish", "--dataset", "chats", *AS_TEXT, "--json")
    found: dict[str, Any] = json.loads(invoke(*command).stdout)
    assert found["status"] == "completed"
    assert found["metrics"]["test/exact_match"] == 1.0
    assert found["metrics"]["test/exact_match_low"] == pytest.approx(0.025 ** (1 / 3))
    lines = Path(found["where"], "samples.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["set"], row["prompt"], row["text"]) for row in rows] == [("test", "?", "fine")] * 3


def test_an_evaluation_renders_as_the_run_was_trained() -> None:
    command = ("eval", "joined", "--dataset", "pairs.jsonl", *AS_TEXT, "--json")
    result = invoke(*command)
    found = json.loads(result.stdout)
    assert found["metrics"]["held_out/exact_match"] == 1.0
    assert "rendering={chat: false}" in result.stderr
    order = json.loads(Path(found["where"], "run.json").read_text())["order"]
    assert order["sources"]["rendering.chat"] == "run:joined@final"
    typed = json.loads(invoke(*command, "rendering.chat=true").stdout)
    assert typed["metrics"]["held_out/exact_match"] == 0.0, "a typed setting takes precedence"


def evaluated(*arguments: str) -> tuple[list[tuple[str, str]], str]:
    """Return the set and the place of each row that `kitchen eval` evaluates, and its notes."""
    result = invoke("eval", *arguments, *AS_TEXT, "--json")
    lines = Path(json.loads(result.stdout)["where"], "samples.jsonl").read_text().splitlines()
    return [(row["set"], row["where"]) for row in map(json.loads, lines)], result.stderr


def test_a_run_is_evaluated_on_its_held_out_rows() -> None:
    lines = Path("runs/joined/samples.jsonl").read_text().splitlines()
    before = [row for row in map(json.loads, lines) if row.get("when") == "before"]
    held_out = [(row["set"], row["where"]) for row in before]
    rows, note = evaluated("joined")
    assert rows == held_out
    assert len(rows) == 1
    assert "held out: dataset=pairs.jsonl splits=[train] reading.held_out_rows=2" in note
    assert evaluated("joined", "--dataset", "./pairs.jsonl")[0] == [
        (name, f"./{place}") for name, place in held_out
    ]
    assert len(evaluated("joined", "--dataset", "pairs.jsonl", "splits=[train]")[0]) == 12
    assert [name for name, _ in evaluated("dish")[0]] == ["test"] * 3


def test_rows_that_are_no_longer_held_out_are_refused() -> None:
    path = Path("pairs.jsonl")
    before = path.read_text()
    try:
        path.write_text(before + PAIR)
        assert "has changed since the run 'joined'" in output(3, "eval", "joined")
    finally:
        path.write_text(before)
    assert "--dataset NAME" in output(2, "eval", "packaged:tiny")


def test_a_single_split_is_evaluated_with_a_warning() -> None:
    shown = output(0, "eval", "dish", "--dataset", "one_split.jsonl", *AS_TEXT)
    assert "12 of 12; no split is held out" in shown
    assert "1.000 [0.735, 1.000]" in shown


def test_mistakes_of_an_evaluation_are_named() -> None:
    command = ("eval", "dish", "--dataset", "chats")
    assert "'dihs'" in output(2, "eval", "run:dihs", "--dataset", "chats")
    assert "'tset'" in output(3, *command, "splits=[tset]")
    assert "'rosw'" in output(2, *command, "rosw=3")
    target = ("evaluation.metric=text", "evaluation.at_least=0.5")
    missed = output(5, "eval", "packaged:tiny", "--dataset", "chats", *LOCAL, *target)
    assert "exact match on test is" in missed


def test_an_exported_folder_gives_the_same_answers(tmp_path: Path) -> None:
    for options in ((), ("--merged",)):
        folder = tmp_path / f"out{len(options)}"
        assert f"{folder}  (" in output(0, "export", "dish@best", str(folder), *options)
        assert invoke("sample", f"path:{folder}", "?", *GREEDY, *LOCAL).stdout == "fine\n"
    assert str(tmp_path / "out0") in output(2, "export", "dish", str(tmp_path / "out0"))
    unchanged = output(4, "export", "packaged:tiny", str(tmp_path / "out2"), *LOCAL)
    assert "nothing to export" in unchanged
    assert {path.name for path in tmp_path.iterdir()} == {"out0", "out1"}


def test_deleted_exports_are_marked() -> None:
    rows = re.findall(r"^ExportedWeights +(\d+) +(\S+)", output(0, "runs", "show", "dish"), re.M)
    kept = {int(step) for step, where in rows if where != "deleted,"}
    folders = {path.name for path in Path("runs/dish/weights").iterdir()} - {"final"}
    assert {f"step-{step:06}" for step in kept} == folders
    assert len(kept) < len(rows)


def test_an_export_to_gguf_that_is_impossible_is_refused(tmp_path: Path) -> None:
    command = ("export", "dish", str(tmp_path / "out"), "--gguf", "f16")
    assert "FakeTraining writes no GGUF files" in output(4, *command)
    assert "omit --merged" in output(2, *command, "--merged")
    assert "q8_0" in output(2, *command[:-1], "q4")
    assert list(tmp_path.iterdir()) == []


def test_a_push_prints_the_url() -> None:
    assert output(0, "push", "dish", "me/soup", "--hub", "fake").endswith("memory://me/soup\n")


def test_a_failed_push_suggests_the_same_command(trained: Path) -> None:
    options = ("--runs", f"{trained}/runs", "--message", "a soup")
    shown = output(4, "push", "dish@40", "me/soup", *options)
    assert shown.endswith(f": kitchen push dish@40 me/soup {shlex.join(options)}\n")
    assert "OWNER/NAME" in output(2, "push", "dish", "soup", "--hub", "fake")
    assert "'private'" in output(2, "push", "dish", "me/soup", "--private")


def test_a_run_that_cannot_publish_suggests_a_push(tmp_path: Path) -> None:
    where = ("--name", "soup", "--runs", str(tmp_path / "there"))
    settings = ("dataset=chats", "max_steps=2", *AS_TEXT)
    shown = output(4, "run", "recipes.publishing", *LOCAL, *where, *settings)
    commands = [line.split(": kitchen ")[1] for line in shown.splitlines() if ": kitchen " in line]
    [push] = [shlex.split(command) for command in commands if command.startswith("push soup")]
    [resume] = [shlex.split(command) for command in commands if command.startswith("resume")]
    assert output(0, *push, "--hub", "fake").endswith("memory://me/soup\n")
    assert "kitchen push" in output(4, *resume)
