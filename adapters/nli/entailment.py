"""Entailment by a sequence classifier that was trained on natural language inference."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters.folders import read_config
from adapters.nli.opening import check_model, max_tokens, open_folder
from kitchen.errors import BackendError

BATCH = 16  # pairs read at once
# names that a classifier may give to the class "the premise entails the hypothesis"
ENTAILMENT_LABELS = ("entailment", "entail", "entails", "entailed", "support", "supports")
_UNNAMED = re.compile(r"label_?\d+", re.IGNORECASE)


class NliClassifier:
    """The probability of the class "entailment" of a classifier in a folder.

    The class is found by its name in `id2label` of config.json, never by its position, because
    models differ in the order of their classes. Raises BackendError for a folder that cannot be
    opened, and for classes without names or without that one.
    """

    packages = ("torch", "transformers")

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForSequenceClassification

        path = Path(folder)
        self._label = entailment_label(path)
        open_model = AutoModelForSequenceClassification.from_pretrained
        self._model, self._tokenizer = open_folder(path, open_model)
        self._max_tokens = max_tokens(path, self._tokenizer)

    def fits(self, pair: tuple[str, str]) -> bool:
        """Return whether the model reads both texts whole."""
        return len(self._tokenizer(*pair)["input_ids"]) <= self._max_tokens

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """Return the probability of entailment, 0..1, of each (premise, hypothesis)."""
        return await asyncio.to_thread(self._score, list(pairs))

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        """Score pairs in batches of similar length."""
        import torch

        scores = [0.0] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda at: len(pairs[at][0]) + len(pairs[at][1]))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            premises, hypotheses = zip(*(pairs[at] for at in batch), strict=True)
            inputs = self._tokenizer(
                list(premises), list(hypotheses), padding=True, return_tensors="pt"
            )
            with torch.inference_mode():
                logits = self._model(**inputs).logits.float()  # (pairs, classes)
            probabilities = logits.softmax(-1)[:, self._label].tolist()
            for at, probability in zip(batch, probabilities, strict=True):
                scores[at] = probability
        return scores

    def close(self) -> None:
        """Free the memory of the model."""
        self._model = self._tokenizer = None


def entailment_label(folder: Path) -> int:
    """Return the index of the class "entailment" of a classifier; raises BackendError."""
    check_model(folder)
    file = folder / "config.json"
    labels = _labels(read_config(folder, "config.json", "model"))
    fix = (
        'give id2label the names that the classifier was trained with, such as {"0": "entailment", '
        '"1": "neutral", "2": "contradiction"}, in the order of its model card'
    )
    if not labels or any(_UNNAMED.fullmatch(name) for name in labels.values()):
        raise BackendError(
            f"{file}: id2label does not name the classes ({', '.join(labels.values()) or 'none'}), "
            f"so nobody can tell which one is entailment: {fix}"
        )
    found = [at for at, name in labels.items() if _normal(name) in ENTAILMENT_LABELS]
    if len(found) != 1:
        raise BackendError(
            f"{file}: {len(found) or 'none'} of the classes {', '.join(labels.values())} is called "
            f"entailment, and exactly one must be: {fix}, or choose a model that was trained on "
            "natural language inference"
        )
    return found[0]


def _labels(config: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of the classes 0, 1, ...; none unless every class has one."""
    labels = config.get("id2label")
    if not isinstance(labels, dict) or labels.keys() != set(map(str, range(len(labels)))):
        return {}
    return {int(at): str(name) for at, name in labels.items()}


def _normal(name: str) -> str:
    return name.strip().casefold()
