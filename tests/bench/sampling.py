"""Sampling from long prompts, many completions at once and a single one, against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kitchen.ports.sampling import Sampler
from kitchen.types import Sampled, Tokens
from tests.bench import kitchen_side, rows, trl_side
from tests.bench.agreement import AgreementCheck
from tests.bench.benchmark import Benchmark, run_benchmark
from tests.bench.outcome import Target
from tests.bench.results import Options, Result
from tests.bench.turns import Setup, Turns

LENGTH = 64  # tokens of a completion
LOGPROB_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}  # nats; mean absolute difference
MAX_BIAS = 0.02  # nats; mean difference
PAIRS = {1: 8, 32: 3}  # by number of completions per step
NOTES = (
    "Each step has new prompts of 256 tokens. Temperature 1, without top-k or top-p. Only "
    "generated tokens count. generate() always generates 64; the kitchen may stop earlier, and "
    "tokens/s takes that into account.",
    "Checked before the measurement, on the prompts of the first step: their mean log-probability "
    'in nats ("scored"), and the fraction of tokens in which greedy completions differ ("greedy", '
    "in float32 only). Log-probabilities reported for sampled completions must match scored ones "
    f"within {LOGPROB_TOLERANCE['float32']} nats per token on average (bfloat16: "
    f"{LOGPROB_TOLERANCE['bfloat16']}), with a bias of at most {MAX_BIAS}.",
)


def sampling(options: Options, prompts: int, count: int, dtype: str) -> Result:
    """Compare tokens per second of `count` completions of each prompt."""
    single = prompts * count == 1
    setup = options.setup(PAIRS[prompts * count], dtype)
    workload = SamplingWorkload(setup, prompts, count)
    checks: tuple[AgreementCheck, ...] = (AgreementCheck("scored", 0.1),)
    if dtype == "float32":
        checks = (AgreementCheck("scored", 1e-3), AgreementCheck("greedy", 0.01))
    return run_benchmark(
        Benchmark(
            f"sampling_{prompts * count}_{dtype}",
            f"Sampling, {prompts} × {count} completions, 256 + 64 tokens, {dtype}",
            KitchenSampling(workload),
            (
                TransformersSampling(workload),
                TransformersSampling(workload, "generate() merged", merged=True),
            ),
            checks,
            Target(1.3, 2.0) if single else Target(2.5, 4.0),
            notes=NOTES,
        ),
        options,
        setup.steps,
    )


@dataclass(frozen=True)
class SamplingWorkload:
    """The prompts of each step, and the number of completions of each prompt."""

    setup: Setup
    prompts: int
    count: int

    def steps(self) -> list[Sequence[Tokens]]:
        prompts = rows.prompts(self.setup, self.setup.steps * self.prompts)
        starts = range(0, len(prompts), self.prompts)
        return [prompts[start : start + self.prompts] for start in starts]


@dataclass(frozen=True)
class KitchenSampling:
    """The local engine: one request per prompt, all submitted before the first is awaited."""

    workload: SamplingWorkload
    name: str = "kitchen"

    def run(self, turns: Turns) -> None:
        setup, count = self.workload.setup, self.workload.count
        session = kitchen_side.session(kitchen_side.client(setup), setup)
        sampler = session.snapshot().result()
        first_prompts = self.workload.steps()[0]
        turns.loaded()
        scores = [sampler.logprobs(prompt) for prompt in first_prompts]
        greedy = self._sample(sampler, first_prompts, count, temperature=0.0)
        agreement = {
            "scored": float(np.concatenate([score.result()[1:] for score in scores]).mean()),
            "greedy": [completion.tokens.tolist() for completion in greedy],
        }
        logprob_errors = self._logprob_errors(sampler, first_prompts)
        for number, prompts in enumerate(self.workload.steps()):
            turns.wait()
            completions = self._sample(sampler, prompts, count, seed=number)
            turns.stop()
            generated = sum(len(completion.tokens) for completion in completions)
            turns.report(tokens=generated, **agreement, **logprob_errors)

    @staticmethod
    def _sample(
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
        return [completion for future in futures for completion in future.result()]

    def _logprob_errors(self, sampler: Sampler, prompts: Sequence[Tokens]) -> dict[str, float]:
        """Compare reported with scored log-probabilities, in nats per token."""
        completions = self._sample(sampler, prompts, self.workload.count)
        repeated_prompts = [prompt for prompt in prompts for _ in range(self.workload.count)]
        pairs = list(zip(repeated_prompts, completions, strict=True))
        scores = [
            sampler.logprobs(np.concatenate([prompt, completion.tokens]))
            for prompt, completion in pairs
        ]
        differences = [
            completion.logprobs - score.result()[len(prompt) :]
            for (prompt, completion), score in zip(pairs, scores, strict=True)
        ]
        all_differences = np.concatenate(differences)
        error, bias = float(np.abs(all_differences).mean()), float(all_differences.mean())
        tolerance = LOGPROB_TOLERANCE[self.workload.setup.dtype]
        if not (error <= tolerance and abs(bias) <= MAX_BIAS):
            raise RuntimeError(
                "the reported log-probabilities of completions differ from scored ones by "
                f"{error:.4f} nats per token on average (bias {bias:+.4f})"
            )
        return {"drawn_off": error, "drawn_more": bias}


@dataclass(frozen=True)
class TransformersSampling:
    """transformers: one call of generate() for all sequences."""

    workload: SamplingWorkload
    name: str = "generate()"
    merged: bool = False  # LoRA merged into the weights
    static: bool = False  # static KV cache; generate() then compiles the model on CUDA

    def run(self, turns: Turns) -> None:
        import torch

        torch.manual_seed(self.workload.setup.seed)
        model = self._model()
        first_prompts, count = self.workload.steps()[0], self.workload.count
        turns.loaded()
        agreement = {
            "scored": self._mean_logprob(model, first_prompts),
            "greedy": self._generate(model, first_prompts, count, do_sample=False),
        }
        for prompts in self.workload.steps():
            turns.wait()
            completions = self._generate(
                model, prompts, count, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
            )
            turns.stop()
            turns.report(tokens=sum(map(len, completions)), **agreement)

    @staticmethod
    def _mean_logprob(model: Any, prompts: Sequence[Tokens]) -> float:
        import torch

        ids = torch.from_numpy(np.stack(prompts)).to(model.device)
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(input_ids=ids).logits[:, :-1].float(), -1)
        return float(logprobs.gather(2, ids[:, 1:, None]).mean())

    def _model(self) -> Any:
        from peft import PeftModel

        setup = self.workload.setup
        model: Any = PeftModel.from_pretrained(
            trl_side.base_model(setup), str(setup.folder / kitchen_side.START)
        )
        model = model.merge_and_unload() if self.merged else model
        model.generation_config.eos_token_id = None  # no completion stops early
        return model.eval()

    def _generate(
        self, model: Any, prompts: Sequence[Tokens], count: int, **options: Any
    ) -> list[list[int]]:
        import torch

        ids = torch.from_numpy(np.stack(prompts).repeat(count, 0)).to(model.device)
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=LENGTH,
                pad_token_id=0,
                cache_implementation="static" if self.static else None,
                **options,
            )
        completions: list[list[int]] = output[:, ids.shape[1] :].tolist()
        return completions
