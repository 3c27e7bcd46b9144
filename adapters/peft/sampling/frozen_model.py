"""A model ready to answer: base weights, and beside them LoRA weights that no longer change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from adapters.folders import demand_base, is_adapter
from adapters.peft.checkpoints import CONFIG, WEIGHTS, Saved, adapter_lora, read
from adapters.peft.device import Machine
from adapters.peft.model.base_model import Base
from adapters.peft.model.decoder import Decoder
from adapters.peft.model.linear import Product
from adapters.peft.model.lora import Adapter, LoraLinear, Tensors, adapted_paths
from adapters.peft.model.network import Network, stands_alone
from adapters.peft.sampling.conversation_cache import Keys, Said
from adapters.peft.sampling.frozen_linear import Fixed, fix
from adapters.peft.sampling.fused_body import Fused, Held
from adapters.peft.sampling.hf_body import Modules
from adapters.peft.sampling.one_row_body import Solitary
from adapters.peft.sampling.scheduler import Body
from adapters.tokenizer import FolderTokenizer, load_tokenizer
from kitchen.errors import BackendError
from kitchen.ports.blobs import BlobStore
from kitchen.types import Checkpoint, Lora, Tokens


@dataclass(frozen=True)
class Frozen:
    """Modules and tokenizer; the base is held, so that others share it."""

    network: Network
    tokenizer: FolderTokenizer
    base: Base
    said: Said = field(default_factory=Said)

    def body(self, budget: int, begun: dict[bytes, Keys | None], held: Held | None = None) -> Body:
        """With no rows yet; it reads prompts so many tokens at a time, of those that have `begun`
        the rest, and none that is `held`.

        Only to be called by a worker.
        """
        if (found := self._fixed) is not None:
            return Fused(*found, budget, begun, held)
        alone = stands_alone(self.network.model.config.get_text_config())
        return Solitary(self.network) if alone else Modules(self.network, budget)

    def held(self, prompts: Sequence[Tokens], budget: int, begun: dict[bytes, Keys | None]) -> Held:
        """Prompts that are read once for several bodies."""
        found = self._fixed
        return {} if found is None or not prompts else Fused(*found, budget, begun).hold(prompts)

    @cached_property
    def _fixed(self) -> tuple[Decoder, Fixed] | None:
        """Layers and head for decoding, made when the first completion is asked for: on a CPU they
        are a copy.
        """
        if self.network.decoder is None or not isinstance(
            self.network.head, nn.Linear | LoraLinear
        ):
            return None
        decoder = Decoder(self.network.model)
        fix(decoder)
        return decoder, Fixed(Product([self.network.head]))


def freeze(
    machine: Machine,
    base: Base,
    tokenizer: FolderTokenizer,
    lora: Lora,
    tensors: Tensors,
    source: str,
) -> Frozen:
    model = base.tree()
    # else they change nothing
    if any(bool(tensor.any()) for name, tensor in tensors.items() if ".lora_B." in name):
        Adapter(model, lora, machine.high, adapted_paths(tensors)).freeze(
            tensors, machine.dtype, source
        )
    return Frozen(Network(model, base.way), tokenizer, base)


def of_checkpoint(machine: Machine, blobs: BlobStore, checkpoint: Checkpoint) -> Frozen:
    saved = read(blobs, checkpoint)
    base = machine.base(saved.model)
    check_base(saved, base.sha256)
    tensors = saved.tensors(WEIGHTS)
    return freeze(machine, base, load_tokenizer(base.folder), saved.lora, tensors, checkpoint.path)


def check_base(saved: Saved, sha256: str) -> None:
    """Raise BackendError if the base model is not the one that a checkpoint was trained on."""
    if sha256 != saved.model_sha256:
        raise BackendError(
            f"checkpoint {saved.checkpoint.path!r} was trained on {saved.model!r} with SHA-256 "
            f"{saved.model_sha256[:16]}…, and {saved.model!r} now has {sha256[:16]}…"
        )


def of_name(machine: Machine, name: str) -> Frozen:
    """A model, or an adapter of PEFT's in a folder; raises BackendError for an unknown name."""
    from safetensors.torch import load_file

    folder = machine.hub.fetch(name)
    if not is_adapter(folder):
        base = machine.base(name)
        return freeze(machine, base, load_tokenizer(base.folder), Lora(), {}, name)
    base = machine.base(demand_base(name, folder))
    lora = adapter_lora(json.loads((folder / CONFIG).read_text()), name)
    return freeze(
        machine, base, load_tokenizer(folder, base.folder), lora, load_file(folder / WEIGHTS), name
    )
