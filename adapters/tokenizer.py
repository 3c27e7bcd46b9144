"""The Tokenizer port over a tokenizer of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from adapters.folders import CONFIG as ADAPTER_CONFIG
from adapters.folders import (
    is_adapter,
    model_config,
    read_config,
    require_base_model,
    tokenizer_files,
    why_not_opened,
)
from adapters.template_limits import TemplateLimitError, start_rendering
from kitchen.errors import BackendError, ConfigError, DataError, did_you_mean
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
MAX_VOCABULARY = 2**31  # token ids, where the configuration does not have their number
# names that templates read, and that transformers sets
_NOT_VARIABLES = frozenset(
    {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"}
    | {"bos_token", "eos_token", "unk_token", "pad_token"}
)


def fetch_tokenizer(hub: HubClient, model: str) -> FolderTokenizer:
    """Fetch a model, or an adapter and its base, and open its tokenizer; raises BackendError."""
    folder = hub.fetch(model)
    base = hub.fetch(require_base_model(model, folder)) if is_adapter(folder) else None
    return load_tokenizer(folder, base)


def fetch_tokenizer_alone(hub: HubClient, model: str) -> FolderTokenizer:
    """Open the tokenizer of a model whose weights are on a server, and are not fetched.

    Raises BackendError.
    """
    if ":" in model:  # a folder on this disk
        return fetch_tokenizer(hub, model)
    paths = [path for path in hub.files(model) if not path.endswith(".safetensors")]
    at_root = [path for path in paths if "/" not in path]
    if ADAPTER_CONFIG in at_root or not at_root:
        return fetch_tokenizer(hub, model)
    folders = [hub.file(model, path).parent for path in at_root]
    return load_tokenizer(folders[0])


def load_tokenizer(folder: Path, base: Path | None = None) -> FolderTokenizer:
    """Open the tokenizer of a model's folder without loading the model; raises BackendError.

    If an adapter's folder has no tokenizer, that of the `base` model is used. The stop tokens are
    those of the base model in both cases.
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
        inner = AutoTokenizer.from_pretrained(
            source, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        reason = f"{source} has no tokenizer files"
        if tokenizer_files(source):
            reason = why_not_opened(source, error)
        raise BackendError(f"no tokenizer can be opened: {reason}") from error
    return FolderTokenizer(inner, source, base or folder)


class FolderTokenizer:
    """Text to token ids and back, as the model was trained to read it."""

    def __init__(self, inner: Any, folder: Path, model: Path, template: str | None = None) -> None:
        self._inner, self._folder, self._model = inner, folder, model
        self._own_template = template  # in place of the tokenizer's
        self.stop_ids = _stop_ids(inner, model)
        config = model_config(model)
        self.model_vocabulary = _positive(config, "vocab_size")
        self.context_length = _positive(config, "max_position_embeddings", "n_positions")

    def _check_ids(self, ids: Sequence[int]) -> None:
        size = max(self.vocabulary, self.model_vocabulary or MAX_VOCABULARY)
        if ids and not 0 <= min(ids) <= max(ids) < size:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise BackendError(
                f"{self._model}: there is no token id {wrong} in its vocabulary of {size} tokens; "
                "do the tokenizer and the model that sampled it belong together?"
            )

    def named(self, name: str) -> FolderTokenizer:
        """Return a tokenizer whose errors give this name in place of its folder."""
        tokenizer = copy(self)
        tokenizer._folder = tokenizer._model = Path(name)
        return tokenizer

    def with_template(self, template: str) -> FolderTokenizer:
        """Return a tokenizer with this chat template; raises ConfigError if it is not Jinja."""
        _check_syntax(template)
        tokenizer = copy(self)
        tokenizer._own_template = template
        return tokenizer

    @property
    def inner(self) -> Any:
        """The tokenizer of transformers."""
        return self._inner

    @property
    def chat_template(self) -> str | None:
        """The chat template in Jinja; None if there is none."""
        return self._template(None) if self.chat else None

    @property
    def chat(self) -> bool:
        return bool(self._own_template or self._inner.chat_template)

    @property
    def tools(self) -> bool:
        """True if the chat template reads the variable in which transformers passes tools."""
        from adapters.chat_template import variables

        return self.chat and "tools" in variables(self._template([{}]))

    @property
    def end_id(self) -> int:
        """The end-of-sequence token; raises DataError if the tokenizer has none."""
        if self._inner.eos_token_id is None:
            raise DataError(
                f"{self._folder}: the tokenizer has no end-of-sequence token; name one in its "
                "tokenizer_config.json (eos_token)"
            )
        return int(self._inner.eos_token_id)

    @property
    def vocabulary(self) -> int:
        return len(self._inner)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: no token stands for more of a text."""
        return max(map(len, self._inner.get_vocab()))

    def encode(self, text: str, *, special: bool = False) -> Tokens:
        """Return (T,) ids; never with an end-of-sequence token behind the text.

        `special` adds no tokens before a text that begins with them, as rendered prompts do.
        """
        ids = np.asarray(self._inner.encode(text, add_special_tokens=False), np.int64)
        before, after = self.added_tokens
        if not special or (before and ids[: len(before)].tolist() == before):
            return ids
        ids = np.asarray(self._inner.encode(text, add_special_tokens=True), np.int64)
        return ids[: len(ids) - len(after)]

    @cached_property
    def added_tokens(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer adds before and behind a text."""
        plain = self._inner.encode("a", add_special_tokens=False)
        special = self._inner.encode("a", add_special_tokens=True)
        starts = range(len(special) - len(plain) + 1) if plain else ()
        for at in starts:
            end = at + len(plain)
            if special[at:end] == plain:
                return special[:at], special[end:]
        return [], []

    def decode(self, tokens: Tokens | Sequence[int], *, special: bool = False) -> str:
        """Return the text; `special` writes special tokens out, as stop strings may name them.

        Raises BackendError for ids that the model does not have; transformers would leave them out.
        """
        ids = list(map(int, tokens))
        self._check_ids(ids)
        text = self._inner.decode(
            ids,
            skip_special_tokens=not special,
            clean_up_tokenization_spaces=False,
        )
        return str(text)

    def render(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[ToolSchema] = (),
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Tokens:
        """Return (T,) ids; raises DataError as `render_text` does."""
        text = self.render_text(
            messages, answer=answer, tools=tools, chat_template_kwargs=chat_template_kwargs
        )
        ids = self.encode(text)
        # a template that writes the beginning of a sequence, and a message that begins with it
        start = self._inner.bos_token_id
        return ids[1:] if start is not None and ids[:2].tolist() == [start, start] else ids

    def render_text(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[ToolSchema] = (),
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Apply the chat template.

        Raises DataError without a template, or if it refuses the messages or fails on them. A
        template that writes the date writes the same one every day: otherwise a run that is
        resumed tomorrow would read other tokens.
        """
        if tools and not self.tools:
            raise DataError(f"{self._folder}: the chat template has no place for tools")
        if not self.chat:
            raise DataError(
                f"{self._folder}: the tokenizer has no chat template, so conversations cannot be "
                "rendered; choose an instruct model, set a template (rendering.template=FILE), or "
                "use data of prompts and completions"
            )
        schemas = [dict(tool) for tool in tools] or None
        template = self._template(schemas)
        _check_variables(template, chat_template_kwargs)
        try:
            return self._apply(
                template,
                [dict(message) for message in messages],
                tools=schemas,
                add_generation_prompt=answer,
                **chat_template_kwargs,
            )
        except TemplateLimitError as error:
            raise self._limit_error(error) from error
        except Exception as error:  # an expression of a template can raise anything
            raise DataError(f"{self._template_source}: {_template_problem(error)}") from error

    def _limit_error(self, error: TemplateLimitError) -> BackendError | ConfigError:
        kind = BackendError if self._own_template is None else ConfigError
        return kind(
            f"{self._template_source}: the chat template {error}, so it may never end; correct "
            "the template, or set another one (rendering.template=FILE)"
        )

    def _apply(self, template: str, messages: Sequence[Message], /, **options: Any) -> str:
        """Return the text of a template; raises what the template raises."""
        from adapters.chat_template import limited

        start_rendering()
        tree: Any = limited(template)
        return str(
            self._inner.apply_chat_template(messages, tokenize=False, chat_template=tree, **options)
        )

    @property
    def _template_source(self) -> str:
        return str(self._folder) if self._own_template is None else "rendering.template"

    def _template(self, tools: Sequence[Any] | None) -> str:
        """Return the chat template; raises BackendError if there are several and no default."""
        if self._own_template is not None:
            return self._own_template
        try:
            return str(self._inner.get_chat_template(tools=tools))
        except ValueError as error:
            names = ", ".join(self._inner.chat_template)
            raise BackendError(
                f"{self._folder}: the tokenizer has several chat templates ({names}), and none is "
                "called default; rename one of them, or set a template (rendering.template=FILE)"
            ) from error


def _template_problem(error: Exception) -> str:
    """Return how a chat template failed, with its line; the words are its own if it refused."""
    from jinja2.exceptions import TemplateError

    if isinstance(error, TemplateError):
        return f"the chat template refuses the conversation: {error}"
    frame, lines = error.__traceback__, []
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            lines.append(frame.tb_lineno)
        frame = frame.tb_next
    place = f" in its line {lines[-1]}" if lines else ""
    return (
        f"the chat template fails on the conversation{place}: {type(error).__name__}: {error}; "
        "correct the row, or set another template (rendering.template=FILE)"
    )


def _check_syntax(template: str) -> None:
    """Raise ConfigError for a template that is not Jinja."""
    from adapters.chat_template import parse_error

    if problem := parse_error(template):
        raise ConfigError(f"rendering.template is not a Jinja template: {problem}")


def _check_variables(template: str, names: Iterable[str]) -> None:
    """Raise DataError for a variable that a template does not read."""
    from adapters.chat_template import variables

    for name in names:
        known = variables(template) - _NOT_VARIABLES
        if name not in known:
            raise DataError(
                f"chat_template_kwargs.{name} is not read by the chat template; "
                f"{did_you_mean(name, known)}"
            )


def _positive(config: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these sizes in a model's configuration; None if it has none."""
    sizes = (config.get(name) for name in names)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def _stop_ids(inner: Any, folder: Path) -> tuple[int, ...]:
    """Collect the stop tokens of the tokenizer, the generation settings and the chat format."""
    vocabulary = inner.get_vocab()
    candidates = [inner.eos_token_id]
    for file in ("generation_config.json", "config.json"):
        if (folder / file).is_file():
            ids = read_config(folder, file, "model").get("eos_token_id")
            candidates += ids if isinstance(ids, list) else [ids]
    candidates += [vocabulary.get(end) for end in TURN_ENDS]
    return tuple(dict.fromkeys(int(token_id) for token_id in candidates if token_id is not None))
