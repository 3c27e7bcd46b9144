"""Which tokens of a conversation are trained on, found by rendering its beginnings; never guessed."""

from __future__ import annotations

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
    """What is said, up to and with a message, is such that there is no telling which of the
    rendered tokens it is.
    """

    def __init__(self, text: str, message: int) -> None:
        super().__init__(text)
        self.message = message


@dataclass(frozen=True)
class MaskedTokens:
    """A rendered conversation, or a beginning of one, and where it is trained on."""

    tokens: Tokens  # (T,)
    trained: Mask  # (T,)
    endless: int = 0  # trained-on answers that the template ends with no stop token
    split: bool = False  # a beginning only, for the template rewrites what lies before


class _UpTo(Protocol):
    """The first `count` messages through the chat template; with `answer`, ready for the assistant
    to speak.
    """

    def __call__(self, count: int, answer: bool = False, /) -> Tokens: ...


def trained_messages(conversation: Conversation, train_on: TrainOn) -> MessageMask:
    """Which messages are trained on; raises DataError where there is none.

    A turn is what follows a user or system message: the assistant's messages and those of its
    tools. Of the latter the model writes nothing, so only the former are trained on.
    """
    messages, marks = (
        conversation.messages,
        [message.trainable for message in conversation.messages],
    )
    if train_on != "trainable" and marks != [None] * len(marks):
        raise DataError(
            f"{conversation.where}: messages say 'trainable', but train_on is {train_on!r}; "
            "set train_on='trainable', or leave the field out"
        )
    speaks = [message.role == "assistant" for message in messages]
    last = max((index for index, yes in enumerate(speaks) if yes), default=-1)
    turn = 1 + max(
        (i for i, m in enumerate(messages[: last + 1]) if m.role in ("user", "system")), default=-1
    )
    picked = {
        "last_assistant_message": [index == last for index in range(len(messages))],
        "last_assistant_turn": [yes and index >= turn for index, yes in enumerate(speaks)],
        "all_assistant_messages": speaks,
        "all_messages": [True] * len(messages),
        "all_tokens": [True] * len(messages),
        "all_user_and_system_messages": [
            message.role in ("user", "system") for message in messages
        ],
        "trainable": [mark is True for mark in marks],
    }[train_on]
    if not any(picked):
        raise DataError(
            f"{conversation.where}: no message to train on with train_on={train_on!r}; the "
            "messages are "
            "from: " + ", ".join(message.role for message in messages)
        )
    return tuple(picked)


def mask_conversation(
    conversation: Conversation, tokenizer: Tokenizer, picked: MessageMask
) -> tuple[MaskedTokens, ...]:
    """The conversation rendered whole, or, where the template rewrites history, once up to each
    trained-on turn.

    An assistant message is trained on from where the template lets the assistant speak to the stop
    token that ends it, that one included; any other message from the end of those before it to its
    own. Raises DataError, with the row's place, where the template allows no such mask.
    """
    upto = prefix_renderer(conversation, tokenizer)
    whole = _masked(conversation, upto, picked, tokenizer)
    if whole is not None:
        return (whole,)
    return tuple(
        _turn(conversation, upto, only, tokenizer) for only in _turns(conversation, picked)
    )


def prefix_renderer(conversation: Conversation, tokenizer: Tokenizer) -> _UpTo:
    """Beginnings of a conversation as tokens; what the template refuses is told with the row's
    place.
    """
    messages = [
        {"role": message.role, "content": message.content} for message in conversation.messages
    ]

    @cache
    def upto(count: int, answer: bool = False, /) -> Tokens:
        try:
            return tokenizer.render(messages[:count], answer=answer)
        except DataError as error:
            raise DataError(f"{conversation.where}: {error}") from error

    return upto


def _masked(
    conversation: Conversation, upto: _UpTo, picked: MessageMask, tokenizer: Tokenizer
) -> MaskedTokens | None:
    """The first len(picked) messages; None where the rendering of a beginning is not the beginning
    of theirs.
    """
    tokens = upto(len(picked))
    trained, endless = np.zeros(len(tokens), bool), 0
    for first, after in _runs(conversation, picked):
        through, speaks = upto(after), conversation.messages[first].role == "assistant"
        before = upto(first, speaks) if first else tokens[:0]
        end = len(through)
        if not _begins(through, before):
            return None
        if speaks:
            stop = _first_stop(conversation, first, through[len(before) :], tokenizer)
            endless += stop is None
            end = end if stop is None else len(before) + stop + 1
        if not _begins(tokens, through[:end]):
            return None
        trained[len(before) : end] = True
    return MaskedTokens(tokens, trained, endless)


def _runs(conversation: Conversation, picked: MessageMask) -> list[tuple[int, int]]:
    """First message and the one after the last, of what is trained on at once: one assistant
    message, or all others that follow each other, for a template may know no beginning that ends
    between them.
    """
    runs: list[tuple[int, int]] = []
    for index in (index for index, yes in enumerate(picked) if yes):
        speaks = conversation.messages[index].role == "assistant"
        if speaks and not index:
            raise DataError(
                f"{conversation.where}: the first message is the assistant's, so that it answers "
                "nothing; begin with a user or system message, or train on later messages only"
            )
        if (
            not speaks
            and runs
            and runs[-1][1] == index
            and conversation.messages[index - 1].role != "assistant"
        ):
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def _first_stop(
    conversation: Conversation, index: int, answer: Tokens, tokenizer: Tokenizer
) -> int | None:
    """Where the answer ends: what a template puts after a stop token, the model is never asked to
    write.
    """
    stops = np.flatnonzero(np.isin(answer, tokenizer.stop_ids))
    if (
        len(stops) > 1
        and np.isin(
            tokenizer.encode(conversation.messages[index].content), tokenizer.stop_ids
        ).any()
    ):
        raise MaskError(
            f"{conversation.where}: the text of message {index} has a stop token of the model in "
            "it, where "
            "every answer would end; take it out",
            index,
        )
    return int(stops[0]) if len(stops) else None


def _turns(conversation: Conversation, picked: MessageMask) -> list[MessageMask]:
    """One choice per turn, as long as the conversation is up to the end of that turn."""
    turns: list[MessageMask] = []
    own = [message.role in ("assistant", "tool") for message in conversation.messages]
    for index, yes in enumerate(picked):
        if yes and conversation.messages[index].role != "assistant":
            raise DataError(
                f"{conversation.where}: the chat template rewrites earlier messages, so that "
                "message "
                f"{index} has no tokens of its own; train on assistant messages, or on all_tokens"
            )
    for mine, run in groupby(range(len(picked)), key=own.__getitem__):
        indices = list(run)
        if mine and any(picked[indices[0] : indices[-1] + 1]):
            turns.append((*[False] * indices[0], *picked[indices[0] : indices[-1] + 1]))
    return turns


def _turn(
    conversation: Conversation, upto: _UpTo, picked: MessageMask, tokenizer: Tokenizer
) -> MaskedTokens:
    masked = _masked(conversation, upto, picked, tokenizer)
    if masked is None:
        raise MaskError(
            f"{conversation.where}: the chat template renders message {picked.index(True)} "
            "otherwise than it "
            "would prompt for it, so that there is no telling which tokens to train on; white "
            "space at the "
            "beginning of an answer can be the cause",
            len(picked) - 1,
        )
    return replace(masked, split=True)


def _begins(tokens: Tokens, beginning: Tokens) -> bool:
    return np.array_equal(tokens[: len(beginning)], beginning)
