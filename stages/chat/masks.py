"""Loss masks of conversations, computed by rendering prefixes with the chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Literal, Protocol, TypeVar, get_args

import numpy as np

from kitchen.errors import DataError
from kitchen.ports.sampling import Tokenizer
from kitchen.types import Mask, Tokens
from stages.chat.conversations import Conversation
from stages.chat.joining import common_length, encode_continuation, starts_with
from stages.chat.left_out import missing_text, padded_answer, short
from stages.chat.messages import Message, message_to_dict
from stages.chat.row_fields import FLAGS, REASONING
from stages.chat.template import render_by_template, text_by_template

TrainOn = Literal[
    "last_assistant_message",
    "last_assistant_turn",
    "all_assistant_messages",
    "all_messages",
    "all_tokens",
    "all_user_and_system_messages",
    "trainable",
]
T_co = TypeVar("T_co", covariant=True)
TRAIN_ON: tuple[str, ...] = get_args(TrainOn)
MessageMask = tuple[bool, ...]  # one per message


class MaskError(DataError):
    """The tokens of one message cannot be located in the rendered conversation."""

    def __init__(self, text: str, message: int) -> None:
        super().__init__(text)
        self.message = message  # its index


@dataclass(frozen=True)
class MaskedTokens:
    """A rendered conversation, or a prefix of one, with its loss mask."""

    tokens: Tokens  # (T,)
    trained: Mask  # (T,)
    no_stop_token: int = 0  # trained-on answers that the template does not end with a stop token
    stripped: int = 0  # trained-on answers that lose white space at their ends
    split: bool = False  # a prefix for one turn, because the template rewrites earlier messages


class _Render(Protocol[T_co]):
    """Renders the first `count` messages and, with `answer`, the assistant's generation prompt."""

    def __call__(self, count: int, answer: bool = False, /) -> T_co: ...


@dataclass(frozen=True)
class Prefixes:
    """Prefixes of a rendered conversation, each rendered once; errors name the row's place."""

    tokens: _Render[Tokens]
    text: _Render[str]


def trained_messages(conversation: Conversation, train_on: TrainOn) -> MessageMask:
    """Select the messages to train on; raises DataError if there is none.

    The assistant's messages in the prompt are context. A turn is everything after a user or system
    message: the assistant's messages and those of its tools. The model does not write the messages
    of tools, so they are not trained on. A message that is marked takes precedence over `train_on`.
    A plain text is always trained on.
    """
    if conversation.plain_text:
        return (True,)
    _check_marks(conversation, train_on)
    messages = conversation.messages
    selected = [
        _selects(conversation, train_on, index) if message.trainable is None else message.trainable
        for index, message in enumerate(messages)
    ]
    if not any(selected):
        roles = ", ".join(message.role for message in messages)
        raise DataError(
            f"{conversation.where}: no message to train on with train_on={train_on!r}; the "
            f"messages are from: {roles}"
        )
    return tuple(selected)


def _check_marks(conversation: Conversation, train_on: TrainOn) -> None:
    excluded = any(message.trainable is False for message in conversation.messages)
    if train_on == "all_tokens" and excluded:
        raise DataError(
            f"{conversation.where}: train_on is 'all_tokens', but a message is marked as not to be "
            f"trained on (by one of {', '.join(FLAGS)}); set "
            "rendering.train_on=all_messages, or leave the field out"
        )


def _selects(conversation: Conversation, train_on: TrainOn, index: int) -> bool:
    messages = conversation.messages
    message = messages[index]
    is_assistant = message.role == "assistant" and index >= conversation.prompt_length
    if message.prefix:  # the tokens that the answer continues are context
        return train_on == "all_tokens"
    match train_on:
        case "last_assistant_message":
            return is_assistant and not any(m.role == "assistant" for m in messages[index + 1 :])
        case "last_assistant_turn":
            return is_assistant and not _has_later_turn(conversation, index)
        case "all_assistant_messages":
            return is_assistant
        case "all_messages" | "all_tokens":
            return True
        case "all_user_and_system_messages":
            return message.role in ("user", "system")
        case "trainable":
            return False  # those that are marked


def _has_later_turn(conversation: Conversation, index: int) -> bool:
    """Return whether the assistant answers a user or system message that follows `index`."""
    later = [message.role for message in conversation.messages[index + 1 :]]
    starts = [at for at, role in enumerate(later) if role in ("user", "system")]
    return bool(starts) and "assistant" in later[starts[0] :]


def mask_conversation(
    conversation: Conversation, tokenizer: Tokenizer, selected: MessageMask
) -> tuple[MaskedTokens, ...]:
    """Render and mask a conversation: whole, or a prefix per turn or answer.

    An assistant message is trained on from its generation prompt to its first stop token,
    inclusive; any other message from the end of the messages before it to its own end. The tokens
    before an answer are those of its prompt at inference: a template that rewrites history gives
    a sequence per turn, and an answer whose first token would reach into the prompt gets a
    separate sequence. Raises DataError, with the row's place, if the template allows no such
    mask, or if it leaves out text that is trained on.
    """
    prefixes = render_prefixes(conversation, tokenizer)
    whole = _masked(conversation, prefixes, selected, tokenizer)
    if whole is not None:
        return (whole,)
    masked: list[MaskedTokens] = []
    for turn in _turns(conversation, selected):
        one = _masked(conversation, prefixes, turn, tokenizer)
        answers = [index for index, is_selected in enumerate(turn) if is_selected]
        several = (_masked_answer(conversation, prefixes, at, tokenizer) for at in answers)
        masked += several if one is None else [one]
    return tuple(replace(each, split=len(masked) > 1 or not selected[-1]) for each in masked)


def render_prefixes(conversation: Conversation, tokenizer: Tokenizer) -> Prefixes:
    """Return a memoized renderer of prefixes, whose errors name the row's place."""
    messages = [message_to_dict(message) for message in conversation.messages]
    inputs = conversation.inputs

    def memoized(render: Callable[..., T_co]) -> _Render[T_co]:
        @cache
        def prefix(count: int, answer: bool = False, /) -> T_co:
            try:
                return render(messages[:count], tokenizer, inputs, answer=answer)
            except DataError as error:
                raise DataError(f"{conversation.where}: {error}") from error

        return prefix

    return Prefixes(memoized(render_by_template), memoized(text_by_template))


def _masked(
    conversation: Conversation, prefixes: Prefixes, selected: MessageMask, tokenizer: Tokenizer
) -> MaskedTokens | None:
    """Mask the first len(selected) messages; None if a rendered prefix does not start them."""
    tokens = prefixes.tokens(len(selected))
    spans: list[tuple[int, int]] = []
    no_stop_token = stripped = 0
    for first, after in _runs(conversation, selected):
        is_assistant = conversation.messages[first].role == "assistant"
        through = prefixes.tokens(after)
        before = prefixes.tokens(first, is_assistant) if first else tokens[:0]
        end = len(through)
        if not starts_with(through, before):
            return None
        if is_assistant:
            stop = _first_stop(conversation, first, through[len(before) :], tokenizer)
            if stop is None:
                through = _with_later_stop(conversation, prefixes, after, tokenizer)
                no_stop_token += len(through) == end
                end = len(through)
            else:
                end = len(before) + stop + 1
        if after == len(selected) and len(through) > len(tokens):
            tokens = through
        if not starts_with(tokens, through[:end]):
            return None
        written = tokens[len(before) : end]
        stripped += check_written(conversation, prefixes, (first, after), written, tokenizer)
        spans.append((len(before), end))
    return MaskedTokens(tokens, _mask(tokens, spans), no_stop_token, stripped)


def _mask(tokens: Tokens, spans: Sequence[tuple[int, int]]) -> Mask:
    trained = np.zeros(len(tokens), bool)
    for start, end in spans:
        trained[start:end] = True
    return trained


def _masked_answer(
    conversation: Conversation, prefixes: Prefixes, index: int, tokenizer: Tokenizer
) -> MaskedTokens:
    """Mask one answer behind its prompt, as the model would write it at inference."""
    before = prefixes.tokens(index, True)
    tokens = prefixes.tokens(index + 1)
    if not starts_with(tokens, before):
        answer = _answer_text(conversation, prefixes, index)
        tokens = np.concatenate([before, encode_continuation(answer, tokenizer)])
    stop = _first_stop(conversation, index, tokens[len(before) :], tokenizer)
    end = len(tokens) if stop is None else len(before) + stop + 1
    written = tokens[len(before) : end]
    stripped = check_written(conversation, prefixes, (index, index + 1), written, tokenizer)
    if stop is None:
        later = _with_later_stop(conversation, prefixes, index + 1, tokenizer)
        closing = later[len(prefixes.tokens(index + 1)) :]
        tokens = np.concatenate([tokens, closing])
        end = len(tokens)
        stop = len(closing) or None
    mask = _mask(tokens, [(len(before), end)])
    return MaskedTokens(tokens, mask, int(stop is None), stripped)


def _answer_text(conversation: Conversation, prefixes: Prefixes, index: int) -> str:
    """Return the text that follows the generation prompt of an answer; raises MaskError."""
    prompt, through = prefixes.text(index, True), prefixes.text(index + 1)
    if through.startswith(prompt):
        return through[len(prompt) :]
    common = common_length(prompt, through)
    raise MaskError(
        f"{conversation.where}: the chat template renders message {index} differently from its "
        f"own generation prompt, so what follows the prompt is unknown: the prompt has "
        f"{short(prompt[common:])} where the conversation has {short(through[common:])}. Set "
        "variables of the template (rendering.chat_template_kwargs), or another template "
        "(rendering.template=FILE)",
        index,
    )


def _with_later_stop(
    conversation: Conversation, prefixes: Prefixes, count: int, tokenizer: Tokenizer
) -> Tokens:
    """Return the first `count` messages up to a stop token that is written before the next one.

    Some templates write the end of a message only where another one follows.
    """
    tokens = prefixes.tokens(count)
    if count < len(conversation.messages):
        later = prefixes.tokens(count + 1)
        added = later[len(tokens) :]
        stops = np.flatnonzero(np.isin(added, tokenizer.stop_ids))
        if starts_with(later, tokens) and len(stops):
            end = int(stops[0]) + 1
            if not tokenizer.decode(added[: end - 1]).strip():
                return later[: len(tokens) + end]
    return tokens


def check_written(
    conversation: Conversation,
    prefixes: Prefixes,
    run: tuple[int, int],
    trained: Tokens,
    tokenizer: Tokenizer,
) -> int:
    """Return how many answers of a run lose white space at their ends.

    Raises MaskError if the template changes or leaves out text of messages that are trained on.
    """
    written = tokenizer.decode(trained)
    stripped = 0
    for index in range(*run):
        message = conversation.messages[index]
        is_answer = message.role == "assistant"
        as_json = not is_answer or "tool_calls" in message.fields
        for part in _texts(message):
            # special tokens and normalisers: the tokens may have another text than they encode
            if missing_text(part, written, as_json=as_json):
                text = _text_of_run(prefixes, run)
                if missing := missing_text(part, text, as_json=as_json):
                    raise _changed(conversation, index, missing)
        if is_answer and (padded := padded_answer(message.content)):
            stripped += padded not in _text_of_run(prefixes, run)
    return stripped


def _text_of_run(prefixes: Prefixes, run: tuple[int, int]) -> str:
    """Return what the template writes for a run of messages."""
    first, after = run
    text = prefixes.text(after)
    return text[common_length(prefixes.text(first, True), text) :] if first else text


def _texts(message: Message) -> list[str]:
    """Return the texts of a message: its thought, its content and the names of its calls."""
    thoughts = [message.fields[name] for name in REASONING if name in message.fields]
    calls = [call["function"]["name"] for call in message.fields.get("tool_calls", ())]
    return [*thoughts[:1], message.content, *calls]


def _changed(conversation: Conversation, index: int, missing: str) -> MaskError:
    return MaskError(
        f"{conversation.where}: the chat template leaves out or changes a part of message {index} "
        f"({conversation.messages[index].role}), which is trained on: {short(missing)}. "
        "Remove it from the row, or set a template that writes it as it is "
        "(rendering.template=FILE)",
        index,
    )


def _runs(conversation: Conversation, selected: MessageMask) -> list[tuple[int, int]]:
    """Group the selected messages into runs [first, after) that are masked together.

    A run is one assistant message, or all adjacent other messages, since a template may know no
    prefix that ends between them.
    """
    runs: list[tuple[int, int]] = []
    for index in (at for at, is_selected in enumerate(selected) if is_selected):
        is_assistant = conversation.messages[index].role == "assistant"
        if is_assistant and index == 0:
            raise DataError(
                f"{conversation.where}: the first message is the assistant's, so there is no "
                "prompt; start with a user or system message, or train on later messages only"
            )
        follows_run = bool(runs) and runs[-1][1] == index
        if (
            follows_run
            and not is_assistant
            and conversation.messages[index - 1].role != "assistant"
        ):
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def _first_stop(
    conversation: Conversation, index: int, answer: Tokens, tokenizer: Tokenizer
) -> int | None:
    """Return the position of the answer's first stop token; the model never writes past it."""
    stops = np.flatnonzero(np.isin(answer, tokenizer.stop_ids))
    if len(stops) > 1:
        content = tokenizer.encode(conversation.messages[index].content)
        if np.isin(content, tokenizer.stop_ids).any():
            raise MaskError(
                f"{conversation.where}: the text of message {index} contains a stop token of the "
                "model, where every answer would end; remove it",
                index,
            )
    return int(stops[0]) if len(stops) else None


def _turns(conversation: Conversation, selected: MessageMask) -> Iterator[MessageMask]:
    """Yield one selection per trained turn, as long as the conversation up to that turn's end."""
    for index, is_selected in enumerate(selected):
        if is_selected and conversation.messages[index].role != "assistant":
            raise DataError(
                f"{conversation.where}: the chat template rewrites earlier messages, or begins "
                f"answers otherwise than its prompt ends, so the tokens of message {index} cannot "
                "be located; train on assistant messages, or on all_tokens (rendering.train_on)"
            )
    in_turn = [message.role in ("assistant", "tool") for message in conversation.messages]
    for is_turn, run in groupby(range(len(selected)), key=in_turn.__getitem__):
        indices = list(run)
        turn = selected[indices[0] : indices[-1] + 1]
        if is_turn and any(turn):
            yield (*[False] * indices[0], *turn)
