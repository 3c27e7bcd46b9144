"""Runs that are killed and resumed: their recipes, data, fakes that kill, and their outcome."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from adapters.fake.datasets import FakeDatasets
from adapters.local.blobs import LocalBlobs
from kitchen import Kitchen, Observer, Recipe, StageDone
from kitchen.config.order import Order
from kitchen.ports import Row
from kitchen.runs.execute import execute
from recipes.chat_sl import ChatSl
from recipes.claim_extraction import ClaimExtraction
from recipes.distillation import Distillation
from recipes.distillation_off_policy import DistillationOffPolicy
from recipes.dpo import Dpo
from recipes.ensemble import Ensemble
from recipes.evaluate import Evaluate
from recipes.kto import Kto
from recipes.rl import Rl
from recipes.rlhf import Rlhf
from recipes.sl_basic import SlBasic
from tests.support.claims import CLAIM_SPLITS
from tests.support.judged import RlhfWithBracketJudge

WORDS = ("hello", "hallo", "hey you", "good day", "moin", "salut", "ciao", "servus", "ahoy")
CHATS = [
    {"messages": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": word}]}
    for n, word in enumerate(WORDS)
]
PAIRS = [
    {"prompt": f"say {n}", "chosen": word, "rejected": f"not {word}"}
    for n, word in enumerate(WORDS)
]
# chance says some
LETTERS = [{"prompt": f"say {n}", "completion": "abcdefghijklmnopqrstuvwxyz"} for n in range(6)]
RATED = [
    {"prompt": f"say {n}", "completion": word, "label": n % 3 != 1} for n, word in enumerate(WORDS)
]
DATA: Mapping[str, Mapping[str, Sequence[Row]]] = {
    "chats": {"train": CHATS, "held": CHATS[:2]},
    "pairs": {"train": PAIRS, "held": PAIRS[:2]},
    "rated": {"train": RATED, "held": RATED[:3]},
    "texts": {"train": [{"text": f"{word}, " * 9} for word in WORDS], "held": [{"text": "hi"}]},
    "alphabet": {"train": LETTERS, "held": LETTERS[:2]},
    "claims": CLAIM_SPLITS,
    "farewells": {"train": CHATS[::-1], "held": CHATS[:1]},
}
EPOCHS = {"epochs": 3, "eval_every": 4, "keep": 1, "evaluation": {"max_tokens": 8}}
STOPPED = {"eval_every": 2, "early_stopping": {"patience": 2, "min_delta": 100.0}}
REWARDED = {"eval_every": 1, "early_stopping": {"patience": 2, "min_delta": 100.0}, "keep": 1}
JUDGE = {"batch_size": 2, "max_tokens": 250}  # more than save_every steps
PLAY = {
    "reading": {"limit": 8, "held_out_rows": 2},
    "group": 3,
    "steps": 6,
    "playing": {"max_tokens": 5},
}
KL_PENALTY = {"kl_penalty": 0.1, "reference": "teacher"}  # by which it learns without any reward
RECIPES: dict[str, tuple[type[Recipe], dict[str, Any]]] = {
    "sl_basic": (SlBasic, {**EPOCHS, "dataset": "chats"}),
    "sl_basic_full": (
        SlBasic,
        {**EPOCHS, "dataset": "chats", "train": "full", "learning_rate": 1e-3, "lora_rank": 16},
    ),
    "sl_basic_texts": (
        SlBasic,
        {**EPOCHS, "dataset": "texts", "rendering": {"max_tokens": 40, "overlong": "split"}},
    ),
    # the second and third evaluation do not improve enough, so that it stops at step 6 of 15
    "sl_basic_stopped": (SlBasic, {**EPOCHS, **STOPPED, "dataset": "chats"}),
    "chat_sl": (
        ChatSl,
        {"mixture": {"chats": 2.0, "farewells": 1.0}, "steps": 14, "eval_every": 4, "keep": 1},
    ),
    "evaluate": (
        Evaluate,
        {
            "dataset": "chats",
            "evaluation": {"metric": "text", "max_tokens": 8},
            "answering": {"temperature": 1.0, "tries": 2, "pass_at": (1, 2)},
        },
    ),
    "ensemble": (
        Ensemble,
        {
            "members": ["model", "teacher"],
            "dataset": "chats",
            "evaluation": {"metric": "text", "max_tokens": 8},
            "draws": 2,
            "temperature": 1.0,
            "mode": "cascade",
        },
    ),
    "dpo": (Dpo, {**EPOCHS, "dataset": "pairs", "beta": 0.5}),
    "dpo_simpo": (Dpo, {**EPOCHS, "dataset": "pairs", "loss": "simpo"}),
    "dpo_orpo": (Dpo, {**EPOCHS, "dataset": "pairs", "loss": "orpo"}),
    "dpo_mistakes": (
        Dpo,
        {
            **EPOCHS,
            "dataset": "chats",
            "mistakes": {"tries": 8, "max_tokens": 200},
            "rendering": {"max_tokens": 250, "overlong": "drop"},
        },
    ),
    "claim_extraction": (
        ClaimExtraction,
        {
            **EPOCHS,
            "dataset": "claims",
            "evaluation": {"max_tokens": 8, "draws": 2},
            "scorers": {"entailment": "lexical"},
            "monitor": {"every": 2, "rows": 1},
        },
    ),
    "claim_extraction_dpo": (
        ClaimExtraction,
        {**EPOCHS, "dataset": "claims", "penalty": {"kind": "dpo", "rows": 1}},
    ),
    "kto": (Kto, {**EPOCHS, "dataset": "pairs", "beta": 0.5}),
    "kto_rated": (Kto, {**EPOCHS, "dataset": "rated", "beta": 0.5}),
    "rl": (
        Rl,
        {
            "dataset": "chats",
            "reward": "letters",
            "group": 3,
            "steps": 6,
            "kl_penalty": 0.1,
            "kl_discount": 0.9,
            "updates": 2,
            "playing": {"max_tokens": 5},
        },
    ),
    "rl_mixture": (
        Rl,
        {
            "mixture": {"chats": 2.0, "farewells": 1.0},
            "rewards": {"chats": "letters"},
            "reward": "exact",
            "group": 3,
            "steps": 6,
            "batch_size": 3,
            "playing": {"max_tokens": 5},
        },
    ),
    # it stops at batch 3 of 6, and with policy lag after those in flight
    "rl_stopped": (Rl, {**PLAY, **REWARDED, "dataset": "chats", "reward": "letters"}),
    "rl_talk": (Rl, {**PLAY, "dataset": "game:talk"}),
    "rl_guess": (Rl, {**PLAY, **KL_PENALTY, "dataset": "game:guess"}),
    "rl_calculator": (Rl, {**PLAY, **KL_PENALTY, "dataset": "game:calculator"}),
    "distillation": (
        Distillation,
        {
            "dataset": "chats",
            "group": 3,
            "steps": 6,
            "discount": 0.5,
            "updates": 2,
            "playing": {"max_tokens": 5},
            "evaluation": {"max_tokens": 8},
        },
    ),
    "distillation_off_policy": (
        DistillationOffPolicy,
        {
            **EPOCHS,
            "dataset": "chats",
            "instruction": "Be brief.",
            "writing": {"tries": 4, "max_tokens": 100},
        },
    ),
    "distillation_forward": (
        Distillation,
        {
            "dataset": "chats",
            "group": 3,
            "steps": 6,
            "divergence": "forward",
            "top_k": 5,
            "updates": 2,
            "playing": {"max_tokens": 5},
            "evaluation": {"max_tokens": 8},
        },
    ),
    "distillation_teachers": (
        Distillation,
        {
            "teacher": None,
            "teachers": {"chats": "teacher", "farewells": "model"},
            "group": 3,
            "steps": 6,
            "playing": {"max_tokens": 5},
            "evaluation": {"max_tokens": 8},
        },
    ),
    "distillation_instruction": (
        Distillation,
        {
            "teacher": None,
            "dataset": "chats",
            "instruction": "Be brief.",
            "group": 3,
            "steps": 6,
            "playing": {"max_tokens": 5},
            "evaluation": {"max_tokens": 8},
        },
    ),
    "rlhf": (
        Rlhf,
        {
            "preferences": "pairs",
            "group": 4,
            "steps": 6,
            "judge": JUDGE,
            "playing": {"max_tokens": 80},
        },
    ),
    "rlhf_judge": (
        Rlhf,
        {
            "preferences": "pairs",
            "group": 4,
            "steps": 6,
            "judge": {**JUDGE, "model": "teacher"},
            "playing": {"max_tokens": 80},
        },
    ),
    "rlhf_answer": (
        Rlhf,
        {
            "dataset": "alphabet",
            "reward": "letters",
            "group": 4,
            "steps": 6,
            "kl_penalty": 0.1,
            "judge": {**JUDGE, "max_tokens": 4096, "epochs": 2},
            "playing": {"max_tokens": 400},
        },
    ),
    "rlhf_short": (
        Rlhf,
        {  # as a model reads that has a context
            "dataset": "alphabet",
            "reward": "letters",
            "group": 4,
            "steps": 6,
            "ranking": {"tries": 8},
            "judge": {**JUDGE, "max_tokens": 250},
            "playing": {"max_tokens": 200},
        },
    ),
    "rlhf_own": (
        RlhfWithBracketJudge,
        {
            "dataset": "alphabet",
            "reward": "letters",
            "group": 4,
            "steps": 6,
            "judge": {**JUDGE, "says": "letter", "max_tokens": 4096},
            "playing": {"max_tokens": 400},
        },
    ),
}
MODELS = ("model", "teacher")


def build_recipe(name: str, model: str, teacher: str, ahead: int, **settings: Any) -> Recipe:
    """Build a recipe from common settings that it has, its entry in RECIPES, and these settings."""
    cls, own = RECIPES[name]
    own = _renamed(own, {"model": model, "teacher": teacher})
    common = {
        "model": model,
        "weights": model,
        "teacher": teacher,
        "batch_size": 2,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "lora_rank": 4,
        "ahead": ahead,
        "policy_lag": ahead,
    }
    return cls(
        **{
            key: value
            for key, value in {**common, **own, **settings}.items()
            if key in cls.model_fields
        }
    )


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Replace the names of MODELS anywhere in settings."""
    if isinstance(value, dict):
        return {key: _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def order_of(recipe: Recipe) -> Order:
    return Order(f"{type(recipe).__module__}:{type(recipe).__name__}", {})


class KillDuringWrite(LocalBlobs):
    """Kills the process while the n-th blob of a save point is written, after a short delay."""

    def __init__(self, root: str, at: int = -1, delay: float = 0.0) -> None:
        super().__init__(root)
        self.left, self.delay, self.count = at, delay, 0

    def write(self, name: str, data: bytes) -> None:
        if "/save/" in name:
            self.left -= 1
            self.count += 1
            if self.left == 0:
                threading.Thread(target=self._die).start()
        super().write(name, data)

    def _die(self) -> None:
        time.sleep(self.delay)  # so that the kill hits any moment of the write, not its start only
        os.kill(os.getpid(), signal.SIGKILL)


class KillAfterStage(Observer):
    """Kills the process right after the n-th stage call."""

    def __init__(self, at: int = -1) -> None:
        self.left, self.count = at, 0

    def stage_done(self, event: StageDone) -> None:
        self.left -= 1
        self.count += 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def training_client(backend: str, blobs: LocalBlobs, folder: Path) -> Any:
    if backend == "fake":
        from adapters.fake.training import FakeTraining

        return FakeTraining(blobs)
    from adapters.local.hub import LocalHub
    from adapters.peft.client import PeftTraining

    return PeftTraining(
        LocalHub(str(folder / "cache")), blobs, dtype="float32", device="cpu", threads=1
    )


@dataclass(frozen=True)
class RunToKill:
    """A recipe, the training backend it runs on, and its folder."""

    folder: Path
    recipe: str
    backend: str
    ahead: int

    def execute(self, killer: KillAfterStage, blobs: KillDuringWrite) -> None:
        model, teacher = (
            f"path:{self.folder / name}" if self.backend == "peft" else name for name in MODELS
        )
        recipe = build_recipe(self.recipe, model, teacher, self.ahead, save_every=3)
        kitchen = Kitchen(
            training_client(self.backend, blobs, self.folder), FakeDatasets(DATA), None, blobs
        )
        execute(order_of(recipe), recipe, kitchen, "run", [killer])


def in_child(work: Any) -> int:
    """Do work in a forked process and return its exit status, or minus the signal's number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome(root: Path, *, newest_save_point: bool = False) -> dict[str, Any]:
    """Return the outputs that must be equal: metrics and samples without seconds, all weights.

    With `newest_save_point`, weights of earlier save points are left out.
    """
    rows, samples = (
        [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        for file in (root / "run/metrics.jsonl", root / "run/samples.jsonl")
    )
    save_points = sorted(root.glob("run/save/*/TrainingSession"))
    if newest_save_point:
        save_points = save_points[-1:]
    saved = chain.from_iterable(folder.iterdir() for folder in save_points)
    files = sorted([*root.glob("run/weights/**/*"), *saved])
    tensors = [file for file in files if file.suffix in (".npz", ".safetensors")]
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in tensors]
    learnt = any(row.get("grad_norm") for row in rows)
    assert learnt or not tensors, "nothing was learnt, so nothing is tested"
    timeless = [
        {key: value for key, value in row.items() if key != "seconds"} for row in (*rows, *samples)
    ]
    return {"rows": timeless, "digests": digests}
