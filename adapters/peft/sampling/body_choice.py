"""The choice of a decoder body of transformers: the first that decodes as the model computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from adapters.peft.model.network import Network, cannot_batch, is_close
from adapters.peft.sampling.hf_body import HfBody
from adapters.peft.sampling.one_row_body import OneRowBody
from adapters.peft.sampling.scheduler import DecoderBody
from kitchen.errors import BackendError, KitchenError

CreateBody = Callable[[int], DecoderBody]  # from the prompt tokens that are prefilled together
PROMPTS = (5, 12)  # tokens of the prompts of a trial, which differ so that one of them is padded
STEPS = 7
# of the tokens of a trial; rounding may send a token to other experts, a wrong cache affects most
MIN_SHARE = 0.75


def choose_body(network: Network) -> CreateBody:
    """Return how bodies are created: with rows that share a batch, or else row after row.

    Positions that are counted from the start of the batch, or layers other than attention that read
    padding, would change the completions of rows that share a batch. Raises BackendError for an
    architecture that cannot be decoded at all with the caches of transformers.
    """
    candidates: list[CreateBody] = [lambda budget: OneRowBody(network)]
    if not cannot_batch(network.model.config.get_text_config()):
        candidates.insert(0, lambda budget: HfBody(network, budget))
    for create in candidates:
        failure = None
        try:
            if _decodes_correctly(network, create(sum(PROMPTS))):
                return create
        except KitchenError:
            raise
        except Exception as error:  # noqa: BLE001 the modules of an unknown model raise anything
            failure = error
    raise BackendError(
        f"a {type(network.model).__name__} cannot be sampled: decoding token by token, with the "
        "cache of transformers, does not give the model's own logits; choose another architecture"
    ) from failure


def _decodes_correctly(network: Network, body: DecoderBody) -> bool:
    """Compare the logits of a body, token by token, with those of whole sequences."""
    vocabulary = network.vocab_size
    sequences = [(np.arange(size + STEPS) * 7 + size) % vocabulary for size in PROMPTS]
    prompts = [ids[:size] for ids, size in zip(sequences, PROMPTS, strict=True)]
    later = np.stack([ids[size:] for ids, size in zip(sequences, PROMPTS, strict=True)], 1)
    with torch.inference_mode():
        decoded = [network.head(body.prefill(prompts, ()))]
        for ids in torch.from_numpy(later).to(network.device):
            decoded.append(network.head(body.step(ids)))
        by_row = torch.stack(decoded, 1).float()  # (rows, steps + 1, V)
        for computed, ids, size in zip(by_row, sequences, PROMPTS, strict=True):
            whole = torch.from_numpy(ids)[None].to(network.device)
            expected = network.head(network.hidden_padded(whole)[0, size - 1 :]).float()
            if not is_close(network.model, computed, expected, share=MIN_SHARE):
                return False
    return True
