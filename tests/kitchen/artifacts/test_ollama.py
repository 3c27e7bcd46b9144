"""Modelfiles of Ollama, from chat templates of several forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.fake.tokenizer import ByteTokenizer
from adapters.tokenizer import load_tokenizer
from kitchen.artifacts.ollama import modelfile
from kitchen.errors import BackendError
from kitchen.ports import Tokenizer
from tests.support.tiny_model import TEMPLATE, byte_level_tokenizer

CHATML = """TEMPLATE \"\"\"{{ range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
\"\"\""""
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
NO_THINKING = TEMPLATE.replace(
    "assistant\n'",
    "assistant\n' + ('' if thinking is not defined or thinking else '<think></think>')",
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)


WITHOUT_ANSWERS = (
    "{% for m in messages if m.role != 'assistant' %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer(folder)
    return folder


def written(folder: Path, template: str, separator: str | None = None, **kwargs: Any) -> str:
    tokenizer: Tokenizer = load_tokenizer(folder).with_template(template)
    return modelfile(tokenizer, separator, kwargs)


def test_chatml_is_written_in_go(folder: Path) -> None:
    text = written(folder, TEMPLATE)
    assert "\nFROM ./model.gguf\n" in text
    assert CHATML in text
    assert text.endswith('PARAMETER stop "<|im_end|>"\n')
    assert "SYSTEM" not in text


def test_the_default_system_message_is_a_command(folder: Path) -> None:
    text = written(folder, DEFAULT_SYSTEM + TEMPLATE)
    assert CHATML in text
    assert 'SYSTEM "Be brief."\n' in text


def test_formats_with_headers_are_recognised(folder: Path) -> None:
    text = written(folder, HEADERS)
    assert "<|im_start|>{{ range .Messages }}<|start_header_id|>{{ .Role }}<|end_header" in text
    assert "<|eot_id|>{{ end }}<|start_header_id|>assistant<|end_header_id|>\n\n" in text


def test_variables_of_the_run_reach_the_answer(folder: Path) -> None:
    assert "<think>" not in written(folder, NO_THINKING)
    assert "assistant\n<think></think>" in written(folder, NO_THINKING, thinking=False)


def test_a_separator_replaces_the_chat_format(folder: Path) -> None:
    text = written(folder, TEMPLATE, separator=" -> {{")
    assert 'TEMPLATE """{{ .Prompt }} -> {{ "{{" }}{{ .Response }}"""' in text


@pytest.mark.parametrize("template", [MISTRAL, WITHOUT_ANSWERS])
def test_other_forms_are_left_to_ollama(folder: Path, template: str) -> None:
    text = written(folder, template)
    assert "TEMPLATE" not in text
    assert "cannot be written as a template of Ollama" in text


def test_text_that_ends_a_quotation_is_refused(folder: Path) -> None:
    with pytest.raises(BackendError, match="three quotation marks"):
        written(folder, TEMPLATE, separator='"""\n')


def test_the_format_of_the_fake_tokenizer_is_recognised() -> None:
    assert (
        "{{ range .Messages }}<|{{ .Role }}|>{{ .Content }}<|end_of_turn|>{{ end }}"
        in modelfile(ByteTokenizer(), None, {})
    )
