"""`kitchen chat` in a real terminal: typing, streaming, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
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
from tests.support.polling import wait_until

pexpect = pytest.importorskip("pexpect")

# a sampler that stops responding in the middle of an answer, until Ctrl-C
STUCK = '''"""A backend that stops responding."""
import threading
from adapters.fake.sampling import FakeSampler
from adapters.fake.training import FakeTraining
from kitchen.ports import BlobStore
class StuckSampler(FakeSampler):
    requests = 0
    def sample(self, prompt, **options):
        self.requests += 1
        if self.requests > 3:
            while True:  # a signal just before an endless wait would not end it
                threading.Event().wait(0.1)
        return super().sample(prompt, **options)
class Stuck(FakeTraining):
    def __init__(self, blobs: BlobStore) -> None:
        super().__init__(blobs)
    def sampler(self, weights):
        return StuckSampler(super().sampler(weights).model)
'''
# "loop" never ends: after "b" the likeliest token is "a"
ANSWERS = {"smile": "é😀", "loop": "abababababab"}
SETTINGS: dict[str, Any] = {
    "model": "tiny",
    "dataset": "chats",
    "batch_size": 2,
    "epochs": 5,
    "learning_rate": 0.5,
    "warmup_steps": 0,
    "eval_every": 0,
    "save_every": 0,
}
Chat = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run for each answer."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "stuck.py").write_text(STUCK)
    blobs = LocalBlobs(str(folder / "runs"))
    recipe = SlBasic(**SETTINGS)
    for name, answer in ANSWERS.items():
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
        rows = [{"messages": messages}] * 8
        datasets = FakeDatasets({"chats": {"train": rows, "test": rows[:1]}})
        training = "stuck:Stuck" if name == "loop" else "fake"
        adapters = {"training": training, "datasets": "fake", "hub": "fake"}
        order = Order("recipes.sl_basic:SlBasic", recipe.model_dump(mode="json"), {}, adapters)
        execute(order, recipe, Kitchen(FakeTraining(blobs), datasets, None, blobs), name)
    return folder


def chat_command(run: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "kitchen.cli", "chat", run, "--temperature", "0", *options]


@pytest.fixture
def chat(folder: Path) -> Iterator[Chat]:
    """Start `kitchen chat` in a terminal, and wait for its first prompt."""
    children: list[Any] = []

    def start(run: str, *options: str) -> Any:
        program, *arguments = chat_command(run, *options)
        child = pexpect.spawn(
            program,
            arguments,
            cwd=str(folder),
            env={**os.environ, "TERM": "dumb", "PYTHONUTF8": "1", "INPUTRC": os.devnull},
            encoding="utf-8",
            dimensions=(40, 100),
            timeout=30,
        )
        children.append(child)
        child.expect("/help")
        child.expect_exact("> ")
        return child

    yield start
    for child in children:
        child.close(force=True)


def say(child: Any, text: str) -> str:
    """Type a line; return what is printed before the next prompt, without the line itself."""
    child.sendline(text)
    child.expect_exact(text)
    child.expect_exact("\n> ")
    return str(child.before).replace("\r", "").strip()


def exit_code(child: Any) -> int:
    child.expect(pexpect.EOF)
    child.close()
    return int(child.exitstatus)


def test_a_sample_on_a_terminal_is_the_text_of_a_pipe(folder: Path) -> None:
    program, *arguments = [sys.executable, "-m", "kitchen.cli", "sample", "smile", "hello"]
    env = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1"}
    child = pexpect.spawn(program, arguments, cwd=str(folder), env=env, encoding="utf-8")
    child.expect(pexpect.EOF)
    piped = subprocess.run(
        [program, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    assert piped.stdout == "é😀\n"
    shown = str(child.before)
    assert "Opening smile" in shown
    assert shown.endswith("é😀\r\n")
    assert "\x1b" not in piped.stdout + piped.stderr


def test_answers_have_whole_characters_and_no_stop_token(chat: Chat) -> None:
    child = chat("smile")
    assert say(child, "hello") == "é😀"
    assert say(child, "again") == "é😀"
    child.sendeof()
    assert exit_code(child) == 0


def test_the_commands_of_a_conversation(chat: Chat) -> None:
    child = chat("smile", "--system", "be kind")
    shown = say(child, "/help")
    assert all(command in shown for command in ("/reset", "/system", "/help", "/exit"))
    assert say(child, "/system be brief") == "(the system message is set)"
    assert say(child, "/system") == "(there is no system message now)"
    assert say(child, "/reset") == "(a new conversation)"
    assert "'/reset'" in say(child, "/rest")
    assert say(child, " /rest") == "é😀"
    child.sendline("/exit")
    assert exit_code(child) == 0


def test_earlier_lines_can_be_edited(chat: Chat) -> None:
    child = chat("smile")
    say(child, "tell me more")
    child.send("\x10")  # Ctrl-P, the same as arrow up
    child.expect_exact("tell me more")
    child.sendline(", please")
    child.expect_exact("é😀")


def test_ctrl_c_stops_the_answer_only(chat: Chat) -> None:
    child = chat("loop", "--trust", "--max-tokens", "4000")
    child.sendline("go on")
    child.expect_exact("ababab")  # streamed: the whole answer never arrives
    child.sendintr()
    child.expect_exact("(stopped)")
    child.expect_exact("\n> ")
    assert say(child, "/reset") == "(a new conversation)"
    child.sendintr()
    child.expect_exact("(/exit or Ctrl-D leaves)")
    child.expect_exact("\n> ")
    child.sendeof()
    assert exit_code(child) == 0


def test_a_full_context_can_be_reset(chat: Chat) -> None:
    child = chat("smile")
    for _ in range(3):
        child.sendline("x" * 1500)
        child.expect(["é😀", "context of 4096; /reset"])
    assert "/reset" in str(child.after)
    child.expect_exact("\n> ")
    say(child, "/reset")
    assert say(child, "hello") == "é😀"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_the_screen_of_a_terminal(folder: Path) -> None:
    server = ["tmux", "-L", f"kitchen-{os.getpid()}", "-f", os.devnull]

    def tmux(*arguments: str) -> str:
        command = [*server, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def screen() -> str:
        return tmux("capture-pane", "-p")

    def wait_for(text: str) -> None:
        wait_until(lambda: text in screen())

    command = "PYTHONUTF8=1 exec " + shlex.join(chat_command("smile"))
    tmux("-u", "new-session", "-d", "-x", "80", "-y", "20", "-c", str(folder), command)
    try:
        wait_for("\n>")
        tmux("send-keys", "hello", "Enter")
        wait_for("é😀")
        tmux("send-keys", "Up")
        wait_for("> hello")
        tmux("send-keys", "C-u", "/system be brief", "Enter")
        wait_for("(the system message is set)")
        wait_until(lambda: screen().rstrip().endswith(">"))
        lines = [line.rstrip() for line in screen().splitlines() if line.strip()]
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
