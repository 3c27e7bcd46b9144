"""`kitchen sample`: completions of one prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from kitchen.artifacts.open import (
    NO_TEMPLATE_REASON,
    SamplingParams,
    answer_text,
    open_weights,
    prompt_tokens,
)
from kitchen.cli.commands.json_output import as_json
from kitchen.cli.console import console
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.secrets import printable
from kitchen.types import Sampled


@dataclass(frozen=True)
class SampleRequest:
    """The arguments of `kitchen sample`."""

    weights: str
    prompt: str  # "-": standard input
    params: SamplingParams
    count: int = 1
    system: str = ""
    raw: bool = False  # without the chat template


def sample(request: SampleRequest, adapters: AdapterChoice, *, json: bool) -> int:
    """Print the completions of a prompt."""
    prompt = request.prompt
    if prompt == "-":
        prompt = sys.stdin.read().removesuffix("\n")
    with open_weights(request.weights, adapters) as opened:
        tokenizer = opened.tokenizer()
        separator = opened.separator(tokenizer)
        no_template = "--raw turns it off" if request.raw else ""
        if not request.raw and tokenizer.chat and separator is not None:
            no_template = NO_TEMPLATE_REASON
        tokens = prompt_tokens(
            prompt,
            tokenizer,
            request.system,
            raw=no_template,
            chat_template_kwargs=opened.chat_template_kwargs,
        )
        with opened.sampler() as sampler:
            completions = sampler.sample(
                tokens,
                count=request.count,
                max_tokens=request.params.max_tokens,
                temperature=request.params.temperature,
                top_p=request.params.top_p,
                seed=request.params.seed,
            ).result()
    if no_template == NO_TEMPLATE_REASON:
        _print_note(f"without the chat template: {no_template}")
    prefix = "" if request.raw else separator or ""
    texts = [
        answer_text(completion.tokens, tokenizer).removeprefix(prefix) for completion in completions
    ]
    if json:
        print(as_json(_summary(opened.weights.name, prompt, texts, completions)))
    else:
        _print_completions(texts, completions, request.params.max_tokens)
    return 0


def _summary(
    weights: str, prompt: str, texts: Sequence[str], completions: Sequence[Sampled]
) -> dict[str, object]:
    listed = [
        {"text": text, "stop_reason": completion.stop_reason, "tokens": len(completion.tokens)}
        for text, completion in zip(texts, completions, strict=True)
    ]
    return {"weights": weights, "prompt": prompt, "completions": listed, "exit_code": 0}


def _print_completions(
    texts: Sequence[str], completions: Sequence[Sampled], max_tokens: int
) -> None:
    for number, (text, completion) in enumerate(zip(texts, completions, strict=True), 1):
        if len(texts) > 1:
            print("\n" * (number > 1) + f"[{number}/{len(texts)}]")
        print(printable(text), flush=True)
        if completion.stop_reason == "length":
            _print_length_note(len(completion.tokens), max_tokens)


def _print_length_note(tokens: int, max_tokens: int) -> None:
    reason = ": the model's context is full"
    if tokens == max_tokens:
        reason = "; --max-tokens allows more"
    _print_note(f"truncated at {tokens} tokens{reason}")


def _print_note(text: str) -> None:
    console(to_stderr=True).print(f"({text})", style="dim", soft_wrap=True)
