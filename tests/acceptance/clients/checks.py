"""One check for each client: it ran, and its figures are those of `kitchen eval` or the engine."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from adapters.local.blobs import LocalBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from adapters.tokenizer import fetch_tokenizer
from tests.acceptance.clients.items import ITEMS, MAX_TOKENS, Answer
from tests.acceptance.clients.recorder import recorded, streamed_text
from tests.acceptance.server import KEY
from tests.support.browser import Tab, browser_tab, find_browser

INSIDE = Path(__file__).parent / "inside"
CHOICES = ("green", "red", "yellow")
TOLERANCE = 1e-3  # nats per continuation, between two passes in float32


@dataclass(frozen=True)
class Proof:
    """The server, the Python of the clients, and the answers that they must get."""

    folder: Path
    logs: Path
    url: str
    answers: Sequence[Answer]
    clients: Path
    page: Path
    model: str
    run: str

    def script(self, name: str) -> str:
        """Run a script in the environment of the clients, and return its last line."""
        printed = self.command(name, str(self.clients), f"{name}.py", self.model, self.run)
        return printed.splitlines()[-1]

    def command(self, log: str, *command: str) -> str:
        """Run a command in the folder of the scripts; raises AssertionError if it fails."""
        done = subprocess.run(
            command,
            cwd=INSIDE,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        (self.logs / f"{log}.log").write_text(done.stdout)
        assert done.returncode == 0, f"{log} failed; see {self.logs / log}.log"
        return done.stdout

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables by which each client finds the server and the items."""
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        api = f"{self.url}/v1"
        return {
            **clean,
            "OPENAI_BASE_URL": api,
            "OPENAI_API_KEY": KEY,
            "PROOF_BASE_URL": api,
            "PROOF_API_KEY": KEY,
            "PROOF_ITEMS": str(self.folder / ITEMS),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.folder / "hf"),
            "GRADIO_ANALYTICS_ENABLED": "False",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def lm_eval(self, task: str, kind: str, path: str, model: str, *more: str) -> list[Any]:
        """Run a task of lm-eval, and return its samples in the order of the items."""
        config = {
            "task": f"proof_{task}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(self.folder / ITEMS)}},
            "test_split": "test",
            "doc_to_text": "{{prompt}}",
            **TASKS[task],
        }
        tasks, out = self.folder / "tasks", self.folder / f"{task}-{kind}"
        tasks.mkdir(exist_ok=True)
        (tasks / f"{task}.yaml").write_text(yaml.safe_dump(config))
        tokenizer = LocalHub().fetch(self.model)
        arguments = f"base_url={self.url}/v1/{path},model={model},num_concurrent=2"
        if kind == "local-completions":
            arguments += f",tokenizer={tokenizer},tokenizer_backend=huggingface"
        self.command(
            f"lm-eval-{task}-{kind}",
            str(self.clients.parent / "lm_eval"),
            "run",
            f"--model={kind}",
            f"--model_args={arguments}",
            f"--include_path={tasks}",
            f"--tasks=proof_{task}",
            "--log_samples",
            f"--output_path={out}",
            *more,
        )
        [samples] = out.rglob("samples_*.jsonl")
        rows = map(json.loads, samples.read_text().splitlines())
        return sorted(rows, key=lambda row: int(row["doc_id"]))


TASKS: Mapping[str, Mapping[str, Any]] = {
    "answers": {
        "output_type": "generate_until",
        "doc_to_target": "{{completion}}",
        "target_delimiter": "",
        "generation_kwargs": {
            "until": ["<|im_end|>"],
            "max_gen_toks": MAX_TOKENS,
            "temperature": 0.0,
            "do_sample": False,
        },
        "metric_list": [{"metric": "exact_match", "aggregation": "mean"}],
    },
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_choice": list(CHOICES),
        "doc_to_target": 0,
        "metric_list": [{"metric": "acc", "aggregation": "mean"}],
    },
}


def lm_eval_chat(proof: Proof) -> str:
    """Compare the answers of a run, item by item, with those of `kitchen eval`."""
    samples = proof.lm_eval(
        "answers", "local-chat-completions", "chat/completions", proof.run, "--apply_chat_template"
    )
    graded = [(row["resps"][0][0], row["exact_match"] == 1) for row in samples]
    return _compared(proof, graded)


def lm_eval_completions(proof: Proof) -> str:
    """Compare the same answers from prompts that lm-eval renders to token ids itself."""
    samples = proof.lm_eval(
        "answers", "local-completions", "completions", proof.run, "--apply_chat_template"
    )
    graded = [(row["resps"][0][0], row["exact_match"] == 1) for row in samples]
    return _compared(proof, graded)


def lm_eval_likelihood(proof: Proof) -> str:
    """Compare log-likelihoods with those of the engine in this process."""
    samples = proof.lm_eval("choices", "local-completions", "completions", proof.model)
    hub = LocalHub()
    tokenizer = fetch_tokenizer(hub, proof.model)
    training = PeftTraining(hub, LocalBlobs(str(proof.folder / "own")), dtype="float32")
    sampler = training.sampler(proof.model)
    largest = 0.0
    for row in samples:
        for choice, (response,) in zip(CHOICES, row["resps"], strict=True):
            prompt = tokenizer.encode(row["doc"]["prompt"])
            whole = tokenizer.encode(f"{row['doc']['prompt']} {choice}")
            scores = sampler.logprobs(whole).result()[len(prompt) :]
            largest = max(largest, abs(float(np.sum(scores)) - float(response[0])))
    sampler.close()
    assert largest < TOLERANCE, f"log-likelihoods differ by {largest} nats"
    count = len(samples) * len(CHOICES)
    return f"{count} log-likelihoods, at most {largest:.0e} nats from the engine's"


def inspect(proof: Proof) -> str:
    """Compare the answers and grades of inspect_ai with those of `kitchen eval`."""
    logs = proof.folder / "inspect"
    proof.command(
        "inspect",
        str(proof.clients.parent / "inspect"),
        "eval",
        "inspect_task.py",
        f"--model=openai-api/proof/{proof.run}",
        "--display=plain",
        "--log-format=json",
        f"--log-dir={logs}",
    )
    [log] = logs.glob("*.json")
    samples = sorted(json.loads(log.read_text())["samples"], key=lambda sample: int(sample["id"]))
    graded = [
        (sample["output"]["choices"][0]["message"]["content"], _is_right(sample))
        for sample in samples
    ]
    return _compared(proof, graded)


def _is_right(sample: Mapping[str, Any]) -> bool:
    return bool(sample["scores"]["exact"]["value"] == "C")


def _compared(proof: Proof, graded: Sequence[tuple[str, bool]]) -> str:
    """Raise AssertionError unless all texts and grades are those of `kitchen eval`."""
    ours = [(answer.text, answer.exact) for answer in proof.answers]
    assert list(graded) == ours, f"{graded} instead of {ours}"
    right = sum(exact for _, exact in ours)
    return f"exact match {right}/{len(ours)}; all texts and grades are those of kitchen eval"


def chat_page(proof: Proof) -> str:
    """Ask the run through a page in a browser, which must show the answer that the server sent."""
    browser = find_browser()
    assert browser is not None, "there is no Chromium on this machine"
    asked = proof.answers[0]
    with (
        recorded(proof.url) as (url, answers),
        _gradio(proof, url) as address,
        tempfile.TemporaryDirectory() as profile,
        browser_tab(browser, Path(profile)) as tab,
    ):
        tab.resize(1000, "light")
        tab.open(address)
        shown = _answer_on_page(tab, asked.prompt)
        (proof.logs / "page.png").write_bytes(tab.screenshot())
    [sent] = map(streamed_text, answers)
    assert _letters(shown) == _letters(sent) != "", f"the page shows {shown!r} instead of {sent!r}"
    return f"Gradio streamed {shown!r} into the page"


@contextmanager
def _gradio(proof: Proof, url: str) -> Iterator[str]:
    """Start the page, and yield its address."""
    process = subprocess.Popen(
        [str(proof.page), "page.py", proof.run],
        cwd=INSIDE,
        env={**proof.environment, "OPENAI_BASE_URL": f"{url}/v1"},
        stdout=subprocess.PIPE,
        stderr=(proof.logs / "page.log").open("w"),
        text=True,
    )
    try:
        yield _address(process)
    finally:
        process.terminate()
        process.wait(30)


def _letters(text: str) -> str:
    """Return letters and digits: pages render Markdown, and leave out the other characters."""
    return "".join(filter(str.isalnum, text))


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines: Iterator[str] = iter(process.stdout.readline, "")
    return next(line.split()[1] for line in lines if line.startswith("at "))


def _answer_on_page(tab: Tab, prompt: str) -> str:
    """Type a question, and return the text of the first answer when it has ended."""
    box = "document.querySelector('textarea')"
    tab.wait_until(f"{box} !== null")
    tab.evaluate(
        "(() => { const set = Object.getOwnPropertyDescriptor("
        "HTMLTextAreaElement.prototype, 'value').set;"
        f"set.call({box}, {json.dumps(prompt)});"
        f"{box}.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
    )
    tab.wait_until("document.querySelector('button.submit-button') !== null")
    tab.evaluate("document.querySelector('button.submit-button').click()")
    bot = "document.querySelector('.bot.message, .message.bot')"
    waiting = ["", "Loading content"]
    tab.wait_until(f"{bot} !== null && !{json.dumps(waiting)}.includes({bot}.innerText.trim())")
    tab.wait_until("document.querySelector('button.stop-button') === null")
    return str(tab.evaluate(f"{bot}.innerText.trim()"))


CHECKS: Mapping[str, Callable[[Proof], str]] = {
    "openai SDK": lambda proof: proof.script("openai_sdk"),
    "LangChain": lambda proof: proof.script("langchain_chat"),
    "lm-eval, local-chat-completions": lm_eval_chat,
    "lm-eval, local-completions": lm_eval_completions,
    "lm-eval, log-likelihood": lm_eval_likelihood,
    "inspect_ai": inspect,
    "chat page": chat_page,
}
