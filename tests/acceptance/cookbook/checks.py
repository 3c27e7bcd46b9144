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
TOLERANCE = 1e-4  # nats: two float32 computations must agree within it
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Cookbook:
    """An installed cookbook: its Python, output folder, environment variables and time limit."""

    python: Path
    folder: Path
    environment: Mapping[str, str]
    timeout: float = 900.0  # seconds

    def recipe(self, name: str, log: str, *arguments: str) -> Rows:
        """Run a recipe of the cookbook; return its metrics, step by step."""
        log_path = self.folder / log
        self.run(log, "-m", f"tinker_cookbook.recipes.{name}", f"log_path={log_path}", *arguments)
        return [json.loads(line) for line in (log_path / "metrics.jsonl").read_text().splitlines()]

    def script(self, name: str, *arguments: str) -> Any:
        """Run a script of ours in that environment; return the JSON of its last output line."""
        return json.loads(
            self.run(name, str(INSIDE / f"{name}.py"), *arguments).strip().splitlines()[-1]
        )

    def run(self, name: str, *arguments: str) -> str:
        completed = subprocess.run(
            [str(self.python), *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=self.timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        (self.folder / f"{name}.out").write_text(f"{completed.stdout}\n{completed.stderr}")
        if completed.returncode:
            last_line = (completed.stderr or completed.stdout).strip().splitlines()[-1]
            raise AssertionError(f"exit {completed.returncode}: {last_line}")
        return completed.stdout


def sl_loop(cookbook: Cookbook) -> str:
    rows = cookbook.recipe(
        "sl_loop",
        "sl_loop",
        *SUPERVISED,
        "batch_size=8",
        "max_length=512",
        "learning_rate=1e-3",
        "max_steps=10",
        "save_every=5",
    )
    return describe_decrease("nll", [row["train_mean_nll"] for row in rows])


def resumed(cookbook: Cookbook) -> str:
    """Resume a run as if it had been killed after step 5, by dropping its final checkpoint."""
    arguments = (
        *SUPERVISED,
        "batch_size=8",
        "max_length=512",
        "learning_rate=1e-3",
        "save_every=5",
        "max_steps=8",
    )
    uninterrupted = cookbook.recipe("sl_loop", "resumed", *arguments)[-3:]
    drop_final_checkpoint(cookbook.folder / "resumed")
    rows = cookbook.recipe("sl_loop", "resumed", *arguments)
    assert [row["step"] for row in rows] == [*range(8), 5, 6, 7], "it did not resume at step 5"
    difference = max(
        abs(expected["train_mean_nll"] - actual["train_mean_nll"])
        for expected, actual in zip(uninterrupted, rows[-3:], strict=True)
    )
    assert difference <= TOLERANCE, (
        f"the resumed run is {difference:.1e} nats from the uninterrupted one"
    )
    return f"steps 5 to 7 within {difference:.0e} nats of those of the uninterrupted run"


def sl_basic(cookbook: Cookbook) -> str:
    log = cookbook.folder / "sl_basic"
    cookbook.run("sl_basic", str(INSIDE / "sl_basic.py"), STUDENT, str(LINES), str(log), "10")
    rows = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    held_out = describe_decrease("held out", [row["test/nll"] for row in rows if "test/nll" in row])
    nll = [row["train_mean_nll"] for row in rows if "train_mean_nll" in row]
    return f"{describe_decrease('nll', nll)}; {held_out}"


def rl_loop(cookbook: Cookbook, loss: str = "importance_sampling") -> str:
    rows = cookbook.recipe(
        "rl_loop",
        f"rl_loop_{loss}",
        *SUPERVISED,
        "batch_size=4",
        "group_size=16",
        "max_tokens=48",
        "max_steps=3",
        f"loss_fn={loss}",
    )
    rewards = [row["reward/total"] for row in rows]
    assert any(0 < reward < 1 for reward in rewards), (
        f"rewards {format_values(rewards)} give no gradient"
    )
    return f"{len(rows)} batches, rewards {format_values(rewards)}"


def arithmetic(cookbook: Cookbook) -> str:
    rows = cookbook.recipe(
        "math_rl.train",
        "arithmetic",
        *POLICY,
        "learning_rate=1e-3",
        "max_tokens=5",
        "max_steps=8",
        "loss_fn=importance_sampling",
    )
    return f"{describe_agreement(rows)}; {describe_rewards(rows)}"


def asynchronous(cookbook: Cookbook) -> str:
    rows = cookbook.recipe(
        "math_rl.train",
        "asynchronous",
        *POLICY,
        "learning_rate=1e-4",
        "max_tokens=5",
        "max_steps=4",
        "loss_fn=importance_sampling",
        "max_steps_off_policy=2",
    )
    return f"{count_steps(rows)}; {describe_rewards(rows)}"


def streamed(cookbook: Cookbook) -> str:
    rows = cookbook.recipe(
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
    return f"{count_steps(rows)}; {describe_rewards(rows)}"


def rl_resumed(cookbook: Cookbook) -> str:
    arguments = (
        *POLICY,
        "learning_rate=1e-4",
        "max_tokens=5",
        "loss_fn=ppo",
        "num_substeps=2",
        "behavior_if_log_dir_exists=resume",
    )
    cookbook.recipe("math_rl.train", "rl_resumed", *arguments, "max_steps=2")
    drop_final_checkpoint(cookbook.folder / "rl_resumed")
    rows = cookbook.recipe("math_rl.train", "rl_resumed", *arguments, "max_steps=4")
    batches = [row["progress/batch"] for row in rows if "progress/batch" in row]
    assert batches == [0, 1, 2, 3], f"the batches are {batches}"
    return f"2 steps, then 2 more; {describe_rewards(rows)}"


def dpo(cookbook: Cookbook) -> str:
    rows = cookbook.recipe(
        "preference.dpo.train",
        "dpo",
        f"model_name={STUDENT}",
        "batch_size=8",
        "max_length=512",
        "learning_rate=1e-4",
        "max_steps=8",
    )
    assert abs(rows[0]["dpo_loss"] - 0.6931) < 1e-3, (
        "the policy does not start as the reference model"
    )
    return describe_decrease("loss", [row["dpo_loss"] for row in rows])


def distillation(cookbook: Cookbook) -> str:
    saved = [
        json.loads(line)
        for line in (cookbook.folder / "sl_loop/checkpoints.jsonl").read_text().splitlines()
    ]
    rows = cookbook.recipe(
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
    return describe_decrease("reverse KL", [row["teacher_kl"] for row in rows])


def numerics(cookbook: Cookbook) -> str:
    rows = cookbook.recipe(
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
    return describe_agreement(rows)


def logprobs(cookbook: Cookbook) -> str:
    result = cookbook.script("logprobs", STUDENT, str(PACKAGED / "ingredients/README.md"))
    assert result["mse"] < TOLERANCE**2, (
        f"the mean of their squared difference is {result['mse']:.1e}"
    )
    nll = describe_decrease("nll", result["losses"])
    return f"mean squared difference {result['mse']:.0e} over {result['tokens']} tokens; {nll}"


def temperature(cookbook: Cookbook) -> str:
    result = cookbook.script("temperature", STUDENT)
    assert result.pop("0")["answers"] == 1, "temperature 0 gives different answers"
    worst = max(counts["errors"] for counts in result.values())
    assert worst < 4, f"frequencies are {worst:.1f} standard errors from the expected ones"
    return f"frequencies at {', '.join(result)} within {worst:.1f} standard errors"


def download(cookbook: Cookbook) -> str:
    result = cookbook.script("download", STUDENT, str(cookbook.folder / "downloaded"))
    assert result["base"] == STUDENT, f"adapter_config.json names {result['base']}"
    assert result["equal"], "the decrypted files differ from those of a plain export"
    assert not result["left"], "the temporary export was not deleted"
    return f"{len(result['files'])} files, decrypted, equal to a plain export"


def drop_final_checkpoint(log: Path) -> None:
    record = log / "checkpoints.jsonl"
    record.write_text(
        "".join(line for line in record.read_text().splitlines(True) if "final" not in line)
    )


def describe_decrease(name: str, values: Sequence[float]) -> str:
    assert values[-1] < values[0], f"{name} did not fall: {format_values(values)}"
    return f"{name} {values[0]:.3f} to {values[-1]:.3f} in {len(values)}"


def describe_agreement(rows: Rows) -> str:
    """Check that sampling and training agree on tokens of on-policy steps."""
    kl = max(row["optim/kl_sample_train_v2"] for row in rows if "optim/kl_sample_train_v2" in row)
    assert kl < TOLERANCE**2, f"sampling and training differ by {kl:.1e} (KL, v2)"
    return f"{count_steps(rows)}, KL of sampling to training at most {kl:.0e} (v2)"


def count_steps(rows: Rows) -> str:
    """Count the training steps; the last row may be an evaluation."""
    return f"{sum('env/all/reward/total' in row for row in rows)} steps"


def describe_rewards(rows: Rows) -> str:
    key = "env/all/reward/total"
    return f"rewards {format_values([row[key] for row in rows if key in row])}"


def format_values(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


CHECKS: Mapping[str, Callable[[Cookbook], str]] = {
    "sl_loop": sl_loop,
    "sl_loop, stopped and resumed": resumed,
    "sl_basic on a local file": sl_basic,
    "rl_loop, importance_sampling": rl_loop,
    "rl_loop, gspo": lambda cookbook: rl_loop(cookbook, "gspo"),
    "math_rl, arithmetic": arithmetic,
    "math_rl, asynchronous": asynchronous,
    "math_rl, streaming minibatches": streamed,
    "math_rl, ppo, stopped and resumed": rl_resumed,
    "dpo": dpo,
    "on-policy distillation from sl_loop's result": distillation,
    "rl_numerics_check": numerics,
    "log-probabilities, sampling against training": logprobs,
    "temperature": temperature,
    "weights.download": download,
}
