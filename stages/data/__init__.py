"""Training and held-out rows: loading, splits, mixtures, epochs and batches."""

from stages.data.dataset import Epoch, Epochs, HeldOut, LoadDataset, ShuffledBatches
from stages.data.mixture import (
    LoadMixture,
    MixtureBatches,
    RenderMixture,
    ReportSourceLosses,
    UnpackMixture,
)
from stages.data.splits import DataConfig
from stages.data.views import batches, rename, select, shuffle, skip, split, take

__all__ = [
    "DataConfig",
    "Epoch",
    "Epochs",
    "HeldOut",
    "LoadDataset",
    "LoadMixture",
    "MixtureBatches",
    "RenderMixture",
    "ReportSourceLosses",
    "ShuffledBatches",
    "UnpackMixture",
    "batches",
    "rename",
    "select",
    "shuffle",
    "skip",
    "split",
    "take",
]
