"""Commands that use weights, on the fake adapter: sample, chat, eval, export and push."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import invoke, output

LOCAL = ("--training", "fake", "--hub", "local")
GREEDY = ("--temperature", "0")
AS_TEXT = ("evaluation.metric=text", "evaluation.max_tokens=8")
CHATS = [
    {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "fine"}]}
] * 12
SHARED = '''"""A recipe that publishes its weights."""
from kitchen import Step, sequence
from recipes.sl_basic import SlBasic
from stages.train.publish import Publish
class Shared(SlBasic):
    """SlBasic, published at the end."""
    def workflow(self) -> Step:
        return sequence(super().workflow(), Publish("me/soup"))
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with runs "dish" and "joined", which have learnt to answer "fine"."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "chats").mkdir()
    for name, rows in (("train", CHATS), ("test", CHATS[:3])):
        (folder / "chats" / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    (folder / "pairs.jsonl").write_text('{"prompt": "?", "completion": "fine"}\n' * 12)
    (folder / "recipes").mkdir()
    (folder / "recipes/shared.py").write_text(SHARED)
    (folder / "alone.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHATS))
    path = sys.path[:]
    with contextlib.chdir(folder):
        output(
            0,
            "run",
            "recipes.sl_basic",
            *LOCAL,
            "--name",
            "dish",
            "dataset=chats",
            "batch_size=3",
            "epochs=10",
            "learning_rate=0.5",
            "warmup_steps=0",
            "eval_every=10",
            *AS_TEXT,
        )
        output(
            0,
            "run",
            "recipes.sl_basic",
            *LOCAL,
            "--name",
            "joined",
            "dataset=pairs.jsonl",
            "reading.held_out_rows=2",
            "batch_size=3",
            "epochs=12",
            "learning_rate=0.5",
            "warmup_steps=0",
            "rendering.chat=false",
            *AS_TEXT,
        )
        yield folder
    sys.path[:] = path


@pytest.fixture(autouse=True)
def here(trained: Path) -> Iterator[Path]:
    with contextlib.chdir(trained):
        yield trained


# --- sample


@pytest.mark.parametrize("name", ["dish", "run:dish", "dish@40", "run:dish@best", "run:dish@final"])
def test_sample_opens_a_run_with_its_own_adapters(name: str) -> None:
    assert invoke("sample", name, "?", *GREEDY).stdout == "fine\n"


def test_sample_opens_a_model_with_the_chosen_adapters() -> None:
    assert output(0, "sample", "packaged:tiny", "?", *LOCAL, "--max-tokens", "4") != "fine\n"
    wrong = output(2, "sample", "dish", "?", "--training", "fkae")
    assert "there is no training adapter 'fkae'; did you mean 'fake'" in wrong


def test_sample_prints_completions_as_json() -> None:
    found = json.loads(invoke("sample", "dish", "?", "--n", "3", *GREEDY, "--json").stdout)
    assert (found["weights"], found["prompt"], found["exit_code"]) == ("run:dish@final", "?", 0)
    assert found["completions"] == [{"text": "fine", "stop_reason": "stop", "tokens": 5}] * 3


def test_several_completions_are_numbered_and_differ() -> None:
    random = ("--n", "2", "--temperature", "30", "--seed", "5", "--max-tokens", "9")
    shown = output(0, "sample", "dish", "?", *random)
    first, second = shown.split("[2/2]\n")
    assert first.startswith("[1/2]\n")
    assert first.removeprefix("[1/2]\n").split("\n(")[0].strip() != second.split("\n(")[0].strip()
    assert "(cut at 9 tokens; --max-tokens allows more)" in shown
    assert output(0, "sample", "dish", "?", *random) == shown


def test_prompts_from_stdin_raw_and_with_system_message() -> None:
    assert invoke("sample", "dish", "-", *GREEDY, typed="?\n").stdout == "fine\n"
    assert invoke("sample", "dish", "fin", "--raw", *GREEDY).stdout == "e\n"
    assert invoke("sample", "dish", "?", "--system", "be kind", *GREEDY).stdout == "fine\n"
    assert "--system needs a chat template, and --raw passes it by" in output(
        2, "sample", "dish", "?", "--system", "x", "--raw"
    )


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("run:dihs", 2, "there is no run 'dihs'; did you mean 'dish'"),
        ("dish@7", 2, "it has: 10, 30, 40, final (step 40)"),
        ("dish@lsat", 2, "by a step, 'final' or 'best'"),
        ("rnu:dish", 2, "did you mean 'run'"),
        ("path:nothing", 4, "path:nothing"),
        ("", 2, "names no weights"),
    ],
)
def test_missing_weights_are_refused_by_name(name: str, code: int, why: str) -> None:
    arguments = () if "dish" in name else ("--training", "peft", "--hub", "local")
    if name.startswith("path:"):
        pytest.importorskip("torch")
    assert why in output(code, "sample", name, "?", *arguments)


def test_runs_option_is_a_folder_or_url(trained: Path, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert (
            invoke("sample", "dish", "?", *GREEDY, "--runs", f"{trained}/runs").stdout == "fine\n"
        )
        assert (
            invoke("sample", "dish", "?", *GREEDY, "--runs", f"file://{trained}/runs").stdout
            == "fine\n"
        )
        assert "there is no run 'dish'" in output(2, "sample", "run:dish", "?")


def test_run_trained_without_template_is_sampled_without_it() -> None:
    result = invoke("sample", "joined", "?", *GREEDY)
    assert result.stdout == "fine\n", (
        "without the separator, which is neither of the prompt nor of the answer"
    )
    assert (
        "without the chat template: the run was trained without it (rendering.chat=false)"
        in result.stderr
    )
    assert invoke("sample", "joined", "?", "--raw", *GREEDY).stdout == " fine\n"
    assert "--system needs a chat template, and the run was trained without it" in output(
        2, "sample", "joined", "?", "--system", "be kind"
    )
    assert (
        "the run was trained without it (rendering.chat=false); `kitchen sample` completes a text"
        in output(2, "chat", "joined", typed="?\n")
    )


def test_unknown_model_name_suggests_a_run(here: Path) -> None:
    pytest.importorskip("torch")
    plain = ("--training", "peft", "--hub", "local")
    why = "there is no run 'dihs' in runs; did you mean 'dish'?"
    assert f"{why}; and as a model: the local hub does not have 'dihs'" in output(
        4, "sample", "dihs", "?", *plain
    )
    assert why in output(4, "eval", "dihs", "--dataset", "chats", *plain)
    assert "there is no run" not in output(4, "sample", "me/dihs", "?", *plain)


def test_adapter_that_was_an_object_must_be_named(here: Path) -> None:
    record = json.loads((here / "runs/dish/run.json").read_text())
    record["order"]["objects"] = ["hub", "datasets"]
    (here / "runs/object").mkdir()
    for path in (here / "runs/dish").glob("*.jsonl"):
        (here / "runs/object" / path.name).write_bytes(path.read_bytes())
    (here / "runs/object/run.json").write_text(json.dumps(record))
    shown = output(2, "push", "object", "me/soup")
    assert (
        "the hub adapter was an object of local, and the arguments that it was built with "
        "are not recorded; name the adapter to use" in shown
    )
    assert "--hub NAME" in shown
    assert invoke("sample", "object", "?", *GREEDY, "--hub", "fake").stdout == "fine\n", (
        "it needs no data"
    )


# --- chat, with its input from a pipe


def test_chat_reads_a_conversation_from_a_pipe() -> None:
    result = invoke("chat", "dish", *GREEDY, typed="?\n\n/system be kind\n?\n/reset\n?")
    assert result.exit_code == 0
    assert result.stdout == "fine\nfine\nfine\n"
    assert "(the system message is set)" in result.stderr
    assert "(a new conversation)" in result.stderr


def test_chat_ignores_input_after_exit() -> None:
    assert invoke("chat", "dish", *GREEDY, typed="?\n/exit\n?\n").stdout == "fine\n"


def test_unknown_chat_command_in_a_pipe_is_an_error() -> None:
    assert "/rset is not a command; did you mean '/reset'" in output(
        2, "chat", "dish", typed="/rset\n"
    )
    assert invoke("chat", "dish", *GREEDY, typed=" /rset\n").exit_code == 0


def test_chat_longer_than_the_context_is_an_error() -> None:
    shown = output(3, "chat", "dish", *GREEDY, typed="?" * 5000 + "\n")
    assert "more than the model's context of 4096; /reset starts a new conversation" in shown


def test_chat_marks_a_truncated_answer() -> None:
    assert output(0, "chat", "dish", *GREEDY, "--max-tokens", "3", typed="?\n") == (
        "fin\n(cut at 3 tokens; --max-tokens allows more)\n"
    )


# --- eval


def test_eval_is_a_run_with_intervals() -> None:
    found: dict[str, Any] = json.loads(
        invoke("eval", "dish", "--dataset", "chats", *AS_TEXT, "--json").stdout
    )
    assert found["status"] == "completed"
    assert found["metrics"]["test/exact_match"] == 1.0
    assert found["metrics"]["test/exact_match_low"] == pytest.approx(0.4385, abs=1e-4)
    rows = [
        json.loads(line) for line in Path(found["where"], "samples.jsonl").read_text().splitlines()
    ]
    assert [(row["set"], row["prompt"], row["text"]) for row in rows] == [("test", "?", "fine")] * 3


def test_eval_renders_as_the_run_was_trained() -> None:
    def found(*more: str) -> Any:
        result = invoke("eval", "joined", "--dataset", "pairs.jsonl", *AS_TEXT, *more, "--json")
        return result.stderr, json.loads(result.stdout)

    shown, made = found()
    assert made["metrics"]["train/exact_match"] == 1.0
    assert "rendering={chat: false}, as run:joined@final was trained" in shown
    order = json.loads(Path(made["where"], "run.json").read_text())["order"]
    assert order["sources"]["rendering.chat"] == "run:joined@final"
    assert found("rendering.chat=true")[1]["metrics"]["train/exact_match"] == 0.0, (
        "what is typed comes first"
    )


def test_eval_warns_about_the_only_split() -> None:
    shown = output(0, "eval", "dish", "--dataset", "alone.jsonl", *AS_TEXT)
    assert "12 of 12; it has no other split, and may have been trained on" in shown
    assert "1.000 [0.758, 1.000]" in shown


def test_eval_refuses_unknown_runs_splits_and_settings() -> None:
    assert "no run 'dihs'" in output(2, "eval", "run:dihs", "--dataset", "chats")
    assert "no split 'tset'" in output(3, "eval", "dish", "--dataset", "chats", "splits=[tset]")
    assert "has no setting 'rosw'; did you mean 'rows'" in output(
        2, "eval", "dish", "--dataset", "chats", "rosw=3"
    )
    assert "exact match on test is" in output(
        5,
        "eval",
        "packaged:tiny",
        "--dataset",
        "chats",
        *LOCAL,
        "evaluation.metric=text",
        "evaluation.at_least=0.5",
    )


# --- export and push


def test_exported_weights_give_the_same_completions(tmp_path: Path) -> None:
    for options in ((), ("--merged",)):
        out = tmp_path / f"out{len(options)}"
        assert f"{out}  (" in output(0, "export", "dish@best", str(out), *options)
        assert invoke("sample", f"path:{out}", "?", *GREEDY, *LOCAL).stdout == "fine\n"
    assert "is not empty" in output(2, "export", "dish", str(tmp_path / "out0"))
    assert "so there is nothing to export" in output(
        4, "export", "packaged:tiny", str(tmp_path / "out2"), *LOCAL
    )
    assert {path.name for path in tmp_path.iterdir()} == {"out0", "out1"}


def test_push_prints_the_address(here: Path) -> None:
    assert output(0, "push", "dish", "me/soup", "--hub", "fake").endswith("memory://me/soup\n")


def test_failed_push_shows_the_command_to_retry(trained: Path) -> None:
    shown = output(
        4, "push", "dish@40", "me/soup", "--message", "a soup", "--runs", f"{trained}/runs"
    )
    assert shown.endswith(
        "nothing is lost: to try again: kitchen push dish@40 me/soup "
        f"--runs {trained}/runs --message 'a soup'\n"
    )
    assert "give OWNER/NAME" in output(2, "push", "dish", "soup", "--hub", "fake")
    assert "the hub adapter 'local' has no setting 'private'" in output(
        2, "push", "dish", "me/soup", "--private"
    )


def test_run_that_cannot_publish_shows_commands_to_retry(tmp_path: Path) -> None:
    shown = output(
        4,
        "run",
        "recipes.shared",
        *LOCAL,
        "--name",
        "soup",
        "--runs",
        str(tmp_path / "there"),
        "dataset=chats",
        "max_steps=2",
        *AS_TEXT,
    )
    [push] = [
        line.split(": ", 1)[1]
        for line in shown.splitlines()
        if "to publish its weights only: " in line
    ]
    [resume] = [line.split(": ", 1)[1] for line in shown.splitlines() if "to resume (" in line]
    assert output(0, *shlex.split(push)[1:], "--hub", "fake").endswith("memory://me/soup\n")
    assert "nothing is lost" in output(4, *shlex.split(resume)[1:])
