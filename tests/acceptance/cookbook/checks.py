"""Small runs of the cookbook's recipes, with their settings and checks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.cookbook.hub import PACKAGED, STUDENT, TEACHER

INSIDE = Path(__file__).parent / "inside"
LINES = PACKAGED / "ingredients/train.jsonl"
SUPERVISED = (f"model_name={STUDENT}", "lora_rank=16")
POLICY = (
    f"model_name={STUDENT}",
    "lora_rank=16",
    "group_size=4",
    "groups_per_batch=8",
    "eval_every=0",
    "save_every=2",
)
NEAR = 1e-4  # nats: the tolerance where two computations must agree in float32
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Book:
    """The cookbook's virtual environment, output folder and time limit."""

    python: Path
    place: Path
    environment: Mapping[str, str]
    timeout: float = 900.0  # seconds

    def recipe(self, name: str, log: str, *words: str) -> Rows:
        """Run a recipe of the cookbook; return its metrics, step by step."""
        where = self.place / log
        self.run(log, "-m", f"tinker_cookbook.recipes.{name}", f"log_path={where}", *words)
        return [json.loads(line) for line in (where / "metrics.jsonl").read_text().splitlines()]

    def script(self, name: str, *words: str) -> Any:
        """Run one of our scripts in its environment; return the JSON of its last line."""
        return json.loads(
            self.run(name, str(INSIDE / f"{name}.py"), *words).strip().splitlines()[-1]
        )

    def run(self, name: str, *words: str) -> str:
        done = subprocess.run(
            [str(self.python), *words],
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=self.timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        (self.place / f"{name}.out").write_text(f"{done.stdout}\n{done.stderr}")
        if done.returncode:
            raise AssertionError(
                f"exit {done.returncode}: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
            )
        return done.stdout


def sl_loop(book: Book) -> str:
    rows = book.recipe(
        "sl_loop",
        "sl_loop",
        *SUPERVISED,
        "batch_size=8",
        "max_length=512",
        "learning_rate=1e-3",
        "max_steps=10",
        "save_every=5",
    )
    return falls("nll", [row["train_mean_nll"] for row in rows])


def resumed(book: Book) -> str:
    """Resume a run as if it had been killed after step 5, by cutting off its later records."""
    words = (
        *SUPERVISED,
        "batch_size=8",
        "max_length=512",
        "learning_rate=1e-3",
        "save_every=5",
        "max_steps=8",
    )
    whole = book.recipe("sl_loop", "resumed", *words)[-3:]
    cut_off(book.place / "resumed")
    rows = book.recipe("sl_loop", "resumed", *words)
    assert [row["step"] for row in rows] == [*range(8), 5, 6, 7], "it did not resume at step 5"
    difference = max(
        abs(expected["train_mean_nll"] - actual["train_mean_nll"])
        for expected, actual in zip(whole, rows[-3:], strict=True)
    )
    assert difference <= NEAR, f"the resumed run is {difference:.1e} nats from the whole one"
    return f"steps 5 to 7 within {difference:.0e} nats of those of the uninterrupted run"


def sl_basic(book: Book) -> str:
    log = book.place / "sl_basic"
    book.run("sl_basic", str(INSIDE / "sl_basic.py"), STUDENT, str(LINES), str(log), "10")
    rows = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    held_out = falls("held out", [row["test/nll"] for row in rows if "test/nll" in row])
    nll = [row["train_mean_nll"] for row in rows if "train_mean_nll" in row]
    return f"{falls('nll', nll)}; {held_out}"


def rl_loop(book: Book) -> str:
    rows = book.recipe(
        "rl_loop",
        "rl_loop",
        *SUPERVISED,
        "batch_size=4",
        "group_size=16",
        "max_tokens=48",
        "max_steps=3",
        "loss_fn=importance_sampling",
    )
    rewards = [row["reward/total"] for row in rows]
    assert any(0 < reward < 1 for reward in rewards), f"rewards {listed(rewards)} teach nothing"
    return f"{len(rows)} batches, rewards {listed(rewards)}"


def arithmetic(book: Book) -> str:
    rows = book.recipe(
        "math_rl.train",
        "arithmetic",
        *POLICY,
        "learning_rate=1e-3",
        "max_tokens=5",
        "max_steps=8",
        "loss_fn=importance_sampling",
    )
    return f"{agreeing(rows)}; {rewarded(rows)}"


def asynchronous(book: Book) -> str:
    rows = book.recipe(
        "math_rl.train",
        "asynchronous",
        *POLICY,
        "learning_rate=1e-4",
        "max_tokens=5",
        "max_steps=4",
        "loss_fn=importance_sampling",
        "max_steps_off_policy=2",
    )
    return f"{steps(rows)}; {rewarded(rows)}"


def streamed(book: Book) -> str:
    rows = book.recipe(
        "math_rl.train",
        "streamed",
        *POLICY,
        "learning_rate=1e-4",
        "max_tokens=5",
        "max_steps=2",
        "loss_fn=importance_sampling",
        "stream_minibatch_config.groups_per_batch=8",
        "stream_minibatch_config.num_minibatches=2",
    )
    return f"{steps(rows)}; {rewarded(rows)}"


def rl_resumed(book: Book) -> str:
    words = (
        *POLICY,
        "learning_rate=1e-4",
        "max_tokens=5",
        "loss_fn=ppo",
        "num_substeps=2",
        "behavior_if_log_dir_exists=resume",
    )
    book.recipe("math_rl.train", "rl_resumed", *words, "max_steps=2")
    cut_off(book.place / "rl_resumed")
    rows = book.recipe("math_rl.train", "rl_resumed", *words, "max_steps=4")
    batches = [row["progress/batch"] for row in rows if "progress/batch" in row]
    assert batches == [0, 1, 2, 3], f"it ran the batches {batches}"
    return f"2 steps, then 2 more; {rewarded(rows)}"


def dpo(book: Book) -> str:
    rows = book.recipe(
        "preference.dpo.train",
        "dpo",
        f"model_name={STUDENT}",
        "batch_size=8",
        "max_length=512",
        "learning_rate=1e-4",
        "max_steps=8",
    )
    assert abs(rows[0]["dpo_loss"] - 0.6931) < 1e-3, "the policy does not start as its reference"
    return falls("loss", [row["dpo_loss"] for row in rows])


def distillation(book: Book) -> str:
    saved = [
        json.loads(line)
        for line in (book.place / "sl_loop/checkpoints.jsonl").read_text().splitlines()
    ]
    rows = book.recipe(
        "distillation.on_policy_distillation",
        "distillation",
        f"model_name={STUDENT}",
        f"teacher_model={TEACHER}",
        f"teacher_checkpoint={saved[-1]['sampler_path']}",
        "dataset=tulu3",
        "group_size=4",
        "groups_per_batch=8",
        "max_tokens=24",
        "lora_rank=16",
        "learning_rate=1e-3",
        "eval_every=0",
        "save_every=0",
        "max_steps=8",
    )
    return falls("reverse KL", [row["teacher_kl"] for row in rows])


def numerics(book: Book) -> str:
    rows = book.recipe(
        "rl_numerics_check.train",
        "numerics",
        f"model_name={STUDENT}",
        "lora_rank=16",
        "group_size=2",
        "groups_per_batch=2",
        "max_tokens=32",
        "max_trajectory_tokens=4096",
        "task.page_chars=400",
        "task.num_pages_min=2",
        "task.num_pages_max=3",
        "max_steps=2",
    )
    return agreeing(rows)


def logprobs(book: Book) -> str:
    result = book.script("logprobs", STUDENT, str(PACKAGED / "ingredients/README.md"))
    assert result["mse"] < NEAR**2, f"the mean of their squared difference is {result['mse']:.1e}"
    nll = falls("nll", result["losses"])
    return f"mean squared difference {result['mse']:.0e} over {result['tokens']} tokens; {nll}"


def temperature(book: Book) -> str:
    result = book.script("temperature", STUDENT)
    assert result.pop("0")["answers"] == 1, "temperature 0 gives different answers"
    worst = max(counts["errors"] for counts in result.values())
    assert worst < 4, f"frequencies are {worst:.1f} standard errors from the expected ones"
    return f"frequencies at {', '.join(result)} within {worst:.1f} standard errors"


def cut_off(log: Path) -> None:
    record = log / "checkpoints.jsonl"
    record.write_text(
        "".join(line for line in record.read_text().splitlines(True) if "final" not in line)
    )


def falls(name: str, values: Sequence[float]) -> str:
    assert values[-1] < values[0], f"{name} did not fall: {listed(values)}"
    return f"{name} {values[0]:.3f} to {values[-1]:.3f} in {len(values)}"


def agreeing(rows: Rows) -> str:
    """Check that sampling and training agree on the tokens of on-policy steps."""
    kl = max(row["optim/kl_sample_train_v2"] for row in rows if "optim/kl_sample_train_v2" in row)
    assert kl < NEAR**2, f"sampling and training differ by {kl:.1e} (KL, v2)"
    return f"{steps(rows)}, KL of sampling to training at most {kl:.0e} (v2)"


def steps(rows: Rows) -> str:
    """Count the training steps; the last row may be of an evaluation alone."""
    return f"{sum('env/all/reward/total' in row for row in rows)} steps"


def rewarded(rows: Rows) -> str:
    key = "env/all/reward/total"
    return f"rewards {listed([row[key] for row in rows if key in row])}"


def listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


CHECKS: Mapping[str, Callable[[Book], str]] = {
    "sl_loop": sl_loop,
    "sl_loop, stopped and resumed": resumed,
    "sl_basic on a local file": sl_basic,
    "rl_loop, importance_sampling": rl_loop,
    "math_rl, arithmetic": arithmetic,
    "math_rl, asynchronous": asynchronous,
    "math_rl, minibatches as they come": streamed,
    "math_rl, ppo, stopped and resumed": rl_resumed,
    "dpo": dpo,
    "on-policy distillation from sl_loop's result": distillation,
    "rl_numerics_check": numerics,
    "log-probabilities, sampling against training": logprobs,
    "temperature": temperature,
}
