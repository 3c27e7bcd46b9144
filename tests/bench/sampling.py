"""Sampling: completions of long prompts, many at once and one alone, against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kitchen.ports.sampling import Sampler
from kitchen.types import Sampled, Tokens
from tests.bench import kitchen_side, rows, trl_side
from tests.bench.contest import Contest, Goal, Same, hold
from tests.bench.results import Order, Result
from tests.bench.turns import Setup, Turns

LENGTH = 64  # tokens of a completion
DRAWN = {"float32": 1e-4, "bfloat16": 0.1}  # nats; mean absolute difference
BIAS = 0.02  # nats; mean difference
PAIRS = {1: 8, 32: 3}  # by number of completions per step
ABOUT = (
    "each step has prompts of its own, of 256 tokens; temperature 1, nothing cut off; tokens are "
    "those that were "
    "written: generate() does not stop before 64, ours may, which the tokens a second allow for",
    "scored: the mean log-probability of the prompts of the first step, nats; greedy: as many "
    "completions of them "
    "as are timed, the share of tokens that differ, which in bfloat16 says nothing; both before "
    "the clock; so are "
    "completions drawn at temperature 1: what they say they were drawn with is on average, either "
    "way, within "
    f"{DRAWN['float32']} nats a token (bfloat16: {DRAWN['bfloat16']}) of what the same weights "
    "score them with, "
    f"and on the whole within {BIAS}",
)


def sampling(order: Order, prompts: int, count: int, dtype: str) -> Result:
    """Compare tokens per second of `count` completions of each prompt."""
    alone = prompts * count == 1
    setup = order.setup(PAIRS[prompts * count], dtype)
    asked = Asked(setup, prompts, count)
    return hold(
        Contest(
            f"sampling_{prompts * count}_{dtype}",
            f"Sampling, {prompts} × {count} completions, 256 + 64 tokens, {dtype}",
            KitchenSampling(asked),
            (Generate(asked), Generate(asked, "generate() merged", merged=True)),
            (Same("scored", 1e-3), Same("greedy", 0.01))
            if dtype == "float32"
            else (Same("scored", 0.1),),
            Goal(1.3, 2.0) if alone else Goal(2.5, 4.0),
            about=ABOUT,
        ),
        order,
        setup.steps,
    )


@dataclass(frozen=True)
class Asked:
    """The prompts and sampling options of a step."""

    setup: Setup
    prompts: int
    count: int

    def steps(self) -> list[Sequence[Tokens]]:
        found = rows.prompts(self.setup, self.setup.steps * self.prompts)
        return [found[start : start + self.prompts] for start in range(0, len(found), self.prompts)]


@dataclass(frozen=True)
class KitchenSampling:
    """The local engine: one request per prompt, all made before the first is awaited."""

    asked: Asked
    name: str = "kitchen"

    def run(self, turns: Turns) -> None:
        opened = kitchen_side.session(kitchen_side.client(self.asked.setup), self.asked.setup)
        sampler = opened.snapshot().result()
        first, count = self.asked.steps()[0], self.asked.count
        turns.loaded()
        found = [future.result()[1:] for future in [sampler.logprobs(prompt) for prompt in first]]
        greedy = self._drawn(sampler, first, count, temperature=0.0)
        same = {
            "scored": float(np.concatenate(found).mean()),
            "greedy": [one.tokens.tolist() for one in greedy],
        }
        drawn = self._drawn_as_scored(sampler, first)
        for number, prompts in enumerate(self.asked.steps()):
            turns.wait()
            written = self._drawn(sampler, prompts, count, seed=number)
            turns.stop()
            turns.tell(tokens=sum(len(one.tokens) for one in written), **same, **drawn)

    @staticmethod
    def _drawn(
        sampler: Sampler,
        prompts: Sequence[Tokens],
        count: int,
        *,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> list[Sampled]:
        futures = [
            sampler.sample(
                prompt, count=count, max_tokens=LENGTH, temperature=temperature, seed=seed
            )
            for prompt in prompts
        ]
        return [one for future in futures for one in future.result()]

    def _drawn_as_scored(self, sampler: Sampler, prompts: Sequence[Tokens]) -> dict[str, float]:
        """Return the gap between sampled and scored log-probabilities, in nats per token."""
        drawn = self._drawn(sampler, prompts, self.asked.count)
        both = list(
            zip([prompt for prompt in prompts for _ in range(self.asked.count)], drawn, strict=True)
        )
        scored = [sampler.logprobs(np.concatenate([prompt, one.tokens])) for prompt, one in both]
        gap = np.concatenate(
            [
                one.logprobs - found.result()[len(prompt) :]
                for (prompt, one), found in zip(both, scored, strict=True)
            ]
        )
        off, more = float(np.abs(gap).mean()), float(gap.mean())
        if not (off <= DRAWN[self.asked.setup.dtype] and abs(more) <= BIAS):
            raise RuntimeError(
                f"completions say they were drawn with log-probabilities that are {off:.4f} nats a "
                f"token off, and {more:+.4f} on the whole"
            )
        return {"drawn_off": off, "drawn_more": more}


@dataclass(frozen=True)
class Generate:
    """transformers: one call of generate() for all sequences."""

    asked: Asked
    name: str = "generate()"
    merged: bool = False  # LoRA added into the weights

    def run(self, turns: Turns) -> None:
        import torch

        torch.manual_seed(self.asked.setup.seed)
        model = self._model()
        first, count = self.asked.steps()[0], self.asked.count
        turns.loaded()
        same = {
            "scored": self._scored(model, first),
            "greedy": self._written(model, first, count, do_sample=False),
        }
        for prompts in self.asked.steps():
            turns.wait()
            written = self._written(
                model, prompts, count, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
            )
            turns.stop()
            turns.tell(tokens=sum(map(len, written)), **same)

    @staticmethod
    def _scored(model: Any, prompts: Sequence[Tokens]) -> float:
        import torch

        ids = torch.from_numpy(np.stack(prompts)).to(model.device)
        with torch.inference_mode():
            found = torch.log_softmax(model(input_ids=ids).logits[:, :-1].float(), -1)
        return float(found.gather(2, ids[:, 1:, None]).mean())

    def _model(self) -> Any:
        from peft import PeftModel

        setup = self.asked.setup
        model: Any = PeftModel.from_pretrained(
            trl_side.base_model(setup), str(setup.folder / kitchen_side.START)
        )
        model = model.merge_and_unload() if self.merged else model
        model.generation_config.eos_token_id = None  # so that none stops early
        return model.eval()

    @staticmethod
    def _written(model: Any, prompts: Sequence[Tokens], count: int, **how: Any) -> list[list[int]]:
        import torch

        ids = torch.from_numpy(np.stack(prompts).repeat(count, 0)).to(model.device)
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=LENGTH,
                pad_token_id=0,
                **how,
            )
        found: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return found
