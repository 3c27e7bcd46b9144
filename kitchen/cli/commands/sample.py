"""`kitchen sample`: completions of one prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from kitchen.artifacts.completions import CompletionRequest, complete
from kitchen.artifacts.open import NO_TEMPLATE_REASON, open_weights
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.cli.commands.json_output import print_json
from kitchen.cli.console import console
from kitchen.cli.waits import showing_waits
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.secrets import printable
from kitchen.types import Sampled


def sample(weights: str, request: CompletionRequest, adapters: AdapterChoice, *, json: bool) -> int:
    """Print the completions of a prompt; the prompt "-" is read from standard input."""
    if request.prompt == "-":
        request = replace(request, prompt=sys.stdin.read().removesuffix("\n"))
    streams = sys.stdout.isatty() and request.count == 1 and not json
    with (
        showing_waits(f"Opening {weights}") as opening_is_over,
        open_weights(weights, adapters) as opened,
    ):

        def show(text: str) -> None:
            opening_is_over()
            print(printable(text), end="", flush=True)

        completions = complete(opened, request, show if streams else None)
        is_text = isinstance(opened.tokenizer(), TextTokenizer)
    if streams:
        print(flush=True)
    if completions.no_template == NO_TEMPLATE_REASON:
        _print_note(f"without the chat template: {NO_TEMPLATE_REASON}")
    texts, sampled = completions.texts, completions.sampled
    if json:
        print_json(_summary(opened.weights.name, request.prompt, texts, sampled))
    else:
        limit = None if is_text else request.params.max_tokens
        _print_completions(() if streams else texts, sampled, limit)
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
    texts: Sequence[str], completions: Sequence[Sampled], max_tokens: int | None
) -> None:
    """Print texts, unless they are there already, and which of them were cut.

    `max_tokens` is None for a sampler of text, whose tokens are not counted here.
    """
    for number, completion in enumerate(completions, 1):
        if len(completions) > 1:
            print("\n" * (number > 1) + f"[{number}/{len(completions)}]")
        if texts:
            print(printable(texts[number - 1]), flush=True)
        if completion.stop_reason == "length":
            _print_length_note(len(completion.tokens), max_tokens)


def _print_length_note(tokens: int, max_tokens: int | None) -> None:
    if max_tokens is None:
        _print_note("incomplete: at the limit of tokens (--max-tokens allows more), or refused")
        return
    reason = ": the model's context is full"
    if tokens == max_tokens:
        reason = "; --max-tokens allows more"
    _print_note(f"truncated at {tokens} tokens{reason}")


def _print_note(text: str) -> None:
    console(to_stderr=True).print(f"({text})", style="dim", soft_wrap=True)
