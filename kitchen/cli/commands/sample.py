"""`kitchen sample`."""

from __future__ import annotations

import sys

from kitchen.artifacts.open import (
    NO_TEMPLATE_REASON,
    SamplingParams,
    answer_text,
    open_weights,
    prompt_tokens,
)
from kitchen.cli.commands.failure import as_json
from kitchen.cli.console import console, printable
from kitchen.config.request import AdapterChoice
from kitchen.types import Sampled


def sample(
    typed: str,
    prompt: str,
    adapter_choice: AdapterChoice,
    how: SamplingParams,
    *,
    count: int,
    system: str,
    raw: bool,
    json: bool,
) -> int:
    """Completions of one prompt, "-" being standard input."""
    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    with open_weights(typed, adapter_choice) as opened:
        tokenizer = opened.tokenizer()
        joined = opened.separator(tokenizer)
        past = (
            "--raw passes it by"
            if raw
            else NO_TEMPLATE_REASON
            if tokenizer.chat and joined is not None
            else ""
        )
        tokens = prompt_tokens(text, tokenizer, system, raw=past)
        with opened.sampler() as sampler:
            drawn = sampler.sample(
                tokens,
                count=count,
                max_tokens=how.max_tokens,
                temperature=how.temperature,
                top_p=how.top_p,
                seed=how.seed,
            ).result()
    if past == NO_TEMPLATE_REASON:
        console(to_stderr=True).print(
            f"(without the chat template: {past})", style="dim", soft_wrap=True
        )
    texts = [
        answer_text(each.tokens, tokenizer).removeprefix("" if raw else joined or "")
        for each in drawn
    ]
    if json:
        answers = [
            {"text": each, "stop_reason": one.stop_reason, "tokens": len(one.tokens)}
            for each, one in zip(texts, drawn, strict=True)
        ]
        print(
            as_json(
                {
                    "weights": opened.weights.name,
                    "prompt": text,
                    "completions": answers,
                    "exit_code": 0,
                }
            )
        )
        return 0
    for number, (each, one) in enumerate(zip(texts, drawn, strict=True), 1):
        if count > 1:
            print("\n" * (number > 1) + f"[{number}/{count}]")
        print(printable(each), flush=True)
        _say_cut(one, how)
    return 0


def _say_cut(one: Sampled, how: SamplingParams) -> None:
    if one.stop_reason == "length":
        why = f"cut at {len(one.tokens)} tokens"
        mend = (
            "; --max-tokens allows more"
            if len(one.tokens) == how.max_tokens
            else ": the model's context is full"
        )
        console(to_stderr=True).print(f"({why}{mend})", style="dim", soft_wrap=True)
