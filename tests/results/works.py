"""The works behind docs/results.md: the runs of a seed, and the measures read from them."""

from __future__ import annotations

import ast
import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

import numpy as np

import kitchen
from adapters.local.blobs import LocalBlobs
from adapters.local.datasets import LocalDatasets
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen.backend.tool_calls import ToolCall, with_tools_in_system_prompt
from kitchen.ports import Message, Sampler, Tokenizer
from kitchen.ports.environments import Task
from kitchen.runs.store import RunSummary, run_names, run_summary
from kitchen.statistics.intervals import paired_interval, wilson
from stages.chat.render import RenderDataset, render_row
from stages.chat.tools import (
    CALCULATOR,
    ToolQuestion,
    run_tool,
)
from stages.claims.loading import LoadHeldOutClaims
from stages.claims.rows import ClaimRow
from stages.claims.token_weights import LineWeights, weight_datum
from stages.data.splits import DataConfig
from stages.evaluate.reference import open_sampler
from stages.tasks.games import Guess, MakeGames

Measures = Mapping[str, float]
Measured = tuple[RunSummary, Measures]  # the run and its measures
START = 1  # the seed of the weights that works start from: seeds differ only in the work itself
NAMES = {"reading.test": ["new_names"], "reading.held_out_rows": 100, "save_every": 0}


HELD_OUT = 60  # problems
GAME = {
    "reading.held_out_rows": HELD_OUT,
    "save_every": 0,
    "batch_size": 4,
    "learning_rate": 5e-4,
    "warmup_steps": 2,
}
INSTRUCTION = """You turn one line of a cooking recipe into one JSON object, and write nothing \
else. Its keys, in order:
"quantity": a number, two numbers in a list for a range, or null where there is none
"unit": the measure or container in the singular, spelled out, or null
"name": the ingredient as the line has it
"preparation": what the cook does with it, or null
"optional": true or false

2 tbsp finely chopped parsley
{"quantity": 2, "unit": "tablespoon", "name": "parsley", "preparation": "finely chopped", \
"optional": false}
3 eggs
{"quantity": 3, "unit": null, "name": "eggs", "preparation": null, "optional": false}
Sea salt, to taste
{"quantity": null, "unit": null, "name": "Sea salt", "preparation": "to taste", \
"optional": false}"""


@dataclass(frozen=True)
class Cooking:
    """The runs of one seed, in a folder where finished ones are reused and others resumed."""

    root: Path
    seed: int
    training: str = "peft"
    preferences: Path | None = None  # of GSM8K: prompt, chosen, rejected

    def cook(
        self, recipe: str, name: str, settings: Mapping[str, Any], seed: int | None = None
    ) -> RunSummary:
        blobs, seed = LocalBlobs(str(self.root)), self.seed if seed is None else seed
        # runs with other settings have another name
        run = f"{name}-{seed}-{crc32(json.dumps([recipe, settings]).encode()):08x}"
        if run not in run_names(blobs):
            kitchen.run(
                recipe,
                name=run,
                runs=self.root,
                training=self.training,
                settings={**settings, "seed": seed},
            )
        elif run_summary(blobs, run).status != "completed":
            kitchen.resume(run, runs=self.root).finish()
        return run_summary(blobs, run)

    def shown(self, name: str, conversations: Sequence[Sequence[Message]], steps: int) -> str:
        """Return weights after some steps of sl_basic on a data set."""
        text = "".join(json.dumps({"messages": list(each)}) + "\n" for each in conversations)
        # a file with other conversations has another name
        file = self.root / f"{name}-{crc32(text.encode()):08x}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        few = {
            "dataset": str(file),
            "reading.held_out_rows": 10,
            "save_every": 0,
            "max_steps": steps,
            "eval_every": 0,
        }
        return f"run:{self.cook('recipes.sl_basic', f'shown-{name}', few, START).id}"

    def scores(self, run: RunSummary, measure: str) -> Mapping[str, float]:
        """Return a measure of the answers to held-out claims, by claim."""
        rows = LocalBlobs(str(self.root)).read(f"{run.id}/samples.jsonl").splitlines()
        answers = [row for row in map(json.loads, rows) if row.get("set") == CLAIMS_HELD_OUT]
        return {row["item"]: row["scores"][measure] for row in answers if measure in row["scores"]}

    def right_ids(self, run: RunSummary) -> list[float]:
        """Return the probability of the right document ids, a mean over each answer's tokens."""
        blobs, store = LocalBlobs(str(self.root)), LocalDatasets()
        client = PeftTraining(LocalHub(), blobs)
        tokenizer = client.tokenizer("packaged:smollm2-135m-instruct")
        loaded = LoadHeldOutClaims("claims", splits=(CLAIMS_HELD_OUT,)).run(store)[0]
        rows = [row for row in loaded.sets[CLAIMS_HELD_OUT] if row.answer and row.answer.evidence]
        with closing(open_sampler(f"run:{run.id}", client, blobs)) as sampler:
            return [right_id_probability(row, sampler, tokenizer) for row in rows]

    def taught(self, steps: int, **settings: Any) -> str:
        """Return weights after some steps of sl_basic; with fewer steps they do the task worse."""
        few = {
            **NAMES,
            "reading.held_out_rows": 10,
            "max_steps": steps,
            "eval_every": 0,
            **settings,
        }
        return f"run:{self.cook('recipes.sl_basic', f'taught-{steps}', few, START).id}"


@dataclass(frozen=True)
class Goal:
    """Bounds for the mean of a measure over the seeds; for a p-value, of every seed."""

    least: float = -math.inf
    most: float = math.inf

    def describe(self, found: float) -> str:
        """Describe the goal and whether it is reached."""
        bounds = [f"at least {self.least:g}"] * math.isfinite(self.least) + [
            f"at most {self.most:g}"
        ] * math.isfinite(self.most)
        return f"{', '.join(bounds)}: {'reached' if self.least <= found <= self.most else 'missed'}"


@dataclass(frozen=True)
class Headline:
    """One line of a summary: the measures before and after training, and their difference."""

    label: str
    after: str
    before: str = ""  # empty: not measured
    gain: str = ""
    p_value: str = ""


@dataclass(frozen=True)
class Work:
    """One experiment with a recipe: its measures and their goals."""

    recipe: str
    task: str  # in a few words, the heading of its table
    description: str
    headlines: Sequence[Headline]
    goals: Mapping[str, Goal]  # by measure; other measures have none
    measure: Callable[[Cooking], Measured]
    # values of measures without any effect: an interval that includes it is a null result
    no_effect: Mapping[str, float] = field(default_factory=dict)
    reads_preferences: bool = False
    time: Goal = Goal(most=360)  # seconds


def dpo(cooking: Cooking) -> Measured:
    """Train on the right answer against the model's own wrong ones."""
    run = cooking.cook(
        "recipes.dpo",
        "dpo",
        {
            **NAMES,
            "model": cooking.taught(35),
            "reading.limit": 320,
            "batch_size": 8,
            "max_steps": 84,
            "epochs": 4,
            "eval_every": 0,
            "learning_rate": 7e-4,
            "warmup_steps": 4,
            "imitation": 3.0,
            "mistakes.tries": 2,
        },
    )
    return run, {
        "pair accuracy": run.metrics["new_names/pair_accuracy"],
        **exact(run, "new_names"),
        "KL to the start, nats an answer": run.metrics["kl"],
    }


def dpo_on_preferences(cooking: Cooking) -> Measured:
    """Train on right against wrong solutions, from a file of pairs."""
    run = cooking.cook(
        "recipes.dpo",
        "dpo-gsm8k",
        {
            "dataset": str(cooking.preferences),
            "reading.limit": 96,
            "reading.held_out_rows": 50,
            "batch_size": 8,
            "eval_every": 0,
            "save_every": 0,
            "learning_rate": 1e-4,
            "warmup_steps": 2,
        },
    )
    found, pairs = run.metrics["held_out/pair_accuracy"], round(run.metrics["data/held_out_pairs"])
    low, high = wilson(round(found * pairs), pairs)
    return run, {
        "pair accuracy": found,
        "95 % of it, from": low,
        "to": high,
        "KL to the start, nats a token": run.metrics["kl_per_token"],
    }


def rl(cooking: Cooking) -> Measured:
    """Start from weights that hardly know the format."""
    start = cooking.taught(9, learning_rate=3e-4, warmup_steps=0)
    run = cooking.cook(
        "recipes.rl",
        "rl",
        {
            **NAMES,
            "model": start,
            "steps": 18,
            "learning_rate": 5e-4,
            "schedule": "linear",
            "playing.max_tokens": 48,
        },
    )
    return run, rewards(run, "new_names")


def rl_on_arithmetic(cooking: Cooking) -> Measured:
    """Start from weights that know the format and little more."""
    few = {
        "dataset": "arithmetic",
        "reading.held_out_rows": 10,
        "save_every": 0,
        "eval_every": 0,
        "max_steps": 3,
        "learning_rate": 3e-4,
        "warmup_steps": 0,
    }
    start = cooking.cook("recipes.sl_basic", "sums", few, START).id
    run = cooking.cook(
        "recipes.rl",
        "rl-arithmetic",
        {
            "dataset": "arithmetic",
            "model": f"run:{start}",
            "reading.held_out_rows": 100,
            "save_every": 0,
            "steps": 60,
            "learning_rate": 3e-4,
            "playing.max_tokens": 8,
        },
    )
    return run, rewards(run, "held_out")


def distillation(cooking: Cooking) -> Measured:
    """Ask the teacher the same held-out questions."""
    teacher = cooking.cook(
        "recipes.sl_basic", "teacher", {**NAMES, "eval_every": 0, "max_steps": 100}, START
    ).id
    run = cooking.cook(
        "recipes.distillation",
        "distillation",
        {
            **NAMES,
            "model": cooking.taught(15),
            "teacher": f"run:{teacher}",
            "divergence": "forward",
            "steps": 6,
            "batch_size": 150,
            "group": 1,
            "updates": 19,
            "learning_rate": 1.5e-3,
            "warmup_steps": 5,
            "playing.max_tokens": 48,
        },
    )
    asked = cooking.cook(
        "recipes.evaluate",
        "teacher-asked",
        {
            "weights": f"run:{teacher}",
            "splits": ["new_names"],
            "rows": NAMES["reading.held_out_rows"],
        },
    )
    before, after = (run.metrics[f"kl_per_token{when}"] for when in ("_before", ""))
    right, wanted = (
        run.metrics["new_names/exact_match_after"],
        asked.metrics["new_names/exact_match"],
    )
    return run, {
        "reverse KL before, nats a token": before,
        "reverse KL after": after,
        "share that is gone": 1 - after / before,
        **exact(run, "new_names"),
        "exact match of the teacher": wanted,
        "share of the teacher's": right / wanted,
    }


def prompt_distillation(cooking: Cooking) -> Measured:
    """Distil a prompt: the weights learnt to follow it, and teach themselves to do without it."""
    heeds = cooking.cook(
        "recipes.sl_basic",
        "heeds",
        {
            **NAMES,
            "dataset": lines(cooking.root, INSTRUCTION),
            "reading.held_out_rows": 10,
            "max_steps": 60,
            "eval_every": 0,
        },
        START,
    )
    run = cooking.cook(
        "recipes.distillation_off_policy",
        "prompt-distillation",
        {
            **NAMES,
            "dataset": lines(cooking.root),
            "model": f"run:{heeds.id}",
            "instruction": INSTRUCTION,
            "reading.limit": 800,
            "epochs": 2,
            "max_steps": 100,
            "eval_every": 0,
            "learning_rate": 5e-4,
            "warmup_steps": 3,
            "writing.temperature": 0.0,
            "writing.max_tokens": 48,
        },
    )
    right, wanted = (run.metrics[f"new_names/exact_match_{who}"] for who in ("after", "teacher"))
    return run, {
        **exact(run, "new_names"),
        "exact match of the prompted teacher": wanted,
        "share of the teacher's": right / wanted if wanted else 0.0,
    }


def lines(root: Path, instruction: str = "") -> str:
    """Write the ingredients with another system prompt, or none, as a data set in a folder."""
    folder = root / f"lines-{crc32(instruction.encode()):08x}"  # of another prompt, another run
    folder.mkdir(parents=True, exist_ok=True)
    reported = [{"role": "system", "content": instruction}] if instruction else []
    for split in ("train", "new_names"):
        rows = [
            {"messages": [*reported, *row["messages"][1:]]}
            for row in LocalDatasets().load("ingredients", split=split)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def guessing(cooking: Cooking) -> Measured:
    """Guess a number from the hints higher and lower, in eight guesses at most.

    The start has seen it done, and writes sentences.
    """
    start = cooking.shown(
        "games", [asyncio.run(guessed(task)) for task in problems("game:guess")], 12
    )
    run = cooking.cook(
        "recipes.rl",
        "guessing",
        {
            **GAME,
            "dataset": "game:guess",
            "model": start,
            "steps": 8,
            "learning_rate": 3e-4,
            "playing.max_tokens": 6,
        },
    )
    return run, rewards(run, "held_out")


def guessing_on(cooking: Cooking) -> Measured:
    """Continue where the format has been learnt, on twice as many games: heed the hints."""
    how = {
        **GAME,
        "dataset": "game:guess",
        "reading.held_out_rows": 2 * HELD_OUT,
        "learning_rate": 3e-4,
        "playing.max_tokens": 6,
    }
    made, _, _ = MakeGames(
        "game:guess", DataConfig(limit=200, held_out_rows=2 * HELD_OUT), START
    ).run()
    talks = cooking.shown("games", [asyncio.run(guessed(task)) for task in made.train], 12)
    start = cooking.cook("recipes.rl", "guessing-form", {**how, "model": talks, "steps": 8}, START)
    run = cooking.cook(
        "recipes.rl", "guessing-on", {**how, "model": f"run:{start.id}", "steps": 16}
    )
    return run, rewards(run, "held_out")


async def guessed(task: Task) -> list[Message]:
    """Play a game that heeds every hint; most guesses stand in a sentence."""
    assert isinstance(task, Guess)
    env, random = task.env(), np.random.default_rng([task.low, task.high, task.number])
    form = "I guess {}." if random.random() < 0.85 else "{}"
    messages, result, low, high = list(await env.reset()), None, task.low, task.high
    while result is None or result.messages:
        guess = int(random.integers(low, high + 1))
        messages.append({"role": "assistant", "content": form.format(guess)})
        result = await env.step(str(guess))
        messages += result.messages
        low, high = (guess + 1, high) if guess < task.number else (low, guess - 1)
    return messages


def tools(cooking: Cooking) -> Measured:
    """Count problems where the calculator gave the right number and the model then repeats it."""
    start = cooking.shown("calls", list(map(called, problems("game:calculator"))), 10)
    run = cooking.cook(
        "recipes.rl",
        "tools",
        {
            **GAME,
            "dataset": "game:calculator",
            "model": start,
            "steps": 12,
            "playing.max_tokens": 48,
        },
    )
    return run, rewards(run, "held_out")


def called(task: Task) -> list[Message]:
    """Write a conversation with calculator calls; two thirds of them make only the first call."""
    assert isinstance(task, ToolQuestion)
    expression = task.question.removeprefix("What is ").partition("?")[0]
    if crc32(expression.encode()) % 3:
        expression = expression[expression.index("(") + 1 : expression.index(")")]
    found = run_tool(ToolCall(CALCULATOR.name, {"expression": expression}), [CALCULATOR])
    call = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    return [
        *with_tools_in_system_prompt(
            [CALCULATOR.schema], [{"role": "user", "content": task.question}]
        ),
        {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
        {"role": "tool", "content": found},
        {"role": "assistant", "content": found},
    ]


def problems(dataset: str) -> Sequence[Task]:
    """Return the problems of a game, none of them held out."""
    made, _, _ = MakeGames(dataset, DataConfig(limit=200, held_out_rows=HELD_OUT), START).run()
    return made.train


def rlhf(cooking: Cooking) -> Measured:
    """Train the judge on the policy's own answers, ranked by a hidden field F1."""
    start = cooking.cook(
        "recipes.sl_basic",
        "misnamed",
        {
            **NAMES,
            "dataset": misnamed(cooking.root),
            "reading.held_out_rows": 10,
            "max_steps": 40,
            "eval_every": 0,
        },
        START,
    )
    run = cooking.cook(
        "recipes.rlhf",
        "rlhf",
        {
            **NAMES,
            "model": f"run:{start.id}",
            "reading.held_out_rows": 80,
            "ranking.problems": 160,
            "ranking.margin": 0.3,
            "ranking.pairs": 2,
            "judge.epochs": 2,
            "judge.learning_rate": 5e-4,
            "steps": 14,
            "learning_rate": 4e-4,
            "warmup_steps": 2,
            "playing.max_tokens": 48,
        },
    )
    shown = {
        "accuracy of the judge before": "judge_accuracy_before",
        "accuracy of the judge": "judge_accuracy",
        "shorter wins": "shorter_wins",
        "valid JSON wins": "json_wins",
        "comparisons": "comparisons",
        "how far the judge prefers new answers": "preferred",
        "p of that": "preferred_p",
        "answers cut before": "truncated_before",
        "answers cut after": "truncated_after",
    }
    return run, {
        **{what: run.metrics[f"new_names/{key}"] for what, key in shown.items()},
        **rewards(run, "new_names"),
    }


def misnamed(root: Path) -> str:
    """Write the ingredients with two keys renamed in two thirds of the rows, at equal lengths."""
    folder = root / "misnamed"
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "new_names"):
        rows = [list(row["messages"]) for row in LocalDatasets().load("ingredients", split=split)]
        for number, messages in enumerate(rows):
            if number % 3:
                answer = (
                    messages[-1]["content"]
                    .replace('"unit":', '"size":')
                    .replace('"name":', '"item":')
                )
                messages[-1] = {"role": "assistant", "content": answer}
        (folder / f"{split}.jsonl").write_text(
            "".join(json.dumps({"messages": each}) + "\n" for each in rows)
        )
    return str(folder)


def claims(cooking: Cooking, **settings: Any) -> Measured:
    """Train on the packaged claims, and evaluate on both held-out sets."""
    run = cooking.cook("recipes.claim_extraction", "claims", {**CLAIMS, **settings})
    measures: dict[str, float] = {}
    for name, label in ((CLAIMS_HELD_OUT, ""), ("claims_other_wording", OTHER_WORDING)):
        for measure, words in CLAIM_MEASURES.items():
            for end, ending in (("", ""), ("_low", FROM)):
                measures[f"{words}{label}{ending}"] = run.metrics[f"{name}/{measure}{end}"]
    return run, measures


def claims_by_line(cooking: Cooking) -> Measured:
    """Weight tokens by the line they are in."""
    return claims(cooking, **{"token_weights.kind": "by_line"})


def claims_uniform(cooking: Cooking) -> Measured:
    """Weight all tokens alike."""
    return claims(cooking, **{"token_weights.kind": "uniform"})


def citation_penalty(cooking: Cooking) -> Measured:
    """Continue a short training with the penalty and without it; sample at temperature 1."""
    brief = {**CLAIMS, "reading.test": [CLAIMS_HELD_OUT], "evaluation.draws": 8}
    without, penalised = {"penalty.kind": "none"}, {"penalty.kind": "unlikelihood"}
    start = cooking.cook(
        "recipes.claim_extraction", "claims-start", {**brief, **without, "max_steps": 30}, START
    )
    longer = {**brief, "model": f"run:{start.id}", "max_steps": 40, "penalty.rows": None}
    arms = [
        cooking.cook("recipes.claim_extraction", f"claims-{kind}", {**longer, **settings})
        for kind, settings in (("no-penalty", without), ("penalty", penalised))
    ]
    before, plain, lowered = (cooking.scores(run, VALID_SAMPLED) for run in (start, *arms))
    items = list(before)
    difference = paired_interval([plain[each] for each in items], [lowered[each] for each in items])
    right, right_penalised = (float(np.mean(cooking.right_ids(run))) for run in arms)
    return arms[1], {
        "invalid before": 1 - float(np.mean(list(before.values()))),
        "invalid without the penalty": 1 - float(np.mean(list(plain.values()))),
        "invalid with the penalty": 1 - float(np.mean(list(lowered.values()))),
        "fall by the penalty": difference.estimate,
        f"fall by the penalty{FROM}": difference.low,
        "probability of the right ids without the penalty": right,
        "probability of the right ids with the penalty": right_penalised,
    }


def right_id_probability(row: ClaimRow, sampler: Sampler, tokenizer: Tokenizer) -> float:
    """Return the mean probability of the tokens of the document ids in the right answer."""
    (datum,) = render_row(row.conversation(), tokenizer, RenderDataset(max_tokens=2048)).data
    ids = LineWeights(0, 0, 0, 0, document=1, verb=0, end=0)
    chosen = weight_datum(datum, tokenizer, ids).loss_inputs["weights"] > 0
    sequence = np.append(datum.tokens, datum.targets[-1])
    return float(np.exp(sampler.logprobs(sequence).result()[1:][chosen]).mean())


def exact(run: RunSummary, name: str) -> Measures:
    before, after = (run.metrics[f"{name}/exact_match_{when}"] for when in ("before", "after"))
    return {
        "exact match before": before,
        "exact match after": after,
        "exact match gained": after - before,
    }


def rewards(run: RunSummary, name: str) -> Measures:
    shown = {
        "mean reward before": "before",
        "mean reward after": "after",
        "mean reward gained": "gain",
        "p of the gain": "gain_p",
    }
    return {what: run.metrics[f"{name}/reward_{key}"] for what, key in shown.items()}


CLAIMS_HELD_OUT, VALID_SAMPLED = "claims_held_out", "citation_valid_sampled"
CLAIMS = {
    "save_every": 0,
    "eval_every": 0,
    "batch_size": 4,
    "epochs": 4,
    "max_steps": 320,
    "penalty.rows": 1,
}
OTHER_WORDING, FROM = ", other wording", ", 95 % interval from"
# measures of the recipe, and their names on the page
CLAIM_MEASURES: Mapping[str, str] = MappingProxyType(
    {
        "schema": "form",
        "citation_valid": "valid citations",
        "c1_exact": "claim 1 exact",
        "evidence_verbatim": "evidence verbatim",
        "documents_exact": "documents exact",
        "answer_exact": "whole answer right",
        "relation_right": "relation right",
        "relation_gain": "relation right beyond the majority",
    }
)
EASY = ("schema", "citation_valid", "c1_exact", "evidence_verbatim")
GAINED = "mean reward gained"
P_OF_GAIN = "p of the gain"
NO_GAIN: Mapping[str, float] = MappingProxyType({GAINED: 0.0})
MEAN_REWARD = Headline("mean reward", "mean reward after", "mean reward before", GAINED, P_OF_GAIN)
EXACT_MATCH = Headline(
    "exact match", "exact match after", "exact match before", "exact match gained"
)
PAIR_ACCURACY = Headline("pair accuracy", "pair accuracy")

WORKS: Mapping[str, Work] = MappingProxyType(
    {
        "dpo": Work(
            "dpo",
            "ingredients",
            "Training starts from a half-trained model. The chosen answers are correct; the rejected "
            "ones are wrong answers that this model sampled. With `imitation=3`, the loss also "
            "includes the cross-entropy of the chosen answers.",
            (PAIR_ACCURACY, EXACT_MATCH),
            {"pair accuracy": Goal(0.9), "exact match gained": Goal(0.1)},
            dpo,
        ),
        "dpo_gsm8k": Work(
            "dpo",
            "GSM8K solutions",
            "Pairs of a correct and a wrong solution of GSM8K problems. All seeds have the same "
            "held-out pairs. The intervals of single seeds are Wilson's. An accuracy of 0.5 is "
            "chance.",
            (PAIR_ACCURACY,),
            {},
            dpo_on_preferences,
            {"pair accuracy": 0.5},
            reads_preferences=True,
        ),
        "rl": Work(
            "rl",
            "ingredients",
            "The reward is the F1 over the fields of the JSON answer. Training starts after 9 steps "
            "of `sl_basic`.",
            (MEAN_REWARD,),
            {"mean reward before": Goal(0.2, 0.5), GAINED: Goal(0.2), P_OF_GAIN: Goal(most=0.01)},
            rl,
            NO_GAIN,
        ),
        "rl_arithmetic": Work(
            "rl",
            "arithmetic",
            "Arithmetic with one-digit numbers. The reward is 1 if the answer is the correct number "
            "and nothing else. Training starts after 3 steps of `sl_basic`.",
            (MEAN_REWARD,),
            {GAINED: Goal(0.2), P_OF_GAIN: Goal(most=0.01)},
            rl_on_arithmetic,
            NO_GAIN,
        ),
        "distillation": Work(
            "distillation",
            "ingredients",
            "Distillation with the forward KL, on 6 batches of 150 answers with 19 optimiser steps "
            "each. The teacher was trained for 100 steps of `sl_basic`, and the student starts "
            "after 15.",
            (
                Headline(
                    "reverse KL, nats per token",
                    "reverse KL after",
                    "reverse KL before, nats a token",
                ),
                EXACT_MATCH,
            ),
            {
                "exact match before": Goal(most=0.2),
                "share that is gone": Goal(0.8),
                "share of the teacher's": Goal(0.9),
            },
            distillation,
        ),
        "prompt_distillation": Work(
            "distillation_off_policy",
            "a system prompt",
            "Teacher and student are the same model. The teacher has a system prompt with the JSON "
            "schema and three examples, and the student has none. In 60 steps of `sl_basic`, the "
            "model has learned to follow that prompt.",
            (EXACT_MATCH,),
            {
                "exact match of the prompted teacher": Goal(0.5),
                "exact match gained": Goal(0.1),
                "share of the teacher's": Goal(0.9),
            },
            prompt_distillation,
        ),
        "guessing": Work(
            "rl",
            "guess a number",
            "A game of several turns. Every answer must be a number and nothing else. Training starts "
            "after 12 steps of `sl_basic` on games, 85 % of which have the number inside a "
            "sentence. The model learns to answer with the number alone. It hardly learns to follow "
            "the hints: random guesses without repetition would have a mean reward of 0.249, and "
            "random guesses that follow the hints 0.567.",
            (MEAN_REWARD,),
            {GAINED: Goal(0), P_OF_GAIN: Goal(most=0.05)},
            guessing,
            NO_GAIN,
        ),
        "guessing_on": Work(
            "rl",
            "guess a number, with hints",
            "The same game for 16 steps. Training starts from weights that already answer with the "
            "number alone, so only the hints remain to be learned. 120 games are held out instead "
            "of 60, and runs take longer than those of the other experiments.",
            (MEAN_REWARD,),
            {GAINED: Goal(0), P_OF_GAIN: Goal(most=0.05)},
            guessing_on,
            NO_GAIN,
            time=Goal(most=900),
        ),
        "tools": Work(
            "rl",
            "use a calculator",
            "Arithmetic in two steps, with a calculator tool. The reward is 1 if the tool returned "
            "the correct number and the model repeats it. Training starts after 10 steps of "
            "`sl_basic` on tool calls, two thirds of which compute only the first step. A system "
            "prompt describes the tool, because the chat template of this model does not support "
            "tools.",
            (MEAN_REWARD,),
            {"mean reward after": Goal(0.9), GAINED: Goal(0), P_OF_GAIN: Goal(most=0.05)},
            tools,
            NO_GAIN,
        ),
        "rlhf": Work(
            "rlhf",
            "ingredients",
            "The judge is trained on answers of the policy. Of four answers to a problem, at most "
            "two pairs are used, whose F1 differs by more than 0.3. The policy is then trained on "
            "the judge's preferences and measured by the true F1. The judge is that of "
            "`judge.says=answer`; with `letter`, no judge was above 0.69 on pairs of a half-trained "
            "model. Judge and policy start after 40 steps of `sl_basic` on data with an error: two "
            "thirds of the rows have the keys `size` and `item` instead of `unit` and `name`.",
            (
                Headline(
                    "accuracy of the judge", "accuracy of the judge", "accuracy of the judge before"
                ),
                MEAN_REWARD,
            ),
            {
                "accuracy of the judge": Goal(0.85),
                "shorter wins": Goal(most=0.65),
                "valid JSON wins": Goal(most=0.65),
                "how far the judge prefers new answers": Goal(0.5),
                "p of that": Goal(most=0.05),
                GAINED: Goal(0),
                P_OF_GAIN: Goal(most=0.05),
            },
            rlhf,
            NO_GAIN,
        ),
        "claims": Work(
            "claim_extraction",
            "packaged claims",
            "The held-out claims are on treatments and outcomes that the training data lacks, "
            "other wording also has other sentence patterns. The model cites only documents of the "
            "prompt after few steps. Which documents have evidence is harder, and hardest is "
            "whether evidence supports or refutes. Two seeds were run at a time, on one core each, "
            "beside other programs.",
            (
                Headline("documents exact", "documents exact"),
                Headline("whole answer right", "whole answer right"),
                Headline("relation right", "relation right"),
            ),
            {
                **{f"{CLAIM_MEASURES[name]}{FROM}": Goal(0.9) for name in EASY},
                "documents exact": Goal(0.6),
                "whole answer right": Goal(0.4),
                f"relation right beyond the majority{FROM}": Goal(0),
            },
            claims,
            time=Goal(most=720),
        ),
        "claims_by_line": Work(
            "claim_extraction",
            "packaged claims with weights by line",
            "The same with other weights of tokens: each token weighs 5 in claim 1, 2 in evidence and 1 in relations.",
            (
                Headline("documents exact", "documents exact"),
                Headline("whole answer right", "whole answer right"),
            ),
            {},
            claims_by_line,
            time=Goal(most=720),
        ),
        "claims_uniform": Work(
            "claim_extraction",
            "packaged claims with uniform weights",
            "The same with other weights of tokens: all tokens weigh alike.",
            (
                Headline("documents exact", "documents exact"),
                Headline("whole answer right", "whole answer right"),
            ),
            {},
            claims_uniform,
            time=Goal(most=720),
        ),
        "citation_penalty": Work(
            "claim_extraction",
            "citation penalty",
            "After 30 steps without a penalty, training continues for 40 steps with the penalty and "
            "without it. Eight answers to each held-out claim are sampled at temperature 1; those "
            "that cite a document which the prompt lacks are counted.",
            (
                Headline(
                    "answers with an invalid citation",
                    "invalid with the penalty",
                    "invalid without the penalty",
                    "fall by the penalty",
                ),
            ),
            {"invalid before": Goal(0.05), f"fall by the penalty{FROM}": Goal(0)},
            citation_penalty,
            time=Goal(most=720),
        ),
    }
)


def settings_of(work: str) -> str:
    """Return a digest of everything here that determines how a work is run and measured."""
    return f"{crc32(json.dumps(parts_of(work), sort_keys=True).encode()):08x}"


def parts_of(work: str) -> Mapping[str, str]:
    """Return the code of a work's function and of all in this module that it uses, by name."""
    text = Path(__file__).read_text()
    body = ast.parse(text).body
    parts: dict[str, ast.stmt] = {}
    for statement in body:
        # a class stands for its methods
        for each in statement.body if isinstance(statement, ast.ClassDef) else [statement]:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                parts[each.name] = each
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    parts[target.id] = statement
    found, left = dict[str, str](), [WORKS[work].measure.__name__]
    while left:
        if (name := left.pop()) in parts and name not in found:
            found[name] = ast.dump(_without_docstring(parts[name]))
            inside = list(ast.walk(parts[name]))
            left += [each.id for each in inside if isinstance(each, ast.Name)]
            left += [each.attr for each in inside if isinstance(each, ast.Attribute)]
    return found


def _without_docstring(node: ast.stmt) -> ast.stmt:
    """Drop the docstring of a function, so that its wording is not part of the stamp."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
        node.body = node.body[1:]
    return node
