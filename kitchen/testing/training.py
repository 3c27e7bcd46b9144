"""The laws of every training client: subclass `TrainingLaws`, say in `client` how to make yours,
and run pytest.
"""

from __future__ import annotations

from kitchen.testing.custom_loss import CustomLossLaws
from kitchen.testing.exporting import ExportLaws
from kitchen.testing.losses import LossLaws
from kitchen.testing.optimiser import OptimiserLaws
from kitchen.testing.order import OrderLaws
from kitchen.testing.refusals import RefusalLaws
from kitchen.testing.sampling import SamplingLaws
from kitchen.testing.state import StateLaws
from kitchen.testing.stopping import StopLaws
from kitchen.testing.tokenizer import TokenizerLaws


class TrainingLaws(
    ExportLaws,
    OrderLaws,
    LossLaws,
    CustomLossLaws,
    OptimiserLaws,
    StateLaws,
    SamplingLaws,
    StopLaws,
    RefusalLaws,
    TokenizerLaws,
):
    """All that a training client must do, from the tokenizer to checkpoints and what others are
    given.
    """
