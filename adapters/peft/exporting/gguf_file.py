"""GGUF files of merged models, for llama.cpp and Ollama."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from adapters.folders import model_config
from adapters.peft.exporting.gguf_vocabulary import Vocabulary, read_vocabulary
from adapters.tokenizer import FolderTokenizer
from kitchen.errors import BackendError, did_you_mean
from kitchen.types import Array

# Architectures whose files were read back, and gave the log-probabilities of the model. A setting
# that has another value than here changes the computation, and a GGUF file has no place for it.
_NEUTRAL = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
_SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": _NEUTRAL,
        "qwen2": {"hidden_act": "silu", "use_sliding_window": False},
        "qwen3": {**_NEUTRAL, "use_sliding_window": False},
    }
)
QUANTIZATIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "f32": ("F32", "ALL_F32"),
        "f16": ("F16", "MOSTLY_F16"),
        "q8_0": ("Q8_0", "MOSTLY_Q8_0"),
    }
)  # to gguf's names of the tensors' type and of the file's
_BLOCK = 32  # weights of a row that share a scale in q8_0
_LARGEST_F16 = 65504.0


@dataclass(frozen=True)
class GgufModel:
    """A model that can be written as GGUF: its settings and vocabulary, without its weights."""

    config: Mapping[str, Any]
    vocabulary: Vocabulary
    source: str  # the folder or checkpoint, for errors


def check_quantization(quantization: str) -> None:
    """Raise BackendError for a type of GGUF files that cannot be written."""
    if quantization not in QUANTIZATIONS:
        raise BackendError(
            f"{quantization!r} is not a type of GGUF files that can be written here; "
            + did_you_mean(quantization, QUANTIZATIONS)
        )


def check_gguf(folder: Path, tokenizer: FolderTokenizer, source: str) -> GgufModel:
    """Read a model's folder without its weights; raises BackendError if GGUF cannot hold it.

    Errors name the folder as `source`.
    """
    config, file = model_config(folder), f"{source}/config.json"
    kind = str(config.get("model_type"))
    merged = "export the merged model (--merged), and convert it with llama.cpp's converter"
    if kind not in _SETTINGS:
        raise BackendError(
            f"{file}: models of the type {kind!r} cannot be written as GGUF, only "
            f"{', '.join(_SETTINGS)}; {merged}"
        )
    for name, neutral in _SETTINGS[kind].items():
        if config.get(name, neutral) != neutral:
            raise BackendError(
                f"{file}: {name}={config[name]} of a {kind} model has no place in a GGUF file, "
                f"which is read as if it were {neutral}; {merged}"
            )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise BackendError(
            f"{file}: rotary embeddings of the type {rope_type!r} cannot be written as GGUF here; "
            f"{merged}"
        )
    vocabulary = read_vocabulary(tokenizer, config["vocab_size"], source)
    return GgufModel(config, vocabulary, source)


def write_gguf(
    checked: GgufModel, model: Any, file: Path, quantization: str, chat_template: str | None
) -> None:
    """Write the weights of a model, its settings and its vocabulary.

    Vectors stay in float32, and so do the products in llama.cpp. Raises BackendError for a weight
    that is beyond float16, and OSError if the disk is full.
    """
    import gguf

    kind = checked.config["model_type"]
    writer = gguf.GGUFWriter(file, kind)
    try:
        _add_settings(writer, model.config, quantization)
        _add_vocabulary(writer, checked.vocabulary, chat_template)
        tensors = dict(_named_tensors(model, checked.source))
        types = {name: _tensor_type(tensor, quantization) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            block, size = gguf.GGML_QUANT_SIZES[types[name]]
            nbytes = tensor.numel() // block * size
            shape = tuple(tensor.shape)
            writer.add_tensor_info(name, shape, np.dtype(np.float32), nbytes, types[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, tensor in tensors.items():
            writer.write_tensor_data(_encoded(name, tensor, types[name], checked.source))
    finally:
        writer.close()


def _add_settings(writer: Any, config: Any, quantization: str) -> None:
    import gguf

    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_type("model")
    writer.add_file_type(gguf.LlamaFileType[QUANTIZATIONS[quantization][1]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _add_vocabulary(writer: Any, vocabulary: Vocabulary, chat_template: str | None) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    for role, id_ in vocabulary.special_ids.items():
        getattr(writer, f"add_{role}_token_id")(id_)
    writer.add_add_bos_token(vocabulary.adds_bos)
    writer.add_add_eos_token(vocabulary.adds_eos)
    writer.add_add_space_prefix(False)
    if chat_template:
        writer.add_chat_template(chat_template)


def _named_tensors(model: Any, source: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights under their names in GGUF; the output layer only if it is not tied."""
    import gguf

    config = model.config
    architectures = {name: architecture for architecture, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(architectures[config.model_type], config.num_hidden_layers)
    for path, tensor in model.state_dict().items():
        if path == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get_name(path, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise BackendError(
                f"{source}: the tensor {path} has no name in GGUF files of {config.model_type}; "
                "export the merged model (--merged)"
            )
        yield name, _in_order_of_gguf(path, tensor, config)


def _in_order_of_gguf(path: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Interleave the halves of each head where llama.cpp rotates neighbours, as in Llama."""
    if config.model_type != "llama":
        return tensor
    if ".q_proj." in path:
        heads = config.num_attention_heads
    elif ".k_proj." in path:
        heads = config.num_key_value_heads
    else:
        return tensor
    halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])  # (heads, 2, head_dim / 2, inputs)
    return halves.transpose(1, 2).reshape(tensor.shape)


def _tensor_type(tensor: torch.Tensor, quantization: str) -> Any:
    import gguf

    if tensor.dim() == 1:
        return gguf.GGMLQuantizationType.F32
    name = QUANTIZATIONS[quantization][0]
    if name == "Q8_0" and tensor.shape[-1] % _BLOCK:
        name = "F16"
    return gguf.GGMLQuantizationType[name]


def _encoded(name: str, tensor: torch.Tensor, type_: Any, source: str) -> Array:
    import gguf

    values: Array = tensor.detach().float().contiguous().numpy()
    if type_ == gguf.GGMLQuantizationType.F16 and np.abs(values).max() > _LARGEST_F16:
        raise BackendError(
            f"{source}: {name} has weights above {_LARGEST_F16:.0f}, the largest number of "
            "float16; export the merged model (--merged), which is in float32"
        )
    encoded: Array = gguf.quantize(values, type_)
    return encoded
