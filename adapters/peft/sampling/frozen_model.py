"""Frozen models: base weights with LoRA weights that no longer change, ready for decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import structlog
from torch import nn

from adapters.folders import base_of
from adapters.peft.adapter_folder import WEIGHTS, read_adapter
from adapters.peft.checkpoints import SavedCheckpoint, read_checkpoint
from adapters.peft.device import Machine
from adapters.peft.model.base_model import BaseModel
from adapters.peft.model.decoder import Decoder
from adapters.peft.model.linear import FusedLinear
from adapters.peft.model.lora import LoraAdapter, Tensors, adapted_paths, check_fit
from adapters.peft.model.lora_linear import LoraLinear
from adapters.peft.model.network import Network
from adapters.peft.sampling.body_choice import CreateBody, choose_body
from adapters.peft.sampling.conversation_cache import KV, ConversationCache
from adapters.peft.sampling.frozen_linear import FrozenLinear, freeze_layers
from adapters.peft.sampling.fused_body import FusedBody, PrefilledPrompts
from adapters.peft.sampling.paged.body import PagedBody
from adapters.peft.sampling.paged.choice import choose_kernels, paged_obstacle
from adapters.peft.sampling.paged.decoder import PagedDecoder
from adapters.peft.sampling.paged.weights import PagedWeights
from adapters.peft.sampling.prefill import PromptReader
from adapters.peft.sampling.scheduler import DecoderBody
from adapters.tokenizer import FolderTokenizer, fetch_tokenizer
from kitchen.errors import BackendError
from kitchen.ports.blobs import BlobStore
from kitchen.types import Checkpoint, Lora, Tokens

log = structlog.get_logger("kitchen.peft")


@dataclass(frozen=True)
class FrozenModel:
    """A network with its tokenizer; it holds the base model, so that others can share it."""

    network: Network
    tokenizer: FolderTokenizer
    base: BaseModel
    conversations: ConversationCache = field(default_factory=ConversationCache)

    def decoder_body(
        self,
        budget: int,
        cached: dict[bytes, KV | None],
        prefilled: PrefilledPrompts | None = None,
    ) -> DecoderBody:
        """Create a body without rows, which prefills `budget` prompt tokens at a time.

        `cached` has the KV of prefixes by prompt, `prefilled` whole prompts. Only a worker may call
        this.
        """
        if (frozen := self._frozen_layers) is not None:
            if (paged := self._paged_decoder) is not None:
                reader = PromptReader(frozen[0], budget, self.network.device)
                return PagedBody(paged, reader, budget, cached)
            return FusedBody(*frozen, budget, cached, prefilled)
        return self._create_body(budget)

    def prefill_only(
        self, prompts: Sequence[Tokens], budget: int, cached: dict[bytes, KV | None]
    ) -> PrefilledPrompts:
        """Prefill prompts once for several bodies; empty if bodies cannot share them."""
        frozen = self._frozen_layers
        if frozen is None or self.decodes_by_graphs or not prompts:
            return {}
        return FusedBody(*frozen, budget, cached).prefill_only(prompts)

    @property
    def decodes_by_graphs(self) -> bool:
        """Return true if its rows share one set of pages and graphs."""
        return self._paged_decoder is not None

    @property
    def decodes_in_one_lane(self) -> bool:
        """Return true if graphs or transformers decode, neither of which lanes can share."""
        return self._frozen_layers is None or self.decodes_by_graphs

    def end_batch(self) -> None:
        """Free memory that only the rows of a batch need."""
        if self._paged_decoder is not None:
            self._paged_decoder.release()

    @cached_property
    def _create_body(self) -> CreateBody:
        """The bodies of transformers for the model, tried on first use."""
        return choose_body(self.network)

    @cached_property
    def _paged_decoder(self) -> PagedDecoder | None:
        """Pages and graphs for decoding, built on first use; None if the model cannot have any."""
        if self._frozen_layers is None:
            return None
        frozen, head = self._frozen_layers
        device, dtype = head.weight.device, head.weight.dtype
        obstacle = paged_obstacle(device, dtype, frozen.layers[0].head_dim)
        if obstacle is None:
            weights = PagedWeights(Decoder(self.network.model))
            return PagedDecoder(weights, head, choose_kernels(device))
        if device.type == "cuda":
            log.warning("decoding without CUDA graphs", reason=obstacle)
        return None

    @cached_property
    def _frozen_layers(self) -> tuple[Decoder, FrozenLinear] | None:
        """Layers and head for decoding, built on first use; on a CPU they are a copy.

        None for layers in 4 bits, which such a copy would convert.
        """
        decodes = self.network.decoder is not None and not self.network.decoder.is_quantised
        if not decodes or not isinstance(self.network.head, nn.Linear | LoraLinear):
            return None
        decoder = Decoder(self.network.model)
        freeze_layers(decoder)
        return decoder, FrozenLinear(FusedLinear([self.network.head]))


def freeze(
    machine: Machine,
    base: BaseModel,
    tokenizer: FolderTokenizer,
    lora: Lora,
    tensors: Tensors,
    source: str,
) -> FrozenModel:
    model = base.copy_modules()
    # with B = 0, only DoRA changes anything
    trained = any(bool(tensor.any()) for name, tensor in tensors.items() if ".lora_B." in name)
    if trained or lora.kind == "dora":
        LoraAdapter(model, lora, machine.accum_dtype, adapted_paths(tensors)).freeze(
            tensors, machine.dtype, source
        )
    return FrozenModel(Network(model, base.mode), tokenizer, base)


def freeze_whole(model: BaseModel, tokenizer: FolderTokenizer) -> FrozenModel:
    return FrozenModel(Network(model.copy_modules(), model.mode), tokenizer, model)


def load_checkpoint(machine: Machine, blobs: BlobStore, checkpoint: Checkpoint) -> FrozenModel:
    saved = read_checkpoint(blobs, checkpoint, weights_only=True)
    if saved.lora is None:
        with saved.model_folder() as folder:
            model = machine.base_from_folder(checkpoint.path, folder, saved.checkpoint.sha256)
            return freeze_whole(model, saved.tokenizer(folder))
    base = machine.base(base_of(machine.hub, saved.model))
    check_base(saved, base.sha256)
    tokenizer = fetch_tokenizer(machine.hub, saved.model)
    return freeze(machine, base, tokenizer, saved.lora, saved.tensors(WEIGHTS), checkpoint.path)


def check_base(saved: SavedCheckpoint, sha256: str) -> None:
    """Raise BackendError unless the base model is the one that the checkpoint was trained on."""
    if sha256 != saved.model_sha256:
        raise BackendError(
            f"checkpoint {saved.checkpoint.path!r} was trained on {saved.model!r} with SHA-256 "
            f"{saved.model_sha256[:16]}…, and {saved.model!r} now has {sha256[:16]}…"
        )


def load_named(machine: Machine, name: str) -> FrozenModel:
    """Load a model, or a PEFT adapter from a folder; raises BackendError for an unknown name."""
    adapter = read_adapter(machine.hub, name)
    tokenizer = fetch_tokenizer(machine.hub, name)
    if adapter is None:
        return freeze(machine, machine.base(name), tokenizer, Lora(), {}, name)
    base, tensors = machine.base(adapter.base), adapter.tensors()
    check_fit(base.model, adapter.config, tensors, name)
    return freeze(machine, base, tokenizer, adapter.lora, tensors, name)
