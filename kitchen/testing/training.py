"""The laws of training adapters: subclass `TrainingLaws`, define `client`, and run pytest."""

from __future__ import annotations

from kitchen.testing.catalog import CatalogLaws
from kitchen.testing.custom_loss import CustomLossLaws
from kitchen.testing.exporting import ExportLaws
from kitchen.testing.losses import LossLaws
from kitchen.testing.optimiser import OptimiserLaws
from kitchen.testing.order import OrderLaws
from kitchen.testing.refusals import RefusalLaws
from kitchen.testing.sampling import SamplingLaws
from kitchen.testing.state import CheckpointLaws, StateLaws
from kitchen.testing.stopping import StopLaws
from kitchen.testing.tokenizer import TokenizerLaws


class TrainingLaws(
    ExportLaws,
    OrderLaws,
    LossLaws,
    CustomLossLaws,
    OptimiserLaws,
    StateLaws,
    CheckpointLaws,
    SamplingLaws,
    StopLaws,
    RefusalLaws,
    TokenizerLaws,
    CatalogLaws,
):
    """All laws of training, from the tokenizer to exported weights.

    Those of ModelCatalog (`CatalogLaws`) and CheckpointStore (`CheckpointLaws`, `ExportLaws`) are
    skipped for an adapter that does not implement the port.
    """
