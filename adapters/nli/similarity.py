"""Similarity of sentences by the cosine of their embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from adapters.folders import read_config
from adapters.nli.opening import max_tokens, open_folder
from kitchen.errors import BackendError
from kitchen.safe_text import read_json

BATCH = 32  # texts read at once
_MODULES = "modules.json"  # the steps of a model of sentence-transformers
_KNOWN = ("Transformer", "Pooling", "Normalize")


class SentenceEmbeddings:
    """The cosine similarity of sentence embeddings by a model in a folder.

    An embedding is the mean of the last hidden states over the tokens of a text, divided by its
    length, as in Sentence-BERT (Reimers and Gurevych, 2019, arXiv:1908.10084). A text that is
    longer than the model reads is cut into pieces, and the mean is over the tokens of all of them.
    Raises BackendError for a folder that cannot be opened or needs other steps.
    """

    packages = ("torch", "transformers")

    def __init__(self, folder: str) -> None:
        from transformers import AutoModel

        path = Path(folder)
        _check_steps(path)
        self._model, self._tokenizer = open_folder(path, AutoModel.from_pretrained)
        self._max_tokens = min(max_tokens(path, self._tokenizer), _sentence_length(path))

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """Return the cosine, -1..1, of each pair of texts."""
        return await asyncio.to_thread(self._score, list(pairs))

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        texts = list(dict.fromkeys(chain.from_iterable(pairs)))
        if not texts:
            return []
        embeddings = self._embed(texts)
        at = {text: number for number, text in enumerate(texts)}
        first = embeddings[[at[text] for text, _ in pairs]]
        second = embeddings[[at[text] for _, text in pairs]]
        cosines: list[float] = (first * second).sum(-1).tolist()
        return cosines

    def _embed(self, texts: list[str]) -> Any:
        """Return the (texts, width) embeddings, each of length 1."""
        import torch

        encoded = self._tokenizer(
            texts, truncation=True, max_length=self._max_tokens, return_overflowing_tokens=True
        )
        owner = torch.as_tensor(encoded.pop("overflow_to_sample_mapping"))  # (pieces,)
        order = sorted(range(len(owner)), key=lambda at: len(encoded["input_ids"][at]))
        sums = torch.zeros(len(texts), self._model.config.hidden_size)
        counts = torch.zeros(len(texts), 1)
        for start in range(0, len(order), BATCH):
            pieces = order[start : start + BATCH]
            tokens = [encoded["input_ids"][at] for at in pieces]
            inputs = self._tokenizer.pad({"input_ids": tokens}, return_tensors="pt")
            with torch.inference_mode():
                states = self._model(**inputs).last_hidden_state.float()  # (pieces, tokens, width)
            mask = inputs["attention_mask"][..., None].float()
            sums.index_add_(0, owner[pieces], (states * mask).sum(1))
            counts.index_add_(0, owner[pieces], mask.sum(1))
        return torch.nn.functional.normalize(sums / counts.clamp(min=1), dim=-1)

    def close(self) -> None:
        """Free the memory of the model."""
        self._model = self._tokenizer = None


def _check_steps(folder: Path) -> None:
    """Raise BackendError if sentence-transformers would do more than take the mean."""
    steps = folder / _MODULES
    if not steps.is_file():  # a plain transformer, whose mean sentence-transformers takes, too
        return
    modules = read_json(steps.read_bytes())
    names = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    unknown = [name for name in names if name not in _KNOWN]
    if unknown:
        raise BackendError(
            f"{steps}: the step {unknown[0]} is not supported, only {', '.join(_KNOWN)}; choose "
            "another sentence-embedding model, such as packaged:minilm"
        )
    for module in modules:
        if str(module.get("type", "")).endswith("Pooling"):
            _check_pooling(folder, str(module.get("path", "")))


def _check_pooling(folder: Path, path: str) -> None:
    config = read_config(folder / path, "config.json", "model")
    modes = [key for key, value in config.items() if key.startswith("pooling_mode") and value]
    if modes != ["pooling_mode_mean_tokens"]:
        raise BackendError(
            f"{folder / path / 'config.json'}: {', '.join(modes) or 'no pooling'} is not "
            "supported, only pooling_mode_mean_tokens; choose another sentence-embedding model, "
            "such as packaged:minilm"
        )


def _sentence_length(folder: Path) -> int:
    """Return the number of tokens that sentence-transformers would read at once."""
    file = "sentence_bert_config.json"
    if not (folder / file).is_file():
        return 1_000_000
    return int(read_config(folder, file, "model").get("max_seq_length") or 1_000_000)
