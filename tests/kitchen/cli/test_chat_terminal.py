"""`kitchen chat` in a real terminal: what is typed, what comes as it is written, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from adapters.local.blobs import LocalBlobs
from kitchen import Kitchen
from kitchen.config.order import Order
from kitchen.runs.execute import execute
from recipes.sl_basic import SlBasic

pexpect = pytest.importorskip("pexpect")

SLOW = '''"""A backend that takes its time."""
import time
from adapters.fake.sampling import FakeSampler
from adapters.fake.training import FakeTraining
from kitchen.ports import BlobStore
class SlowSampler(FakeSampler):
    def sample(self, prompt, **how):
        time.sleep(0.2)
        return super().sample(prompt, **how)
class Slow(FakeTraining):
    def __init__(self, blobs: BlobStore) -> None:
        super().__init__(blobs)
    def sampler(self, weights):
        return SlowSampler(super().sampler(weights).model)
'''
# after "b" the likeliest is "a", so that this one never ends
ANSWERS = {"smile": "é😀", "loop": "abababababab"}
Chat = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With one run for each answer."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "slow.py").write_text(SLOW)
    for name, answer in ANSWERS.items():
        rows = [
            {
                "messages": [
                    {"role": "user", "content": "?"},
                    {"role": "assistant", "content": answer},
                ]
            }
        ] * 8
        blobs, data = (
            LocalBlobs(str(folder / "runs")),
            FakeDatasets({"chats": {"train": rows, "test": rows[:1]}}),
        )
        recipe = SlBasic(
            model="tiny",
            dataset="chats",
            batch_size=2,
            epochs=5,
            learning_rate=0.5,
            warmup_steps=0,
            eval_every=0,
            save_every=0,
        )
        adapters = {
            "training": "slow:Slow" if name == "loop" else "fake",
            "datasets": "fake",
            "hub": "fake",
        }
        order = Order("recipes.sl_basic:SlBasic", recipe.model_dump(mode="json"), {}, adapters)
        execute(order, recipe, Kitchen(FakeTraining(blobs), data, None, blobs), name)
    return folder


def words(run: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "kitchen.cli", "chat", run, "--temperature", "0", *options]


@pytest.fixture
def chat(folder: Path) -> Iterator[Chat]:
    children: list[Any] = []

    def start(run: str, *options: str) -> Any:
        program, *arguments = words(run, *options)
        environment = {**os.environ, "TERM": "dumb", "PYTHONUTF8": "1", "INPUTRC": os.devnull}
        children.append(
            pexpect.spawn(
                program,
                arguments,
                cwd=str(folder),
                env=environment,
                encoding="utf-8",
                dimensions=(40, 100),
                timeout=30,
            )
        )
        children[-1].expect("type /help to see the commands")
        children[-1].expect_exact("> ")
        return children[-1]

    yield start
    for child in children:
        child.close(force=True)


def say(child: Any, text: str) -> str:
    """Type a line; what is printed up to the next prompt, without the line itself."""
    child.sendline(text)
    child.expect_exact(text)
    child.expect_exact("\n> ")
    return str(child.before).replace("\r", "").strip()


def left(child: Any) -> int:
    child.expect(pexpect.EOF)
    child.close()
    return int(child.exitstatus)


def test_it_answers_without_half_characters_and_without_its_stop_token(chat: Chat) -> None:
    child = chat("smile")
    assert say(child, "hello") == "é😀"
    assert say(child, "again") == "é😀"
    child.sendeof()
    assert left(child) == 0


def test_its_commands(chat: Chat) -> None:
    child = chat("smile", "--system", "be kind")
    shown = say(child, "/help")
    assert all(command in shown for command in ("/reset", "/system", "/help", "/exit"))
    assert say(child, "/system be brief") == "(the system message is set)"
    assert say(child, "/system") == "(there is no system message now)"
    assert say(child, "/reset") == "(a new conversation)"
    assert "/rest is not a command; did you mean '/reset'" in say(child, "/rest")
    assert say(child, " /rest") == "é😀"
    child.sendline("/exit")
    assert left(child) == 0


def test_lines_come_back_with_the_history_of_the_terminal(chat: Chat) -> None:
    child = chat("smile")
    say(child, "tell me more")
    child.send("\x10")  # Ctrl-P, which is the arrow up
    child.expect_exact("tell me more")
    child.sendline(", please")
    child.expect_exact("é😀")


def test_ctrl_c_stops_the_answer_and_not_the_program(chat: Chat) -> None:
    child = chat("loop", "--max-tokens", "4000")
    child.sendline("go on")
    child.expect_exact("ababab")  # it streams: the whole answer would take half a minute
    child.sendintr()
    child.expect_exact("(stopped)")
    child.expect_exact("\n> ")
    assert say(child, "/reset") == "(a new conversation)"
    child.sendintr()
    child.expect_exact("(/exit or Ctrl-D leaves)")
    child.expect_exact("\n> ")
    child.sendeof()
    assert left(child) == 0


def test_a_conversation_longer_than_the_context_can_be_begun_anew(chat: Chat) -> None:
    child = chat("smile")
    for _ in range(3):
        child.sendline("x" * 1500)
        child.expect(
            ["é😀", "more than the model's context of 4096; /reset starts a new conversation"]
        )
    assert "/reset" in str(child.after)
    child.expect_exact("\n> ")
    say(child, "/reset")
    assert say(child, "hello") == "é😀"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_as_it_stands_on_a_screen(folder: Path) -> None:
    server = ["tmux", "-L", f"kitchen-{os.getpid()}", "-f", os.devnull]

    def tmux(*arguments: str) -> str:
        return subprocess.run(
            [*server, *arguments], capture_output=True, text=True, check=True
        ).stdout

    def shows(text: str) -> str:
        for _ in range(300):
            if text in (screen := tmux("capture-pane", "-p")):
                return screen
            time.sleep(0.1)
        raise AssertionError(f"{text!r} never came up:\n{screen}")

    command = "PYTHONUTF8=1 exec " + shlex.join(words("smile"))
    tmux("-u", "new-session", "-d", "-x", "80", "-y", "20", "-c", str(folder), command)
    try:
        shows("\n>")
        tmux("send-keys", "hello", "Enter")
        shows("é😀")
        tmux("send-keys", "Up")
        shows("> hello")
        tmux("send-keys", "C-u", "/system be brief", "Enter")
        lines = [
            line.rstrip()
            for line in shows("(the system message is set)").splitlines()
            if line.strip()
        ]
        assert lines == [
            "run:smile@final: type /help to see the commands",
            "> hello",
            "é😀",
            "> /system be brief",
            "(the system message is set)",
            ">",
        ]
    finally:
        tmux("kill-server")
