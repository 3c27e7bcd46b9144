"""All known fields of data rows and their messages: supported, refused or ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Treatment = Literal["supported", "refused", "ignored"]
Level = Literal["row", "preference row", "message"]

# names of one thing in different formats
WEIGHTS = ("loss", "loss_mask", "loss_weight", "weight")  # 0 or 1, on messages of the assistant
FLAGS = ("trainable", "train", "training", "train_on_turn", *WEIGHTS, "masked")
ROW_WEIGHTS = ("weight", "sample_weight", "loss_weight", "loss_scale")  # 1 means nothing
REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
TEMPLATE_FIELDS = (*REASONING, "name", "tool_call_id")


@dataclass(frozen=True)
class RowField:
    """A field that a row, or a message in it, may have, and what happens to it."""

    name: str
    level: Level
    used_by: str  # formats that have the field
    treatment: Treatment
    # what it does; for a field that is refused, why, as its error says
    note: str
    # refused only in a row of none of the supported formats
    fallback: bool = False


_ONLY_TEXT = "training reads only text"
_TOKENISED = "rows are tokenised here, so that the tokens are those of the model"
_AS_PREFERENCE = "write the row as prompt, chosen and rejected, each a list of messages"
_MARK_MESSAGES = "mark messages instead: write the row as messages, with 'train' in each"
_SAME_WEIGHT = "all rows have the same weight, 1; leave rows out, or repeat them"
_TOOLS_COLUMN = "write the list of tools in the column 'tools' of the row"
_TEMPLATE_VARIABLE = "write it into the column 'chat_template_kwargs', for the chat template"
_SERVER_OPTION = "an option of OpenAI's servers, which chat templates do not know"
_HARMONY = "write a thought (analysis) as 'reasoning_content', and a call as 'tool_calls'"
_REFERENCE = "the reference model's log-probabilities are computed here"
_ROWS = (
    RowField("messages", "row", "OpenAI, TRL, Axolotl", "supported", "the conversation"),
    RowField(
        "conversations",
        "row",
        "ShareGPT, LLaMA-Factory, Axolotl",
        "supported",
        "the conversation; in a preference row, the prompt",
    ),
    RowField("prompt", "row", "TRL", "supported", "text, or a list of messages"),
    RowField("completion", "row", "TRL", "supported", "the answer: text, or a list of messages"),
    RowField("instruction", "row", "Alpaca, LLaMA-Factory", "supported", "the prompt"),
    RowField(
        "input",
        "row",
        "Alpaca, LLaMA-Factory",
        "supported",
        "follows the instruction after an empty line; the prompt if there is no instruction",
    ),
    RowField("context", "row", "Dolly", "supported", "as `input`"),
    RowField("output", "row", "Alpaca, LLaMA-Factory", "supported", "the answer"),
    RowField("response", "row", "Dolly", "supported", "the answer"),
    RowField("choices", "row", "evaluations", "supported", "the choices of a multiple-choice row"),
    RowField("answer", "row", "evaluations", "supported", "the right one of `choices`"),
    RowField("answerKey", "row", "evaluations", "supported", "the right one of `choices`"),
    RowField(
        "system",
        "row",
        "Alpaca, ShareGPT, LLaMA-Factory, Axolotl",
        "supported",
        "becomes the first message, with the role `system`; an error if the row has another one",
    ),
    RowField("system_prompt", "row", "Axolotl (Orca)", "supported", "as `system`"),
    RowField(
        "history",
        "row",
        "Alpaca, LLaMA-Factory",
        "supported",
        "a list of pairs [question, answer], or of messages, which come before the prompt; an "
        "error beside `messages` or `conversations`",
    ),
    *(
        RowField(
            name,
            "row",
            used_by,
            "supported",
            "the thought of the answer, as in a message; an error beside messages and pairs of "
            "answers, and for values such as `true`, `off` or `high`",
        )
        for name, used_by in (
            ("reasoning_content", "ms-swift, Axolotl"),
            ("reasoning", "OpenAI-compatible servers"),
            ("thinking", "TRL (gpt-oss)"),
            ("thought", "agent data"),
        )
    ),
    RowField(
        "tools",
        "row",
        "OpenAI, TRL, Axolotl, LLaMA-Factory, ShareGPT",
        "supported",
        "a list of tools, or one as JSON text, for the chat template; a template without a place "
        "for tools gets them in the system message",
    ),
    RowField("functions", "row", "OpenAI (older)", "supported", "as `tools`"),
    RowField(
        "chat_template_kwargs",
        "row",
        "TRL, Axolotl",
        "supported",
        "variables for the chat template, an object or JSON text; they take precedence over "
        "`rendering.chat_template_kwargs`",
    ),
    RowField("images", "row", "TRL, LLaMA-Factory, Axolotl", "refused", _ONLY_TEXT),
    RowField("image", "row", "TRL", "refused", _ONLY_TEXT),
    RowField("videos", "row", "LLaMA-Factory", "refused", _ONLY_TEXT),
    RowField("audios", "row", "LLaMA-Factory", "refused", _ONLY_TEXT),
    RowField("input_ids", "row", "TRL, Axolotl", "refused", _TOKENISED),
    RowField("completion_mask", "row", "TRL", "refused", _TOKENISED),
    RowField("assistant_masks", "row", "TRL", "refused", _TOKENISED),
    RowField("loss_mask", "row", "verl, SkyRL", "refused", _MARK_MESSAGES),
    RowField("mask", "row", "NeMo", "refused", _MARK_MESSAGES),
    *(
        RowField(name, "row", used_by, "refused", _SAME_WEIGHT)
        for name, used_by in (
            ("weight", "OpenAI, Axolotl"),
            ("sample_weight", "scikit-learn"),
            ("loss_weight", "agent data"),
            ("loss_scale", "ms-swift"),
        )
    ),
    RowField(
        "documents",
        "row",
        "Transformers",
        "refused",
        "write them into the prompt, or, for a template that reads them, into chat_template_kwargs",
    ),
    RowField(
        "kto_tag",
        "row",
        "LLaMA-Factory",
        "refused",
        "recipes.kto reads the column label (reading.columns.kto_tag=label)",
    ),
    RowField(
        "text",
        "row",
        "TRL, Axolotl",
        "supported",
        "plain text, trained on as it is by recipes.sl_basic and recipes.chat_sl, and refused by "
        "recipes that need a prompt. Beside a conversation, the text is not read, and is an error "
        "if it does not contain the answer",
    ),
    RowField(
        "segments",
        "row",
        "Axolotl",
        "refused",
        "write the row as messages, with 'train' (true or false) in each",
        fallback=True,
    ),
    RowField(
        "completions",
        "row",
        "TRL, Axolotl",
        "refused",
        "supervision of single steps is not supported; write one row with 'completion' per answer",
        fallback=True,
    ),
    RowField(
        "preferred_output",
        "row",
        "OpenAI",
        "refused",
        _AS_PREFERENCE,
        fallback=True,
    ),
    RowField(
        "non_preferred_output",
        "row",
        "OpenAI",
        "refused",
        _AS_PREFERENCE,
        fallback=True,
    ),
    RowField(
        "body",
        "row",
        "OpenAI (batches)",
        "refused",
        "a request has no answer; write its messages, and the answer, as the column messages",
        fallback=True,
    ),
    RowField(
        "contents",
        "row",
        "Gemini",
        "refused",
        "write the row as messages, a list of {role, content}",
        fallback=True,
    ),
    RowField(
        "endings",
        "row",
        "HellaSwag",
        "refused",
        "for multiple choice, rename three columns: reading.columns.ctx=question "
        "reading.columns.endings=choices reading.columns.label=answer",
        fallback=True,
    ),
    RowField(
        "answers",
        "row",
        "SQuAD",
        "refused",
        "rename it, and the question: reading.columns.answers=completion "
        "reading.columns.question=prompt; or, with a context, to response and instruction",
        fallback=True,
    ),
    RowField("reasoning_effort", "row", "OpenAI (gpt-oss)", "refused", _TEMPLATE_VARIABLE),
    RowField("enable_thinking", "row", "Qwen", "refused", _TEMPLATE_VARIABLE),
    RowField(
        "suffix",
        "row",
        "OpenAI (older)",
        "refused",
        "filling in the middle of a text is not supported",
    ),
    RowField("parallel_tool_calls", "row", "OpenAI", "ignored", _SERVER_OPTION),
    RowField("tool_choice", "row", "OpenAI", "ignored", _SERVER_OPTION),
    RowField("response_format", "row", "OpenAI", "ignored", _SERVER_OPTION),
    RowField("id", "row", "ShareGPT", "ignored", "a name of the row"),
    RowField("prompt_id", "row", "TRL", "ignored", "a name of the row"),
    RowField("source", "row", "all", "ignored", "where the row comes from"),
)
_PREFERENCES = (
    RowField(
        "chosen",
        "preference row",
        "TRL, LLaMA-Factory, Axolotl",
        "supported",
        "the better answer: text, a message, or a list of messages",
    ),
    RowField(
        "rejected",
        "preference row",
        "TRL, LLaMA-Factory, Axolotl",
        "supported",
        "the worse answer, likewise",
    ),
    RowField(
        "rejected_response",
        "preference row",
        "ms-swift",
        "supported",
        "the worse answer, beside a row with the better one: text, a message, or a list of them",
    ),
    RowField(
        "rejected_messages",
        "preference row",
        "ms-swift",
        "supported",
        "the whole conversation with the worse answer, beside `messages`",
    ),
    RowField(
        "label",
        "preference row",
        "TRL",
        "supported",
        "recipes.kto: true for a good answer, false for a bad one; elsewhere, false is an error",
    ),
    RowField(
        "margin",
        "preference row",
        "TRL",
        "refused",
        "losses here have one margin for all rows (target_margin of recipes.dpo)",
    ),
    RowField(
        "ref_chosen_logps",
        "preference row",
        "TRL",
        "refused",
        _REFERENCE,
    ),
    RowField(
        "ref_rejected_logps",
        "preference row",
        "TRL",
        "refused",
        _REFERENCE,
    ),
    RowField("score_chosen", "preference row", "TRL", "ignored", "the order is in the columns"),
    RowField("score_rejected", "preference row", "TRL", "ignored", "the order is in the columns"),
)
_MESSAGES = (
    RowField(
        "role",
        "message",
        "OpenAI, TRL, Axolotl",
        "supported",
        "`system` or `developer`; `user` or `human`; `assistant`, `gpt`, `model`, `bot`, `ai` or "
        "`chatbot`; `tool`, `function`, `ipython`, `observation`, `tool_response` or "
        "`environment`; `function_call` or `tool_call`, whose content is the call as JSON. Case "
        "does not matter",
    ),
    RowField(
        "content",
        "message",
        "OpenAI, TRL, Axolotl",
        "supported",
        "text, or a list of parts of the types `text`, `input_text`, `output_text` and `thinking`, "
        "which are joined; other types of parts are refused",
    ),
    RowField(
        "from",
        "message",
        "ShareGPT, LLaMA-Factory, Axolotl",
        "supported",
        "as `role`",
    ),
    RowField("value", "message", "ShareGPT, LLaMA-Factory, Axolotl", "supported", "the content"),
    *(
        RowField(
            name,
            "message",
            used_by,
            "supported",
            "the thought, for the chat template; an error if the template leaves it out",
        )
        for name, used_by in (
            ("reasoning_content", "Axolotl, TRL"),
            ("reasoning", "OpenAI-compatible servers"),
            ("thinking", "TRL (gpt-oss)"),
            ("thought", "agent data"),
        )
    ),
    RowField(
        "tool_calls",
        "message",
        "OpenAI, TRL, Axolotl",
        "supported",
        "for the chat template; an error if the template leaves them out",
    ),
    RowField("function_call", "message", "OpenAI (older)", "supported", "as one of `tool_calls`"),
    RowField(
        "tool_call_id",
        "message",
        "OpenAI, TRL",
        "supported",
        "for the chat template, which may leave it out",
    ),
    RowField(
        "name",
        "message",
        "OpenAI, TRL",
        "supported",
        "for the chat template; an error if the template leaves it out, except for the name of a "
        "tool",
    ),
    *(
        RowField(
            name,
            "message",
            used_by,
            "supported",
            f"whether to train on the message, {values}; it takes precedence over "
            "`rendering.train_on`",
        )
        for name, used_by, values in (
            ("trainable", "Tinker", "true or false"),
            ("train", "Axolotl", "true or false"),
            ("training", "Axolotl", "true or false"),
            ("train_on_turn", "Axolotl", "true or false"),
            ("loss", "ms-swift, XTuner", "true or false, on messages of the assistant"),
            ("loss_mask", "verl, SkyRL", "1 or 0, on messages of the assistant"),
            ("loss_weight", "agent data", "1 or 0, on messages of the assistant"),
            ("weight", "OpenAI", "1 or 0, on messages of the assistant"),
            ("masked", "torchtune", "false or true"),
        )
    ),
    RowField(
        "prefix",
        "message",
        "DeepSeek, Mistral",
        "supported",
        "true or false: whether the next message, also of the assistant, continues this one, which "
        "is then context (a prefill)",
    ),
    RowField("partial", "message", "Kimi, Qwen", "supported", "as `prefix`"),
    RowField("channel", "message", "OpenAI (Harmony)", "refused", _HARMONY),
    RowField("recipient", "message", "OpenAI (Harmony)", "refused", _HARMONY),
    RowField(
        "reasoning_details",
        "message",
        "OpenRouter",
        "refused",
        "write its text as 'reasoning_content'",
    ),
    RowField(
        "train_detail",
        "message",
        "Axolotl",
        "refused",
        "messages are trained on as a whole, or not at all ('train': true or false)",
    ),
    RowField(
        "mask",
        "message",
        "several",
        "refused",
        "true means 'trained on' in some formats, and 'not trained on' in others; write 'train': "
        "true or false",
    ),
    RowField("tools", "message", "DeepSeek, Kimi", "refused", _TOOLS_COLUMN),
    RowField("functions", "message", "OLMo", "refused", _TOOLS_COLUMN),
    RowField("function_calls", "message", "OLMo", "refused", "write them as 'tool_calls'"),
    RowField("refusal", "message", "OpenAI", "refused", "write the text as the content"),
    RowField("audio", "message", "OpenAI", "refused", _ONLY_TEXT),
    RowField("images", "message", "TRL", "refused", _ONLY_TEXT),
    RowField("annotations", "message", "OpenAI", "ignored", "citations, which are no text"),
    RowField("id", "message", "all", "ignored", "a name of the message"),
)
FIELDS = (*_ROWS, *_PREFERENCES, *_MESSAGES)


def _refused(level: Level, *, fallback: bool = False) -> Mapping[str, str]:
    return {
        field.name: field.note
        for field in FIELDS
        if field.treatment == "refused" and field.level == level and field.fallback == fallback
    }


REFUSED_IN_ROWS = _refused("row")
REFUSED_IN_OTHER_ROWS = _refused("row", fallback=True)  # in rows of no supported format
REFUSED_IN_PREFERENCES = _refused("preference row")
REFUSED_IN_MESSAGES = _refused("message")
