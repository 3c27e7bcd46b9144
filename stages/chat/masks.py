"""Loss masks of conversations, computed by rendering prefixes with the chat template."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Literal, Protocol, get_args

import numpy as np

from kitchen.errors import DataError
from kitchen.ports.sampling import Tokenizer
from kitchen.types import Mask, Tokens
from stages.chat.conversations import Conversation

TrainOn = Literal[
    "last_assistant_message",
    "last_assistant_turn",
    "all_assistant_messages",
    "all_messages",
    "all_tokens",
    "all_user_and_system_messages",
    "trainable",
]
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
    endless: int = 0  # trained-on answers that the template does not end with a stop token
    split: bool = False  # a prefix for one turn, because the template rewrites earlier messages


class _PrefixRenderer(Protocol):
    """Renders the first `count` messages and, with `answer`, the assistant's generation prompt."""

    def __call__(self, count: int, answer: bool = False, /) -> Tokens: ...


def trained_messages(conversation: Conversation, train_on: TrainOn) -> MessageMask:
    """Select the messages to train on; raises DataError if there is none.

    The assistant's messages in the prompt are context. A turn is everything after a user or system
    message: the assistant's messages and those of its tools. The model does not write the messages
    of tools, so they are not trained on.
    """
    _check_marks(conversation, train_on)
    messages = conversation.messages
    selected = [_selects(conversation, train_on, index) for index in range(len(messages))]
    if not any(selected):
        roles = ", ".join(message.role for message in messages)
        raise DataError(
            f"{conversation.where}: no message to train on with train_on={train_on!r}; the "
            f"messages are from: {roles}"
        )
    return tuple(selected)


def _check_marks(conversation: Conversation, train_on: TrainOn) -> None:
    has_marks = any(message.trainable is not None for message in conversation.messages)
    if train_on != "trainable" and has_marks:
        raise DataError(
            f"{conversation.where}: messages have 'trainable', but train_on is {train_on!r}; "
            "set train_on='trainable', or leave the field out"
        )


def _selects(conversation: Conversation, train_on: TrainOn, index: int) -> bool:
    messages = conversation.messages
    message = messages[index]
    is_assistant = message.role == "assistant" and index >= conversation.prompt_length
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
            return message.trainable is True


def _has_later_turn(conversation: Conversation, index: int) -> bool:
    """Return whether the assistant answers a user or system message that follows `index`."""
    later = [message.role for message in conversation.messages[index + 1 :]]
    starts = [at for at, role in enumerate(later) if role in ("user", "system")]
    return bool(starts) and "assistant" in later[starts[0] :]


def mask_conversation(
    conversation: Conversation, tokenizer: Tokenizer, selected: MessageMask
) -> tuple[MaskedTokens, ...]:
    """Render and mask a conversation: whole, or a prefix per turn if the template rewrites history.

    An assistant message is trained on from its generation prompt to its first stop token,
    inclusive; any other message from the end of the messages before it to its own end. Raises
    DataError, with the row's place, if the template allows no such mask.
    """
    prefix = prefix_renderer(conversation, tokenizer)
    whole = _masked(conversation, prefix, selected, tokenizer)
    if whole is not None:
        return (whole,)
    return tuple(
        _masked_turn(conversation, prefix, turn, tokenizer)
        for turn in _turns(conversation, selected)
    )


def prefix_renderer(conversation: Conversation, tokenizer: Tokenizer) -> _PrefixRenderer:
    """Return a memoized renderer of prefixes, whose errors name the row's place."""
    messages = [
        {"role": message.role, "content": message.content} for message in conversation.messages
    ]

    @cache
    def prefix(count: int, answer: bool = False, /) -> Tokens:
        try:
            return tokenizer.render(messages[:count], answer=answer)
        except DataError as error:
            raise DataError(f"{conversation.where}: {error}") from error

    return prefix


def _masked(
    conversation: Conversation,
    prefix: _PrefixRenderer,
    selected: MessageMask,
    tokenizer: Tokenizer,
) -> MaskedTokens | None:
    """Mask the first len(selected) messages; None if a rendered prefix does not start them."""
    tokens = prefix(len(selected))
    trained = np.zeros(len(tokens), bool)
    endless = 0
    for first, after in _runs(conversation, selected):
        is_assistant = conversation.messages[first].role == "assistant"
        through = prefix(after)
        before = prefix(first, is_assistant) if first else tokens[:0]
        end = len(through)
        if not _starts_with(through, before):
            return None
        if is_assistant:
            stop = _first_stop(conversation, first, through[len(before) :], tokenizer)
            endless += stop is None
            end = end if stop is None else len(before) + stop + 1
        if not _starts_with(tokens, through[:end]):
            return None
        trained[len(before) : end] = True
    return MaskedTokens(tokens, trained, endless)


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
                f"{conversation.where}: the chat template rewrites earlier messages, so the tokens "
                f"of message {index} cannot be located; train on assistant messages, or on "
                "all_tokens (rendering.train_on)"
            )
    in_turn = [message.role in ("assistant", "tool") for message in conversation.messages]
    for is_turn, run in groupby(range(len(selected)), key=in_turn.__getitem__):
        indices = list(run)
        turn = selected[indices[0] : indices[-1] + 1]
        if is_turn and any(turn):
            yield (*[False] * indices[0], *turn)


def _masked_turn(
    conversation: Conversation,
    prefix: _PrefixRenderer,
    selected: MessageMask,
    tokenizer: Tokenizer,
) -> MaskedTokens:
    masked = _masked(conversation, prefix, selected, tokenizer)
    if masked is None:
        raise MaskError(
            f"{conversation.where}: the chat template renders message {selected.index(True)} "
            "differently from its own generation prompt, so the tokens to train on cannot be "
            "located; white space at the beginning of an answer can be the cause",
            len(selected) - 1,
        )
    return replace(masked, split=True)


def _starts_with(tokens: Tokens, prefix: Tokens) -> bool:
    return np.array_equal(tokens[: len(prefix)], prefix)
