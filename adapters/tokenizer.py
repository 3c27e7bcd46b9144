"""The Tokenizer port over a tokenizer of transformers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from adapters.folders import demand_base, is_adapter, read_config, tokenizer_files
from kitchen.errors import BackendError, DataError
from kitchen.ports.hub import HubClient
from kitchen.ports.sampling import Message, ToolSchema
from kitchen.types import Tokens

TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endofturn|>",
    "<turn|>",
    "<|eom_id|>",
)
TODAY = datetime(2024, 7, 26)  # for templates: Llama 3's own is this where none is told


def fetched_tokenizer(hub: HubClient, model: str) -> FolderTokenizer:
    """Of the model's folder, which is fetched for it, or of an adapter's; raises BackendError."""
    folder = hub.fetch(model)
    return load_tokenizer(
        folder, hub.fetch(demand_base(model, folder)) if is_adapter(folder) else None
    )


def load_tokenizer(folder: Path, base: Path | None = None) -> FolderTokenizer:
    """Of a model's folder, without loading the model; raises BackendError where there is none.

    An adapter's folder may have one of its own; if not, it is that of the `base` model, whose
    answers end alike.
    """
    source = folder if base is None or tokenizer_files(folder) else base
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise BackendError(
            f"the package {error.name or 'transformers'} is missing: pip install "
            "'crucible-kitchen[local]'"
        ) from error
    try:
        inner = AutoTokenizer.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise BackendError(f"{source}: no tokenizer can be opened there: {error}") from error
    return FolderTokenizer(inner, source, base or folder)


class FolderTokenizer:
    """Text to ids and back, as the model was trained to read it."""

    def __init__(self, inner: Any, folder: Path, model: Path) -> None:
        self._inner, self._folder = inner, folder
        self.stop_ids = _stop_ids(inner, model)

    @property
    def chat(self) -> bool:
        return bool(self._inner.chat_template)

    @property
    def end_id(self) -> int:
        """The end-of-sequence token; raises DataError where the tokenizer has none."""
        if self._inner.eos_token_id is None:
            raise DataError(
                f"{self._folder}: the tokenizer has no end-of-sequence token; name one in its "
                "tokenizer_config.json (eos_token)"
            )
        return int(self._inner.eos_token_id)

    @property
    def vocabulary(self) -> int:
        return len(self._inner)

    def encode(self, text: str, *, special: bool = False) -> Tokens:
        """(T,) ids."""
        return np.asarray(self._inner.encode(text, add_special_tokens=special), np.int64)

    def decode(self, tokens: Tokens) -> str:
        return str(
            self._inner.decode(
                list(map(int, tokens)), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def spell(self, tokens: Sequence[int]) -> str:
        """The text with special tokens written out, which stop strings are looked for in."""
        return str(
            self._inner.decode(
                list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    @property
    def tools(self) -> bool:
        """Whether its chat template reads the variable by which transformers hands tools to it."""
        return self.chat and _reads_tools(self._inner.get_chat_template(tools=[{}]))

    def render(
        self, messages: Sequence[Message], *, answer: bool = False, tools: Sequence[ToolSchema] = ()
    ) -> Tokens:
        """(T,) ids; raises DataError where there is no chat template, or where it refuses the
        conversation.

        A template that writes the date has the same one every day, or a run that goes on tomorrow
        would read others.
        """
        if tools and not self.tools:
            raise DataError(f"{self._folder}: the chat template has no place for tools")
        if not self.chat:
            raise DataError(
                f"{self._folder}: the tokenizer has no chat template, so conversations cannot be "
                "rendered; "
                "choose an instruct model, or data of prompts and completions"
            )
        from jinja2.exceptions import TemplateError

        listed = [dict(tool) for tool in tools] or None
        try:
            ids = self._inner.apply_chat_template(
                [dict(message) for message in messages],
                tools=listed,
                tokenize=True,
                add_generation_prompt=answer,
                return_dict=False,
                chat_template=_dated(self._inner.get_chat_template(tools=listed)),
            )
        except TemplateError as error:
            raise DataError(
                f"{self._folder}: the chat template refuses the conversation: {error}"
            ) from error
        return np.asarray(ids, np.int64)


@cache
def _dated(template: str) -> str:
    """With TODAY where it asks for the time (transformers takes no function of ours for that)."""
    return re.sub(
        r"""strftime_now\(\s*(["'])([^"']*)\1\s*\)""",
        lambda asked: repr(TODAY.strftime(asked[2])),
        template,
    )


@cache
def _reads_tools(template: str) -> bool:
    from jinja2 import Environment, TemplateSyntaxError
    from jinja2.ext import loopcontrols
    from jinja2.meta import find_undeclared_variables

    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)  # a word of transformers' own
    try:
        return "tools" in find_undeclared_variables(
            Environment(extensions=[loopcontrols]).parse(plain)
        )
    except TemplateSyntaxError:  # `render` says what is wrong with it
        return False


def _stop_ids(inner: Any, folder: Path) -> tuple[int, ...]:
    """The tokenizer's end, those of the generation settings, and the ends of turn that it has as
    single tokens.
    """
    found = [inner.eos_token_id]
    for file in ("generation_config.json", "config.json"):
        named = (
            read_config(folder, file, "model").get("eos_token_id")
            if (folder / file).is_file()
            else None
        )
        found += named if isinstance(named, list) else [named]
    known = inner.get_vocab()
    found += [known.get(end) for end in TURN_ENDS]
    return tuple(dict.fromkeys(int(one) for one in found if one is not None))
